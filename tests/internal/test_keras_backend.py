"""The backend of Keras is checked by its name, before Keras is loaded or after."""

import sys
import types

import pytest

import tfp_sgmcmc
from tfp_sgmcmc.internal import keras_backend


@pytest.mark.parametrize("is_loaded", [False, True])
def test_another_backend_is_refused_when_a_name_is_loaded(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keras_backend.check()
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    if is_loaded:
        monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
        loaded = types.SimpleNamespace(backend=types.SimpleNamespace(backend=lambda: "jax"))
        monkeypatch.setitem(sys.modules, "keras", loaded)
    with pytest.raises(ImportError, match="backend tensorflow. Received: the backend jax. Set"):
        tfp_sgmcmc.SGLD  # noqa: B018
