"""`SamplerCallback()`: each part of the annealed ensemble against NumPy, and what it refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_sgmcmc as sgmcmc
from tests.keras import small_models
from tests.keras.small_models import assert_close, assert_equal
from tfp_sgmcmc import random
from tfp_sgmcmc.keras.adaptation import annealed_ensemble
from tfp_sgmcmc.keras.adaptation.annealed_ensemble import (
    AnnealedEnsemble,
    choose_windows,
    left_out_pool,
)
from tfp_sgmcmc.keras.data import training_data
from tfp_sgmcmc.keras.model.log_prob import row_hashes

CHECKS_CURVATURE = True
N, B, C, EPOCHS = 40, 8, 5, 4
K = EPOCHS * N // B
RNG = np.random.default_rng(0)
X = RNG.normal(size=[N, 3]).astype(np.float32)
Y = RNG.integers(0, 4, size=[N])


class Batches(keras.utils.PyDataset):
    """Batches of 8 rows, moved by `noise` times a fresh number at each reading."""

    def __init__(self, noise=0.0):
        super().__init__()
        self.noise = noise

    def __len__(self):
        return N // B

    def __getitem__(self, index):
        rows = slice(B * index, B * index + B)
        return X[rows] + np.float32(self.noise * RNG.normal()), Y[rows]


def affine():
    """Returns a linear classifier, compiled without XLA, which would draw other normals."""
    return small_models.affine(jit_compile=False)


def run(x=X, y=Y, model=None, **arguments):
    sampler = sgmcmc.keras.SamplerCallback(**{"seed": 3, **arguments})
    model = affine() if model is None else model
    size = {"batch_size": B} if isinstance(x, np.ndarray) else {}
    model.fit(x, y, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[sampler], **size)
    return sampler


@pytest.fixture(scope="module")
def sampler():
    return run(collect=sgmcmc.keras.Collect(0, 0))


def test_units_are_checked_where_chains_start():
    """Not at the model's weights, which fit the targets here, and from which no chain starts."""
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    model.compile("sgd", sgmcmc.keras.losses.GaussianNLL(), jit_compile=False)
    model.set_weights([np.zeros([3, 2]), np.array([23.0, 7.0])])
    with pytest.warns(UserWarning, match="Before the first step a target has a loss.*Standardise"):
        run(y=23 + 7 * X[:, :1], model=model)


@pytest.mark.thorough
def test_the_weights_of_the_model_make_no_difference(sampler):
    """They may have been trained with the hidden rows."""
    trained = affine()
    trained.set_weights([w + 5 for w in trained.get_weights()])
    assert_equal(run(model=trained, collect=sgmcmc.keras.Collect(0, 0)).samples, sampler.samples)


def missed(sampler):
    """Returns which chains never see a row, `[C, N]`, from the hashes alone."""
    key = sampler._settings.ensemble._key
    hashes = row_hashes(X, key).numpy()
    pool = np.argsort(hashes)[: int(0.4 * N)]
    fold = {row: f for row, f in zip(pool, _folds(hashes[pool]), strict=True)}
    return np.array([[(c - fold[i]) % C < 2 if i in fold else False for i in range(N)]
                     for c in range(C)])  # fmt: skip


def _folds(hashes):
    words = (hashes + 1).astype(np.uint32)
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return ((words ^ (words >> np.uint32(16))) % C).astype(int)


