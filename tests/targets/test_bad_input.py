"""Wrong data, functions and options of targets raise clear errors before the first step."""

import contextlib
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc

tfb = tfp.bijectors

X = np.linspace(-1.0, 1.0, 20, dtype=np.float32)


def log_prior(theta: tf.Tensor) -> tf.Tensor:
    return -0.5 * theta**2


def log_likelihood(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    return -0.5 * (batch - theta[..., tf.newaxis]) ** 2


def target(**options: Any) -> sgmcmc.MinibatchLogProb:
    arguments = dict(log_prior_fn=log_prior, log_likelihood_fn=log_likelihood, data=X, batch_size=5)
    return sgmcmc.MinibatchLogProb(**{**arguments, **options})


def with_nan(at: int, value: float = np.nan) -> np.ndarray:
    data = np.ones([20, 2], np.float32)
    data[at, 1] = value
    return data


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        # data
        (
            dict(data={"x": np.ones([20, 2]), "y": np.ones([19])}),
            ValueError,
            r"leading axes .* must be equal. Received: shapes \[\(20, 2\), \(19,\)\]",
        ),
        (dict(data=np.ones([0, 3])), ValueError, r"data must not be empty. .* \[\(0, 3\)\]"),
        (dict(data={}), ValueError, r"leading axes of N examples, .* Received: shapes \[\]"),
        (dict(data=np.float32(1.0)), ValueError, r"leading axes of N .* Received: shapes \[\(\)\]"),
        (dict(data=with_nan(7)), ValueError, "NaN or infinite entry, first in example 7"),
        (dict(data=with_nan(19, np.inf)), ValueError, "NaN or infinite entry, first in example 19"),
        (dict(data=np.array(["a"] * 20)), TypeError, "hold numbers. .* dtype string. Encode them"),
        (dict(data=np.ones(20, complex)), TypeError, "must hold numbers. .* dtype complex128"),
        (
            dict(data=tf.data.Dataset.from_tensor_slices(X)),
            TypeError,
            r"must hold arrays. Received: a tf.data.Dataset. StreamedLogProb\(",
        ),
        (
            dict(data={"x": X, "y": tf.data.Dataset.range(20)}),
            TypeError,
            r"data\['y'\] must hold arrays. Received: a tf.data.Dataset",
        ),
        (dict(data=[[1.0, 2.0], [3.0]]), ValueError, "make one array of it by np.array"),
        (dict(data=[*range(1000)]), ValueError, r"\(\)\] \.\.\.\. A list or tuple holds"),
        (dict(data={"x": X, "y": np.array([None, {}] * 10)}), TypeError, r"data\['y'\] must hold"),
        (dict(data=tf.ragged.constant([[1.0], [1.0, 2.0]])), TypeError, "data must hold arrays"),
        (dict(data=tf.sparse.from_dense([1.0])), TypeError, "must hold dense arrays.*SparseTensor"),
        (dict(data={"x": np.ma.masked_equal(X, X[3])}), TypeError, r"data\['x'\].* masked arrays"),
        (dict(data={0: X, "x": X}), TypeError, "data must have names that can be sorted"),
        (dict(data=None), TypeError, "data must hold arrays. Received: a NoneType"),
        (dict(data=object()), TypeError, "data must hold arrays. Received: an object"),
        (dict(num_examples=21), ValueError, "num_examples must be 20, .* Received: 21"),
        # sizes
        (dict(batch_size=0), ValueError, "batch_size must be in 1 .. N = 20.* Received: 0"),
        (dict(batch_size=-3), ValueError, "batch_size must be in 1 .. N = 20.* Received: -3"),
        (dict(batch_size=21), ValueError, "batch_size must be in 1 .. N = 20.* Received: 21"),
        (dict(batch_size=5.0), TypeError, "must be an integer in 1 .. N = 20. Received: 5.0"),
        (dict(batch_size=True), TypeError, "batch_size must be an integer.* Received: True"),
        (dict(chunk_size=0), ValueError, "chunk_size must be in 1 .. N = 20.* Received: 0"),
        (dict(chunk_size=21), ValueError, "chunk_size must be in 1 .. N = 20.* Received: 21"),
        # functions
        (dict(log_prior_fn=0.0), TypeError, "log_prior_fn must be a callable. Received: a float"),
        (dict(log_likelihood_fn=None), TypeError, "log_likelihood_fn must be .* a NoneType"),
        # options
        (dict(reshuffle="never"), ValueError, "reshuffle must be one of .*symmetric.* 'never'"),
        (dict(reshuffle="epoch", replacement=True), ValueError, "replacement must be False"),
        (dict(shuffle=True), TypeError, "unexpected keyword argument 'shuffle'"),
        (dict(bijector="exp"), TypeError, "must hold tfp.bijectors.Bijector or None. .* 'exp'"),
        (dict(bijector=[None, tfb.Exp]), TypeError, "Received: <class"),
        (dict(dtype=tf.int32), TypeError, "dtype must be floating, or None. Received: .*int32"),
        (dict(dtype="float23"), TypeError, "dtype must be floating, or None. Received: 'float23'"),
        (dict(replacement="x"), TypeError, "replacement must be True or False. Received: 'x'"),
        (dict(shared_batch=1), TypeError, "shared_batch must be True or False. Received: 1"),
        (dict(num_groups=2.0), TypeError, "num_groups must be an integer. Received: 2.0"),
        (dict(num_examples="20"), TypeError, "num_examples must be an integer. Received: '20'"),
    ],
)
def test_construction(options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        target(**options)


def test_the_example_named_is_the_one_with_nan_in_large_data() -> None:
    """Large data are checked in slices."""
    data = np.ones([3000, 5000], np.float32)
    data[2500, 4] = np.nan
    with pytest.raises(ValueError, match="first in example 2500"):
        target(data=data)


SHAPE = r"log_likelihood_fn must return shape {1}, .* of each example, .* Received: shape {0}"
STATES = {"one chain": tf.constant(0.5), "three chains": tf.constant([0.5, 1.0, -1.0])}


@pytest.mark.parametrize(
    ("log_likelihood_fn", "state", "shapes"),
    [
        (lambda t, x: tf.reduce_sum(log_likelihood(t, x)), "one chain", (r"\(\)", r"\(5,\)")),
        (
            lambda t, x: tf.reduce_mean(log_likelihood(t, x), axis=-1),
            "three chains",
            (r"\(3,\)", r"\(3, 5\)"),
        ),
        (lambda t, x: log_likelihood(t, x)[..., 1:], "one chain", (r"\(4,\)", r"\(5,\)")),
        (
            lambda t, x: log_likelihood(t, x)[..., tf.newaxis],
            "three chains",
            (r"\(3, 5, 1\)", r"\(3, 5\)"),
        ),
        (lambda t, x: -0.5 * (x - t[0]) ** 2, "three chains", (r"\(5,\)", r"\(3, 5\)")),
    ],
    ids=["sum", "mean", "length", "event dimension", "chain dimension"],
)
def test_log_likelihoods_of_wrong_shape(
    log_likelihood_fn: Any, state: str, shapes: tuple[str, str]
) -> None:
    bad = target(log_likelihood_fn=log_likelihood_fn)
    kernel = sgmcmc.SGLD(bad, 0.1)
    with pytest.raises(ValueError, match=SHAPE.format(*shapes)):
        kernel.bootstrap_results(STATES[state])
    with pytest.raises(ValueError, match="not their sum or mean"):
        bad(STATES[state])


def test_a_column_for_a_vector_is_named() -> None:
    bad = target(
        log_likelihood_fn=lambda t, x: -0.5 * (x["y"] - t[..., None] * x["x"]) ** 2,
        data={"x": X, "y": X[:, None]},
    )
    with pytest.raises(ValueError, match=r"data\['y'\] has shape \[N, 1\]; np.ravel makes it"):
        bad(tf.constant(0.0))


def test_a_data_frame_for_a_matrix_is_named() -> None:
    bad = target(
        log_likelihood_fn=lambda t, x: tf.reduce_sum(x["x"] * t[..., None, None], axis=-1),
        data={"x": {"a": X, "b": X}},
    )
    with pytest.raises(TypeError, match=r"log_likelihood_fn .* frame.to_numpy\('float32'\)"):
        bad(tf.constant(0.0))


def test_a_prior_that_is_not_summed_is_named() -> None:
    bad = target(log_likelihood_fn=lambda t, x: x * tf.reduce_sum(t, -1)[..., None])
    with pytest.raises(ValueError, match=r"shape \(3,\). If these .* sum the log prior over them"):
        sgmcmc.sample(bad, tf.zeros([3]), 100)


def test_log_priors_with_event_dimensions() -> None:
    """A prior of shape [3, 2] looks like chains; the message says that the prior is the cause."""
    bad = target(
        log_prior_fn=lambda t: -(t**2),
        log_likelihood_fn=lambda t, x: tf.reduce_sum(t, axis=-1)[..., tf.newaxis] * x,
    )
    message = r"The chain dimensions \(3, 2\) are the shape that log_prior_fn returned"
    with pytest.raises(ValueError, match=message):
        sgmcmc.SGLD(bad, 0.1).bootstrap_results(tf.zeros([3, 2]))
    more = target(log_prior_fn=lambda t: -(t[..., tf.newaxis] ** 2))
    with pytest.raises(ValueError, match=r"Received: shape \(3, 1\) for .* \(3,\)"):
        sgmcmc.SGLD(more, 0.1).bootstrap_results(tf.zeros([3]))


@pytest.mark.parametrize("name", ["log_prior_fn", "log_likelihood_fn"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "Received: None"),
        (lambda _: object(), "Received: <object"),
        (lambda _: "x", "float32. Received: string"),
        (lambda x: tf.cast(x, tf.int32), "float32. Received: int32"),
        (lambda x: tf.cast(x, tf.float64), "float32. Received: float64"),
    ],
    ids=["nothing", "an object", "text", "integers", "another dtype than the state"],
)
def test_results_of_functions(name: str, change: Any, message: str) -> None:
    right = {"log_prior_fn": log_prior, "log_likelihood_fn": log_likelihood}[name]
    bad = target(**{name: lambda *arguments: change(right(*arguments))})
    with pytest.raises(TypeError, match=f"{name} must return .* {message}"):
        sgmcmc.SGLD(bad, 0.1).bootstrap_results(tf.constant(0.5))


