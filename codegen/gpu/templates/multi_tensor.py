"""One launch for the same work on several arrays: an optimiser's update of all variables of a device.

A network has hundreds of variables, most of them small: a bias of 64 elements keeps a GPU busy for less time than a launch takes.
So the loops that update one variable become a function, and a kernel gives each variable some of its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.loop_nest import LoopNest
from ..emit.expr import WHOLE, Names, Tile
from ..emit.nest import triton_source
from ..ir import Count, Grid, Launch, Parameter, Routine, TritonKernel, triton_type

MOST = 24  # sets of arrays of one launch: with ten arrays each, about two thousand bytes of arguments, of 4 KiB that there may be
_BLOCK = 1024


def multi_tensor_update(loops: LoopNest, divisible: Sequence[bool], *, wide: bool = False) -> Routine:
    """The loops, on several sets of arrays of any lengths.

    A launch knows `in0_0`, `in0_1`... for the inputs of each set, `out0_0`, `out0_1`..., and what `sizes_of` gives. An output may be the
    array that the input is in. An input without axes, a learning rate for example, has one element.

    Args:
        loops: over one axis that is not reduced.
        divisible: for each set, whether its length is a multiple of 16. There are up to MOST.
        wide: some length is near 2**31 or above.

    Raises:
        ValueError: the loops have another space, or there are too many sets.
    """
    if loops.reduced != (False,) or any(s.axes != (0,) for s in loops.stores):
        raise ValueError(f"only loops over one axis can be done for several arrays at once, not\n{loops}")
    if not 1 <= len(divisible) <= MOST:
        raise ValueError(f"one launch takes 1 to {MOST} sets of arrays, not {len(divisible)}")
    inputs = tuple(f"in{i}" for i in range(len(loops.loads)))
    outputs = tuple(f"out{i}" for i in range(len(loops.stores)))
    text, _ = triton_source(loops, Tile(WHOLE, wide=wide), Names(inputs, outputs, ("n0",), block="block"), "one")
    types = [v.dtype for v in loops.loads] + [loops.values[s.value].dtype for s in loops.stores]
    parameters: list[Parameter] = []
    lines = ["block = tl.program_id(0)", "first = 0"]
    for k, is_divisible in enumerate(divisible):
        given = [f"{name}_{k}" for name in (*inputs, *outputs)]
        parameters += [Parameter(n, f"*{triton_type(t.name)}", True) for n, t in zip(given, types, strict=True)]
        parameters.append(Parameter(f"n{k}", "i64" if wide else "i32", is_divisible))
        lines += [
            f"behind = first + tl.cdiv(n{k}, XB)",
            "if (block >= first) & (block < behind):",
            f"    one({', '.join(given)}, n{k}, block - first, XB)",
            "first = behind",
        ]
    arguments = ", ".join([*(p.name for p in parameters), "XB: tl.constexpr"])
    text += f"\n\n@triton.jit\ndef kernel({arguments}):\n" + "".join(f"    {line}\n" for line in lines)
    kernel = TritonKernel("kernel", text, tuple(parameters), (("XB", _BLOCK),))
    return Routine((Launch(kernel, Grid((Count(("blocks",)),))),))


def sizes_of(lengths: Sequence[int]) -> dict[str, int]:
    """The sizes that a launch for arrays of these lengths gives."""
    sizes = {f"n{k}": n for k, n in enumerate(lengths)}
    return sizes | {"blocks": sum(-(-n // _BLOCK) for n in lengths)}