def reference(starts, is_missed, seed, most_noise=4.0):
    """Returns the states after each step by the equations, in double precision, `[K, C, ...]`."""
    pool = X[is_missed.any(axis=0)].astype(np.float64)
    center = pool.mean(axis=0)
    fan_in, square = 3, np.mean((pool - center) ** 2)
    masses = [fan_in * square, 1.0]
    variances = [2 / masses[0], 1.0]
    theta = [x.astype(np.float64) for x in starts]
    theta[1] += center @ theta[0]  # outputs at the mean input, in the place of the biases
    v, mean, kept = [np.zeros_like(x) for x in theta], np.zeros(C), []
    squares = [np.zeros_like(x) for x in theta]
    num_seen = N - is_missed.sum(axis=1)
    for k in range(K):
        rows = np.arange(B * k, B * k + B) % N
        t = k / K
        relaxed, temperature = 100**t, 0.03 * (0.001 / 0.03) ** t
        fallen = 5e-4 + 4.5e-3 * (1 + np.cos(np.pi * (t - 0.8) / 0.2)) / 2
        cap = 7e-4 * (50 / 7) ** (t / 0.8) if t < 0.8 else fallen
        noise_seed = random.split(random.fold_in(tf.constant(seed, tf.int32), k), 2)[1]
        like = [tf.zeros(x.shape) for x in theta]
        z = [x.numpy().astype(np.float64) for x in random.normal_like(like, noise_seed)]
        for c in range(C):
            seen = rows[~is_missed[c, rows]]
            logits = (X[seen] - center) @ theta[0][c] + theta[1][c]
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(seen)), Y[seen]] -= 1
            g = [(X[seen] - center).T @ p / len(seen), p.mean(axis=0)]
            adapted = []
            for u, a, m, s in zip(squares, g, masses, variances, strict=True):
                u[c] = np.mean(a**2) if k == 0 else u[c]
                u[c] += 0.01 * (a**2 - u[c])
                adapted.append(np.sqrt(u[c] * m) + cap / (num_seen[c] * s * relaxed))
            q = sum(np.sum(a**2 / m) for a, m in zip(g, adapted, strict=True))
            mean[c] = q if k == 0 else mean[c]
            shrink = min(1.0, np.sqrt(most_noise * mean[c] / q))
            mean[c] += 0.05 * (min(q, most_noise * mean[c]) - mean[c])
            rate = min(cap, 0.2 / mean[c])
            for j, (m, s) in enumerate(zip(adapted, variances, strict=True)):
                force = shrink * g[j] + theta[j][c] / (s * relaxed * num_seen[c])
                spread = np.sqrt(0.2 * rate * temperature / (num_seen[c] * m))
                v[j][c] = 0.9 * v[j][c] - rate * force / m + spread * z[j][c]
                theta[j][c] = theta[j][c] + v[j][c]
        kept.append([theta[0].copy(), theta[1] - center @ theta[0]])
    return [np.stack(parts) for parts in zip(*kept, strict=True)]


def test_every_step_is_that_of_the_equations(sampler):
    starts = [np.asarray(s) for s in _starts()]
    is_missed = missed(sampler)
    want = reference(starts, is_missed, sampler.seed)
    assert sampler.samples[0].shape == (K, C, 3, 4)
    assert_close(sampler.samples, want, rtol=2e-3, atol=2e-4)
    wrong = reference(starts, is_missed[[1, 2, 3, 4, 0]], sampler.seed)
    assert np.abs(sampler.samples[0] - wrong[0]).max() > 0.05


def _starts():
    """Returns where the chains start: a run whose steps are too small to move."""
    sampler = sgmcmc.keras.SamplerCallback(
        small_models.sgld(1e-12, 1e-12), prior=None, seed=3,
        chains=sgmcmc.keras.Chains(C, initial_states="fresh"),
        collect=sgmcmc.keras.Collect(0, 0),
    )  # fmt: skip
    affine().fit(X[:B], Y[:B], batch_size=B, epochs=1, verbose=0, callbacks=[sampler])
    return [s[0] for s in sampler.samples]


def test_a_chain_is_the_same_whatever_its_unseen_rows_are(sampler):
    """Bit for bit; the other chains differ."""
    is_missed = missed(sampler)
    assert is_missed.sum(axis=0).max() == 2 and is_missed.any(axis=0).sum() == int(0.4 * N)
    other = np.where(is_missed[1], (Y + 1) % 4, Y)
    changed = run(y=other, collect=sgmcmc.keras.Collect(0, 0))
    for before, after in zip(sampler.samples, changed.samples, strict=True):
        assert_equal([before[:, 1]], [after[:, 1]])
        assert all(np.abs(before[-1, c] - after[-1, c]).max() > 0 for c in (0, 2, 3, 4))


