"""What all templates write alike."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from ..gpu_kernel import HEADER, Parameter, TritonKernel
from ..triton_math import functions as math_functions

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
    """A kernel from its body, unindented text; `functions` are those of `triton_math` that the body calls."""
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
