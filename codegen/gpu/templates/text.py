"""Puts a kernel together from its body, its arguments and its grid."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from ....graph.core.dtypes import DType, float32, float64
from ..emit.device_math import functions as math_functions
from ..ir import HEADER, Grid, Launch, Parameter, TritonKernel, triton_type

Constants = tuple[tuple[str, bool | int | float | str], ...]


def make_kernel(
    name: str,
    parameters: Sequence[Parameter],
    constants: Constants,
    body: str,
    *,
    own: str = "",
    num_warps: int = 4,
    num_stages: int = 3,
    contract: bool = True,
) -> TritonKernel:
    """A kernel from its body, unindented text, which may call functions of `device_math`; `own`: the text of others."""
    kept = "\N{NO-BREAK SPACE}"  # lines do not break here
    arguments = ", ".join([p.name for p in parameters] + [f"{c}:{kept}tl.constexpr" for c, _ in constants])
    head = f"def {name}({arguments}):"
    if len(head) > 110:
        head = f"def {name}(\n{textwrap.fill(arguments, 110, initial_indent=' ' * 4, subsequent_indent=' ' * 4)}\n):"
    head = head.replace(kept, " ")
    text = f"{HEADER}@triton.jit\n{head}\n{textwrap.indent(body.strip(chr(10)), ' ' * 4)}\n"
    called = math_functions(body + own) + own  # they stand behind, so that every kernel begins in the same line
    text += f"\n\n{called.rstrip()}\n" if called else ""
    return TritonKernel(name, text, tuple(parameters), constants, num_warps, num_stages, contract)


def dot(a: str, b: str, total: str, dtype: DType, tf32: bool, more: str = "") -> str:
    """A product of tiles of one type, added to `total` (empty: alone), in float32 or wider. `tf32`: of 10 bits of float32 factors."""
    accuracy = {float32: f', input_precision="{"tf32" if tf32 else "ieee"}"', float64: ", out_dtype=tl.float64"}.get(
        dtype, more
    )
    return f"tl.dot({a}, {b}{', ' + total if total else ''}{accuracy})"


def lines(*pieces: str | Sequence[str]) -> str:
    """Pieces of text below one another; a sequence counts as its items, empty ones are left out."""
    flat = [line for piece in pieces for line in ([piece] if isinstance(piece, str) else piece)]
    return "\n".join(line.strip("\n") for line in flat if line)


def inside(head: str, *pieces: str | Sequence[str]) -> str:
    """A loop, or another block, with its body."""
    return f"{head}\n{textwrap.indent(lines(*pieces), ' ' * 4)}"


def address(dtype: DType) -> str:
    """Triton's type of an array's address."""
    return f"*{triton_type(dtype.name)}"


def make_launch(
    name: str,
    body: str,
    arrays: Mapping[str, str],
    numbers: Mapping[str, str],
    blocks: Mapping[str, int],
    grid: Grid,
    *,
    warps: int = 4,
    own: str = "",
) -> Launch:
    """A kernel and its grid.

    Args:
        name: of the kernel.
        body: its lines, indented by four.
        arrays: name and type of each array.
        numbers: name and type of each size and other number.
        blocks: name and value of each constant.
        warps: of a block.
        own: text of other functions that it calls.
    """
    parameters = [Parameter(n, t, True) for n, t in arrays.items()] + [Parameter(n, t) for n, t in numbers.items()]
    body, constants = textwrap.dedent(body), tuple(blocks.items())
    return Launch(make_kernel(name, parameters, constants, body, own=own, num_warps=warps, contract=False), grid)