@pytest.mark.thorough
def test_weights_of_examples_are_relative_to_their_mean(sampler):
    """Without a warning, too."""
    weights = np.full([N], 1e-3)
    weighted = affine()
    found = sgmcmc.keras.SamplerCallback(seed=3, collect=sgmcmc.keras.Collect(0, 0))
    weighted.fit(X, Y, B, EPOCHS, sample_weight=weights, shuffle=False, verbose=0,
                 callbacks=[found])  # fmt: skip
    assert_close(found.samples, sampler.samples, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("weights", [np.zeros(N), np.r_[np.ones(N - 1), -1.0]])
@pytest.mark.parametrize("is_array", [True, False])
def test_weights_that_are_negative_or_zero_are_refused(weights, is_array):
    """Only the pool sees all rows of data that are not arrays."""
    x, y, batch_size = X, Y, B
    if not is_array:
        x = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(B)
        y = weights = batch_size = None
    callbacks = [sgmcmc.keras.SamplerCallback()]
    with pytest.raises(ValueError, match="not negative and not all zero"):
        affine().fit(x, y, batch_size, sample_weight=weights, shuffle=False, callbacks=callbacks)


@pytest.mark.thorough
def test_pool_and_members_do_not_depend_on_the_kind_of_data(sampler):
    others = [
        run(Batches(), None, collect=sgmcmc.keras.Collect(0, 0)),
        run(tf.data.Dataset.from_tensor_slices((X, Y)).batch(B), None,
            collect=sgmcmc.keras.Collect(0, 0)),
    ]  # fmt: skip
    for other in others:
        assert_close(other.samples, sampler.samples, rtol=1e-4, atol=1e-5)
        assert other.result.windows.windows == sampler.result.windows.windows
        assert other.result.windows.num_rows == int(0.4 * N)


def test_rows_of_weight_zero_choose_nothing():
    """They are not in the pool, and windows are chosen by weighted means over rows."""
    weights = np.where(np.arange(N) % 2, 0.0, np.arange(N) + 1.0)
    data = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(B)
    pool = left_out_pool(training_data.source_of(data, None, B, None), N, C, key=1)
    places = [int(np.flatnonzero((x == X).all(axis=1))[0]) for x in pool.x]
    assert places and all(weights[i] > 0 for i in places)
    np.testing.assert_allclose(pool.weight, weights[places] / weights[places].mean())

    times, counts = np.arange(1, 21) / 20, np.array([1, 2, 3])
    values, fold = RNG.normal(size=[20, C, 3]), np.array([0, 2, 3])
    repeated = np.repeat(np.arange(3), counts)
    found = choose_windows(values, times, fold, counts / counts.mean()).loss
    expected = choose_windows(values[:, :, repeated], times, fold[repeated]).loss
    assert found == pytest.approx(expected)
    assert choose_windows(values, times, fold).loss != pytest.approx(expected)


def test_rows_of_weight_zero_are_absent(sampler):
    """In the pool, in N, in the mean weight and in the size of a batch."""
    places = np.arange(N * 2) // 2
    data = X[places] + np.float32(np.arange(N * 2) % 2)[:, None], Y[places]
    found = sgmcmc.keras.SamplerCallback(seed=3, collect=sgmcmc.keras.Collect(0, 0))
    weights = np.where(np.arange(N * 2) % 2, 0.0, 1e-3)  # of which the mean weight is 1
    affine().fit(*data, 2 * B, EPOCHS, sample_weight=weights, shuffle=False, verbose=0,
                 callbacks=[found])  # fmt: skip
    assert_close(found.samples, sampler.samples, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("size", [40, 2000])
def test_the_pool_has_the_smallest_hashes(size):
    """Whatever the sizes of the batches are."""
    x = RNG.normal(size=[2000, 2]).astype(np.float32)
    y, weights = np.arange(2000), np.where(np.arange(2000) % 3, 1.0, 0.0)
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(size)
    pool = left_out_pool(training_data.source_of(data, None, B, None), 2000, C, key=1)
    hashes = np.where(weights > 0, row_hashes(x, 1), 2**32)
    np.testing.assert_array_equal(pool.y, np.argsort(hashes, kind="stable")[:400])
    assert pool.rows.bound == np.sort(hashes)[400]
    np.testing.assert_array_equal(pool.x, x[pool.y])


def test_weights_of_classes_reach_the_pool_of_independent_batches():
    data = sgmcmc.keras.IndependentBatches(X, Y, batch_size=B, seed=0)
    found, by_class = sgmcmc.keras.SamplerCallback(seed=3), {0: 1.0, 1: 5.0, 2: 0.5, 3: 1.0}
    affine().fit(data, class_weight=by_class, verbose=0, callbacks=[found])
    pool = found._settings.ensemble._pool
    weights = np.array([by_class[c] for c in pool.y.tolist()])
    np.testing.assert_allclose(pool.weight, weights / weights.mean(), rtol=1e-6)


def test_weights_of_several_outputs_have_one_mean():
    weights = {"a": np.full([N], 2.0), "b": np.tile([1.0, 7.0], [N, 1])}
    data = tf.data.Dataset.from_tensor_slices((X, {"a": Y, "b": Y}, weights)).batch(B)
    pool = left_out_pool(training_data.source_of(data, None, B, None), N, C, key=1)
    assert pool.rows.mean_weight == 3.0 and (pool.weight == 1.0).all()


def test_batches_of_different_length_have_a_pool():
    """Rows are completed by zeros, but targets cannot be."""
    rows = [RNG.integers(1, 9, size=[B, n]) for n in (3, 5, 4, 5, 2)]
    targets = [np.zeros([B]), *4 * [np.ones([B])]]

    def source(y):
        specs = tuple(tf.TensorSpec([None, *n * [None]], tf.int64) for n in (1, y[0].ndim - 1))
        make = lambda: zip(rows, y, strict=True)  # noqa: E731
        data = tf.data.Dataset.from_generator(make, output_signature=specs)
        return training_data.source_of(data, None, B, None)

    pool = left_out_pool(source(targets), N, C, key=1)
    whole = np.concatenate([np.pad(x, [(0, 0), (0, 5 - x.shape[1])]) for x in rows])
    assert pool.x.shape == (16, 5) and all((whole == x).all(axis=1).any() for x in pool.x)
    assert left_out_pool(source(rows), N, C, key=1) is None


def test_rows_without_an_identity_have_no_pool():
    with pytest.warns(UserWarning, match="cannot hide rows.*The last fifth"):
        sampler = run(Batches(noise=0.1), None)
    found = sampler.result.windows
    assert found.windows == ((0.8, 1.0),) and not found.loss
    assert len(sampler.posterior) == found.is_chosen.sum() == K // 5


def test_arrays_of_equal_rows_have_no_pool():
    source = training_data.source_of(np.ones_like(X), Y, B, None)
    ensemble = AnnealedEnsemble(0)
    with pytest.warns(UserWarning, match="Received: 40 examples with too few different inputs"):
        ensemble.settle(source, N, C, K)
    assert ensemble.rows_of_chains is None


def test_early_stopping_is_refused():
    stop = keras.callbacks.EarlyStopping("loss")
    with pytest.raises(ValueError, match="EarlyStopping must be left out.*cools along all epochs"):
        affine().fit(X, Y, verbose=0, callbacks=[sgmcmc.keras.SamplerCallback(), stop])


@pytest.mark.thorough
def test_rare_words_are_learnt():
    """Each of 60 words decides the class of five rows, whose other words are common.

    Negative control: the pace of other models, which the same layer gets if it is not of Keras'
    kind.
    """
    L, rare = keras.layers, np.repeat(np.arange(60), 5)
    generator = np.random.default_rng(0)
    x = np.stack([rare, *generator.integers(60, 90, [3, 300])], axis=1)
    y = generator.integers(0, 2, 60)[rare]

    class Words(L.Layer):
        """An embedding that is not known as one."""

        def build(self, shape):
            self.rows = self.add_weight(shape=[90, 4], initializer="uniform", name="embeddings")

        def call(self, x):
            return tf.gather(self.rows, tf.cast(x, tf.int32))

    losses = []
    for words in (L.Embedding(90, 4), Words()):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([4]), words, L.Flatten(), L.Dense(2)])
        model.compile(loss=small_models.CROSSENTROPY, jit_compile=False)
        sampler = sgmcmc.keras.SamplerCallback(seed=3)
        model.fit(x, y, epochs=20, batch_size=30, verbose=0, callbacks=[sampler])
        losses.append(-sampler.posterior.evaluate(x, y, verbose=0).log_predictive_density)
    assert losses[0] < 0.35 and losses[1] > 0.5, losses  # chance: log 2 = 0.69


