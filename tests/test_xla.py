"""Whether code is being traced for XLA is known wherever it is traced."""

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
