r"""Linear schemes: their largest stable steps, relaxation times and temperatures.

Along a direction of curvature a, in coordinates where the metric M (or the mass) is the identity,
let the gradient be \( -a \theta \) plus noise of variance s. A step is then linear. Its matrix has
the trace t and the determinant d (0 without momenta), and its eigenvalues are the roots of
\( z^2 - t z + d \). They lie inside the unit circle, and the chain contracts, if and only if
\( |d| < 1 \) and \( |t| < 1 + d \) (Jury). As steps grow, the real root that passes -1 ends
stability: \( 1 + t + d = 0 \). The stationary variance of \( \theta \) is \( \tau / a \), where
\( \tau \) is 1 for an exact sampler. At the temperature T, divide s by T and multiply \( \tau \)
by T.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tfp_sgmcmc.internal.checks import array, require


class LinearLaw(NamedTuple):
    r"""The law of a linear step along one direction, or along several, `[...]`.

    Attributes:
      trace: t.
      determinant: d.
      temperature: \( \tau \), the stationary variance of \( \theta \) times the curvature;
        infinite for an unstable step.
    """

    trace: np.ndarray
    determinant: np.ndarray
    temperature: np.ndarray

    @property
    def relaxation_steps(self) -> np.ndarray:
        r"""The steps in which the mean of \( \theta \) shrinks by a factor of e.

        Where \( \rho \) is the larger modulus of the eigenvalues, this is \( -1 / \log \rho \), and
        infinite for an unstable step.
        """
        radius = np.max(np.abs(self._eigenvalues), axis=0)
        with np.errstate(divide="ignore"):
            return np.where(radius < 1, -1 / np.log(np.minimum(radius, 1)), np.inf)

    def share_after(self, num_steps: float) -> np.ndarray:
        r"""Returns the share of its variance that a stable chain has after K steps from the mode.

        Momenta start at rest. With the eigenvalues \( \mu_\pm \) and
        \( q = \log(\mu_+ \mu_-) / \log(\mu_- / \mu_+) \) it is

        \[
        1 - \frac{q^2}{2} (\mu_+^K - \mu_-^K)^2 - \frac q2 (\mu_+^{2K} - \mu_-^{2K})
        - (\mu_+ \mu_-)^K,
        \]

        exact for Langevin dynamics (Chandrasekhar 1943, eq. 214), which a step
        with small h solves for the time h, and \( 1 - t^{2K} \) without momenta.
        """
        large, small = self._eigenvalues
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.log(large) - np.log(small)
            q = -(np.log(large) + np.log(small)) / np.where(abs(gap) < 1e-6, 1e-6, gap)
            high, low = (np.where(x == 0, 0, x ** (num_steps + 0j)) for x in (large, small))
            left = q**2 / 2 * (high - low) ** 2 + q / 2 * (high**2 - low**2) + high * low
            overdamped = np.minimum(np.abs(self.trace), 1) ** (2 * num_steps)
            left = np.where(self.determinant == 0, overdamped, left.real)
        return 1 - np.clip(left, 0, 1)

    @property
    def _eigenvalues(self) -> tuple[np.ndarray, np.ndarray]:
        root = np.sqrt(self.trace**2 / 4 - self.determinant + 0j)
        return self.trace / 2 + root, self.trace / 2 - root


def overdamped_law(step_size: Any, curvature: Any, noise: Any = 0.0) -> LinearLaw:
    r"""Returns the law of `SGLD`: \( \tau = (1 + h s / 4) / (1 - h a / 4) \).

    >>> overdamped_law(0.1, 2.0, 40.0).temperature.round(4)
    np.float64(2.1053)
    """
    h, a, s = _arrays(step_size, curvature, noise)
    return _law(1 - h * a / 2, 0 * a, h * a < 4, 1 + h * s / 4, 1 - h * a / 4)


def splitting_law(step_size: Any, friction: Any, curvature: Any, noise: Any = 0.0) -> LinearLaw:
    r"""Returns the law of `UnderdampedLangevin`, half a drift, friction, half a drift and a kick.

    With \( c = e^{-\text{friction} h} \),

    \[
    t = (1 + c) (1 - h^2 a / 2), \qquad d = c, \qquad
    \tau = 1 + \frac{h^2 s (1 + c)}{4 (1 - c) (1 - h^2 a / 4)}.
    \]

    The excess is about h s / (2 friction) for small h, and 0 without noise.

    >>> splitting_law([1.0, 0.01], 1.5, 1.0, 1.0).temperature.round(6)
    array([1.524811, 1.003333])
    """
    h, friction, a, s = _arrays(step_size, friction, curvature, noise)
    c, room = np.exp(-friction * h), 1 - h**2 * a / 4
    heated = room + h**2 * s / (4 * np.tanh(friction * h / 2))  # tanh is (1 - c) / (1 + c)
    return _law((1 + c) * (1 - h**2 * a / 2), c, room > 0, heated, room)


def nogin_law(
    step_size: Any, friction: Any, curvature: Any, noise: Any = 0.0, known: Any = 0.0
) -> LinearLaw:
    r"""Returns the law of `NOGIN` that takes the variance of the noise for k, the `known` one.

    With \( \lambda^2 = \tanh(\text{friction}\, h / 2) \) and \( L = \lambda^2 + h^2 k / 4 \),

    \[
    t = (1 + r) (1 - h^2 a / 2), \qquad d = r = \frac{1 - L}{1 + L}, \qquad
    \tau = 1 + \frac{h^2 (s - k)}{4 L}.
    \]

    >>> float(nogin_law(0.3, 1.5, 2.0, 40.0, known=40.0).temperature)
    1.0
    """
    h, friction, a, s, k = _arrays(step_size, friction, curvature, noise, known)
    damping = np.tanh(friction * h / 2) + h**2 * k / 4
    r = (1 - damping) / (1 + damping)
    temperature = 1 + h**2 * (s - k) / (4 * damping)
    return _law((1 + r) * (1 - h**2 * a / 2), r, h**2 * a < 4, temperature)


def euler_law(
    step_size: Any, friction: Any, curvature: Any, noise: Any = 0.0, known: Any = 0.0
) -> LinearLaw:
    r"""Returns the law of the Euler scheme of `CCAdL`, with xi at the friction.

    With the friction \( f = \text{friction} + h k / 2 \), where k is the `known` noise,

    \[
    t = 2 - h f - h^2 a, \qquad d = 1 - h f, \qquad
    \tau = \frac{(2 - h f) (2\, \text{friction} + h s)}{f (4 - 2 h f - h^2 a)}.
    \]

    >>> euler_law(0.1, 1.0, 1.0, [0.0, 20.0], [0.0, 20.0]).temperature.round(6)
    array([1.002639, 1.002786])
    """
    h, friction, a, s, k = _arrays(step_size, friction, curvature, noise, known)
    f = friction + h * k / 2
    room = 4 - 2 * h * f - h**2 * a
    numerator = (2 - h * f) * (2 * friction + h * s) / f
    return _law(2 - h * f - h**2 * a, 1 - h * f, room > 0, numerator, room)


def split_friction_law(
    step_size: Any,
    friction: Any,
    curvature: Any,
    noise: Any = 0.0,
    known: Any = 0.0,
    factor: Callable[[np.ndarray], np.ndarray] = lambda x: 1 - x / 2,
) -> LinearLaw:
    r"""Returns the law of `CCAdL(scheme="adodacbc")`, with xi at the friction.

    Friction by the `known` noise k multiplies the momenta by u on both sides of the kick, where u
    is the `factor` at \( x = h^2 k / 2 \), in the scheme \( 1 - x / 2 \). With \( u = e^{-x/2} \),
    the exact solution of the friction alone, it is stable at every k, and \( \tau \) grows without
    bound in x. Where \( c = e^{-\text{friction} h} \), theta is an autoregression of second order
    with noise whose autocovariances are \( \gamma_0, \gamma_1 \),

    \[
    \begin{aligned}
    t &= 1 + u^2 c - u (1 + c) h^2 a / 2, \qquad d = u^2 c, \\
    \gamma_0 &= \tfrac{h^2}{4} \bigl((1 + u^4)(1 - c^2) + (1 + c)^2 u^2 h^2 s\bigr), \qquad
    \gamma_1 = \tfrac{h^2}{4} u^2 (1 - c^2), \\
    \tau &= a\, \frac{2 t \gamma_1 + (1 + d) \gamma_0}{(1 - d) ((1 + d)^2 - t^2)}.
    \end{aligned}
    \]

    >>> split_friction_law(0.1, 1.0, 1.0, [0.0, 20.0], [0.0, 20.0]).temperature.round(4)
    array([1.    , 0.9889])
    """
    h, friction, a, s, k = _arrays(step_size, friction, curvature, noise, known)
    c, u = np.exp(-friction * h), factor(h**2 * k / 2)
    t, d = 1 + u**2 * c - u * (1 + c) * h**2 * a / 2, u**2 * c
    drawn = 1 - c**2
    gamma0 = h**2 / 4 * ((1 + u**4) * drawn + (1 + c) ** 2 * u**2 * h**2 * s)
    gamma1 = h**2 / 4 * u**2 * drawn
    is_stable = (np.abs(d) < 1) & (np.abs(t) < 1 + d)
    numerator = a * (2 * t * gamma1 + (1 + d) * gamma0)
    return _law(t, d, is_stable, numerator, (1 - d) * ((1 + d) ** 2 - t**2))


def curvature_and_noise(curvature: Any, noise: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns both as arrays. Raises for what is no finite number, and for a negative noise."""
    curvature = array("curvature", curvature, least_ndim=0)
    noise = array("noise", noise, least_ndim=0)
    require("noise", noise, bool(np.all(noise >= 0)), "at least zero")
    return np.asarray(curvature, np.float64), np.asarray(noise, np.float64)