@pytest.mark.parametrize(
    ("data", "state", "advice"),
    [
        (
            X.astype(np.float64),
            tf.constant(0.5),
            "state of dtype float32 and data of dtype float64: pass dtype='float32' to the target",
        ),
        (X, tf.constant(0.5, tf.float64), "float64 and data of dtype float32.*dtype='float64'"),
        (np.arange(20), tf.constant(0.5), r"data of dtype int64: cast it .*tf.cast\(batch, 'float"),
    ],
)
def test_data_and_state_of_different_dtypes(data: Any, state: tf.Tensor, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        sgmcmc.SGLD(target(data=data), 0.1).bootstrap_results(state)
    with pytest.raises(TypeError, match=advice):
        target(data=data)(state)
    if data.dtype.kind == "f":
        cast = target(data=data, dtype=state.dtype)
        assert cast(state).dtype == state.dtype


def test_a_prior_of_another_dtype_than_the_state() -> None:
    double = target(log_prior_fn=tfp.distributions.Normal(np.float64(0), np.float64(1)).log_prob)
    message = "log_prior_fn failed for a state of dtype float32: it holds numbers of dtype float64"
    for use in double, lambda state: sgmcmc.find_center(double, state):
        with pytest.raises(TypeError, match=message):
            use(tf.constant(0.5))


def test_integer_data_are_not_blamed_for_other_errors() -> None:
    """Groups are picked by integers, which stay integers. The effects are of too few groups."""
    seen = []

    def log_likelihood(theta: tf.Tensor, batch: Any) -> tf.Tensor:
        seen.append(batch["group"].dtype)
        picked = tf.linalg.matvec(tf.one_hot(batch["group"], 4), theta)
        return -((batch["y"] - picked) ** 2)

    data = {"y": X, "group": np.arange(20) % 4}
    grouped = sgmcmc.MinibatchLogProb(
        lambda theta: -tf.reduce_sum(theta**2, axis=-1), log_likelihood, data
    )
    assert grouped(tf.zeros([4])).shape == [] and seen == [tf.int64]
    with pytest.raises(ValueError, match=r"failed for a state of shapes \(3,\) and examples"):
        grouped(tf.zeros([3]))


def test_numbers_of_the_wrong_precision_are_named_before_integers() -> None:
    data = {"event": np.arange(20) % 2, "x": np.ones([20, 3])}
    model = sgmcmc.MinibatchLogProb(
        lambda theta: -tf.reduce_sum(theta**2, axis=-1),
        lambda theta, batch: tf.linalg.matvec(batch["x"], theta),
        data,
    )
    with pytest.raises(TypeError, match=r"data\['x'\] of dtype float64: pass dtype='float32'"):
        model(tf.zeros([3]))


def test_errors_of_the_users_function_are_passed_on() -> None:
    def broken(theta: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        raise ValueError("my own words")

    with pytest.raises(ValueError, match="^my own words$"):
        target(log_likelihood_fn=broken)(tf.constant(0.5))


UNUSED = dict(log_prior_fn=lambda a, b: log_prior(a), log_likelihood_fn=lambda a, b, x: x * a)


@pytest.mark.parametrize(
    "unused",
    [
        target(**UNUSED),
        target(**UNUSED, reshuffle="epoch"),
        sgmcmc.GrowingBatch(target(**UNUSED)),
        sgmcmc.FullDataLogProb(lambda a, b: log_prior(a)),
    ],
    ids=["step", "epoch", "growing", "full data"],
)
def test_parts_that_the_log_posterior_does_not_depend_on(unused: Any) -> None:
    state = [tf.constant(0.5), tf.constant(0.1)]
    message = r"must depend on every part .* with respect to state\[1\] is None"
    with pytest.raises(ValueError, match=message):
        sgmcmc.SGLD(unused, 0.1).bootstrap_results(state)
    with pytest.raises(ValueError, match=message):
        sgmcmc.CorrectedLangevin(lambda a, b: log_prior(a), 0.1).bootstrap_results(state)


def test_a_part_that_only_the_prior_depends_on_is_right() -> None:
    both = target(
        log_prior_fn=lambda a, b: log_prior(a) + log_prior(b),
        log_likelihood_fn=lambda a, b, x: log_likelihood(a, x),
        chunk_size=6,
    )
    state = [tf.constant(0.5), tf.constant(0.25)]
    _, gradient = tfp.math.value_and_gradient(both, state)
    np.testing.assert_allclose(gradient[1], -0.25)
    estimate = both.estimate(state, tf.constant([0, 1]), both.bootstrap(state))
    np.testing.assert_allclose(estimate.gradient[1], -0.25)


@pytest.mark.parametrize("bijector", [[None, None], {"a": None, "b": tfb.Exp()}, [[tfb.Exp()]]])
def test_bijectors_of_another_structure_than_the_state(bijector: Any) -> None:
    bad = target(bijector=bijector)
    for state in (tf.constant(0.5), [tf.constant(0.5)]):
        with pytest.raises(ValueError, match="bijector must have the structure of the state"):
            bad.constrain(state)


def control_variate(of: Any) -> Any:
    return sgmcmc.ControlVariate(of, tf.constant(0.5))


def center(of: Any) -> Any:
    return sgmcmc.find_center(of, np.zeros(3))


FULL_DATA = sgmcmc.FullDataLogProb(log_prior)


@pytest.mark.parametrize(
    ("wrap", "given", "message"),
    [
        (control_variate, control_variate(target()), "MinibatchLogProb that is not wrapped"),
        (control_variate, sgmcmc.SVRG(target()), "MinibatchLogProb that is not wrapped"),
        (control_variate, sgmcmc.GrowingBatch(target()), "MinibatchLogProb that is not wrapped"),
        (control_variate, log_prior, "target must be a MinibatchLogProb .* a function"),
        (sgmcmc.SVRG, sgmcmc.SVRG(target()), "that is not wrapped. Received: a SVRG"),
        (sgmcmc.SVRG, FULL_DATA, "must be a MinibatchLogProb .* a FullDataLogProb"),
        (sgmcmc.GrowingBatch, FULL_DATA, "must be a MinibatchLogProb .* a FullDataLogProb"),
        (center, log_prior, "target must be a MinibatchLogProb .* a function"),
    ],
)
def test_targets_that_are_not_minibatches(wrap: Any, given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        wrap(given)


@pytest.mark.parametrize("given", ["a name", 3.0, None])
def test_targets_that_are_not_callable(given: Any) -> None:
    for kernel in (sgmcmc.SGLD, sgmcmc.CorrectedLangevin):
        with pytest.raises(TypeError, match=f"_log_prob_fn must be .* a {type(given).__name__}"):
            kernel(given, 0.1)


def test_states_of_another_size_than_the_data_allow() -> None:
    """TensorFlow's error in eager mode does not mention states, so ours adds their shapes."""
    flat = target(
        data=np.ones([20, 2], np.float32),
        log_prior_fn=lambda t: -tf.reduce_sum(t**2, axis=-1),
        log_likelihood_fn=lambda t, x: tf.reduce_sum(x - t[..., tf.newaxis, :], axis=-1),
    )
    message = r"log_likelihood_fn failed for a state of shapes \(3,\) and examples of \(5, 2\)\."
    raised = rf"{message} It raised: .*Incompatible shapes.* as in theta\[..., None\]"
    with pytest.raises(ValueError, match=raised) as caught:
        sgmcmc.SGLD(flat, 0.1).bootstrap_results(tf.zeros([3]))
    assert not re.search(r"function_node|\[Op:", str(caught.value))
    in_graph = r"shapes \(3,\) and examples of \(20, 2\)\. It raised: Dimensions must be equal"
    with pytest.raises(ValueError, match=in_graph):
        sgmcmc.ControlVariate(flat, tf.zeros([3]))
    prior = target(log_prior_fn=lambda t: tf.linalg.matvec(tf.eye(2), t)[..., 0])
    with pytest.raises(ValueError, match=r"log_prior_fn failed for a state of shapes \(3,\)\. It"):
        sgmcmc.SGLD(prior, 0.1).bootstrap_results(tf.zeros([3]))


def test_keras_models_are_no_log_densities() -> None:
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    full, part = sgmcmc.FullDataLogProb(model), target(log_likelihood_fn=model)
    for call in (lambda: sgmcmc.sample(model, 0.0), lambda: full(0.0), lambda: part(0.0)):
        with pytest.raises(TypeError, match="Received: the Keras model .* a tfp_sgmcmc.keras.Samp"):
            call()


def test_results_that_are_tuples_and_priors_of_one_part_are_named() -> None:
    both = target(log_likelihood_fn=lambda theta, batch: (log_likelihood(theta, batch), 1.0))
    with pytest.raises(TypeError, match="log_likelihood_fn must return log probabilities. Recei"):
        both(0.0)
    normal = target(log_prior_fn=tfp.distributions.Normal(0.0, 1.0).log_prob)
    with pytest.raises(TypeError, match="take the 2 parts of the state. Received: a dist"):
        sgmcmc.SGLD(normal, 0.1).bootstrap_results([0.0, 0.0])


def half_right(loc: tf.Tensor, log_scale: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """A model whose location lacks [..., None], and so takes an example for each chain."""
    return -0.5 * ((x - loc) * tf.exp(-log_scale[..., None])) ** 2 - log_scale[..., None]


@pytest.mark.parametrize("shared_batch", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_missing_axis_with_as_many_chains_as_examples(shared_batch: bool, compiled: bool) -> None:
    """Every shape is right, and every chain but one sees wrong examples."""
    bad, right = (
        target(
            log_prior_fn=lambda loc, log_scale: log_prior(loc) + log_prior(log_scale),
            log_likelihood_fn=fn,
            shared_batch=shared_batch,
        )
        for fn in (half_right, lambda loc, s, x: half_right(loc[..., None], s, x))
    )
    state = [tf.linspace(-1.0, 1.0, 5), tf.zeros([5])]
    assert half_right(*state, tf.zeros([5])).shape == (5, 5)

    def sample(chosen: Any) -> Any:
        return tfp.mcmc.sample_chain(2, state, kernel=sgmcmc.SGLD(chosen, 0.1), seed=[0, 1])

    run = tf.function(sample, autograph=False) if compiled else sample
    message = r"any size n. Received: for n = 2 .* batch_size = 5, .* theta\[..., None\]"
    with pytest.raises(ValueError, match=message):
        run(bad)
    sgmcmc.SGLD(right, 0.1).bootstrap_results(state)


@pytest.mark.parametrize("name", ["log_prior_fn", "log_likelihood_fn", "score_fn"])
@pytest.mark.parametrize("state", [tf.constant(0.5), {"value": tf.constant(0.5)}])
def test_signatures_of_functions(name: str, state: Any) -> None:
    """The error names the function, and what it was called with."""
    right = dict(
        log_prior_fn=lambda value: log_prior(value),
        log_likelihood_fn=lambda value, batch: log_likelihood(value, batch),
    )
    bad = target(**right | {name: lambda: 0.0})
    with pytest.raises(TypeError, match=f"{name} must be callable with .* signature"):
        sgmcmc.NOGIN(bad, 0.1, friction=1.0).bootstrap_results(state)
        bad.estimate(state, tf.constant([0, 1]))


@pytest.mark.parametrize("state", [None, "x", object(), {"a": "x"}])
def test_states_to_map_are_checked(state: Any) -> None:
    """Numbers of Python are taken."""
    made = target(bijector=tfp.bijectors.Exp())
    for fn in (made.constrain, made.unconstrain):
        with pytest.raises(TypeError, match="must (be a tensor of numbers|have a floating dtype)"):
            fn(state)
    assert float(made.unconstrain(made.constrain(0.5))) == pytest.approx(0.5)


def test_parts_of_a_batch_do_not_come_as_arguments_of_their_own() -> None:
    data = np.zeros([5, 2], np.float32), np.zeros(5, np.float32)
    bad = sgmcmc.MinibatchLogProb(log_prior, lambda value, x, y: y - value, data, batch_size=2)
    with pytest.raises(TypeError, match=r"2 arguments.* one argument, a tuple of 2 parts\.$"):
        bad.estimate(tf.constant(0.5), tf.constant([0, 1]))


@pytest.mark.parametrize("returned", [None, "x", object()])
def test_results_of_score_functions(returned: Any) -> None:
    with pytest.raises(TypeError, match="score_fn must return arrays of the state's dtype"):
        target(score_fn=lambda theta, batch: returned).estimate(
            tf.constant(0.5), tf.constant([0, 1])
        )


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda _: None, TypeError, "target_log_prob_fn must return .* Received: None"),
        (lambda x: tf.cast(x, tf.int32), TypeError, "must return the dtype .* Received: int32"),
        (lambda x: x[..., None], ValueError, r"must return shape \[chains...\].* shape \(3, 1\)"),
        (lambda x: x[:2], ValueError, r"must return shape \[chains...\].* Received: shape \(2,\)"),
    ],
)
def test_results_of_plain_functions(change: Any, error: type, message: str) -> None:
    plain = sgmcmc.FullDataLogProb(lambda theta: change(log_prior(theta)))
    with pytest.raises(error, match=message):
        sgmcmc.SGLD(plain, 0.1).bootstrap_results(tf.zeros([3]))


class Frame:
    """The methods of a pandas.DataFrame that are used here."""

    def __init__(self, columns: dict[Any, Any], names: list[Any] | None = None):
        self._columns, self.columns = columns, names or [*columns]

    def __getitem__(self, name: Any) -> Any:
        class Series:
            def to_numpy(_) -> np.ndarray:
                return np.asarray(self._columns[name])

        return Series()

    def to_numpy(self) -> np.ndarray:
        return np.stack([*self._columns.values()], axis=1)


def frames() -> list[Any]:
    kinds: list[Any] = [Frame]
    with contextlib.suppress(ImportError):
        import pandas

        kinds.append(pandas.DataFrame)
    return kinds


@pytest.mark.parametrize("frame", frames(), ids=lambda f: f.__module__.split(".")[0])
def test_data_frames_are_dicts_of_their_columns(frame: Any) -> None:
    columns = {"x": X, "label": np.arange(20) % 2}
    made, expected = (
        target(
            data=data,
            log_likelihood_fn=lambda theta, batch: (
                log_likelihood(theta, batch["x"]) * tf.cast(batch["label"], tf.float32)
            ),
        )
        for data in (frame(columns), columns)
    )
    assert made(tf.constant(0.5)) == expected(tf.constant(0.5))
    (inner, _), _ = target(data=({"x": frame(columns)}, columns["x"]))._data, None
    assert [*inner["x"]] == [*columns]
    nested = target(data={"inner": frame(columns), "y": frame(columns)["x"]})
    assert nested.num_examples == 20
    with pytest.raises(TypeError, match=r"data\['name'\] must hold numbers. .* dtype string"):
        target(data=frame({"x": X, "name": ["a"] * 20}))


def test_data_frames_with_equal_names_of_columns() -> None:
    with pytest.raises(ValueError, match=r"columns of different names. Received: \['x', 'x'\]"):
        target(data=Frame({"x": X}, names=["x", "x"]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda t: sgmcmc.ControlVariate(t, "x"), TypeError, "center must have a floating dtype"),
        (lambda t: sgmcmc.ControlVariate(t, None), TypeError, "center must be a tensor of numbers"),
        (lambda t: sgmcmc.ControlVariate(t, np.nan), ValueError, "The center must be finite"),
        (lambda t: sgmcmc.ControlVariate(t, []), ValueError, "The center must have at least one"),
        (lambda t: sgmcmc.SVRG(t, True), TypeError, "update_every must be an integer"),
        (lambda t: sgmcmc.GrowingBatch(t, "2"), TypeError, "growth must be a number.* '2'"),
        (lambda t: sgmcmc.GrowingBatch(t, np.inf), ValueError, "growth must be a factor.* inf"),
        (lambda t: sgmcmc.GrowingBatch(t, 1.1, True), TypeError, "initial_size must be a number"),
        (lambda t: sgmcmc.GrowingBatch(t, 1.1, np.nan), ValueError, "initial_size must be in 1"),
        (lambda t: sgmcmc.find_center(t, "x"), TypeError, "initial_state must have a floating"),
        (lambda t: sgmcmc.find_center(t, 0.5, tolerance="1"), TypeError, "tolerance must be a pos"),
        (
            lambda t: sgmcmc.find_center(t, 0.5, max_iterations=2.5),
            TypeError,
            "max_iterations must be an integer",
        ),
        (
            lambda t: sgmcmc.find_center(t, 0.5, "adam", learning_rate=-1.0),
            ValueError,
            "learning_rate must be a positive",
        ),
        (lambda t: sgmcmc.find_center(t, 0.5, seed=0.5), ValueError, "seed must be an integer"),
        (lambda t: t("x"), TypeError, "state must have a floating dtype.* string"),
        (lambda t: t(None), TypeError, "state must be a tensor of numbers. Received: None"),
    ],
)
def test_arguments_of_other_targets(make: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make(target())


STATES_THAT_ARE_NONE = [None, "x", [], 1, [0.5, "a"], object(), np.array([None, {}])]


@pytest.mark.parametrize("state", STATES_THAT_ARE_NONE)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: sgmcmc.ControlVariate(t, 0.5),
        sgmcmc.SVRG,
        sgmcmc.GrowingBatch,
        lambda t: FULL_DATA,
    ],
    ids=["minibatch", "control variate", "SVRG", "growing", "full data"],
)
def test_states_of_estimates(wrap: Any, state: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="state.* must"):
        wrap(target()).estimate(state, tf.constant([0, 1]))


