"""Sorts of rows: short ones by one block each, others by their digits.

Rows of up to GPU_LONGEST_SORTED elements of 32 bits or less are sorted by one block each, together with their places as one word of 64
bits: so equal elements keep their order, and the places come for nothing. Each element becomes a *key*, an unsigned integer: the larger the
element, the smaller its key.

All others are sorted by radix, from the least significant digit of their keys on, with their indices. A pass sorts by a digit of four
bits: blocks count the occurrences of each digit in their elements; running sums of these counts, over all blocks and digits of a row, give
the target of each block's first element with each digit; the blocks move their keys and indices there. A pass is stable, so after all
passes rows are sorted, and equal elements keep their order.

The passes alternate between two sets of kernels, from one pair of arrays to the other and back. The digit of a pass is counted on the
GPU (`scratch5`), so that one compiled kernel serves all passes.
"""

from __future__ import annotations

from functools import partial

from ....graph.core.dtypes import DType
from ...ir.schedule import GpuSchedule
from ...target import GPU_BLOCK_ELEMENTS
from ..emit.expr import NARROW
from ..ir import Count, Grid, Launch, Routine, Scratch
from .text import address, arguments, make_launch

_launch = partial(make_launch, contract=False)

_DIGITS = 16
_BLOCK = (("BLOCK", GPU_BLOCK_ELEMENTS),)
_EACH = Grid((Count(("before",)),))
_ROW = Grid((Count(("before",)), Count(("length",), GPU_BLOCK_ELEMENTS)))

_HEAD = """    block = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(length, BLOCK)
    row = block // blocks
    part = block % blocks
    i = part * BLOCK + tl.arange(0, BLOCK)
    inside = i < length
"""
_KEYS = """    x = tl.load(in0 + row * length + i, mask=inside, other=0){wide}
{word}    tl.store(scratch0 + row * length + i, key, mask=inside)
    tl.store(scratch1 + row * length + i, i.to(tl.int32), mask=inside)
    tl.store(scratch5, 0, mask=block == 0)
"""
_ONE_HOT = """    shift = tl.load(scratch5) * 4
    key = tl.load({keys} + row * length + i, mask=inside, other=0)
    digit = ((key >> shift.to(key.dtype)) & 15).to(tl.int32)
    which = tl.arange(0, 16)
    hot = ((digit[:, None] == which[None, :]) & inside[:, None]).to(tl.int32)
"""
_COUNT = "    tl.store(scratch4 + (row * 16 + which) * blocks + part, tl.sum(hot, 0))\n"
_TOTALS = """    row = tl.program_id(0).to(tl.int64)
    n = tl.cdiv(length, BLOCK) * 16
    carry = tl.zeros([1], tl.int32)
    for start in range(0, n, XB):
        i = start + tl.arange(0, XB)
        x = tl.load(scratch4 + row * n + i, mask=i < n, other=0)
        tl.store(scratch4 + row * n + i, carry + tl.associative_scan(x, 0, added) - x, mask=i < n)
        carry += tl.sum(x, 0)
"""
_MOVE = """    rank = tl.sum(hot * (tl.associative_scan(hot, 0, added) - 1), 1)
    first = tl.load(scratch4 + (row * 16 + digit) * blocks + part, mask=inside, other=0)
    to = row * length + first + rank
    place = tl.load({places} + row * length + i, mask=inside)
    tl.store({new_keys} + to, key, mask=inside)
    tl.store({new_places} + to, place, mask=inside)
"""
_NEXT = "    tl.store(scratch5, tl.load(scratch5) + 1)\n"
_TAKE = """    block = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(k, BLOCK)
    row = block // blocks
    i = (block % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = i < k
    place = tl.load(scratch1 + row * length + i, mask=inside, other=0)
    tl.store(out0 + row * k + i, tl.load(in0 + row * length + place, mask=inside), mask=inside)
    tl.store(out1 + row * k + i, place, mask=inside)
"""


