"""What convolutions and pooling share: sizes, and where a pixel lies in memory; the kernels of pooling and depthwise convolutions.

These kernels are made from loops (`fusion/window_loops.py`). Launch names: in0... as the loops have them; out0. The largest pixel's
gradient is made by two kernels: one writes which tap is the largest of each window, the other one goes over the pixels. No two programs
add to one number, so the result does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ....graph.ops.nn.conv_geometry import Window
from ...fusion import window_loops as loops_of
from ...ir.loop_nest import LoopNest
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


@dataclass(frozen=True, slots=True)
class WindowKernels:
    """The kernels of one window, type and layout.

    Attributes:
        dtype: of all arrays.
        window: taps, strides, dilations, padding.
        data_format: "NHWC" or "NCHW".
        multiplier: filters of each channel, of depthwise convolutions.
    """

    dtype: DType
    window: Window
    data_format: str = "NHWC"
    multiplier: int = 0

    def __post_init__(self) -> None:
        triton_type(self.dtype.name)  # KeyError for a type that kernels cannot have
        if self.multiplier and self.dtype not in (float32, float16, bfloat16):
            raise ValueError(
                f"depthwise convolutions are computed in float32, float16 or bfloat16, not in {self.dtype.name}"
            )
        if self.dtype.is_bool or self.dtype.is_complex:
            raise ValueError(f"no kernel pools {self.dtype.name}")

    def max_pool(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: image. All of these: ways for these `image_sizes`, the likely best one first."""
        return self._over("result", loops_of.max_pool, sizes, {"in0": "image_size"})

    def max_pool_gradient(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: image; in2: gradient of the result. (in1, the result, is not needed.)"""
        choice = self._over("result", loops_of.max_pool_choice, sizes, {"in0": "image_size"}, "scratch0")
        arrays = {"scratch0": "result_size", "in2": "result_size"}
        then = self._over("image", loops_of.max_pool_gradient, sizes, arrays)
        parts = [[way.launches[0] for way in ways] for ways in (choice, then)]
        return one_after_another(parts, [Scratch("scratch0", "i32", (Count(("result_size",)),))])

    def max_pool_gradient_gradient(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: image; in2: an array like the image; out0: like the result."""
        arrays = {"in0": "image_size", "in2": "image_size"}
        return self._over("result", loops_of.max_pool_gradient_gradient, sizes, arrays)

    def avg_pool(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: image."""
        return self._over("result", loops_of.avg_pool, sizes, {"in0": "image_size"})

    def avg_pool_gradient(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: gradient of the result."""
        return self._over("image", loops_of.avg_pool_gradient, sizes, {"in0": "result_size"})

    def depthwise(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: image; in1: filter."""
        return self._over("result", loops_of.depthwise, sizes, {"in0": "image_size", "in1": "filter_size"})

    def depthwise_input_gradient(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: filter; in1: gradient of the result."""
        arrays = {"in0": "filter_size", "in1": "result_size"}
        return self._over("image", loops_of.depthwise_input_gradient, sizes, arrays)

    def depthwise_filter_gradient(self, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
        """in0: image; in1: gradient of the result."""
        return self._over("filter", loops_of.depthwise_filter_gradient, sizes, {"in0": "image_size", "in1": ""})

    def _over(
        self,
        space: str,
        make: Callable[..., LoopNest],
        sizes: Mapping[str, int],
        arrays: Mapping[str, str],
        out: str = "out0",
    ) -> tuple[Routine, ...]:
        """Ways to run a nest. `arrays`: the inputs' names, with the sizes that bound the rows that are read of them."""
        axes = loops_of.axis_names(space, self.window, self.data_format, self.multiplier > 0)
        nest = make(self.dtype, self.window, *([self.multiplier] if self.multiplier else []), self.data_format)
        return candidates(nest, Names(tuple(arrays), (out,), axes, tables=arrays), [sizes[a] for a in axes])
