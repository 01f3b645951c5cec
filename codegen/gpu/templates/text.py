"""What all templates write alike.

What the kernels of this folder share: putting a text, its arguments and its grid together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from ....graph.core.dtypes import DType, bfloat16, float16
from ..emit.device_math import functions, functions as math_functions
from ..ir import HEADER, Grid, Launch, Parameter, TritonKernel, triton_type

Constants = tuple[tuple[str, bool | int | float | str], ...]


def make_kernel(
    name: str,
    parameters: Sequence[Parameter],
    constants: Constants,
    body: str,
    *,
    functions: Iterable[str] = (),
    num_warps: int = 4,
    num_stages: int = 3,
    contract: bool = True,
) -> TritonKernel:
    """A kernel from its body, unindented text; `functions` are those of `device_math` that the body calls."""
    kept = "\N{NO-BREAK SPACE}"  # lines do not break here
    arguments = ", ".join([p.name for p in parameters] + [f"{c}:{kept}tl.constexpr" for c, _ in constants])
    head = f"def {name}({arguments}):"
    if len(head) > 110:
        head = f"def {name}(\n{textwrap.fill(arguments, 110, initial_indent=' ' * 4, subsequent_indent=' ' * 4)}\n):"
    head = head.replace(kept, " ")
    text = f"{HEADER}@triton.jit\n{head}\n{textwrap.indent(body.strip(chr(10)), ' ' * 4)}\n"
    called = math_functions(functions)  # they stand behind, so that every kernel begins in the same line
    text += f"\n\n{called.rstrip()}\n" if called else ""
    return TritonKernel(name, text, tuple(parameters), constants, num_warps, num_stages, contract)


def lines(*pieces: str | Sequence[str]) -> str:
    """Pieces of text below one another; a sequence counts as its items, empty ones are left out."""
    flat = [line for piece in pieces for line in ([piece] if isinstance(piece, str) else piece)]
    return "\n".join(line.strip("\n") for line in flat if line)


def inside(head: str, *pieces: str | Sequence[str]) -> str:
    """A loop, or another block, with its body."""
    return f"{head}\n{textwrap.indent(lines(*pieces), ' ' * 4)}"


NARROW = (float16, bfloat16)


def address(dtype: DType) -> str:
    """Triton's type of an array's address."""
    return f"*{triton_type(dtype.name)}"


def computed(dtype: DType) -> str:
    """Triton's name of the type that elements are computed in."""
    return "tl.float32" if dtype in NARROW else f"tl.{dtype.name}"


def make(
    name: str,
    body: str,
    arrays: Mapping[str, str],
    numbers: Mapping[str, str],
    blocks: Mapping[str, int],
    grid: Grid,
    *,
    warps: int = 4,
    calls: Sequence[str] = (),
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
        calls: functions of `device_math` that it calls.
        own: text of other functions that it calls.
    """
    arguments = [*arrays, *numbers, *(f"{b}: tl.constexpr" for b in blocks)]
    text = f"{HEADER}{functions(calls)}{own}@triton.jit\ndef {name}({', '.join(arguments)}):\n{body}"
    parameters = [Parameter(n, t, True) for n, t in arrays.items()] + [Parameter(n, t) for n, t in numbers.items()]
    return Launch(TritonKernel(name, text, tuple(parameters), tuple(blocks.items()), warps), grid)
