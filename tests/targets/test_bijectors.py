"""Bijectors of targets: the log posterior of an unconstrained state, with its Jacobian."""

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

import tfp_sgmcmc as sgmcmc
from tests.harness.fast_settings import fast_settings

tfb, tfd = tfp.bijectors, tfp.distributions

GENERATOR = np.random.default_rng(0)
N, D = 23, 3
X = GENERATOR.standard_normal([N, D])


def gamma_model(batch_size: int, bijector: Any) -> Any:
    """A model of the location and positive scale of Student's t."""
    zero = tf.zeros([], tf.float64)
    return sgmcmc.MinibatchLogProb(
        lambda loc, scale: (
            tfd.Normal(zero, 3.0).log_prob(loc) + tfd.Gamma(zero + 2.0, 1.0).log_prob(scale)
        ),
        lambda loc, scale, x: tfd.StudentT(
            zero + 4.0, loc[..., tf.newaxis], scale[..., tf.newaxis]
        ).log_prob(x),
        X[:, 0],
        batch_size,
        bijector=[None, bijector],
    )


@pytest.mark.parametrize(
    ("bijector", "forward", "derivative"),
    [
        pytest.param(tfb.Exp(), np.exp, np.exp, marks=pytest.mark.thorough),
        (tfb.Softplus(), lambda u: np.logaddexp(0, u), lambda u: 1 / (1 + np.exp(-u))),
    ],
    ids=["exp", "softplus"],
)
def test_bijector_of_one_part(bijector: Any, forward: Any, derivative: Any) -> None:
    """The unconstrained log posterior is prior + likelihood + log |d scale / d u|."""
    target, whole = gamma_model(5, bijector), gamma_model(N, bijector)
    loc, u = np.array([0.3, -1.0]), np.array([-0.4, 1.2])
    scale = forward(u)
    expected = (
        stats.norm.logpdf(loc, 0, 3)
        + stats.gamma.logpdf(scale, 2)
        + stats.t.logpdf(X[:, :1], 4, loc, scale).sum(axis=0)
        + np.log(derivative(u))
    )
    state = [tf.constant(loc), tf.constant(u)]
    np.testing.assert_allclose(target(*state), expected, rtol=1e-10)
    estimate = whole.estimate(state, tf.constant([0, 0]))
    np.testing.assert_allclose(estimate.log_prob, expected, rtol=1e-10)
    constrained = target.constrain(state)
    np.testing.assert_allclose(constrained, [loc, scale])
    np.testing.assert_allclose(target.unconstrain(constrained), state, rtol=1e-10)


