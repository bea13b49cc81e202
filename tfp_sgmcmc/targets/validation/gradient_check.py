"""Checks that minibatch gradients add up to the full one, and that a model keeps chains apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_sgmcmc.internal.checks import eager, positive
from tfp_sgmcmc.internal.nest import State, call_with_state, convert_state, part_names
from tfp_sgmcmc.internal.xla import traced
from tfp_sgmcmc.targets.base import Target, as_target, kept_program, value_and_gradient
from tfp_sgmcmc.targets.control_variates.control_variate import ControlVariate
from tfp_sgmcmc.targets.laplace.curvature import wrapped_target
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb
from tfp_sgmcmc.targets.sharded import ShardedLogProb
from tfp_sgmcmc.targets.streamed import StreamedLogProb
from tfp_sgmcmc.targets.validation.step_size_check import Stability, check_approach, check_step
from tfp_sgmcmc.targets.validation.stream_check import check_stream

_RTOL = {tf.float64: 1e-8, tf.float16: 0.02, tf.bfloat16: 0.1}
_NUM_ROWS = 3  # another number than that of the chains


def log_probs_of_rows(
    target: MinibatchLogProb, size: int
) -> Callable[[State], tuple[tf.Tensor, tf.Tensor]]:
    """Returns the function of a state that gives log prior and log likelihoods of `size` rows."""
    rows = target.rows(tf.range(size) * (target.num_examples // size))

    def log_probs(state: State) -> tuple[tf.Tensor, tf.Tensor]:
        log_prior = target.log_prior(state)
        return log_prior, target.log_likelihood(state, rows, size, log_prior.shape)

    return log_probs


def check_two_chains(target: MinibatchLogProb, state: State) -> None:
    """Raises if the model fails for two chains, or gives them other values than one chain.

    The functions are called with few examples, so with another batch size than the target's.

    Args:
      target: the target, in one part.
      state: one state without chain dimensions.

    Raises:
      ValueError: a function returns something else for two chains than twice what it returns for
        one. An error that a function raises is passed on with a note.
    """
    size = min(_NUM_ROWS, target.num_examples)
    values = log_probs_of_rows(target, size)
    called_with = "a state of the shape of the start"
    try:
        one = values(state)
        called_with = "states of two chains, because samplers run several, on a leading axis"
        found = values(tf.nest.map_structure(lambda x: tf.stack([x, x]), state))
    except Exception as error:
        cure = " Give parameters a last axis for the examples, as in sigma[..., tf.newaxis]."
        error.add_note(
            f"log_prior_fn and log_likelihood_fn were called with {size} examples, and with "
            f"{called_with}.{'' if isinstance(error, TypeError) else cure}"
        )
        raise
    for name, expected, received in zip(
        ("log_prior_fn", "log_likelihood_fn"), one, found, strict=True
    ):
        alone, together = (tf.cast(x, tf.float64).numpy() for x in (expected, received))
        rtol = max(1e-3, _allowed(state, None))
        if not np.allclose(together, [alone, alone], rtol=rtol, atol=rtol, equal_nan=True):
            raise ValueError(
                f"{name} must return for each of two equal chains what it returns for one, "
                f"{expected.numpy()}. Received: {received.numpy()}. Give parameters a last axis "
                "for the examples, as in sigma[..., tf.newaxis]."
            )


def check_chains(target: MinibatchLogProb, state: State, chain_ndims: int) -> None:
    r"""Compares two chains that have different examples with each of them alone.

    \[ \log p(x_{cj} \mid \theta_c), \quad c = 1, 2, \]

    must not depend on the other chain. It does, for example, where `tf.gather(theta, group)` takes
    a number of each chain for the groups of all chains.

    Args:
      target: a target whose chains have minibatches of their own.
      state: a state with at least one chain dimension.
      chain_ndims: the number of chain dimensions, at least 1.

    Raises:
      ValueError: the log likelihoods of a chain differ from those that it has alone.
      Exception: the error that `log_likelihood_fn` raised, with a note on the shapes.
    """
    size = min(_NUM_ROWS, target.num_examples)
    lead = [1] * (chain_ndims - 1)
    first, last = range(size), range(target.num_examples - size, target.num_examples)
    chains = [0, min(1, tf.nest.flatten(state)[0].shape[0] - 1)]

    def values(which: list[int]) -> np.ndarray:
        def part(x: tf.Tensor) -> tf.Tensor:
            x = tf.gather(x, [chains[i] for i in which])
            return x[(slice(None), *[slice(1)] * (chain_ndims - 1))]

        rows = tf.reshape([[first, last][i] for i in which], [len(which), *lead, size])
        at, shape = tf.nest.map_structure(part, state), [len(which), *lead]
        return target.log_likelihood(at, target.rows(rows), size, shape).numpy()

    try:
        together, alone = values([0, 1]), np.concatenate([values([0]), values([1])])
    except Exception as error:
        error.add_note(
            "log_likelihood_fn was called with states of two chains, each with a minibatch of "
            f"{size} examples, so that data have the shape [2, {size}, ...]. Let it take leading "
            "axes of chains in both, as by tf.gather(..., batch_dims=1), or make the target with "
            "shared_batch=True."
        )
        raise
    if not np.allclose(together, alone, rtol=1e-3, atol=1e-3, equal_nan=True):
        raise ValueError(
            "log_likelihood_fn must return for each chain what it returns for that chain alone, "
            f"{alone.tolist()} for two chains with {size} examples each. Received: "
            f"{together.tolist()}. Match the leading axes of states and data, as by "
            "tf.gather(..., batch_dims=1), or make the target with shared_batch=True."
        )


def check_score_fn(target: MinibatchLogProb, state: State, chain_shape: Any, rtol: float) -> None:
    r"""Compares the sum of a user's scores over a minibatch with the gradient of its sum.

    Kernels that use scores take their gradients from `score_fn` too, and with a wrong one they
    sample another posterior.

    Raises:
      ValueError: a part of the sum differs by more than `rtol` of the sum of absolute scores.
    """
    n, ndims = target.batch_size, len(chain_shape)
    shape = [n] if target.shared_batch else [*chain_shape, n]
    batch = target.rows(tf.broadcast_to(tf.range(n), shape))
    _, scores = target.scores(state, batch, chain_shape)

    def total(at: State) -> tf.Tensor:
        return tf.reduce_sum(target.log_likelihood(at, batch, n, chain_shape), axis=-1)

    _, gradient, _ = value_and_gradient(total, state, connected=False)
    expected = _by_part(state, gradient)
    for name, of_rows in _by_part(state, scores).items():
        difference = np.abs(of_rows.sum(axis=ndims) - expected[name]).max()
        if not difference <= rtol * np.abs(of_rows).sum(axis=ndims).max():
            raise ValueError(
                "score_fn must return the gradient of each example's log likelihood. Received: "
                f"scores of {n} examples whose sum differs from the gradient of their log "
                f"likelihood by up to {difference:.3g} in {name}."
            )


def preflight(
    target: Any, state: State, rtol: float | None = None, *, kernel: Any = None
) -> Stability | None:
    r"""Checks a target at one state, by one pass over the data, before anything is sampled.

    \[
    \nabla \log p(\theta) + \sum_j \sum_{i \in B_j} \nabla \log p(x_i \mid \theta)
      = \nabla \log p(\theta \mid x_{1:N})
    \]

    must hold for the minibatches \(B_1, ..., B_m\) of one pass. It fails if `log_likelihood_fn`
    depends on the batch: by a mean over it, batch normalisation, or class weights made from it. The
    right side takes chunks of another size. The last minibatch may be short, and minibatches are
    enlarged if there would be more than 2001. A `ControlVariate` is checked at its center, too. A
    state without chain dimensions is also given to the functions as two equal chains, with three
    examples, which must both get what one gets. If chains have minibatches of their own, two chains
    with different examples must have the log likelihoods that each of them has alone. A `score_fn`
    must add up to the gradient over a minibatch.

    With a `kernel` it also compares the kernel's step size with the largest one that is stable at
    the curvature of the log posterior at `state`, and warns if the step is larger. A chain with
    such a step may stay finite, and its draws are then far too wide. The start can be far stiffer
    or softer than the mode, so `report` checks the step again at the draws. For a target that draws
    by epochs of K minibatches, it also warns if an epoch is too long for its noise to cancel in the
    direction of most curvature: K h sqrt(lambda) > 1 with momenta, K epsilon lambda / 2 > 1
    without. For `NOGIN` it also warns of a start from which gradient noise makes the way to the
    posterior long.

    Of a `StreamedLogProb` it checks the first batch in this way. It reads one epoch, for 30 s at
    most, and warns if the batches are not in random order, as from files that are sorted. With a
    kernel it also warns if the gradient noise makes draws more than 5 % too hot.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd = tfp.distributions
      >>> def centred(theta, batch):  # a bug: the batch's own mean enters the likelihood
      ...     return tfd.Normal(theta[..., None], 1.).log_prob(batch - tf.reduce_mean(batch))
      >>> target = sgmcmc.MinibatchLogProb(
      ...     tfd.Normal(0., 1.).log_prob, centred, np.arange(9., dtype=np.float32) ** 2, 4)
      >>> sgmcmc.preflight(target, tf.constant(1.))  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: The minibatch log likelihoods of one pass do not add up to the full one ...

    Args:
      target: the target to sample, or a plain callable.
      state: the state at which to check, with leading chain dimensions as in the run.
      rtol: allowed relative difference in each part; by default 1e-3 (`float64`: 1e-8, `float16`:
        0.02, `bfloat16`: 0.1).
      kernel: the kernel that will sample the target, for the check of its step size. Kernels
        without the methods `largest_stable_step` and `metric_product`, such as the kernels of
        `tfp.mcmc`, are not checked.

    Returns:
      A `Stability` with the curvature and the step sizes, or None if no kernel was checked.

    Raises:
      ValueError: the log posterior or its gradient is NaN or infinite at `state`, or the two sides
        differ, or two chains get something else than one, or `score_fn` is wrong. The message
        names the part of the state.
      TypeError: the target is not callable, the kernel is not a `TransitionKernel`, or `state` does
        not hold floating numbers.
      RuntimeError: the call is inside a `tf.function` or a `tf.Graph`.
    """
    eager("preflight")
    if kernel is not None and not isinstance(kernel, tfp.mcmc.TransitionKernel):
        raise TypeError(
            "kernel must be a tfp.mcmc.TransitionKernel, or None for no check of its step size. "
            f"Received: {kernel!r}."
        )
    target = as_target(target, full_data_expected=True, called="target")
    state = convert_state(state, initial=True)
    if rtol is not None:
        positive("rtol", rtol)
    if isinstance(target, StreamedLogProb):
        preflight(target.of_one_batch, state, rtol)
        return check_stream(target, state, kernel)
    base = wrapped_target(target)
    log_prob, gradient, _ = value_and_gradient(lambda s: call_with_state(base, s), state)
    _assert_finite("log posterior", {"log posterior": log_prob.numpy()})
    _assert_finite("gradient of the log posterior", _by_part(state, gradient))
    plain = isinstance(base, MinibatchLogProb) and not isinstance(base, ShardedLogProb)
    ndims, leaves = log_prob.shape.rank, tf.nest.flatten(state)
    each = ndims and all(x.shape[:ndims] == log_prob.shape for x in leaves)  # has every chain
    if plain and each and not base.shared_batch:
        check_chains(base, state, ndims)
    # One example, such as a series, is the data and each minibatch.
    is_whole = target is base and base.num_examples == 1
    if not is_whole:  # its errors depend on shapes, so once is enough
        name = f"an estimate from {getattr(base, 'batch_size', 1)} examples"
        kept_program(target, name, state, lambda: _estimate(target, state))
    if isinstance(base, MinibatchLogProb):
        if plain and log_prob.shape.rank == 0:
            check_two_chains(base, state)
        if not is_whole:
            _compare(base, state, log_prob, gradient, rtol)
        if plain and base.has_score_fn:
            check_score_fn(base, state, log_prob.shape, _allowed(state, rtol))
    if isinstance(target, ControlVariate):  # differences add up if the sums at both states do
        preflight(base, target.center, rtol)
    if kernel is None:
        return None
    check_approach(kernel, target, state)
    return check_step(kernel, target, state)


def _estimate(target: Target, state: State) -> bool:
    target.estimate(state, tf.constant([0, 0]), target.bootstrap(state))
    return True


def _compare(
    target: MinibatchLogProb, state: State, log_prob: tf.Tensor, gradient: Any, rtol: float | None
) -> None:
    size, total = target.batch_size, target.num_examples
    size = max(size, total // 2000)  # bounds the time for tiny minibatches
    other = size if size < target.chunk_size else max(1, size // 2)
    prior = value_and_gradient(target.log_prior, state, connected=False)
    passed = kept_program(
        target,
        f"sum of {other}",
        state,
        lambda: traced(lambda at: target.sum_over_chunks(at, other)),
    )(state)
    combined = tf.nest.map_structure(tf.add, prior[:2], passed)
    rtol = _allowed(state, rtol)
    parts = {"log posterior": (combined[0].numpy(), log_prob.numpy())}
    full = _by_part(state, gradient)
    for name, value in _by_part(state, combined[1]).items():
        parts[f"gradient of {name}"] = (value, full[name])
    # Near a mode the gradient vanishes, but rounding is relative to its N terms, which do not.
    floor = np.abs(log_prob.numpy()).max() + 1.0
    for name, (got, expected) in parts.items():
        difference = np.max(np.abs(got - expected))
        allowed = rtol * max(np.max(np.abs(expected)), floor)
        if not difference <= allowed:
            raise ValueError(
                "The minibatch log likelihoods of one pass do not add up to the full one: "
                f"{name} over all N = {total} examples differs by {difference:.3g} (allowed "
                f"{allowed:.3g}) between batches of {other} and of {target.chunk_size}. "
                "log_likelihood_fn must return a log likelihood for each example that does not "
                "depend on the rest of the batch."
            )


def _allowed(state: State, rtol: float | None) -> float:
    dtype = tf.nest.flatten(state)[0].dtype
    return rtol if rtol is not None else _RTOL.get(dtype, 1e-3)


def _by_part(state: State, values: Any) -> dict[str, np.ndarray]:
    leaves = tf.nest.flatten(values)
    return {n: v.numpy() for n, v in zip(part_names(state), leaves, strict=True)}


def _assert_finite(what: str, values: dict[str, np.ndarray]) -> None:
    for name, value in values.items():
        if not np.all(np.isfinite(value)):
            raise ValueError(
                f"The {what} is NaN or infinite at the initial state ({name}). Start elsewhere, or "
                "check log_prior_fn and log_likelihood_fn for overflow."
            )