@pytest.mark.parametrize(
    ("layer", "first_step", "first_temperature", "of_biases"),
    [
        (keras.layers.Dense(2), 7e-4, 0.03, 1),
        (keras.layers.LSTM(2), 3e-3, 0.3, 1),
        (keras.layers.Embedding(3, 2), 1e-3, 0.003, 100),
        (keras.layers.Embedding(3, 2, trainable=False), 7e-4, 0.03, 1),
        (keras.layers.MultiHeadAttention(1, 2), 3e-3, 0.003, 1),
    ],
)
def test_steps_temperatures_and_prior_suit_the_layers(
    layer, first_step, first_temperature, of_biases
):
    inputs = keras.Input([4] if isinstance(layer, keras.layers.Embedding) else [4, 2])
    both = (inputs, inputs) if isinstance(layer, keras.layers.MultiHeadAttention) else (inputs,)
    model = keras.Model(inputs, keras.layers.Dense(2)(layer(*both)))
    ensemble = AnnealedEnsemble(0)
    ensemble.num_steps, ensemble._batch = 10, (np.zeros([3, *inputs.shape[1:]], np.float32),)
    ensemble.begin_chain(model)
    settings = ensemble._kernel
    found = float(settings["step_size"](0)), float(settings["temperature"](0))
    assert found == pytest.approx((first_step, first_temperature))
    assert settings["prior_variance"][-1] == of_biases


