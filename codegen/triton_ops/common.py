"""What the kernels of this folder share: putting a text, its arguments and its grid together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...graph.core.dtypes import DType, bfloat16, float16
from ..gpu_kernel import HEADER, Grid, Launch, Parameter, TritonKernel, triton_type
from ..triton_math import functions

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
        calls: functions of `triton_math` that it calls.
        own: text of other functions that it calls.
    """
    arguments = [*arrays, *numbers, *(f"{b}: tl.constexpr" for b in blocks)]
    text = f"{HEADER}{functions(calls)}{own}@triton.jit\ndef {name}({', '.join(arguments)}):\n{body}"
    parameters = [Parameter(n, t, True) for n, t in arrays.items()] + [Parameter(n, t) for n, t in numbers.items()]
    return Launch(TritonKernel(name, text, tuple(parameters), tuple(blocks.items()), warps), grid)
