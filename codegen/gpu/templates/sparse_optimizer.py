"""Sparse updates of optimizers: a rule's step for the rows that a gradient names, and no others.

Rows that are named several times have one step, with the sum of their gradients. The last occurrence of each row owns it
(`table_loops`): the gradients are added up where the owner's own stands, and the owners make the steps. All of it is loops, the rule
among them (`optimizer_loops`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import DType
from ...fusion.table_loops import added_to_owners, filled, kept_in
from ...ir.loop_nest import LoopNest
from ..emit.expr import Names
from ..emit.schedules import launches, one_after_another
from ..ir import Count, Routine, Scratch, triton_type
from .scatter import owners


def sparse_update(
    loops: LoopNest, places: int, gradient: int, dtype: DType, index: DType, sizes: Mapping[str, int]
) -> tuple[Routine, ...]:
    """Ways to make a rule's step for rows [count, after] of a gradient, the likely best one first.

    A launch gives a node's inputs in0, in1... (the places, numbers, the gradient's rows, the indices, numbers), the outputs out0, out1...,
    which may be the places, and `sizes`. Only the rows that are named are written.

    Args:
        loops: the rule, of `update_loops.sparse_update` with sums. places: how many of its inputs are variables. gradient: which
            input that is.
        dtype: of the gradient. index: of the indices.
        sizes: `scatter.launch_sizes`; the ways are right for any others, too.
    """
    kept, indices = kept_in(dtype), f"in{gradient + 1}"
    space, axes = (sizes["count"], sizes["after"]), ("count", "after")
    tables = {"scratch0": "rows", "scratch1": "count", indices: "numbers"}
    owning, notes = owners(index, 1, indices, sizes)
    cleared = launches(filled(kept), Names((), ("scratch1",), ("updated",)), (space[0] * space[1],))[:1]
    sums = Names((f"in{gradient}", indices, "scratch0"), ("scratch1",), axes, tables=tables)
    summed = launches(added_to_owners(dtype, index), sums, space)
    inputs = [f"in{i}" for i in range(len(loops.loads) - 1) if i != gradient + 1] + [indices]  # as the loops have them
    inputs[gradient] = "scratch1"
    outputs = tuple(f"out{i}" for i in range(places))
    tables |= dict.fromkeys((*inputs[:places], *outputs), "rows")
    step = launches(loops, Names((*inputs, "scratch0"), outputs, axes, tables=tables), space)
    scratch = Scratch("scratch1", triton_type(kept.name), (Count(("count",)), Count(("after",))))
    return one_after_another([*owning, cleared, summed, step], [*notes, scratch])
