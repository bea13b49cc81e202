"""A posterior as an estimator of scikit-learn, for libraries that take such estimators."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfp_sgmcmc.keras.model import compiled_loss, internals, observation_models


def estimator(posterior: Any) -> Any:
    """Returns a scikit-learn estimator that predicts by a posterior.

    Raises:
      ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_estimator needs scikit-learn. Install it, with MAPIE, by "
            'python -m pip install "tfp_sgmcmc[conformal]"'
        ) from error

    class Estimator(BaseEstimator):
        """A posterior that was sampled already, with the methods of scikit-learn."""

        def __init__(self, posterior: Any):
            self.posterior = posterior
            self.is_fitted = True  # what MAPIE looks for

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def __deepcopy__(self, memo: Any) -> Any:
            return self  # a posterior belongs to its model

        def fit(self, x: Any, y: Any = None) -> Any:
            """Raises TypeError: `SamplerCallback` has sampled the posterior."""
            raise TypeError("The posterior was sampled already. Pass prefit=True.")

    class Regressor(RegressorMixin, Estimator):
        def predict(self, x: Any) -> np.ndarray:
            """Returns the predictive mean, `[rows]`."""
            mean = self.posterior.predict(x, verbose=0).predictive.mean
            if mean.ndim > 2 or mean.shape[1:] not in ((), (1,)):
                raise ValueError(
                    "The model must predict one number for each row. Received: predictions of "
                    f"shape {mean.shape}."
                )
            return mean.reshape(-1)

    class Classifier(ClassifierMixin, Estimator):
        def __init__(self, posterior: Any, num_classes: int):
            super().__init__(posterior)
            self.num_classes, self.classes_ = num_classes, np.arange(num_classes)

        def predict_proba(self, x: Any) -> np.ndarray:
            """Returns the mean probabilities of the classes, `[rows, classes]`."""
            p = np.asarray(self.posterior.predict(x, verbose=0).mean, np.float64)
            p = np.concatenate([1 - p, p], axis=1) if p.shape[1] == 1 else p
            return p / p.sum(axis=1, keepdims=True)

        def predict(self, x: Any) -> np.ndarray:
            """Returns the most probable classes, `[rows]`."""
            return self.predict_proba(x).argmax(axis=1)

    classes, is_regression = _kind(posterior.model)
    return Regressor(posterior) if is_regression else Classifier(posterior, classes)


def _kind(model: keras.Model) -> tuple[int, bool]:
    """Returns the number of classes, and whether the output is a number instead."""
    outputs = internals.symbolic_outputs(model)
    flat = keras.tree.flatten(outputs) if outputs is not None and model.compiled else []
    if len(flat) == 1:
        ((_, found),) = [*compiled_loss.classes(model, outputs).items()] or [(0, None)]
        width = flat[0].shape[-1]
        is_plain = len(flat[0].shape) == 2
        if found is not None and is_plain and (found.axis is not None or width == 1):
            return max(width, 2), False
        if found is None and observation_models.with_moments(model, outputs):
            return 0, True
    raise ValueError(
        "The model must have a single output [rows, ...], with a crossentropy over one label for "
        "each row or with a NegativeLogLikelihood of a number with a known mean. Received: "
        "another model."
    )
