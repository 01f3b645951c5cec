"""How attention is cut into blocks, by the size of a head and by what is computed."""

from __future__ import annotations

from dataclasses import dataclass

from ....graph.core.dtypes import DType, float32


@dataclass(frozen=True, slots=True)
class Blocks:
    """How many positions a program keeps (`own`: queries, or keys where it makes their gradients), and how many it goes along at once."""

    own: int
    along: int
    warps: int
    stages: int


# Blocks that keep a program's numbers in registers, by the largest size of a head (padded) that they are for: found by compiling
# for all targets and reading how many registers spilled. A mask's tile takes as many registers as the scores.
_FORWARD = {
    64: (Blocks(128, 128, 8, 3), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
    128: (Blocks(128, 64, 8, 3), Blocks(128, 128, 8, 2), Blocks(64, 64, 4, 2)),
    256: (Blocks(64, 32, 8, 1), Blocks(32, 32, 8, 1)),
}
_FORWARD_MASKED = {
    64: (Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2)),
    128: (Blocks(128, 32, 8, 2), Blocks(64, 32, 4, 2)),
    256: (Blocks(32, 32, 8, 1),),
}
_BACKWARD = {
    64: (Blocks(128, 64, 8, 2), Blocks(64, 64, 4, 2), Blocks(128, 32, 8, 2), Blocks(64, 32, 4, 2)),
    128: (Blocks(128, 32, 8, 2), Blocks(64, 32, 4, 2), Blocks(128, 64, 8, 1)),
    256: (Blocks(32, 32, 8, 1), Blocks(32, 16, 8, 1)),
}
_BACKWARD_MASKED = {
    64: (Blocks(64, 64, 8, 2), Blocks(64, 64, 4, 2), Blocks(64, 32, 4, 2)),
    128: (Blocks(64, 32, 8, 2), Blocks(32, 32, 4, 2)),
    256: (Blocks(32, 32, 8, 1), Blocks(32, 16, 8, 1)),
}
_FORWARD_FLOAT = {
    64: (Blocks(64, 32, 8, 2), Blocks(64, 64, 4, 2), Blocks(64, 64, 8, 2)),
    128: (Blocks(32, 32, 8, 1), Blocks(16, 32, 8, 2)),
    256: (Blocks(16, 16, 8, 1),),
}
_BACKWARD_FLOAT = {
    64: (Blocks(64, 32, 8, 1), Blocks(64, 32, 4, 1), Blocks(32, 32, 4, 1)),
    128: (Blocks(32, 16, 8, 1), Blocks(16, 16, 4, 1)),
    256: (Blocks(16, 16, 8, 1),),
}


def blocks_for(dtype: DType, padded: int, masked: bool, backward: bool) -> tuple[Blocks, ...]:
    """Blocks for a problem, likely ones first."""
    if dtype is float32:
        table = _BACKWARD_FLOAT if backward else _FORWARD_FLOAT
    elif backward:
        table = _BACKWARD_MASKED if masked else _BACKWARD
    else:
        table = _FORWARD_MASKED if masked else _FORWARD
    return table[max(64, padded)]
