"""Updates of variables that take a matrix product: the gradient of a dense layer's weights is used where it is made.

Such a gradient is as large as the weights, is made by a product, and taken by nothing but the update. As two kernels, it is written
to memory, and read again when the caches have forgotten it. Here the product is made some rows at a time, into a piece of memory
that stays in the cache, and each piece is used up by the rule of the optimizer at once. It runs where the update stood. The bits are
those of the two kernels, since both do to each number what they did before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.core.shape import element_count
from ...graph.resources.buffer_pool import buffers
from ...graph.resources.resource_manager import VariableState, changing
from ..ir.program import Await, Begin, Call, Instruction, Loop, Predicated, Program, Recv, Send, Wait
from .dispatch import NodeKernel
from .emit.epilogue import PIECE, product_update_source
from .kernels.gemm import Product, product_of
from .kernels.optimizer import UpdateKernel
from .native.planner import NotPlannableError, Planner, Value
from .native.vm import flat
from .thread_pool import share_units
from .tiering import WarmingKernel

SMALLEST = 1 << 16  # elements of a gradient from which that is worth it: smaller ones stay in the caches anyhow


@dataclass(frozen=True, slots=True)
class _Cut:
    """Pieces of a gradient: what the kernel is told, how many there are, for how many threads, and each thread's room."""

    numbers: tuple[tuple[int, ...], ...]
    pieces: int
    threads: int
    room: int


class ProductUpdate(WarmingKernel):
    """An update whose gradient is a product: a kernel of the update's inputs, with the product's two in the gradient's place.

    Until it is compiled, and where it does not fit, it runs the two kernels one after the other.
    """

    def __init__(self, product: NodeKernel, update: UpdateKernel, threads: int) -> None:
        self.product = product
        self.update = update
        self._at = update.places + update.gradient
        self._threads = threads
        super().__init__(product_update_source(update.loops, update.places, self._at), self._in_turn)

    def __call__(self, *inputs: Any) -> Any:
        at, update = self._at, self.update
        if update.checks:
            return self._in_turn(*inputs)
        if self.function is None:
            return self._on_numpy(inputs)
        a, b = inputs[at : at + 2]
        found = product_of(self.product.node, a, b, self._threads)
        states: Sequence[VariableState] = inputs[: update.places]
        if found is None or found.stack or found.rows * found.columns < SMALLEST or len(set(states)) < len(states):
            return self._in_turn(*inputs)
        shape = (found.rows, found.columns)
        with changing(states) as values:
            fits = all(v.shape == shape for v in values)
            if fits:
                self._in_pieces(found, values, [*inputs[update.places : at], *inputs[at + 2 :]])
        return update.result(states) if fits else self._in_turn(*inputs)

    def put_into(self, planner: Planner, inputs: Sequence[Value]) -> None:
        """Put its launch into a native plan, whose first inputs are the variables' values."""
        at, update = self._at, self.update
        function = planner.function_of(self)
        a, b = (planner.in_order(v) for v in inputs[at : at + 2])
        found = product_of(self.product.node, a.array, b.array, self._threads)
        if found is None or found.stack or found.rows * found.columns < SMALLEST:
            raise NotPlannableError("a gradient that is made by itself")
        first, second = planner.view(found.a, a), planner.view(found.b, b)
        if first is None or second is None:
            raise NotPlannableError("factors that are copied")
        values = inputs[: update.places]
        update.check_fit(values, (found.rows, found.columns))
        others = [planner.in_order(v) for v in (*inputs[update.places : at], *inputs[at + 2 :])]
        cut = self._cut(found)
        room = planner.made((cut.threads * cut.room,), found.dtype)
        vectors = [word for v in (*values, *others, first, second, room) for word in planner.vector(v)]
        planner.launch_units(function, vectors, flat(cut.numbers), cut.pieces, cut.threads)

    def _in_turn(self, *inputs: Any) -> Any:
        """Make the gradient, then use it up."""
        at = self._at
        return self.update(*inputs[:at], self.product(*inputs[at : at + 2]), *inputs[at + 2 :])

    def _in_pieces(self, product: Product, values: Sequence[Any], others: Sequence[Any]) -> None:
        """Make and use up the gradient, some rows at a time."""
        assert self.function is not None
        cut = self._cut(product)
        room = buffers.empty((cut.threads * cut.room,), product.dtype)
        arrays = [np.asarray(x).reshape(-1) for x in (*values, *others)]
        share_units(self.function, (*arrays, product.a, product.b, room), cut.numbers, cut.pieces, cut.threads)

    def _cut(self, product: Product) -> _Cut:
        """How a gradient is made and used up in pieces."""
        row = product.columns * product.dtype.itemsize
        high = max(1, min(product.rows, PIECE // row))
        plan = replace(product, rows=high, threads=1).plan(may_turn=False)
        sizes, _, a_jumps, b_jumps, unit = plan.terms
        pieces = -(-product.rows // high)
        numbers = (product.rows, *sizes[1:]), a_jumps, b_jumps, unit, (high, 0)
        return _Cut(numbers, pieces, min(self._threads, pieces), high * product.columns + plan.room)


def with_product_updates(program: Program, threads: int, compile_first: bool = False) -> Program:
    """The program with products put into the updates that take them, where nobody else does.

    `compile_first`: compile them now.
    """
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
            step, Recv | Loop | Wait | Begin | Await
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
        joined = ProductUpdate(product.kernel, step.kernel, threads)
        if compile_first:
            joined.compile()
        steps[made] = None
        steps[i] = replace(
            step,
            kernel=joined,
            inputs=(*step.inputs[:at], *product.inputs, *step.inputs[at + 1 :]),
            frees=(*(s for s in step.frees if s != slot), *_held(program.instructions[made:i], product.inputs)),
            nodes=(product.node, step.node),
        )
    return replace(program, instructions=tuple(s for s in steps if s is not None))


def _held(steps: Iterable[Instruction], needed: Sequence[int]) -> list[int]:
    """Let these steps keep the slots that are needed after them; gives those that somebody else must let go of."""
    kept: dict[int, None] = {}
    for step in steps:
        target = step.call if isinstance(step, Predicated) else step
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
    if isinstance(step, Predicated):
        return (*step.checks, *step.call.inputs)
    if isinstance(step, Loop):
        inner = [s for part in (step.head, step.body) for x in part for s in _read(x)]
        return (*inner, step.test, *(s for s, _ in step.starts), *(s for s, _ in step.nexts))
    return ()