def test_chains_start_as_if_inputs_in_raw_units_were_standardised():
    """The first layer gives the outputs of standardised inputs. Control: inputs of about 1."""
    units, mean = np.float32([1e4, 30.0, 3.0]), np.float32([3e4, 2e3, 5.0])
    raw = X * units + mean
    draws = [RNG.normal(size=[C, *shape]).astype(np.float32) for shape in ([3, 4], [4])]

    def starts(x):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
        ensemble = AnnealedEnsemble(0)
        ensemble.num_steps, ensemble._batch = 10, (x,)
        ensemble.begin_chain(model)
        return ensemble.scale_starts([tf.constant(v) for v in draws])

    kernel, bias = starts(raw)
    standardised = (raw - raw.mean(axis=0)) / raw.std(axis=0)
    want = standardised @ draws[0] + draws[1][:, np.newaxis]
    np.testing.assert_allclose(raw @ kernel + bias[:, tf.newaxis], want, atol=0.02)
    for part, draw in zip(starts(X), draws, strict=True):
        assert_equal(part, draw)
    kernel, _ = starts(30 * X)  # columns alike
    np.testing.assert_allclose(kernel * 30 * X.std(axis=0).mean(), draws[0], rtol=0.1)
    draws = [draw.astype(np.float64) for draw in draws]
    assert [part.dtype for part in starts(raw)] == [tf.float64] * 2