def test_bijector_of_a_single_part_and_of_a_dict() -> None:
    u = np.array([0.3, -0.7])

    def log_likelihood(rate: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return tfd.Exponential(rate[..., tf.newaxis]).log_prob(batch)

    def log_prior(rate: tf.Tensor) -> tf.Tensor:
        return tfd.Exponential(tf.constant(1.0, tf.float64)).log_prob(rate)

    data = np.abs(X[:, 0])
    single, by_name = (
        sgmcmc.MinibatchLogProb(log_prior, log_likelihood, data, 5, bijector=bijector)
        for bijector in (tfb.Exp(), {"rate": tfb.Exp()})
    )
    rate = np.exp(u)
    expected = -rate + N * u - rate * data.sum() + u
    np.testing.assert_allclose(single(tf.constant(u)), expected)
    np.testing.assert_allclose(by_name(rate=tf.constant(u)), expected)
    np.testing.assert_allclose(single.constrain(tf.constant(u)), rate)


def test_parts_that_a_dict_leaves_out_have_no_bijector() -> None:
    def model(bijector: Any) -> sgmcmc.MinibatchLogProb:
        return sgmcmc.MinibatchLogProb(
            lambda mu, sigma: tfd.Normal(np.float64(0), 1.0).log_prob(mu) - sigma,
            lambda mu, sigma, batch: -((batch - mu[..., None]) ** 2) / sigma[..., None],
            X[:, 0],
            bijector=bijector,
        )

    u = {"mu": tf.constant([0.3, 0.1], tf.float64), "sigma": tf.constant([-0.7, 0.2], tf.float64)}
    short, full = model({"sigma": tfb.Exp()}), model({"mu": None, "sigma": tfb.Exp()})
    np.testing.assert_allclose(short(**u), full(**u))
    np.testing.assert_allclose(short.unconstrain(short.constrain(u))["sigma"], u["sigma"])
    with pytest.raises(ValueError, match="must have the structure of the state.*'tau'"):
        model({"tau": tfb.Exp()})(**u)


@pytest.mark.parametrize("chains", fast_settings([(), (3,), (2, 2)], (2, 2)))
def test_bijector_that_changes_the_event_size(chains: tuple[int, ...]) -> None:
    """Maps two numbers to the probabilities of three classes."""
    labels = GENERATOR.integers(0, 3, N)
    bijector = tfb.IteratedSigmoidCentered()
    target = sgmcmc.MinibatchLogProb(
        lambda p: tfd.Dirichlet(tf.constant([1.0, 2.0, 3.0], tf.float64)).log_prob(p),
        lambda p, batch: tf.math.log(tf.reduce_sum(p[..., tf.newaxis, :] * batch, axis=-1)),
        np.eye(3)[labels],
        5,
        bijector=bijector,
    )
    u = GENERATOR.standard_normal([*chains, 2])
    p = bijector.forward(tf.constant(u)).numpy()
    assert p.shape == (*chains, 3)
    prior = math.lgamma(6) - math.lgamma(2) - math.lgamma(3) + np.log(p) @ [0.0, 1.0, 2.0]
    jacobian = np.log(p).sum(axis=-1)  # the Jacobian of the first two probabilities is p_1 p_2 p_3
    expected = prior + np.log(p) @ np.bincount(labels, minlength=3) + jacobian
    value, gradient = tfp.math.value_and_gradient(target, tf.constant(u))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    assert gradient.shape == u.shape
    estimate = target.estimate(tf.constant(u), tf.constant([0, 1]))
    assert estimate.log_prob.shape == chains and estimate.gradient.shape == u.shape
    np.testing.assert_allclose(target.unconstrain(target.constrain(tf.constant(u))), u, rtol=1e-8)


def test_bijector_from_vector_to_matrix() -> None:
    """Maps [3] to the factor of a correlation matrix, [3, 3]; differences give the Jacobian."""
    bijector = tfb.CorrelationCholesky()
    target = sgmcmc.MinibatchLogProb(
        lambda factor: tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1),
        lambda factor, x: tfd.MultivariateNormalTriL(
            scale_tril=factor[..., tf.newaxis, :, :]
        ).log_prob(x),
        X,
        5,
        bijector=bijector,
    )
    u = np.array([[0.2, -0.5, 0.9], [0.0, 0.1, 0.4]])
    free = np.array([[1, 0], [2, 0], [2, 1]])  # the entries that parametrise the factor
    expected = []
    for row in u:
        factor = bijector.forward(tf.constant(row)).numpy()
        up, down = (bijector.forward(row + s * np.eye(3)).numpy() for s in (1e-6, -1e-6))
        jacobian = ((up - down) / 2e-6)[:, free[:, 0], free[:, 1]]  # transposed
        expected.append(
            np.log(np.diag(factor)).sum()
            + stats.multivariate_normal.logpdf(X, cov=factor @ factor.T).sum()
            + np.linalg.slogdet(jacobian)[1]
        )
    np.testing.assert_allclose(target(tf.constant(u)), expected, rtol=1e-7)
    message = r"method forward for an unconstrained part .* correlation_cholesky .* shape \(4,\)"
    with pytest.raises(ValueError, match=message):
        target(tf.zeros([4], tf.float64))  # 3 or 6 entries are the half of a matrix
    with pytest.raises(ValueError, match=r"give its inverse by the bijector, of shape \(6,\)"):
        target(tf.eye(4, dtype=tf.float64))


