"""Updates of variables that take a matrix product: the gradient of a dense layer's weights is used where it is made.

Such a gradient is as large as the weights, is made by a product, and taken by nothing but the update. As two kernels, it is written
to memory, and read again when the caches have forgotten it. Here the product is made some rows at a time, into a piece of memory
that stays in the cache, and each piece is used up by the rule of the optimizer at once. It runs where the update stood. The bits are
those of the two kernels, since both do to each number what they did before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.shape import element_count
from ...graph.state import VariableState, changing
from ..matrix_kernels import Product, product_of
from ..numba_source import as_passed
from ..program import Call, Guarded, Instruction, Loop, Program, Recv, Send, Wait
from ..threads import share
from .nodes import NodeKernel
from .updates import UpdateKernel

PIECE = 1 << 19  # bytes of a gradient that are made at a time: half of a small second cache
SMALLEST = 1 << 16  # elements of a gradient from which that is worth it: smaller ones stay in the caches anyhow

_own = threading.local()


def _piece(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Memory of this thread's own for so many numbers, the same each time."""
    held: np.ndarray[Any, Any] | None = getattr(_own, "piece", None)
    size = count * dtype.itemsize
    if held is None or held.size < size:
        held = _own.piece = np.empty(max(size, PIECE), np.uint8)
    return held[:size].view(dtype)


class ProductUpdate:
    """An update whose gradient is a product: a kernel of the update's inputs, with the product's two in the gradient's place."""

    def __init__(self, product: NodeKernel, update: UpdateKernel, threads: int) -> None:
        self.product = product
        self.update = update
        self._at = update.places + update.gradient
        self._threads = threads

    def __call__(self, *inputs: Any) -> Any:
        at, update = self._at, self.update
        a, b = inputs[at : at + 2]
        found = product_of(self.product.node, a, b, 1) if self._are_ready() else None
        if found is None or found.stack or found.rows * found.columns < SMALLEST:
            return update(*inputs[:at], self.product(a, b), *inputs[at + 2 :])
        states: Sequence[VariableState] = inputs[: update.places]
        shape = (found.rows, found.columns)
        if len(set(states)) == len(states):
            with changing(states) as values:
                fits = all(v.shape == shape for v in values)
                if fits:
                    self._in_pieces(found, values, [*inputs[update.places : at], *inputs[at + 2 :]])
            if fits:
                return update.result(states)
        return update(*inputs[:at], self.product(a, b), *inputs[at + 2 :])

    def _are_ready(self) -> bool:
        return self.product.function is not None and self.update.function is not None and not self.update.checks

    def _in_pieces(self, product: Product, values: Sequence[Any], others: Sequence[Any]) -> None:
        """Make and use up the gradient, some rows at a time."""
        multiply, change = self.product.function, self.update.function
        assert multiply is not None
        assert change is not None
        columns, gradient = product.columns, self.update.gradient
        flat = [as_passed(v.reshape(-1)) for v in values]
        given = [np.asarray(x).reshape(-1) for x in others]
        rows = max(1, min(product.rows, PIECE // (columns * product.dtype.itemsize)))
        pieces = -(-product.rows // rows)

        def work(lo: int, hi: int) -> None:
            for i in range(lo, hi):
                top, count = i * rows, min(rows, product.rows - i * rows)
                made = _piece(count * columns, product.dtype)
                product.rows_at(top, count).run(multiply, made)
                own = [x[top * columns : (top + count) * columns] for x in flat]
                change(*own, *given[:gradient], made, *given[gradient:], *own, made.size, 0, made.size)

        share(work, (), tuple((i, i + 1) for i in range(pieces)), self._threads)


def with_product_updates(program: Program, threads: int) -> Program:
    """The program with products put into the updates that take them, where nobody else does."""
    steps: list[Instruction | None] = list(program.instructions)
    if not any(isinstance(s, Call) and isinstance(s.kernel, UpdateKernel) for s in steps if s is not None):
        return program
    users: dict[int, int] = {}
    makers: dict[int, int] = {}
    fences = 0
    fences_before = []
    for i, step in enumerate(program.instructions):
        fences_before.append(fences)
        fences += isinstance(
            step, Recv | Loop | Wait
        )  # a product is not put off until another task, or step, has answered
        for slot in _read(step):
            users[slot] = users.get(slot, 0) + 1
        if type(step) is Call and isinstance(step.kernel, NodeKernel) and step.kernel.node.type == "MatMul":
            makers[step.outputs[0]] = i
    fetched = {slot for _, slot in program.fetches}
    for i, step in enumerate(program.instructions):
        if type(step) is not Call or not isinstance(step.kernel, UpdateKernel):
            continue
        at = step.kernel.places + step.kernel.gradient
        slot = step.inputs[at]
        made = makers.get(slot)
        if made is None or users[slot] != 1 or slot in fetched or fences_before[made] != fences_before[i]:
            continue
        product = program.instructions[made]
        assert isinstance(product, Call)
        assert isinstance(product.kernel, NodeKernel)
        if (element_count(product.kernel.node.outputs[0].dims) or SMALLEST) < SMALLEST:
            continue
        steps[made] = None
        steps[i] = replace(
            step,
            kernel=ProductUpdate(product.kernel, step.kernel, threads),
            inputs=(*step.inputs[:at], *product.inputs, *step.inputs[at + 1 :]),
            frees=(*(s for s in step.frees if s != slot), *_held(program.instructions[made:i], product.inputs)),
            nodes=(product.node, step.node),
        )
    return replace(program, instructions=tuple(s for s in steps if s is not None))


def _held(steps: Iterable[Instruction], needed: Sequence[int]) -> list[int]:
    """Let these steps keep the slots that are needed after them; gives those that somebody else must let go of."""
    kept: dict[int, None] = {}
    for step in steps:
        target = step.call if isinstance(step, Guarded) else step
        if isinstance(target, Call | Send | Loop):
            mine = [s for s in target.frees if s in needed]
            if mine:
                kept.update(dict.fromkeys(mine))
                target.frees = tuple(s for s in target.frees if s not in mine)
    return list(kept)


def _read(step: Instruction) -> Iterable[int]:
    """The slots that an instruction reads, once per place; of a loop, all that it touches."""
    if isinstance(step, Call):
        return step.inputs
    if isinstance(step, Send):
        return (step.slot,)
    if isinstance(step, Guarded):
        return (*step.checks, *step.call.inputs)
    if isinstance(step, Loop):
        inner = [s for part in (step.head, step.body) for x in part for s in _read(x)]
        return (*inner, step.test, *(s for s, _ in step.starts), *(s for s, _ in step.nexts))
    return ()
