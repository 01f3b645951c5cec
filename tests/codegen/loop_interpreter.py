"""Loop nests, run by NumPy: each value is an array that is broadcast over the axes that it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.codegen.ir.loop_nest import LoopNest

_OPERATIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "ge": np.greater_equal, "lt": np.less, "and": np.logical_and,
    "select": np.where, "abs": np.abs,
}  # fmt: skip
_REDUCTIONS: dict[str, Any] = {"sum": np.sum, "max": np.max}


def run_loops(loops: LoopNest, inputs: Sequence[Any], sizes: Sequence[int], numbers: Mapping[str, int]) -> list[Any]:
    """The outputs of a nest without scatters, each with the shape of its axes.

    Args:
        inputs: arrays of any shape: only their elements in the order of memory count.
        sizes: of the axes.
        numbers: the other sizes that the nest asks for, by name.

    Raises:
        AssertionError: an element outside of an input is read, and not masked.
    """
    rank, made = len(sizes), []
    for v in loops.values:
        args = [made[a] for a in v.args]
        if v.op == "load":
            found = np.reshape(inputs[v.data], [sizes[a] if a in v.axes else 1 for a in range(rank)])
        elif v.op == "constant":
            found = np.asarray(v.data, v.dtype.np)
        elif v.op == "size":
            found = np.asarray(numbers[str(v.data)])
        elif v.op == "position":
            found = _along(v.axes[0], sizes)
        elif v.op == "reduce":
            found = _REDUCTIONS[v.data](np.broadcast_to(args[0], sizes), loops.reduced_axes, keepdims=True)
        elif v.op == "gather":
            place = args[0]
            for a in loops.row_axes(v):
                place = place * sizes[a] + _along(a, sizes)
            flat, is_absent = np.ravel(inputs[v.data]), np.broadcast_to(args[0] < 0, np.shape(place))
            assert not is_absent.any() or loops.may_be_absent(v)
            assert is_absent.all() or place[~is_absent].max() < len(flat)
            found = np.where(is_absent, 0, flat[np.where(is_absent, 0, place)] if len(flat) else 0)
        else:
            found = _OPERATIONS[v.op](*args)
        made.append(np.asarray(found, v.dtype.np))
    return [
        np.broadcast_to(made[s.value], [sizes[a] if a in s.axes else 1 for a in range(rank)]).copy()
        for s in loops.stores
    ]


def _along(axis: int, sizes: Sequence[int]) -> Any:
    return np.arange(sizes[axis]).reshape([-1 if a == axis else 1 for a in range(len(sizes))])