def test_an_error_of_a_bijector_is_told_also_where_its_inverse_fails() -> None:
    """`FillScaleTriL` shifts the diagonal in float32, and its inverse takes matrices alone."""
    target = sgmcmc.MinibatchLogProb(
        lambda factor: 0 * factor[..., 0, 0],
        lambda factor, batch: 0 * factor[..., 0, :1] + batch,
        np.zeros(3),
        bijector=tfb.FillScaleTriL(),
    )
    with pytest.raises(
        ValueError, match=r"bijector fill_scale_tril .* shape \(6,\).* dtype float32"
    ):
        target(tf.zeros([6], tf.float64))


Y = np.array([0.4, 1.3, 0.2, 0.9, 1.7, 0.8])
ONE = tf.ones([], tf.float64)


def joint_model() -> Any:
    """The support of u depends on s, so that the parts are mapped together."""
    s = yield tfd.JointDistributionCoroutine.Root(tfd.Gamma(2 * ONE, ONE, name="s"))
    u = yield tfd.Uniform(0 * ONE, s, name="u")
    yield tfd.Sample(tfd.Normal(u, ONE), 2, name="y")


def joints() -> dict[str, Any]:
    parts = [tfd.Gamma(2 * ONE, ONE), lambda s: tfd.Uniform(0 * ONE, s)]
    sample = [lambda u: tfd.Sample(tfd.Normal(u, ONE), 2)]
    return {
        "coroutine": tfd.JointDistributionCoroutine(joint_model),
        "batched": tfd.JointDistributionCoroutineAutoBatched(joint_model),
        "named": tfd.JointDistributionNamed(dict(zip("suy", parts + sample, strict=True))),
        "sequential": tfd.JointDistributionSequential(parts),
    }


def joint_target(bijector: Any, batch_size: int = 2) -> Any:
    return sgmcmc.MinibatchLogProb(
        lambda s, u: tfd.Gamma(2 * ONE, ONE).log_prob(s) + tfd.Uniform(0 * ONE, s).log_prob(u),
        lambda s, u, batch: tfd.Normal(u[..., tf.newaxis], ONE).log_prob(batch),
        Y,
        batch_size,
        bijector=bijector,
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("named", marks=pytest.mark.thorough),
        "sequential",
        pytest.param("coroutine", marks=pytest.mark.thorough),
        pytest.param("batched", marks=pytest.mark.slow),
    ],
)
def test_bijector_of_a_joint_distribution(name: str) -> None:
    """Adds log |d (s, u) / d z|, which automatic differentiation gives, to a density by SciPy."""
    joint = joints()[name]
    if name != "sequential":
        joint = joint.experimental_pin(y=tf.zeros([2], tf.float64))
    bijector = joint.experimental_default_event_space_bijector()
    target, whole = joint_target(bijector), joint_target(bijector, len(Y))
    s, u = np.array([2.5, 0.7, 1.1]), np.array([1.3, 0.2, 1.0])
    made = {"named": dict(s=s, u=u)}.get(name, [s, u])
    unconstrained = tf.nest.flatten(target.unconstrain(tf.nest.map_structure(tf.constant, made)))

    def forward(z: tf.Tensor) -> tf.Tensor:
        state = dict(s=z[0], u=z[1]) if name == "named" else [z[0], z[1]]
        return tf.stack(tf.nest.flatten(target.constrain(state)))

    expected = []
    for i in range(3):
        z = tf.stack([x[i] for x in unconstrained])
        with tf.GradientTape() as tape:
            tape.watch(z)
            parameters = forward(z)
        np.testing.assert_allclose(parameters, [s[i], u[i]], rtol=1e-9)
        log_det = np.linalg.slogdet(tape.jacobian(parameters, z))[1]
        prior = stats.gamma.logpdf(s[i], 2) - np.log(s[i])
        expected.append(prior + stats.norm.logpdf(Y, u[i]).sum() + log_det)

    structure = bijector.forward_min_event_ndims
    states = [tf.nest.pack_sequence_as(structure, unconstrained)]
    if name in ("coroutine", "batched"):
        states += [unconstrained, dict(zip("su", unconstrained, strict=True))]
    for state in states:
        constrained = target.constrain(state)
        assert type(constrained) is type(state)
        np.testing.assert_allclose(tf.nest.flatten(constrained), [s, u], rtol=1e-9)
        estimate = whole.estimate(state, tf.constant([0, 0]))
        np.testing.assert_allclose(estimate.log_prob, expected, rtol=1e-9)
        assert type(estimate.gradient) is type(state)


