"""Functions of a wrong signature, and starts that are no arrays, are told by name."""

from typing import Any

import numpy as np
import pytest

from tests.keras import small_models

X, Y = np.ones([4, 3], np.float32), np.zeros([4], np.int64)


def one_epoch(make_kernel_fn: Any = None, **arguments: Any) -> None:
    callback = small_models.sampler(make_kernel_fn or small_models.sgld(), 4, **arguments)
    small_models.fit(small_models.linear(), callback, X, Y, batch_size=4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"make_kernel_fn": lambda: None}, "kernel must be callable with 1 argument"),
        ({"prior": lambda a, b: 0.0}, "prior must be callable with 1 argument"),
        ({"keep": lambda: True}, "keep must be callable with 1 argument"),
        ({"num_chains": 2, "initial_states": 3}, "initial_states must be"),
        ({"num_chains": 2, "initial_states": [np.full([2, 3, 4], np.nan)]}, "initial_states must"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_an_argument_is_named_at_its_first_use(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises((TypeError, ValueError), match=told):
        one_epoch(**arguments)


def test_the_same_call_with_right_arguments_samples() -> None:
    one_epoch(prior=lambda values: 0.0, keep=lambda step: step >= 0)
