"""Kernels along one axis: running sums and products, argmax and argmin, sorting.

An array is seen as [before, length, after], with the axis in the middle. A block takes some of the before x after rows, and goes
along them in pieces, with what it knows so far carried from piece to piece. Sorting takes whole rows, and elements of 32 bits or
less, which are sorted together with their places as one word of 64 bits: so equal elements keep their order, and the places
come for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graph.core.dtypes import DType, float32
from ..emit.expr import NARROW, type_of
from ..ir import Count, Grid, Routine, Scratch, triton_type
from .text import address, make_launch

_PIECE = 8192  # elements of a piece of a long row that is scanned in pieces
_TWO = Count((), times=2)  # n pieces have n + 1 ends, which are no more than 2 n
LONGEST_SORTED = 4096  # elements of a row that is sorted in one block

_ROW = """    row = tl.program_id(0).to(tl.int64) * YB + tl.arange(0, YB)[:, None]
    there = row < before * after
    first = (row // after) * length * after + row % after
"""
_SIZES = {"before": "i64", "length": "i64", "after": "i64"}


def _grid(rows: int) -> Grid:
    return Grid((Count(("before", "after"), rows),))


# --- running sums and products ---------------------------------------------------------------------------------------


def scan(kind: str, dtype: DType, *, exclusive: bool = False, reverse: bool = False) -> tuple[Routine, ...]:
    """`out0`: `sum`s or `prod`ucts of `in0` up to each element. A launch gives `before`, `length` and `after`.

    exclusive: without the element itself. reverse: from the end. The candidates differ in their tiles; the last is for few and
    long rows: it cuts them into pieces, in three kernels.
    """
    how = _Scan(kind, dtype, exclusive, reverse)
    tiles = ((1, 1024, 4), (32, 32, 4), (1, 4096, 8))
    return (*(how.in_one(rows, across, warps) for rows, across, warps in tiles), how.in_pieces())


@dataclass(frozen=True, slots=True)
class _Scan:
    """What a scan does."""

    kind: str
    dtype: DType
    exclusive: bool
    reverse: bool

    @property
    def operator(self) -> str:
        return "+" if self.kind == "sum" else "*"

    @property
    def neutral(self) -> str:
        return "0" if self.kind == "sum" else "1"

    @property
    def at(self) -> str:
        """Where element i is, counted in the direction of the scan."""
        return "length - 1 - i" if self.reverse else "i"

    @property
    def own(self) -> str:
        return f"@triton.jit\ndef combined(a, b):\n    return a {self.operator} b\n\n\n"

    def load(self) -> str:
        kind = type_of(self.dtype)
        return f"tl.load(in0 + first + ({self.at}) * after, mask=m, other={self.neutral}).to({kind})"

    def along(self, begin: str, end: str) -> list[str]:
        """Lines that go along a part of a row; `carry` is what was before it."""
        lines = [
            f"    for start in range({begin}, {end}, XB):",
            "        i = start + tl.arange(0, XB)[None, :]",
            "        m = there & (i < length)",
            f"        x = {self.load()}",
            f"        y = (carry {self.operator} tl.associative_scan(x, 1, combined)).to(tl.{self.dtype.name})",
        ]
        if self.exclusive:
            next_one = "length - 2 - i" if self.reverse else "i + 1"
            lines.append(f"        tl.store(out0 + first + ({next_one}) * after, y, mask=m & (i < length - 1))")
        else:
            lines.append(f"        tl.store(out0 + first + ({self.at}) * after, y, mask=m)")
        lines.append(f"        carry = carry {self.operator} tl.reduce(x, 1, combined, keep_dims=True)")
        return lines

    def begin_row(self, condition: str) -> list[str]:
        """Lines that store the first element of an exclusive scan."""
        if not self.exclusive:
            return []
        end = "length - 1" if self.reverse else "0"
        value = f"tl.full([YB, 1], {self.neutral}, tl.{self.dtype.name})"
        return [f"    tl.store(out0 + first + ({end}) * after, {value}, mask={condition})"]

    def in_one(self, rows: int, across: int, warps: int) -> Routine:
        """A block goes along some whole rows."""
        lines = [f"    carry = tl.full([YB, 1], {self.neutral}, {type_of(self.dtype)})", *self.along("0", "length")]
        lines += self.begin_row("row < before * after * tl.minimum(length, 1)")
        arrays = {"in0": address(self.dtype), "out0": address(self.dtype)}
        body = _ROW + "\n".join(lines) + "\n"
        blocks = {"YB": rows, "XB": across}
        return Routine((make_launch("scan", body, arrays, _SIZES, blocks, _grid(rows), warps=warps, own=self.own),))

    def in_pieces(self) -> Routine:
        """Totals of pieces; what is before each piece; the scan of each piece."""
        kind, kept = type_of(self.dtype), float32 if self.dtype in NARROW else self.dtype
        head = (
            "    block = tl.program_id(0).to(tl.int64)\n"
            "    pieces = tl.cdiv(length, PIECE)\n"
            "    row = block // pieces + tl.arange(0, YB)[:, None]\n"
            "    piece = block % pieces\n"
            "    there = row < before * after\n"
            "    first = (row // after) * length * after + row % after\n"
        )
        ends = ("piece * PIECE", "tl.minimum(piece * PIECE + PIECE, length)")
        total = head + (
            f"    total = tl.full([YB, 1], {self.neutral}, {kind})\n"
            f"    for start in range({ends[0]}, {ends[1]}, XB):\n"
            "        i = start + tl.arange(0, XB)[None, :]\n"
            "        m = there & (i < length)\n"
            f"        total = total {self.operator} tl.reduce({self.load()}, 1, combined, keep_dims=True)\n"
            "    tl.store(scratch0 + row * pieces + piece, total, mask=there)\n"
        )
        before = (
            "    row = tl.program_id(0).to(tl.int64)\n"
            "    pieces = tl.cdiv(length, PIECE)\n"
            f"    carry = tl.full((), {self.neutral}, {kind})\n"
            "    for start in range(0, pieces, XB):\n"
            "        i = start + tl.arange(0, XB)\n"
            "        m = i < pieces\n"
            f"        x = tl.load(scratch0 + row * pieces + i, mask=m, other={self.neutral})\n"
            f"        y = carry {self.operator} tl.associative_scan(x, 0, combined)\n"
            "        tl.store(scratch1 + row * (pieces + 1) + i + 1, y, mask=m)\n"
            f"        carry = carry {self.operator} tl.reduce(x, 0, combined)\n"
            f"    tl.store(scratch1 + row * (pieces + 1), tl.full((), {self.neutral}, {kind}))\n"
        )
        lines = ["    carry = tl.load(scratch1 + row * (pieces + 1) + piece, mask=there)", *self.along(*ends)]
        lines += self.begin_row("row < before * after * (1 - tl.minimum(piece, 1))")
        blocks = {"YB": 1, "XB": 1024, "PIECE": _PIECE}
        pieces = Count(("length",), _PIECE)
        every = Grid((Count(("before", "after")), pieces))
        own = address(self.dtype)
        middle = {"XB": 1024, "PIECE": _PIECE}
        launches = (
            make_launch("totals", total, {"in0": own, "scratch0": address(kept)}, _SIZES, blocks, every, own=self.own),
            make_launch(
                "before_each", before, {"scratch0": address(kept), "scratch1": address(kept)}, _SIZES, middle, _grid(1),
                own=self.own,
            ),
            make_launch(
                "scan", head + "\n".join(lines) + "\n", {"in0": own, "scratch1": address(kept), "out0": own}, _SIZES, blocks,
                every, own=self.own,
            ),
        )  # fmt: skip
        name = triton_type(kept.name)
        rows = Count(("before", "after"))
        scratch = (Scratch("scratch0", name, (rows, pieces)), Scratch("scratch1", name, (rows, pieces, _TWO)))
        return Routine(launches, scratch)


# --- the place of the largest ----------------------------------------------------------------------------------------

_BETTER = """@triton.jit
def first_best(a, i, b, j):
    # NaN is best of all; of equals, the first.
    a_nan, b_nan = a != a, b != b
    both = (a == b) | (a_nan & b_nan)
    mine = tl.where(both, i < j, a_nan | ((a {sign} b) & ~b_nan))
    return tl.where(mine, a, b), tl.where(mine, i, j)


"""


def argument(kind: str, dtype: DType, index: DType) -> tuple[Routine, ...]:
    """`out0` [before, after]: where along the axis the `max` or `min` of `in0` stands first; a NaN counts as that.

    A launch gives `before`, `length` (1 or more) and `after`.
    """
    kind_of = type_of(dtype)
    if dtype.is_floating:
        worst = f'float("{"-" if kind == "max" else ""}inf")'
    else:
        worst = repr(int(dtype.min if kind == "max" else dtype.max))
    body = _ROW + (
        f"    best = tl.full([YB, XB], {worst}, {kind_of})\n"
        "    place = tl.zeros([YB, XB], tl.int64) + length\n"
        "    for start in range(0, length, XB):\n"
        "        i = start + tl.arange(0, XB)[None, :] + tl.zeros([YB, XB], tl.int64)\n"
        "        m = there & (i < length)\n"
        f"        x = tl.load(in0 + first + i * after, mask=m, other={worst}).to({kind_of})\n"
        "        best, place = first_best(best, place, x, tl.where(m, i, length))\n"
        "    best, place = tl.reduce((best, place), 1, first_best)\n"
        "    rows = tl.program_id(0).to(tl.int64) * YB + tl.arange(0, YB)\n"
        f"    tl.store(out0 + rows, place.to(tl.{index.name}), mask=rows < before * after)\n"
    )
    own = _BETTER.format(sign=">" if kind == "max" else "<")
    arrays = {"in0": address(dtype), "out0": address(index)}
    return tuple(
        Routine((make_launch("argument", body, arrays, _SIZES, {"YB": y, "XB": x}, _grid(y), warps=w, own=own),))
        for y, x, w in ((1, 1024, 4), (32, 32, 4))
    )


# --- sorting ---------------------------------------------------------------------------------------------------------


def sort(dtype: DType, length: int, *, descending: bool = False, places: bool = True, values: bool = True) -> Routine:
    """Sort rows, or take the first `k` of what is sorted.

    `in0` is [before, length]; `out0` [before, k] gets the values, and the next output their places (int32), each if it is
    asked for. NaN is the largest; equals keep their order. A launch gives `before`, `length` and `k`.

    Args:
        length: the longest row; a kernel serves all that have no more elements than the next power of two.

    Raises:
        ValueError: rows are too long, or elements wider than 32 bits.
    """
    if length > LONGEST_SORTED:
        raise ValueError(f"rows of up to {LONGEST_SORTED} elements are sorted in a block, not of {length}")
    if dtype.size > 4:
        raise ValueError(f"elements of up to 32 bits are sorted with their places, not {dtype.name}")
    bits = 0x7FFFFFFF
    if dtype.is_floating:
        # As a whole number: the bits of a positive float are in order; those of a negative one in the opposite.
        key = (
            "    x = tl.where(x == 0.0, 0.0, x)\n"
            "    word = x.to(tl.int32, bitcast=True)\n"
            f"    word = tl.where(x != x, {bits}, tl.where(word < 0, word ^ {bits}, word))\n"
        )
    else:
        key = "    word = x\n"
    # What lies behind the end of a row comes last.
    behind = "-0x8000000000000000" if descending else "0x7FFFFFFFFFFFFFFF"
    place = "XB - 1 - i" if descending else "i"
    kind = "tl.float32" if dtype.is_floating else "tl.int64"
    outputs = [n for n, wanted in (("values", values), ("places", places)) if wanted]
    names = {what: f"out{number}" for number, what in enumerate(outputs)}
    body = (
        "    row = tl.program_id(0).to(tl.int64)\n"
        "    i = tl.arange(0, XB).to(tl.int64)\n"
        f"    x = tl.load(in0 + row * length + i, mask=i < length, other=0).to({kind})\n"
        f"{key}"
        f"    both = word.to(tl.int64) * XB + ({place})\n"
        f"    both = tl.where(i < length, both, {behind})\n"
        f"    both = tl.sort(both, 0, {descending})\n"
        "    low = both & (XB - 1)\n"
        f"    place = {'XB - 1 - low' if descending else 'low'}\n"
        "    m = i < k\n"
    )
    if values:
        body += f"    tl.store({names['values']} + row * k + i, tl.load(in0 + row * length + place, mask=m), mask=m)\n"
    if places:
        body += f"    tl.store({names['places']} + row * k + i, place.to(tl.int32), mask=m)\n"
    across = 1 << max(length - 1, 1).bit_length()
    arrays = {"in0": address(dtype)}
    arrays |= {names[what]: address(dtype) if what == "values" else "*i32" for what in outputs}
    numbers = {"before": "i64", "length": "i64", "k": "i64"}
    warps = max(1, min(8, across // 128))
    launch = make_launch("sort", body, arrays, numbers, {"XB": across}, Grid((Count(("before",)),)), warps=warps)
    return Routine((launch,))
