"""Log likelihoods of regressions, which depend on the weights through a linear predictor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfp_sgmcmc.internal.checks import accepts, function, integer, optional


class LinearModel:
    r"""The log likelihood of a generalized linear model, as a `log_likelihood_fn`.

    \[
    \log p(y_i \mid x_i, w) = f(\eta_i, y_i), \qquad \eta_i = x_i^T w
    \]

    The data of the target are a pair `(x, y)`. The gradient of example i is then
    \( f'(\eta_i, y_i) x_i \), so `ControlVariate` and `SVRG` compute differences of gradients,
    remainders of second order, pilot probabilities and the scores of single examples by a few
    products with x instead of automatic differentiation. With \( d = w - \hat w \) and
    \( \hat \eta = X \hat w \), the remainders of second order add up to

    \[
    \sum_{i \in S} s_i(w) = X^T \left[ f'(X w) - f'(\hat \eta) - \omega f''(\hat \eta) X d \right],
    \]

    where \( \omega \) is the weight that `ControlVariate` calls w. The results are the same up to
    rounding. Affine bijectors, such as the one of `whiten`, keep this form. With other bijectors
    the log likelihood is differentiated automatically, as any other. Automatic differentiation with
    respect to \( \eta \) gives the derivatives of f, so f is any function of the predictor:
    Bernoulli, Poisson, normal, Student's t, or, with several outputs, categorical.

    Examples:
      >>> import numpy as np, tensorflow as tf, tensorflow_probability as tfp
      >>> import tfp_sgmcmc as sgmcmc
      >>> tfd, rng = tfp.distributions, np.random.default_rng(0)
      >>> x = rng.normal(size=[10_000, 5]).astype(np.float32)
      >>> y = rng.poisson(np.exp(0.2 * x.sum(axis=1))).astype(np.float32)
      >>> target = sgmcmc.MinibatchLogProb(
      ...     lambda w: -0.5 * tf.reduce_sum(w**2, axis=-1),
      ...     sgmcmc.LinearModel(lambda eta, y: tfd.Poisson(log_rate=eta).log_prob(y)),
      ...     data=(x, y), batch_size=100)
      >>> center, _ = sgmcmc.find_center(target, tf.zeros([5]))
      >>> whitened, bijector = sgmcmc.whiten(target, center)
      >>> control = sgmcmc.ControlVariate(whitened, tf.zeros([5]), order=2, importance="pilot")
      >>> kernel = sgmcmc.UnderdampedLangevin(control, step_size=1., friction=1.5)
      >>> z = tfp.mcmc.sample_chain(10, tf.zeros([4, 5]), kernel=kernel, trace_fn=None, seed=1)
      >>> bijector.forward(z).shape
      TensorShape([10, 4, 5])

      Softmax regression has weights `[D, C]`. Its y may be any nest, with offsets or exposures:

      >>> softmax = sgmcmc.LinearModel(
      ...     lambda eta, y: tfd.Categorical(logits=eta).log_prob(y), num_outputs=3)
      >>> softmax(tf.zeros([4, 5, 3]), (x[:7], np.zeros([7], np.int32))).shape
      TensorShape([4, 7])

    Args:
      log_prob_fn: `log_prob_fn(eta, y)` returns each example's log likelihood, `[chains..., n]`,
        from its predictor and its y alone. `eta` has shape `[chains..., n]`, or
        `[chains..., n, C]` with `num_outputs`. Leaves of `y` are `[n, ...]` or
        `[chains..., n, ...]`.
      num_outputs: None for weights `[D]`, C for weights `[D, C]`. The weights are the only part of
        the state; a dict calls them "weights".

    Raises:
      TypeError: `log_prob_fn` is not callable with two arguments. On the first use: the data are
        not a pair.
      ValueError: `num_outputs` is below 1. On the first use: x is not `[N, D]`, or the weights have
        another shape.

    References:
      P. McCullagh and J. A. Nelder. Generalized Linear Models. Chapman and Hall, 1989. Section 2.2.
    """

    def __init__(self, log_prob_fn: Callable[[Any, Any], Any], num_outputs: int | None = None):
        function("log_prob_fn", log_prob_fn, "(eta, y) -> log likelihoods")
        self._log_prob_fn = accepts("log_prob_fn", log_prob_fn, "eta", "y")
        optional(integer, "num_outputs", num_outputs, 1)
        self.num_outputs = num_outputs

    def __call__(self, weights: Any, batch: Any) -> tf.Tensor:
        return self.log_prob(self.predictor(weights, batch), batch)

    def log_prob(self, eta: tf.Tensor, batch: Any) -> Any:
        """Returns the log likelihood of each example of `batch`, given its predictor."""
        return self._log_prob_fn(eta, _pair(batch)[1])

    def features(self, batch: Any) -> tf.Tensor:
        """Returns x, `[n, D]`."""
        return tf.convert_to_tensor(_pair(batch)[0])

    def predictor(self, weights: Any, batch: Any) -> tf.Tensor:
        r"""Returns \( \eta \), of shape `[chains..., n]` or `[chains..., n, C]`."""
        x, weights = self.features(batch), tf.convert_to_tensor(weights)
        event = [x.shape[-1]] if self.num_outputs is None else [x.shape[-1], self.num_outputs]
        if x.shape.rank < 2 or not weights.shape[-len(event) :].is_compatible_with(event):
            raise ValueError(
                f"LinearModel takes data (x, y) with x of shape [N, D], and weights of shape "
                f"{'[D]' if len(event) == 1 else f'[D, {event[1]}]'} behind chain dimensions with "
                f"num_outputs={self.num_outputs}. "
                f"Received: examples of x of shape {x.shape}, weights of shape {weights.shape}."
            )
        if x.shape.rank > 2 or weights.shape.rank == len(event):
            return (tf.linalg.matvec if len(event) == 1 else tf.linalg.matmul)(x, weights)
        if len(event) == 1:  # all chains see the same examples: one product for all of them
            return tf.linalg.matmul(weights, x, transpose_b=True)
        return tf.einsum("nd,...dc->...nc", x, weights)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise TypeError(
            "LinearModel takes data (x, y), a pair of features [N, D] and a nest of what else the "
            f"log likelihood needs. Received: {tf.nest.map_structure(lambda x: x.shape, batch)}."
        )
    return batch[0], batch[1]