def test_a_stream_is_named_in_errors_of_its_batches() -> None:
    def stream(data: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(5, drop_remainder=True)
        return sgmcmc.StreamedLogProb(log_prior, log_likelihood, dataset, 20)

    with pytest.raises(ValueError, match="dataset must be finite. .* first in example 0"):
        stream(np.full(20, np.nan, np.float32))
    with pytest.raises(TypeError, match=r"dataset\['y'\] must hold numbers"):
        stream({"x": X, "y": np.array(["a"] * 20)})
    with pytest.raises(TypeError, match="dataset must be callable with 1 argument"):
        sgmcmc.StreamedLogProb(log_prior, log_likelihood, lambda: None, 20)


def test_a_bijector_that_fails_is_named() -> None:
    bad = target(bijector=tfb.Reshape([4]))
    with pytest.raises(ValueError, match=r"bijector failed for a state of shapes \(3,\)"):
        sgmcmc.SGLD(bad, 0.1).bootstrap_results(tf.zeros([3]))


@pytest.mark.parametrize(
    ("learning_rate", "error", "message"),
    [
        (lambda: 0.1, TypeError, "learning_rate must be callable with 1 argument"),
        (lambda t: None, TypeError, "learning_rate at step 0 must be a number"),
        (lambda t: -1.0, ValueError, "learning_rate at step 0 must be a finite number of at least"),
        (lambda t: np.zeros(2), ValueError, "learning_rate at step 0 must be one number"),
    ],
)
def test_learning_rates(learning_rate: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        sgmcmc.find_center(target(), 0.5, "adam", learning_rate=learning_rate)


@pytest.mark.thorough
def test_a_plain_schedule_is_a_learning_rate() -> None:
    """Keras would call it without the step."""
    center, report = sgmcmc.find_center(
        target(batch_size=20),
        0.5,
        "adam",
        max_iterations=200,
        learning_rate=lambda t: 0.1 / (1.0 + t / 20),
    )
    assert report.converged and abs(float(center)) < 0.1