def test_a_chain_of_a_joint_distribution() -> None:
    """SGLD moves a named tuple of unconstrained parts; its parameters keep to their support."""
    joint = tfd.JointDistributionCoroutine(joint_model)
    pinned = joint.experimental_pin(y=tf.zeros([2], tf.float64))
    bijector = pinned.experimental_default_event_space_bijector()
    start = bijector.inverse(pinned.sample_unpinned(4, seed=1))
    target = joint_target(bijector)
    kernel = sgmcmc.SGLD(target, 0.1)
    state, _ = kernel.one_step(start, kernel.bootstrap_results(start), seed=0)
    constrained = target.constrain(state)
    assert constrained._fields == ("s", "u") and constrained.s.shape == [4]
    assert np.all((constrained.u > 0) & (constrained.u < constrained.s))
    assert not np.any(state.s == start.s)


@pytest.mark.parametrize("state", [[ONE], [ONE, ONE, ONE], {"s": ONE, "v": ONE}, ONE])
def test_joint_bijectors_of_another_structure_than_the_state(state: Any) -> None:
    joint = tfd.JointDistributionCoroutine(joint_model)
    pinned = joint.experimental_pin(y=tf.zeros([2], tf.float64))
    target = joint_target(pinned.experimental_default_event_space_bijector())
    message = r"bijector must have the structure .* parts \['s', 'u'\] and \["
    with pytest.raises(ValueError, match=message):
        target.constrain(state)


def test_a_dict_that_a_module_holds_keeps_its_names() -> None:
    """TensorFlow wraps the dicts of modules, such as the state that a bijector of `sample` holds.

    A joint distribution of a centred hierarchy failed so in `sample`.
    """
    prior = tfd.JointDistributionNamed(
        {
            "mu": tfd.Normal(0.0, 1.0),
            "tau": tfd.HalfNormal(1.0),
            "b": lambda mu, tau: tfd.Sample(tfd.Normal(mu, tau), 2),
        }
    )
    target = sgmcmc.MinibatchLogProb.from_joint(
        prior,
        lambda mu, tau, b, batch: tfd.Normal(b[..., :1], 1.0).log_prob(batch),
        np.zeros(3, np.float32),
    )
    module, state = tf.Module(), {"mu": tf.constant(0.5), "tau": tf.constant(0.2), "b": tf.ones(2)}
    module.state = state
    assert type(module.state) is not dict  # else there is nothing to test
    expected, found = target.constrain(state), target.constrain(module.state)
    assert {*found} == {*expected}
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_softplus_has_second_derivatives_far_above_zero() -> None:
    """Those of TensorFlow Probability 0.25 are NaN above 88 in float32: a scale in dollars."""
    y = np.float32(X[:, 0] * 300)
    target = sgmcmc.MinibatchLogProb(
        lambda scale: tfd.HalfNormal(1000.0).log_prob(scale),
        lambda scale, batch: tfd.Normal(0.0, scale[..., tf.newaxis]).log_prob(batch),
        y,
        bijector=tfb.Softplus(),
    )
    scale = tf.constant(300.0)
    with tf.GradientTape() as outer:
        outer.watch(scale)
        with tf.GradientTape() as inner:
            inner.watch(scale)
            value = target(scale)
        slope = inner.gradient(value, scale)
    exact = N / 300.0**2 - 3 * np.square(y, dtype=np.float64).sum() / 300.0**4 - 1e-6
    np.testing.assert_allclose(outer.gradient(slope, scale), exact, rtol=1e-4)
