"""The backend of Keras, which must be TensorFlow."""

from __future__ import annotations

import os
import sys


def check() -> None:
    """Raises ImportError if Keras has another backend, or will have by KERAS_BACKEND."""
    keras = sys.modules.get("keras")
    loaded = getattr(getattr(keras, "backend", None), "backend", None)
    name = loaded() if loaded is not None else os.environ.get("KERAS_BACKEND") or "tensorflow"
    if name != "tensorflow":
        raise ImportError(
            "tfp_sgmcmc needs Keras' backend tensorflow. Received: the backend "
            f"{name}. Set the environment variable KERAS_BACKEND=tensorflow before the program "
            "imports Keras, or write it into ~/.keras/keras.json."
        )
