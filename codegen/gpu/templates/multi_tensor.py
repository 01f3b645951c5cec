"""One launch for the same work on several arrays: an optimiser's update of all variables of a device.

A network has hundreds of variables, most of them small: a bias of 64 elements keeps a GPU busy for less time than a launch takes.
So the loops that update one variable become a function, and a kernel gives each variable some of its blocks. What is the same
for all of them, a learning rate for example, is an input without axes, and is passed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.loop_nest import LoopNest
from ..emit.expr import WHOLE, Names, Tile
from ..emit.nest import triton_source
from ..ir import Count, Grid, Launch, Parameter, Routine, TritonKernel, triton_type

MOST = 24  # sets of arrays of one launch: with four arrays each, about a thousand bytes of arguments
_BLOCK = 1024


def multi_tensor_update(loops: LoopNest, count: int, *, divisible: Sequence[bool] = (), wide: bool = False) -> Routine:
    """The loops, `count` times, on arrays of any lengths.

    A launch knows `in0`... for inputs without axes, `in1_0`, `in1_1`... for those of each set, `out0_0`, `out0_1`..., and what
    `sizes_of` gives. An output may be the array that the input is in.

    Args:
        loops: over one axis that is not reduced.
        count: how many sets of arrays, up to MOST.
        divisible: which lengths are multiples of 16; empty: that is not known.
        wide: some length is near 2**31 or above.

    Raises:
        ValueError: the loops have another space, or there are too many sets.
    """
    if loops.reduced != (False,) or any(s.axes != (0,) for s in loops.stores):
        raise ValueError(f"only loops over one axis can be done for several arrays at once, not\n{loops}")
    if not 1 <= count <= MOST:
        raise ValueError(f"one launch takes 1 to {MOST} sets of arrays, not {count}")
    inputs = tuple(f"in{i}" for i in range(len(loops.loads)))
    outputs = tuple(f"out{i}" for i in range(len(loops.stores)))
    text, _ = triton_source(loops, Tile(WHOLE, wide=wide), Names(inputs, outputs, ("n0",), block="block"), "one")
    shared = [name for name, v in zip(inputs, loops.loads, strict=True) if not v.axes]
    own = [name for name in (*inputs, *outputs) if name not in shared]
    types = [v.dtype for v in loops.loads] + [loops.values[s.value].dtype for s in loops.stores]
    type_of = {name: f"*{triton_type(t.name)}" for name, t in zip((*inputs, *outputs), types, strict=True)}
    whole = "i64" if wide else "i32"

    # A number that all share may lie anywhere.
    parameters = [Parameter(name, type_of[name]) for name in shared]
    lines = ["block = tl.program_id(0)", "first = 0"]
    for k in range(count):
        parameters += [Parameter(f"{name}_{k}", type_of[name], True) for name in own]
        parameters.append(Parameter(f"n{k}", whole, bool(divisible) and divisible[k]))
        given = [name if name in shared else f"{name}_{k}" for name in (*inputs, *outputs)]
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
