"""Whether code is being traced for XLA is known wherever it is traced."""

from typing import Any

import pytest
import tensorflow as tf

from tfp_sgmcmc import xla


def test_xla_context_is_seen_wherever_code_is_traced() -> None:
    seen = {}

    def note(name: str, x: tf.Tensor) -> tf.Tensor:
        seen[name] = xla.in_xla_context()
        return x

    def everywhere(x: tf.Tensor) -> tf.Tensor:
        x = note("body", x)
        x = tf.while_loop(lambda x: x < 3.0, lambda x: (note("while", x + 1),), (x,))[0]
        x = tf.cond(x > 0, lambda: note("cond", x), lambda: x)
        return tf.function(lambda x: note("nested", x), autograph=False)(x)

    everywhere(tf.constant(0.0))
    assert not any(seen.values())
    tf.function(everywhere, autograph=False)(tf.constant(0.0))
    assert not any(seen.values()) and len(seen) == 4
    tf.function(everywhere, autograph=False, jit_compile=True)(tf.constant(0.0))
    assert all(seen.values()) and len(seen) == 4


def test_functions_that_are_made_anew_are_traced_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Twelve of one source line. The negative control makes `tf.function` warn."""

    def warned(make: Any) -> bool:
        caplog.clear()
        logger = tf.get_logger()
        logger.addHandler(caplog.handler)
        try:
            for _ in range(12):
                make(lambda x: x + 1)(tf.constant(1.0))
        finally:
            logger.removeHandler(caplog.handler)
        return any("retracing" in record.message for record in caplog.records)

    assert not warned(xla.traced)
    assert warned(lambda fn: tf.function(fn, autograph=False))