def long_sort(dtype: DType) -> Routine:
    """As `sort`, for rows of any length below 2**31, and elements of any width. A launch gives `before`, `length` and `k`.

    Raises:
        ValueError: elements of this type have no order.
    """
    if dtype.np.kind not in "iufV" or dtype.size > 8 or dtype.size < 2 and dtype.is_floating:
        raise ValueError(f"elements of {dtype.name} are not sorted")
    wide, word, bits = _key(dtype)
    key = "*u64" if bits == 64 else "*u32"
    arrays = {"in0": address(dtype), "scratch0": key, "scratch1": "*i32", "scratch5": "*i32"}
    there = {"scratch0": key, "scratch1": "*i32"}
    other = {"scratch2": key, "scratch3": "*i32"}
    counts = {"scratch4": "*i32", "scratch5": "*i32"}
    elements, digits = GpuSchedule(1, GPU_BLOCK_ELEMENTS), GpuSchedule(1, GPU_BLOCK_ELEMENTS, 8)
    make_keys = _HEAD + _KEYS.format(wide=wide, word=word)
    launches = [_launch("keys", make_keys, arguments(arrays, "length"), _BLOCK, _ROW, elements)]
    parameters, constants = arguments({"scratch4": "*i32"}, "length"), (*_BLOCK, ("XB", 2048))
    totals = _launch("totals", _TOTALS, parameters, constants, _EACH, GpuSchedule(1, 2048))
    once = Grid((Count(()),))
    following = _launch("following", _NEXT, arguments({"scratch5": "*i32"}), (), once, GpuSchedule(1, 1, 1))
    ways: list[tuple[Launch, ...]] = []
    for old, new in ((there, other), (other, there)):
        (keys, places), (new_keys, new_places) = old, new
        one_hot = _HEAD + _ONE_HOT.format(keys=keys)
        parameters = arguments({keys: key} | counts, "length")
        count = _launch("count", one_hot + _COUNT, parameters, _BLOCK, _ROW, digits)
        move = one_hot + _MOVE.format(places=places, new_keys=new_keys, new_places=new_places)
        moved = _launch("move", move, arguments(old | new | counts, "length"), _BLOCK, _ROW, digits)
        ways.append((count, totals, moved, following))
    for number in range(bits // 4):
        launches += ways[number % 2]
    arrays = {"in0": address(dtype), "scratch1": "*i32", "out0": address(dtype), "out1": "*i32"}
    parameters = arguments(arrays, "length", "k")
    take = Grid((Count(("before",)), Count(("k",), GPU_BLOCK_ELEMENTS)))
    launches.append(_launch("take", _TAKE, parameters, _BLOCK, take, elements))
    every = (Count(("before",)), Count(("length",)))
    scratch = [Scratch(n, key[1:] if i % 2 == 0 else "i32", every) for i, n in enumerate([*there, *other])]
    blocks = Count(("length",), GPU_BLOCK_ELEMENTS)
    scratch += [
        Scratch("scratch4", "i32", (Count(("before",)), blocks, Count((), times=_DIGITS))),
        Scratch("scratch5", "i32", (Count((), times=4),)),
    ]
    return Routine(tuple(launches), tuple(scratch))


def _key(dtype: DType) -> tuple[str, str, int]:
    """How an element is widened, the lines that make its key, and how many bits of the key count."""
    bits = 8 * dtype.size if not dtype.is_floating else max(8 * dtype.size, 32)
    every = (1 << max(bits, 32)) - 1
    flip = f"    key = key ^ {every}\n"  # from the largest on
    if dtype.is_floating:
        top, quiet = (1 << (bits - 1), 0x7FF8 << 48 if bits == 64 else 0x7FC00000)
        lines = (
            "    x = tl.where(x == 0.0, 0.0, x)\n"  # -0 is 0
            f"    word = x.to(tl.uint{bits}, bitcast=True)\n"
            f"    word = tl.where(x != x, {quiet}, word).to(tl.uint{bits})\n"
            # The bits of a positive number are in order; those of a negative one in the opposite, and below.
            f"    key = tl.where((word >> {bits - 1}) != 0, word ^ {every}, word | {top}).to(tl.uint{bits})\n"
        )
        return (".to(tl.float32)" if dtype in NARROW else ""), lines + flip, bits
    kept = max(bits, 32)
    top = 0 if dtype.is_unsigned else 1 << (bits - 1)
    signed = f".to(tl.{'uint' if dtype.is_unsigned else 'int'}{kept})"
    lines = f"    key = x{signed}.to(tl.uint{kept}) + {top}\n"  # modulo 2**kept: the smallest number becomes 0
    return "", lines + flip, bits


def sort(dtype: DType, length: int) -> Routine:
    """The first `k` of each row, from the largest on.

    `in0` is [before, length]; `out0` [before, k] gets the values, `out1` their places (int32). NaN is the largest; equals keep their
    order. A launch gives `before`, `length` and `k`.

    Args:
        dtype: of at most 32 bits.
        length: the longest row; a kernel serves all that have no more elements than the next power of two, GPU_LONGEST_SORTED at most.
    """
    wide, word, _ = _key(dtype)
    body = _BLOCK_SORT.format(wide=wide, word=word)
    across = 1 << max(length - 1, 1).bit_length()
    arrays = {"in0": address(dtype), "out0": address(dtype), "out1": "*i32"}
    schedule = GpuSchedule(1, across, max(1, min(8, across // 128)), spans=True)
    parameters = arguments(arrays, "before", "length", "k")
    return Routine((_launch("sort", body, parameters, (("XB", across),), _EACH, schedule),))


_BLOCK_SORT = """    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, XB).to(tl.int64)
    inside = i < length
    x = tl.load(in0 + row * length + i, mask=inside, other=0){wide}
{word}    both = tl.sort(tl.where(inside, (key.to(tl.uint64) << 32) | i.to(tl.uint64), 0xFFFFFFFFFFFFFFFF), 0)
    place = (both & 0xFFFFFFFF).to(tl.int64)
    m = i < k
    tl.store(out0 + row * k + i, tl.load(in0 + row * length + place, mask=m), mask=m)
    tl.store(out1 + row * k + i, place.to(tl.int32), mask=m)
"""
