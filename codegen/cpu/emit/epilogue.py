"""Source text of updates that make their gradient themselves: a matrix product, and the rule of an optimizer.

Pieces of some rows of the gradient are made in memory that stays in the cache, and used up by the rule at once, all in one compiled
call per thread. The text is that of products (`gemm_source`), that of the rule's kernel, and this loop around both.
"""

from __future__ import annotations

from functools import cache

from ...ir.loop_nest import LoopNest
from ...target import L2_BYTES
from ..kernels.gemm import FUNCTIONS
from .instantiate import source_of
from .nest import HEADER, numba_source

PIECE = L2_BYTES // 4  # bytes of a gradient that are computed at a time


@cache
def product_update_source(loops: LoopNest, places: int, gradient: int) -> str:
    """The text for a rule whose first `places` inputs are overwritten and whose input `gradient` is the product.

    Its kernel takes the values, the other inputs, the two factors, room for the threads' pieces and for what is laid out for them,
    counters (`threads.share_units`), (rows, inner, columns), the factors' jumps, the unit of a piece's product, and (rows of a piece, 0).
    """
    product = source_of("gemm_source", FUNCTIONS, loops.loads[gradient].dtype.name)
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
            f"    {', '.join([*values, *others])}, a, b, room, counters, sizes, a_jumps, b_jumps, unit, high, who, units",
            "):",
            "    rows, inner, columns = sizes",
            "    mine = room.size // (counters.size // LINE - 1)",
            "    piece, own_room = room[who * mine :][: high[0] * columns], room[who * mine :][high[0] * columns : mine]",
            "    own, laid = np.zeros(2 * LINE, np.int64), np.full(unit[2] + unit[3], -1, np.int64)",
            "    wide = unit[1] * (NR32 if a.itemsize == 4 else NR64)",
            "    while True:",
            "        work = next_unit(counters, who, units)",
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
            "    if who == 0:",
            "        wait(counters, units)",
            "",
            "",
            f"kernel = njit(types.void({', '.join(kinds)}), nogil=True, error_model='numpy', cache=True)(update)",
            "",
        ]
    )
