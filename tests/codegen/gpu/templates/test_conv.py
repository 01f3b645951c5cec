"""Convolutions and their gradients: their numbers in Triton's interpreter, and what they compile to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from kernel_checks import TARGETS, check, compiles, run

from dovetail.codegen.gpu.templates.conv import convolution
from dovetail.codegen.ir.loop_nest import LoopNestBuilder, TileLoops
from dovetail.codegen.ir.schedule import GpuProductSchedule
from dovetail.codegen.ir.windows import image_sizes
from dovetail.codegen.target import SM90, Target
from dovetail.graph.core.dtypes import DType, bfloat16, float16, float32, float64, int32
from dovetail.graph.ops.nn.conv_geometry import Window

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]


SMALL = [GpuProductSchedule(32, 16, 16, 4, 2)]


@dataclass(frozen=True)
class Case:
    """A convolution: sizes of the image (n, h, w, c), the filter's count, and the window."""

    window: Window
    image: tuple[int, int, int, int] = (2, 5, 6, 5)
    filters: int = 6
    dtype: DType = float32


CASES = {
    "valid": Case(Window((3, 3), (1, 1))),
    "same": Case(Window((3, 2), (1, 1), padding="SAME")),
    "strides": Case(Window((3, 3), (2, 3), padding="SAME")),
    "strides larger than the window": Case(Window((1, 2), (2, 3), padding="VALID")),
    "dilations": Case(Window((3, 2), (1, 1), (2, 3), "SAME")),
    "strides and dilations": Case(Window((3, 3), (2, 2), (3, 2), "SAME"), (1, 8, 9, 3)),
    "strides share a factor with dilations": Case(Window((3, 2), (4, 6), (2, 4), "SAME"), (1, 7, 13, 3)),
    "explicit padding": Case(Window((2, 3), (2, 1), (1, 1), "EXPLICIT", ((1, 0), (2, 1)))),
    "many channels": Case(Window((2, 2), (1, 1), padding="SAME"), (1, 4, 5, 18), 17),
    "one by one": Case(Window((1, 1), (1, 1)), (1, 3, 3, 20), 4),
    "float64": Case(Window((3, 2), (2, 1), padding="SAME"), dtype=float64),
    "float64 with many channels": Case(Window((2, 2), (1, 1), padding="SAME"), (1, 4, 5, 18), 17, float64),
    "float16": Case(Window((3, 3), (2, 2), padding="SAME"), dtype=float16),
    "bfloat16": Case(Window((3, 3), (1, 1), padding="SAME"), dtype=bfloat16),
}
DIGITS = {"float64": 1e-14, "float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2}


def pairs(window: Window, image: tuple[int, ...]) -> Any:
    """Every (position, tap, pixel) of a window over an image, from first principles."""
    rows, columns = window.positions(0, image[1]), window.positions(1, image[2])
    (top, _), (left, _) = window.pads(0, image[1]), window.pads(1, image[2])
    for r in range(rows or 0):
        for q in range(columns or 0):
            for i in range(window.taps[0]):
                for j in range(window.taps[1]):
                    h = r * window.strides[0] - top + i * window.dilations[0]
                    w = q * window.strides[1] - left + j * window.dilations[1]
                    if 0 <= h < image[1] and 0 <= w < image[2]:
                        yield (r, q), (i, j), (h, w)


def oracle(x: Any, w: Any, dy: Any, window: Window) -> tuple[Any, Any, Any]:
    """Result and both gradients in float64, NHWC."""
    x, w, dy = (a.astype(np.float64) for a in (x, w, dy))
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    for p, tap, pixel in pairs(window, x.shape):
        y[:, *p] += x[:, *pixel] @ w[tap]
        dx[:, *pixel] += dy[:, *p] @ w[tap].T
        dw[tap] += x[:, *pixel].T @ dy[:, *p]
    return y, dx, dw


def stored(x: Any, data_format: str) -> Any:
    """An NHWC image as it lies in memory."""
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if data_format == "NCHW" else x


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_numbers(case: Case, data_format: str) -> None:
    rng = np.random.default_rng(5)
    window, dtype = case.window, case.dtype
    x = rng.standard_normal(case.image).astype(dtype.np)
    w = rng.standard_normal((*window.taps, case.image[3], case.filters)).astype(dtype.np)
    rows, columns = window.positions(0, case.image[1]), window.positions(1, case.image[2])
    dy = rng.standard_normal((case.image[0], rows, columns, case.filters)).astype(dtype.np)
    y, dx, dw = oracle(x, w, dy, window)
    laid_x, laid_dy = stored(x, data_format), stored(dy, data_format)
    sizes = image_sizes(window, laid_x.shape, case.filters, data_format)
    options: dict[str, Any] = {"data_format": data_format}

    known = {"channels": case.image[3]}
    for facts in ({}, known):
        out = np.full_like(laid_dy, np.nan)
        (forward,) = convolution(dtype, window, **options, known=facts, at=SMALL)
        run(forward, {"in0": laid_x, "in1": w, "out0": out}, sizes)
        check(out, stored(y, data_format), DIGITS[dtype.name], "the result")

    out = np.full_like(laid_x, np.nan)
    (of_input,) = convolution(dtype, window, "image", **options, at=SMALL)
    run(of_input, {"in0": w, "in1": laid_dy, "out0": out}, sizes)
    check(out, stored(dx, data_format), DIGITS[dtype.name], "the input's gradient")

    for splits in (1, 2):
        out = np.full_like(w, np.nan)
        (of_filter,) = convolution(
            dtype, window, "filter", **options, at=[GpuProductSchedule(16, 16, 32, 4, 2, splits)]
        )
        run(of_filter, {"in0": laid_x, "in1": laid_dy, "out0": out}, sizes)
        check(out, dw, DIGITS[dtype.name], f"the filter's gradient, {splits} parts")


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_epilogue(data_format: str) -> None:
    """Bias by channel, residual, relu; the value before relu kept."""
    channel = 1 if data_format == "NCHW" else 3
    build = LoopNestBuilder([False] * 4)
    biased = build.apply("add", build.load(0, float32, range(4)), build.load(1, float32, [channel]))
    kept = build.apply("add", biased, build.load(2, float32, range(4)))
    build.store(build.apply("maximum", kept, build.constant(0.0, float32)), range(4))
    build.store(kept, range(4))
    edge = TileLoops(*build.finish())
    rng = np.random.default_rng(6)
    window = Window((3, 3), (1, 1), padding="SAME")
    x, w = rng.standard_normal((2, 4, 5, 3)), rng.standard_normal((3, 3, 3, 7))
    x, w = x.astype(np.float32), w.astype(np.float32)
    bias, residual = rng.standard_normal(7).astype(np.float32), rng.standard_normal((2, 4, 5, 7)).astype(np.float32)
    y, _, _ = oracle(x, w, residual, window)
    (routine,) = convolution(float32, window, data_format=data_format, epilogue=edge, at=SMALL)
    laid, laid_residual = stored(x, data_format), stored(residual, data_format)
    outs = [np.full_like(laid_residual, np.nan) for _ in range(2)]
    arrays = {"in0": laid, "in1": w, "in2": bias, "in3": laid_residual, "out0": outs[0], "out1": outs[1]}
    run(routine, arrays, image_sizes(window, laid.shape, 7, data_format))
    want = stored(y + bias + residual, data_format)
    check(outs[0], np.maximum(want, 0), 3e-6, "the result")
    check(outs[1], want, 3e-6, "the value before relu")


def test_no_whole_numbers() -> None:
    with pytest.raises(ValueError, match="not in int32"):
        convolution(int32, Window((1, 1), (1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_compiles(target: Target) -> None:
    window = Window((3, 3), (2, 2), padding="SAME")
    known = {"channels": 64, "filters": 128, "images": 32, "rows": 28, "columns": 28}
    made = [convolution(bfloat16, window, makes, known=known)[0] for makes in ("result", "image", "filter")]
    if target is SM90:
        made.append(
            convolution(float32, window, tf32=True, data_format="NCHW", known={"channels": 3, "filters": 64})[0]
        )
        made += [convolution(float64, window, makes, known=known)[0] for makes in ("result", "image", "filter")]
    for routine in made:
        compiles(routine, [target], stack=16)