def overdamped_limit(largest_curvature: Any) -> Any:
    r"""Returns \( 4 / \lambda \), below which \( |1 - \epsilon \lambda / 2| < 1 \)."""
    with np.errstate(divide="ignore"):
        return 4 / at_least_zero("largest_curvature", largest_curvature)


def splitting_limit(largest_curvature: Any) -> Any:
    r"""Returns \( 2 / \sqrt\lambda \), below which \( h^2 \lambda < 4 \)."""
    with np.errstate(divide="ignore"):
        return 2 / np.sqrt(at_least_zero("largest_curvature", largest_curvature))


def euler_limit(largest_curvature: Any, friction: Any) -> Any:
    r"""Returns the root of \( h^2 \lambda + 2 h f = 4 \), where f is the friction.

    It is \( 4 / (f + \sqrt{f^2 + 4 \lambda}) \).
    """
    friction = np.maximum(friction, 0.0)
    curvature = at_least_zero("largest_curvature", largest_curvature)
    with np.errstate(divide="ignore"):
        return 4 / (friction + np.sqrt(friction**2 + 4 * curvature))


def at_least_zero(name: str, value: Any) -> np.ndarray:
    """Returns an array of numbers, zero for those below; `name` is what messages call it."""
    values = array(name, value, least_ndim=0, finite=False)
    require(name, "NaN", not np.isnan(values).any(), "a number")
    return np.maximum(np.asarray(values, np.float64), 0.0)


def _law(
    trace: Any, determinant: Any, is_stable: Any, numerator: Any, room: Any = 1.0
) -> LinearLaw:
    """Returns the law of temperature numerator / room where a step is stable."""
    temperature = np.where(is_stable, numerator / np.where(is_stable, room, 1.0), np.inf)
    return LinearLaw(trace, determinant, temperature)


def _arrays(*numbers: Any) -> tuple[np.ndarray, ...]:
    return np.broadcast_arrays(*(np.asarray(x, np.float64) for x in numbers))
