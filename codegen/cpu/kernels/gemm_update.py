"""Products fused into optimizer updates: the gradient of a dense layer's weights is consumed where it is made.

Such a gradient is as large as the weights. A product makes it, and only the update of the variable reads it. As two kernels, it is
written to memory and read again after the caches have evicted it. Here each thread makes a piece of some rows of the product in memory
that stays in its cache, and applies the optimizer's rule to the piece at once (an epilogue of the GEMM). It runs where the
update stood. The bits are those of the two kernels.

The source text is that of products (`gemm_source`), that of the rule's loop nest, and a loop over pieces around both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ....graph.resources.buffer_pool import buffers
from ....graph.resources.resource_manager import VariableState, changing
from ...ir.loop_nest import LoopNest
from ...target import L2_BYTES
from ..emit.instantiate import text_of
from ..emit.nest import HEADER, numba_source
from ..native.planner import NotPlannableError, Planner, Value
from ..native.vm import flat
from ..thread_pool import share_units
from ..tiering import TieredKernel
from .gemm import FUNCTIONS, Product, ProductKernel, product_of
from .optimizer import UpdateKernel

PIECE = L2_BYTES // 4  # bytes of a gradient that are computed at a time


@cache
def product_update_source(loops: LoopNest, places: int, gradient: int) -> str:
    """The text for a rule whose first `places` inputs are overwritten and whose input `gradient` is the product.

    Its kernel takes the values, the other inputs, the two factors, room for the threads' pieces and packed panels,
    counters (`threads.share_units`), (rows, inner, columns), the factors' jumps, the unit of a piece's product, and (rows of a piece, 0).
    """
    product = text_of("kernels/gemm_source", FUNCTIONS, loops.loads[gradient].dtype.name)
    product = product[: product.rindex("kernel = ")]
    rule = numba_source(loops, in_place=places).text
    rule = "\n".join(line for line in rule.splitlines() if not line.startswith("#"))
    assert HEADER in rule
    rule = rule.replace(HEADER, '@njit(error_model="numpy")\ndef change(')
    rule = rule.replace("):\n", "):\n    m.stay_apart()\n", 1)
    inputs = range(len(loops.loads))
    values = [f"in{i}" for i in range(places)]
    others = [f"in{i}" for i in inputs if i >= places and i != gradient]
    given = [f"in{i}[first : first + count]" for i in range(places)]
    given += ["piece" if i == gradient else f"in{i}" for i in inputs if i >= places]
    given += given[:places]
    kinds = [f"types.Array(types.{v.dtype.name}, 1, 'C'{'' if i < places else ', readonly=True'})"
             for i, v in enumerate(loops.loads) if i != gradient]  # fmt: skip
    factor = f"types.Array(types.{loops.loads[gradient].dtype.name}, 1, 'C', readonly=True)"
    kinds += [factor, factor, factor.replace(", readonly=True", ""), "types.Array(types.int64, 1, 'C')"]
    kinds += [f"types.UniTuple(types.intp, {n})" for n in (3, 5, 5, 6, 2)] + ["types.intp"] * 2
    return "\n".join(
        [
            product,
            rule,
            "",
            "product = njit(error_model='numpy')(multiply)",
            "",
            "",
            "def update(",
            f"    {', '.join([*values, *others])}, a, b, room, counters, sizes, a_jumps, b_jumps, unit, high, thread, units",
            "):",
            "    rows, inner, columns = sizes",
            "    mine = room.size // (counters.size // LINE - 1)",
            "    piece, own_room = room[thread * mine :][: high[0] * columns], room[thread * mine :][high[0] * columns : mine]",
            "    own, laid = np.zeros(2 * LINE, np.int64), np.full(unit[2] + unit[3], -1, np.int64)",
            "    wide = unit[1] * (NR32 if a.itemsize == 4 else NR64)",
            "    while True:",
            "        work = next_unit(counters, thread, units)",
            "        if work < 0:",
            "            break",
            "        top = work * high[0]",
            "        some = min(high[0], rows - top)",
            "        first, count = top * columns, some * columns",
            "        parts = ((some + unit[0] - 1) // unit[0]) * ((columns + wide - 1) // wide)",
            "        own[:] = 0",
            "        laid[: unit[2]] = -1  # rows, which are others; the panels are the same for all pieces",
            "        product(a[top * a_jumps[3] :], b, piece, own_room, laid, own, (some, inner, columns), (1, 1, 1), a_jumps, b_jumps, "
            "unit, 0, parts)",
            f"        change({', '.join(given)}, count, 0, count)",
            "        count_up(counters, FINISHED, 1)",
            "    if thread == 0:",
            "        wait(counters, units)",
            "",
            "",
            f"kernel = njit(types.void({', '.join(kinds)}), nogil=True, error_model='numpy', cache=True)(update)",
            "",
        ]
    )


SMALLEST = 1 << 16  # elements of a gradient from which that is worth it: smaller ones stay in the caches anyhow


@dataclass(frozen=True, slots=True)
class _Cut:
    """Pieces of a gradient: the kernel's arguments, how many pieces there are, for how many threads, and each thread's memory."""

    numbers: tuple[tuple[int, ...], ...]
    pieces: int
    threads: int
    room: int


class ProductUpdate(TieredKernel):
    """An update whose gradient is a product: a kernel of the update's inputs, with the product's two factors instead of the gradient.

    Until it is compiled, and where it does not fit, it runs the two kernels one after the other.
    """

    def __init__(self, product: ProductKernel, update: UpdateKernel, threads: int) -> None:
        self.product = product
        self.update = update
        self.nodes = (product.node, update.node)
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

    def record_into(self, planner: Planner, inputs: Sequence[Value]) -> None:
        """Record its launch in a native plan, whose first inputs are the variables' values."""
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
