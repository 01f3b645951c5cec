"""Sparse updates of optimizers: a rule's step for the rows that a gradient names, and no others.

Rows that are named several times have one step, with the sum of their gradients. The last occurrence of each row owns it
(`scattering`): the gradients are added up where the owner's own stands, and the owners make the steps. The rule is the same loops
that a dense update runs (`update_loops`), as a function that a block calls on its piece of a row.
"""

from __future__ import annotations

from ...graph.dtypes import DType, float32
from ..gpu_kernel import Count, Grid, Launch, Parameter, Routine, Scratch, TritonKernel, triton_type
from ..loops import Loops
from ..triton_source import triton_source
from ..triton_values import WHOLE, Names, Tile
from .common import NARROW, address, make
from .scattering import owners, placed

_CLEAR = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(scratch1 + i, tl.zeros([BLOCK], tl.{kind}), mask=i < count * after)
"""
_SUM = """    block = tl.program_id(0).to(tl.int64)
    across = tl.cdiv(after, XB)
    row = (block // across) * YB + tl.arange(0, YB)[:, None]
    column = (block % across) * XB + tl.arange(0, XB)[None, :]
    at = place(indices, row, row < count, s0)
    owner = tl.load(scratch0 + at, mask=at >= 0, other=0).to(tl.int64)
    m = (at >= 0) & (column < after)
    x = tl.load({gradient} + row * after + column, mask=m).to(tl.{kind})
    tl.atomic_add(scratch1 + owner * after + column, x, mask=m, sem="relaxed")
"""


def sparse_update(loops: Loops, places: int, gradient: int, index: DType, after: int = 1024) -> Routine:
    """The step of a rule, for rows [count, after] of a gradient.

    A launch gives the loops' inputs in0, in1... (the places, the gradient's rows, numbers), `indices` [count], the outputs out0,
    out1..., which may be the places, and the sizes `rows` (of the places), `s0` (the same), `count` and `after`. Only the rows that
    are named are written.

    Args:
        loops: over one axis: the rule. places: how many of its inputs are variables. gradient: which input that is.
        index: type of the indices.
        after: about how long a row will be; the result is right for any.

    Raises:
        ValueError: the loops have another space.
    """
    if loops.reduced != (False,) or any(s.axes != (0,) for s in loops.stores):
        raise ValueError(f"only loops over one axis update rows, not\n{loops}")
    dtype = loops.loads[gradient].dtype
    kept = float32 if dtype in NARROW else dtype
    owning, notes = owners(index, 1, "indices", counted=False)
    across = min(256, 1 << max(after - 1, 0).bit_length())
    cleared = make(
        "clear", _CLEAR.format(kind=kept.name), {"scratch1": address(kept)}, {"count": "i64", "after": "i64"}, {"BLOCK": 1024},
        Grid((Count(("count", "after"), 1024),)),
    )  # fmt: skip
    summed = make(
        "sum_rows", _SUM.format(kind=kept.name, gradient=f"in{gradient}"),
        {"indices": address(index), f"in{gradient}": address(dtype), "scratch0": "*i32", "scratch1": address(kept)},
        {"count": "i64", "after": "i64", "s0": "i64"}, {"YB": 1024 // across, "XB": across},
        Grid((Count(("after",), across), Count(("count",), 1024 // across))), own=placed(1),
    )  # fmt: skip
    sums = Scratch("scratch1", triton_type(kept.name), (Count(("count",)), Count(("after",))))
    return Routine((*owning, cleared, summed, _step(loops, gradient, index, kept, after)), (*notes, sums))


def _step(loops: Loops, gradient: int, index: DType, kept: DType, after: int) -> Launch:
    """The kernel that makes the owners' steps: a block takes a piece of one row."""
    inputs = tuple("sums" if i == gradient else f"in{i}" for i in range(len(loops.loads)))
    outputs = tuple(f"out{i}" for i in range(len(loops.stores)))
    text, _ = triton_source(loops, Tile(WHOLE), Names(inputs, outputs, ("n0",), block="block"), "one")
    types = {name: v.dtype for name, v in zip(inputs, loops.loads, strict=True)}
    types |= {name: loops.values[s.value].dtype for name, s in zip(outputs, loops.stores, strict=True)}
    shared = {name for name, v in zip(inputs, loops.loads, strict=True) if not v.axes}
    given = [name if name in shared else f"{name} + at * after" for name in (*inputs, *outputs)]
    given[gradient] = "scratch1 + row * after"
    parameters = [
        Parameter(name, f"*{triton_type(types[name].name)}", name not in shared)  # a number may lie anywhere
        for name in (*inputs, *outputs)
        if name != "sums"
    ]
    parameters += [
        Parameter("indices", address(index), True),
        Parameter("scratch0", "*i32", True),
        Parameter("scratch1", address(kept), True),
        *(Parameter(n, "i64") for n in ("after", "rows")),
    ]
    lines = [
        "block = tl.program_id(0).to(tl.int64)",
        "across = tl.cdiv(after, XB)",
        "row = block // across",
        "at = tl.load(indices + row).to(tl.int64)",
        "if (at >= 0) & (at < rows):",
        "    if tl.load(scratch0 + at) == row:",
        f"        one({', '.join(given)}, after, block % across, XB)",
    ]
    arguments = ", ".join([*(p.name for p in parameters), "XB: tl.constexpr"])
    text += f"\n\n@triton.jit\ndef step({arguments}):\n" + "".join(f"    {line}\n" for line in lines)
    across = max(32, min(1024, 1 << max(after - 1, 0).bit_length()))
    kernel = TritonKernel("step", text, tuple(parameters), (("XB", across),), max(1, min(4, across // 64)))
    return Launch(kernel, Grid((Count(("after",), across), Count(("count",)))))
