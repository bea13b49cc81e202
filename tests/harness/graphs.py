"""Operations of a traced function, including the bodies of its loops and branches."""

import math
from typing import Any

import tensorflow as tf


def trace(fn: Any, *specs: tf.TensorSpec, jit: bool = False) -> list[Any]:
    """Returns all operations (`NodeDef`s with output shapes) of `fn` for arguments like `specs`."""
    traced = tf.function(fn, jit_compile=jit, autograph=False).get_concrete_function(*specs)
    graph = traced.graph.as_graph_def(add_shapes=True)
    return [*graph.node, *(node for f in graph.library.function for node in f.node_def)]


def largest_tensor(nodes: list[Any]) -> int:
    """Returns the size of the largest tensor; raises `ValueError` if a size is unknown."""
    shapes = [shape for node in nodes for shape in node.attr["_output_shapes"].list.shape]
    sizes = [[dimension.size for dimension in shape.dim] for shape in shapes]
    if any(size < 0 for shape in sizes for size in shape):
        raise ValueError("Each tensor must have a known size.")
    return max(math.prod(shape) for shape in sizes)
