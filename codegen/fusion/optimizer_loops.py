"""Loop nests of the optimizers' update rules.

The rules are written once, as functions of NumPy arrays (`graph/ops/state/training.py`). Here they are called with symbols instead
of arrays, which record the arithmetic as loop IR. So every dense update is one kernel over the variable and its slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node
from ...graph.ops.state.training import RULES, UpdateRule
from ..ir.loop_nest import SUPPORTED, LoopNest, NotFusibleError
from .table_loops import owned_row
from .tracer import SymbolicLoops

ACCUMULATES = {"AssignAdd": "add", "AssignAddVariableOp": "add", "AssignSub": "sub", "AssignSubVariableOp": "sub"}


@lru_cache(maxsize=256)
def update(rule: str, dtype: DType, flags: tuple[tuple[str, bool], ...]) -> LoopNest:
    """The loops of an optimizer's rule over all elements: inputs in the order of its op, the new values as outputs.

    >>> print(update("GradientDescent", float32, ()))
    loops over d0
      v0: float32[d0] = load in0
      v1: float32 = load in1
      v2: float32[d0] = load in2
      v3: float32[d0] = mul v1 v2
      v4: float32[d0] = sub v0 v3
      store out0[d0] = v4
    """
    found: UpdateRule = RULES[rule]
    places = 1 + len(found.slots)
    names = ["var", *found.slots, *found.before, found.gradient, *found.after]
    loops = SymbolicLoops([False])
    arrays = {
        name: loops.load(i, dtype, [0] if i < places or name == found.gradient else []) for i, name in enumerate(names)
    }
    old = [arrays.pop(name) for name in names[:places]]
    gradient = arrays.pop(found.gradient)
    for value in found.step(*old, gradient, **arrays, **dict(flags)):
        loops.store(value, [0])
    return loops.finish()


@lru_cache(maxsize=256)
def sparse_update(
    rule: str, dtype: DType, flags: tuple[tuple[str, bool], ...], index: DType, summed: DType | None = None
) -> LoopNest:
    """The loops of an optimizer's rule over indexed rows, each named once: inputs as of `update`, then the row indices.

    `summed`: rows may be named several times. Then one more input gives the owner of each row of the variable: the position among
    the indices that makes the row's step. There the gradient, of the type `summed`, holds the sum of all gradients of the row.

    >>> print(sparse_update("GradientDescent", float32, (), int32))
    loops over d0, d1
      v0: int32[d0] = load in3
      v1: float32[d0, d1] = gather in0[v0, d1]
      v2: float32 = load in1
      v3: float32[d0, d1] = load in2
      v4: float32[d0, d1] = mul v2 v3
      v5: float32[d0, d1] = sub v1 v4
      store out0[v0, d1] = v5
    """
    dense, places = update(rule, dtype, flags), 1 + len(RULES[rule].slots)
    loops = SymbolicLoops([False, False])
    builder, place = loops.builder, loops.load(len(dense.loads), index, [0])
    row = (place if summed is None else owned_row(loops, place, len(dense.loads) + 1)).number
    made: list[int] = []
    for v in dense.values:
        if v.op == "load":
            axes = [0, 1] if v.axes else []
            if v.data < places:
                made.append(builder.gather(v.data, v.dtype, row, [1]))
            else:
                kept = summed if axes and summed is not None else v.dtype
                made.append(builder.cast(builder.load(v.data, kept, axes), v.dtype))
        elif v.op == "constant":
            made.append(builder.constant(v.data, v.dtype))
        else:
            made.append(builder.apply(v.op, *[made[a] for a in v.args], dtype=v.dtype))
    for s in dense.stores:
        builder.store(made[s.value], [1], row)
    return builder.finish()[0]


@lru_cache(maxsize=64)
def accumulation(op: str, dtype: DType) -> LoopNest:
    """A variable plus, or minus, an array."""
    loops = SymbolicLoops([False])
    old, x = loops.load(0, dtype, [0]), loops.load(1, dtype, [0])
    loops.store(old + x if op == "add" else old - x, [0])
    return loops.finish()


def _flags(rule: UpdateRule, node: Node) -> tuple[tuple[str, bool], ...]:
    return tuple(sorted((name, bool(node.attrs[name])) for name in rule.flags))


def update_of(node: Node) -> tuple[LoopNest, int, int] | None:
    """For a dense update of variables: the loops, the number of variable references it takes, and the position of the array input.

    None for all other nodes, and for rules without a loop nest.
    """
    if node.type in ACCUMULATES:
        return accumulation(ACCUMULATES[node.type], node.inputs[1].dtype.base), 1, 1
    rule = RULES.get(node.type.removeprefix("Resource").removeprefix("Apply")) if "Apply" in node.type else None
    if rule is None:
        return None
    places = 1 + len(rule.slots)
    gradient = places + len(rule.before)
    try:
        return update(rule.name, node.inputs[gradient].dtype.base, _flags(rule, node)), places, gradient
    except NotFusibleError:
        return None


@dataclass(frozen=True, slots=True)
class SparseUpdate:
    """An update of the rows that a gradient names, behind which the node has their indices.

    Attributes:
        rule, flags: the optimizer's.
        dtype, index: types of the variables and the gradient, and of the indices.
        places: how many of the inputs are variables. gradient, indices: which inputs these are.
    """

    rule: UpdateRule
    flags: tuple[tuple[str, bool], ...]
    dtype: DType
    index: DType
    places: int
    gradient: int
    indices: int

    def dense(self) -> LoopNest:
        """The rule over all rows. NotFusibleError: it has no loops; so for `sparse`."""
        return update(self.rule.name, self.dtype, self.flags)

    def sparse(self, summed: DType | None = None) -> LoopNest:
        """The rule over the named rows: see `sparse_update`."""
        return sparse_update(self.rule.name, self.dtype, self.flags, self.index, summed)


def sparse_update_of(node: Node) -> SparseUpdate | None:
    """What a node does that updates the rows which a gradient names; None for all other nodes."""
    name = node.type.removeprefix("Resource")
    rule = RULES.get(name.removeprefix("SparseApply")) if name.startswith("SparseApply") else None
    if rule is None:
        return None
    places = 1 + len(rule.slots)
    at = places + len(rule.before)
    dtype, index = (node.inputs[i].dtype.base for i in (at, at + 1))
    return SparseUpdate(rule, _flags(rule, node), dtype, index, places, at, at + 1)


def writes_in_place(node: Node) -> bool:
    """Whether an update writes in place if only the variable holds its value: scatters, sparse and compiled dense updates."""
    kind = node.type.removeprefix("Resource")
    if kind.startswith("Scatter"):
        return True
    sparse = sparse_update_of(node)
    if sparse is not None:
        return not sparse.rule.decays
    found = update_of(node)
    return found is not None and node.inputs[found[2]].dtype.base in SUPPORTED
