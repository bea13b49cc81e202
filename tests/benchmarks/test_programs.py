"""The list of programs that a call traces and compiles."""

import tensorflow as tf

from benchmarks.common.programs import listed


def cubes(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, x * y), (0, tf.ones_like(x)))[1]


def test_each_program_is_listed_once_with_its_size() -> None:
    """A loop's operations count, and only what XLA compiles has instructions."""
    x = tf.constant([2.0, 3.0])
    with listed() as programs:
        compiled = tf.function(cubes, autograph=False, jit_compile=True)
        plain = tf.function(cubes, autograph=False)
        outer = tf.function(lambda x: compiled(x) + 1, autograph=False)
        for _ in range(2):
            for given in (x, x[:1]):
                assert compiled(given)[0] == plain.get_concrete_function(given)(given)[0] == 8
        assert outer(x)[1] == 28
    assert [p.name for p in programs] == ["cubes"] * 4 + [
        "test_each_program_is_listed_once_with_its_size.<lambda>"
    ]
    instructions = [p.instructions for p in programs]
    assert [n is None for n in instructions] == [False, True, False, True, True]
    assert all(p.operations > 15 and p.tracing > 0 and p.compiling >= 0 for p in programs)
    assert min(n for n in instructions if n is not None) > 2
