"""How large a model is (`slim.model_analyzer`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .....graph.core.graph import Graph


def _size(dims: Any) -> int:
    """Number of elements; 0 where the shape is not known, as TensorFlow counts."""
    return math.prod(dims) if dims is not None and None not in dims else 0


def analyze_vars(variables: Iterable[Any], print_info: bool = False) -> tuple[int, int]:
    """How many elements variables have, and how many bytes; printed one by one with `print_info`."""
    total = total_bytes = 0
    if print_info:
        print("---------\nVariables: name (type shape) [size]\n---------")
    for v in variables:
        elements = _size(v.shape.as_list())
        size = elements * v.dtype.base.size
        total, total_bytes = total + elements, total_bytes + size
        if print_info:
            kind = f"{v.dtype.name} {'x'.join(map(str, v.shape.as_list()))}".rstrip()
            print(f"{v.name} ({kind}) [{elements}, bytes: {size}]")
    if print_info:
        print(f"Total size of variables: {total}\nTotal bytes of variables: {total_bytes}")
    return total, total_bytes


def analyze_ops(graph: Graph, print_info: bool = False) -> int:
    """How many elements the outputs of a graph's nodes have, those of unknown shape left out; printed one by one with `print_info`."""
    total = 0
    if print_info:
        print("---------\nOperations: name -> (type shapes) [size]\n---------")
    for node in graph.get_operations():
        sizes = [_size(t.dims) for t in node.outputs]
        total += sum(sizes)
        if print_info:
            shown = ", ".join(f"{t.dtype.name} {t.shape}" for t in node.outputs)
            print(f"{node.name} -> ({shown}) [{sum(sizes)}]")
    if print_info:
        print(f"Total size: {total}")
    return total


__all__ = ["analyze_ops", "analyze_vars"]