def test_data_of_unknown_length_are_refused():
    with pytest.raises(ValueError, match="needs to know how many steps"):
        run(((X, Y) for _ in range(2)), None, num_examples=N)


def test_a_fit_without_steps_is_refused():
    with pytest.raises(ValueError, match="at least one step in fit. Received: no epochs"):
        affine().fit(X, Y, epochs=0, callbacks=[sgmcmc.keras.SamplerCallback()], verbose=0)


def test_members_predict_by_their_mean(sampler):
    chosen = sampler.result.windows.is_chosen
    kernels, biases = (np.asarray(s)[chosen] for s in sampler.samples)
    logits = np.einsum("ni,scij->scnj", X, kernels) + biases[:, :, np.newaxis]
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    assert_close([sampler.predict(X, verbose=0).mean], [p.mean(axis=(0, 1))], rtol=1e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")
def test_members_are_served_as_one_model(sampler, tmp_path):
    served = sampler.posterior.to_keras_model(batched=True)
    served.save(tmp_path / "served.keras")
    found = keras.models.load_model(tmp_path / "served.keras")(X)
    assert_close([found["mean"]], [sampler.predict(X, verbose=0).mean], rtol=1e-5)


def test_one_network_is_distilled_from_members(sampler):
    """The labels are noise, so a network that keeps its start would lose."""
    found = sampler.posterior.distil(X, (X, Y), epochs=3, batch_size=N, seed=(-1, 2))
    want, got = found.ensemble.log_predictive_density, found.network.log_predictive_density
    assert found.nats_lost == want - got < 0.2
    assert found.model.count_params() == affine().count_params()


def test_an_ensemble_is_not_reported_as_draws(sampler, tmp_path):
    posterior = sampler.posterior
    assert sampler.is_annealed and posterior.is_tempered and posterior.temperature is None
    assert "An annealed ensemble" in str(posterior) and "summary()" not in str(posterior)
    for report in (posterior.summary, posterior.plot, posterior.to_inference_data):
        with pytest.raises(ValueError, match="draws of one law.*annealed ensemble"):
            report()
    posterior.save(tmp_path / "members.npz")
    model = posterior.model
    assert sgmcmc.keras.Posterior.load(tmp_path / "members.npz", model).temperature is None
    plain = posterior.with_samples(posterior.samples)
    assert plain.is_tempered


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.thorough), 0.1])
def test_a_kernel_gives_draws_at_its_temperature(temperature):
    sampler = sgmcmc.keras.SamplerCallback(
        small_models.sgld(1e-3, temperature), prior=None, seed=0, collect=sgmcmc.keras.Collect(0, 0)
    )
    affine().fit(X, Y, batch_size=B, epochs=1, verbose=0, callbacks=[sampler])
    assert sampler.posterior.temperature == pytest.approx(temperature)
    assert sampler.posterior.is_tempered == (temperature != 1) and not sampler.is_annealed
    assert sampler.result.windows is None
    sampler.posterior.summary()


