"""What convolutions and pooling share: sizes, and where a pixel lies in memory; the kernels of pooling and depthwise convolutions.

These kernels are made from loops (`fusion/window_loops.py`). Launch names: in0... as the loops have them; out0. The largest pixel's
gradient is made by two kernels: one writes which tap is the largest of each window, the other one goes over the pixels. No two programs
add to one number, so the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ....graph.ops.nn.conv_geometry import Window
from ...fusion.window_loops import CHOSEN, WINDOW_OPS, axis_names
from ..emit.expr import Names
from ..emit.schedules import candidates, one_after_another
from ..ir import Count, Parameter, Routine, Scratch, triton_type
from .text import Constants

IMAGE = ("images", "height", "width", "channels")
WINDOW = ("rows", "columns", "top", "left")


def window_constants(window: Window) -> Constants:
    """The window as constants: KH x KW taps, strides SH and SW, dilations DH and DW."""
    (kh, kw), (sh, sw), (dh, dw) = window.taps, window.strides, window.dilations
    return (("KH", kh), ("KW", kw), ("SH", sh), ("SW", sw), ("DH", dh), ("DW", dw))


def size_parameters(names: Sequence[str], known: Mapping[str, int]) -> tuple[Parameter, ...]:
    """Parameters for sizes; those that are known multiples of 16 promise to be."""
    return tuple(Parameter(n, "i32", known.get(n, 1) % 16 == 0) for n in names)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a pixel lies: "NHWC" or "NCHW"."""

    data_format: str

    @property
    def channels_first(self) -> bool:
        """Whether it is NCHW."""
        return self.data_format == "NCHW"

    def offset(self, sizes: tuple[str, str, str], n: str, h: str, w: str, c: str) -> str:
        """Offset of one pixel of an image with (height, width, channels); `n` is int64, and so is the result."""
        height, width, channels = sizes
        if self.channels_first:
            return f"(({n} * {channels} + {c}) * {height} + {h}) * {width} + {w}"
        return f"(({n} * {height} + {h}) * {width} + {w}) * {channels} + {c}"

    def ordered(self, n: str, h: str, w: str, c: str) -> tuple[str, str, str, str]:
        """Four things, one per axis, in the order of the axes in memory."""
        return (n, c, h, w) if self.channels_first else (n, h, w, c)


# --- pooling and depthwise convolutions ------------------------------------------------------------------------------


def need_window_type(name: str, dtype: DType) -> None:
    """Raises ValueError or KeyError if arrays of an op over windows cannot have this type."""
    triton_type(dtype.name)
    if WINDOW_OPS[name].is_depthwise and dtype not in (float32, float16, bfloat16):
        raise ValueError(f"depthwise convolutions are computed in float32, float16 or bfloat16, not in {dtype.name}")
    if dtype.is_bool or dtype.is_complex:
        raise ValueError(f"no kernel pools {dtype.name}")


def window_ways(
    name: str, dtype: DType, window: Window, sizes: Mapping[str, int], data_format: str = "NHWC", multiplier: int = 1
) -> tuple[Routine, ...]:
    """Ways to compute an op over windows for these `image_sizes`, the likely best one first; `multiplier`: filters of each channel.

    Arrays: the inputs that are loaded, in0...; out0.
    """
    op = WINDOW_OPS[name]
    more = (multiplier,) if op.is_depthwise else ()
    loaded = [i for i in range(len(op.inputs)) if i != op.told]
    parts: list[tuple[Routine, ...]] = []
    for number, (make, which, space) in enumerate(op.steps, 1):
        out = "out0" if number == len(op.steps) else "scratch0"
        arrays = {
            "scratch0" if i == CHOSEN else f"in{loaded.index(i)}": f"{op.inputs[i] if i != CHOSEN else 'result'}_size"
            for i in which
        }
        axes = axis_names(space, window, data_format, op.is_depthwise)
        names = Names(tuple(arrays), (out,), axes, tables=arrays)
        nest = make(dtype, window, *more, data_format)
        parts.append(candidates(nest, names, [sizes[a] for a in axes]))
    if len(parts) == 1:
        return parts[0]
    scratch = [Scratch("scratch0", "i32", (Count(("result_size",)),))]
    return one_after_another([[way.launches[0] for way in ways] for ways in parts], scratch)
