"""How matrix products are cut into tiles: which cuts may be the fastest for sizes and types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....graph.core.dtypes import DType
from ....graph.core.gpu_models import GPUS
from ...target import H100_MULTIPROCESSORS
from ..ir import Target

_BESIDE = 2048  # bytes of shared memory that barriers and a row of the epilogue take: 40 to 1,200 by compiling
_FEWEST_STAGES = 2  # with one, loads would not run beside products
_FEWEST_STEPS = 8  # steps along the inner size below which a split does not pay for its second kernel
_FEWEST_EXACT = 4  # the same for products without matrix instructions, whose steps take longer
_FEW_ROWS = 256  # of the result: with fewer, transposing the second operand costs too much relative to the product
# Programs of the persistent form: as many as multiprocessors.
_PERSISTENT: dict[int, int] = {arch: GPUS[arch].multiprocessors for arch in (90, 100)}


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: tiles of m x n, in steps of k; see `TritonKernel` for warps and stages.

    Attributes:
        splits: how many programs share a tile of the result.
        described: operand tiles are fetched by the GPU's copy engine (TMA), from a description of the matrix, instead of by
            addresses that threads compute. From sm_90 on; rows in memory must begin at multiples of 16 bytes.
        programs: how many programs share all tiles, each making several; 0: a program for each tile. Operands are described.
        straight: the second operand, which is stored transposed, is first transposed in memory.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    splits: int = 1
    described: bool = False
    programs: int = 0
    straight: bool = False


_HALF = (
    Tile(128, 256, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 64, 4, 3),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
    Tile(32, 64, 64, 4, 5),
    Tile(16, 64, 128, 4, 4),
)
_BYTE = tuple(replace(t, k=2 * t.k) for t in _HALF[:7]) + (Tile(16, 64, 256, 4, 3),)
_MOST_STRAIGHT = 3  # of the likely tiles, how many are tried with the second operand turned, too
_MOST_DESCRIBED = 2  # of the likely tiles, how many are tried with descriptions, too
_TF32 = (
    Tile(128, 128, 32, 8, 4),
    Tile(128, 64, 32, 4, 4),
    Tile(64, 128, 32, 4, 4),
    Tile(64, 64, 32, 4, 4),
    Tile(32, 64, 32, 4, 4),
    Tile(16, 64, 64, 4, 4),
)
_EXACT = (
    Tile(128, 128, 16, 8, 3),
    Tile(64, 128, 16, 4, 3),
    Tile(128, 64, 16, 8, 3),
    Tile(64, 64, 16, 4, 3),
    Tile(32, 64, 32, 4, 3),
    Tile(16, 64, 32, 4, 3),
)

_DOUBLE = (
    Tile(128, 64, 16, 8, 3),
    Tile(64, 64, 16, 4, 3),
    Tile(32, 32, 32, 4, 3),
    Tile(16, 32, 32, 4, 3),
)


def tiles(
    dtype: DType,
    target: Target,
    tf32: bool,
    known: Mapping[str, int],
    describable: bool = False,
    batched: bool = False,
    turned: bool = False,
    staged: int = 0,
    stored: tuple[int, int] | None = None,
) -> list[Tile]:
    """Ways to cut a product with operands of a type, likely ones first. Each fits the target's shared memory.

    Args:
        known: sizes that are always the same; others are taken to be large.
        describable: whether operands can be described, see `Tile`.
        batched: whether there is a stack of them.
        turned: whether the second one lies transposed.
        staged: bytes of shared memory for each element of the result that a program needs beside the operands' tiles when it makes
            several tiles: the epilogue of one runs while the operands of the next are loaded.
        stored: bytes of an element of each operand in memory, where prologues make another type of it; None: those of `dtype`.
    """
    exact = dtype.size == 8 or (dtype.size == 4 and not tf32)
    choice = {1: _BYTE, 2: _HALF, 8: _DOUBLE}.get(dtype.size, _TF32 if tf32 else _EXACT)
    m, n, k = (known.get(name, 1 << 14) for name in ("m", "n", "k"))
    room = target.block_shared_bytes
    loaded = stored or (dtype.size, dtype.size)

    def stages(t: Tile, most: int, room: int) -> int:
        """How many stages fit: the last one has the operands as they are multiplied, or in registers; the others as they are stored."""
        one = (t.m * loaded[0] + t.n * loaded[1]) * t.k
        last = (t.m + t.n) * t.k * dtype.size if target.arch >= 90 else 0
        return min(most, 1 + max(0, room - last) // one)

    found = []
    for t in choice:
        too_large = (t.m > 16 and t.m >= 2 * m) or (t.n > 64 and t.n >= 2 * n)
        fitting = replace(t, stages=stages(t, t.stages, room))
        if fitting.stages >= _FEWEST_STAGES and not too_large and fitting not in found:
            found.append(fitting)
    found.sort(key=lambda t: _waste(t, m, n))
    out = []
    for t in found:
        count = -(-m // t.m) * -(-n // t.n) * known.get("batch", 1)
        fewest = t.k * (_FEWEST_EXACT if exact else _FEWEST_STEPS)
        splits = min(H100_MULTIPROCESSORS // count, k // fewest, 16) if count else 1
        if splits > 1:
            out.append(replace(t, splits=1 << (splits.bit_length() - 1)))
        elif describable and t.m >= 64 and len({(x.m, x.n) for x in out if x.described}) < _MOST_DESCRIBED:
            programs = _PERSISTENT.get(target.arch, 0)
            fewer = stages(t, t.stages, room - _BESIDE - t.m * t.n * staged)
            if not batched and 0 < programs < count and fewer >= _FEWEST_STAGES:
                out.append(replace(t, described=True, programs=programs, stages=fewer))
            out.append(replace(t, described=True, stages=stages(t, t.stages + 1, room - _BESIDE)))
        out.append(t)
    if exact and turned and dtype.size == 4:
        straight = [replace(t, straight=True) for t in out[:_MOST_STRAIGHT]]
        out = straight + out if m >= _FEW_ROWS else out[:1] + straight + out[1:]
    return out


def can_describe(target: Target, dtype: DType, transposed: tuple[bool, bool], known: Mapping[str, int]) -> bool:
    """Whether both operands can be described."""
    beside = "m" if transposed[0] else "k", "k" if transposed[1] else "n"
    return target.arch >= 90 and dtype.size <= 2 and all(known.get(name, 1) % 16 == 0 for name in beside)


def _waste(t: Tile, m: int, n: int) -> float:
    """How much more work whole tiles, on whole waves of processors, are than the product."""
    high, wide = -(-m // t.m), -(-n // t.n)
    waves = -(-high * wide // H100_MULTIPROCESSORS)
    per_load = t.m * t.n / (t.m + t.n)  # products for each number that is loaded
    return waves * H100_MULTIPROCESSORS * t.m * t.n * (1 + 64 / per_load)