@pytest.mark.thorough
def test_a_run_that_was_stopped_goes_on_bit_for_bit(sampler, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(*callbacks):
        place = sgmcmc.Directory(tmp_path / "run", seconds_between_commits=0.0)
        resumed = sgmcmc.keras.SamplerCallback(
            seed=3, collect=sgmcmc.keras.Collect(0, 0), output=place
        )
        affine().fit(X, Y, epochs=EPOCHS, batch_size=B, shuffle=False, verbose=0,
                     callbacks=[resumed, *callbacks])  # fmt: skip
        return resumed

    with pytest.raises(KeyboardInterrupt):
        fit(Stop())
    resumed = fit()
    assert_equal([np.asarray(s[:]) for s in resumed.samples], sampler.samples)
    assert resumed.result.windows.windows == sampler.result.windows.windows


def test_the_plan_states_the_memory_of_all_states():
    plan = sgmcmc.keras.SamplerCallback().plan(affine(), X, Y, epochs=160, batch_size=B)
    assert (plan.num_samples, plan.bytes_of_sample) == (80, 5 * 16 * 4)  # 12 weights and 4 biases
    assert plan.memory == 80 * 5 * 16 * 4


@pytest.mark.thorough
def test_traces_have_no_rhat(tmp_path):
    pytest.importorskip("tensorboard")
    sampler = sgmcmc.keras.SamplerCallback(seed=3)
    traces = sgmcmc.keras.Traces(sampler, tmp_path)
    found = affine().fit(X, Y, epochs=2, batch_size=B, verbose=0, callbacks=[sampler, traces])
    assert "rhat" not in found.history and "samples" in found.history


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prior": small_models.standard_normal()}, ValueError, "prior must be left out"),
        ({"step_size": 0.1}, ValueError, "step_size must be left out"),
        ({"chains": 2}, ValueError, "chains must be an integer|chains"),
        ({"kernel": "SGLD", "step_size": 0.1}, TypeError, "needs a prior"),
        (
            {
                "kernel": "posterior",
                "prior": None,
                "collect": sgmcmc.keras.Collect(num_burnin_epochs=3),
            },
            ValueError,
            "num_burnin_epochs",
        ),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        sgmcmc.keras.SamplerCallback(**arguments)


@pytest.mark.thorough
def test_a_regression_with_a_scale_learns_mean_and_scale():
    """A line with noise of 0.1: a network that predicts the marginal law has an NLL of 0.95."""
    x = np.linspace(-1, 1, 200, dtype=np.float32)[:, np.newaxis]
    y = x + np.float32(0.1) * RNG.normal(size=x.shape).astype(np.float32)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(8, "relu"),
                              keras.layers.Dense(2)])  # fmt: skip
    model.compile("adam", sgmcmc.keras.losses.GaussianNLL(), jit_compile=False)
    sampler = sgmcmc.keras.SamplerCallback(seed=0)
    model.fit(x[::2], y[::2], epochs=100, batch_size=25, verbose=0, callbacks=[sampler])
    found = sampler.posterior.evaluate(x[1::2], y[1::2], verbose=0)
    assert found.log_predictive_density > 0.5  # log density of the truth: 0.88
    assert found.root_mean_squared_error < 0.2


def test_regularisers_count_alike_whatever_the_unit_of_weights():
    """Weights are divided by their mean, and regularisers belong to rows."""
    found = []
    for weight in (1.0, 1e-2):
        dense = keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.5))
        model = small_models.sequential(dense, jit_compile=False)
        sampler = sgmcmc.keras.SamplerCallback(seed=3)
        model.fit(X, Y, B, 1, sample_weight=np.full([N], weight), shuffle=False, verbose=0,
                  callbacks=[sampler])  # fmt: skip
        found.append(sampler.samples)
    assert_close(*found, rtol=2e-3, atol=2e-4)


def test_an_output_without_a_loss_has_no_targets_in_the_pool():
    inputs = keras.Input([3])
    logits = keras.layers.Dense(4)(inputs)
    model = keras.Model(inputs, [logits, keras.layers.Softmax()(logits)])
    model.compile(loss=[small_models.CROSSENTROPY, None], jit_compile=False)
    sampler = sgmcmc.keras.SamplerCallback(seed=3)
    model.fit(X, [Y, None], B, EPOCHS, verbose=0, callbacks=[sampler])
    assert len(sampler.result.posterior) >= 1


def test_weights_of_rows_are_the_means_of_those_that_count():
    """Steps of padding and outputs of weight 0 make a row's other labels no stronger."""
    steps = np.array([[1.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    y = np.zeros([3, 3])
    assert list(annealed_ensemble._row_weights(y, steps, 3)) == [1.0, 2.0, 0.0]
    assert list(annealed_ensemble._row_weights([y, y], [None, steps], 3)) == [1.0, 1.5, 1.0]
    assert list(annealed_ensemble._row_weights(y, None, 3)) == [1.0, 1.0, 1.0]
