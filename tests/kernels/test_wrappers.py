"""Wrappers of `tfp.mcmc` that need a Metropolis test refuse kernels without one, in words."""

import warnings
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_sgmcmc as sgmcmc
from tests.harness.by_hand import MODEL

WRAPPERS = {
    "MetropolisHastings": tfp.mcmc.MetropolisHastings,
    "SimpleStepSizeAdaptation": lambda k: tfp.mcmc.SimpleStepSizeAdaptation(k, 10),
    "DualAveragingStepSizeAdaptation": lambda k: tfp.mcmc.DualAveragingStepSizeAdaptation(k, 10),
    "ReplicaExchangeMC": lambda k: tfp.mcmc.ReplicaExchangeMC(
        k.target_log_prob_fn,
        inverse_temperatures=[1.0, 0.5],
        make_kernel_fn=lambda f: k.copy(target_log_prob_fn=sgmcmc.FullDataLogProb(f)),
    ),
}
STATE = tf.zeros([2, 3])


def test_sample_chain_says_that_the_kernel_is_wrong_and_not_the_state() -> None:
    kernel = WRAPPERS["MetropolisHastings"](sgmcmc.SGLD(MODEL.target(4), 0.01))
    with pytest.raises(TypeError, match="^The kernel inside tfp.mcmc.MetropolisHastings must"):
        sgmcmc.sample_chain(kernel, STATE, 2, progress_bar=False)


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("kernel", [sgmcmc.SGLD, sgmcmc.NOGIN])
def test_wrappers_are_refused_before_the_first_step(name: str, kernel: Any) -> None:
    made = WRAPPERS[name](kernel(MODEL.target(4), 0.01))
    message = f"inside tfp.mcmc.{name} must have a Metropolis test.* Received: {kernel.__name__}"
    with pytest.raises(TypeError, match=message):
        made.bootstrap_results(STATE)


def test_states_divided_over_devices_are_refused() -> None:
    kernel = sgmcmc.SGLD(MODEL.target(4), 0.01)
    assert kernel.experimental_with_shard_axes([]) is kernel
    with pytest.raises(NotImplementedError, match=r"must be empty.*Received: \['a'\]"):
        kernel.experimental_with_shard_axes(["a"])


@pytest.mark.thorough
def test_a_wrapper_around_a_wrapper_is_refused_in_a_chain() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the full data are meant here
        inner = tfp.mcmc.TransformedTransitionKernel(
            sgmcmc.SGLD(MODEL.exact_target(tf.float32), 0.01), tfp.bijectors.Exp()
        )
        kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(inner, 10)

    @tf.function
    def run() -> Any:
        return tfp.mcmc.sample_chain(2, STATE + 1, kernel=kernel, trace_fn=None, seed=[0, 1])

    with pytest.raises(TypeError, match="Choose the step with tfp_sgmcmc.tune"):
        run()


def test_a_kernel_with_a_metropolis_test_is_taken() -> None:
    kernel = sgmcmc.CorrectedLangevin(MODEL.target(4), 0.01)
    for name in ("SimpleStepSizeAdaptation", "DualAveragingStepSizeAdaptation"):
        made = WRAPPERS[name](kernel)
        moved, _ = made.one_step(STATE, made.bootstrap_results(STATE), seed=0)
        assert moved.shape == STATE.shape
