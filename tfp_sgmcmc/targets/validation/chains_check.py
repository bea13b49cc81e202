"""Checks that a model gives each of two chains its own log posterior."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfp_sgmcmc.internal.nest import State
from tfp_sgmcmc.targets.minibatch import MinibatchLogProb

_NUM_ROWS = 3  # another number than that of the chains


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
    rows = target.rows(tf.range(size))

    def values(state: State) -> tuple[tf.Tensor, tf.Tensor]:
        log_prior = target.log_prior(state)
        return log_prior, target.log_likelihood(state, rows, size, log_prior.shape)

    called_with = "a state of the shape of the start"
    try:
        one = values(state)
        called_with = "states of two chains, because samplers run several, on a leading axis"
        found = values(tf.nest.map_structure(lambda x: tf.stack([x, x]), state))
    except Exception as error:
        error.add_note(
            f"log_prior_fn and log_likelihood_fn were called with {size} examples, and with "
            f"{called_with}. Give parameters a last axis for the examples, as in "
            "sigma[..., tf.newaxis]."
        )
        raise
    for name, expected, received in zip(
        ("log_prior_fn", "log_likelihood_fn"), one, found, strict=True
    ):
        if not np.allclose(received, [expected, expected], rtol=1e-3, atol=1e-3, equal_nan=True):
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
