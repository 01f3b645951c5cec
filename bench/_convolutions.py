"""Single convolutions of which bench/cpu.py times the forward pass and both gradients: the same data, channels last in memory.

    deep     8 images of 14 x 14, 256 channels to 256, 3 x 3 taps: the middle of a ResNet
    point    8 images of 56 x 56, 64 channels to 256, 1 x 1: a product
    first    4 images of 112 x 112, 3 channels to 64, 7 x 7 taps, every other pixel: the first layer of a ResNet
    small    64 images of 14 x 14, 6 channels to 16, 5 x 5 taps: the second layer of LeNet-5

A maker returns a call that gives the result `[n, rows, columns, channels]`, the gradient by the image, or the gradient by the filter
`[high, wide, in, out]`. PyTorch calls oneDNN, on tensors whose memory has channels last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Case:
    """A convolution: images, pixels of a row and of a column, channels in and out, taps, the window's step, padding on each side."""

    title: str
    images: int
    size: int
    inner: int
    outer: int
    taps: int
    stride: int
    padding: int


CASES = {
    "deep": Case("8 x 14 x 14 x 256, 3 x 3 to 256", 8, 14, 256, 256, 3, 1, 1),
    "point": Case("8 x 56 x 56 x 64, 1 x 1 to 256", 8, 56, 64, 256, 1, 1, 0),
    "first": Case("4 x 112 x 112 x 3, 7 x 7 to 64, stride 2", 4, 112, 3, 64, 7, 2, 3),
    "small": Case("64 x 14 x 14 x 6, 5 x 5 to 16", 64, 14, 6, 16, 5, 1, 0),
}
WHAT = {"forward": "forward", "image": "by the image", "filter": "by the filter"}
WORKLOADS = {
    f"conv-{name}-{what}": f"convolution {case.title}, {words}"
    for name, case in CASES.items()
    for what, words in WHAT.items()
}


def data(case: Case) -> tuple[Any, Any, Any]:
    """Image, filter, gradient of the result."""
    rng = np.random.default_rng(6)
    rows = (case.size + 2 * case.padding - case.taps) // case.stride + 1
    shapes = (
        (case.images, case.size, case.size, case.inner), (case.taps, case.taps, case.inner, case.outer),
        (case.images, rows, rows, case.outer),
    )  # fmt: skip
    x, w, grad = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, w, grad


def dovetail(workload: str, config: Any) -> Callable[[], Any]:
    """The call for a workload."""
    import dovetail as dt

    _, name, what = workload.split("-")
    case = CASES[name]
    image, weights, gradient = data(case)
    graph = dt.Graph()
    with graph.as_default():
        x, w, g = (dt.placeholder(dt.float32, a.shape) for a in (image, weights, gradient))
        pads = [[0, 0], [case.padding] * 2, [case.padding] * 2, [0, 0]]
        y = dt.nn.conv2d(x, w, case.stride, pads)
        of_x, of_w = dt.gradients(y, [x, w], g)
    fetch, feeds, values = {
        "forward": (y, [x, w], (image, weights)),
        "image": (of_x, [w, g], (weights, gradient)),
        "filter": (of_w, [x, g], (image, gradient)),
    }[what]
    session = dt.Session(graph=graph, config=config)
    session.warmup(fetch, feeds)
    call = session.make_callable(fetch, feeds)
    return lambda: call(*values)


def torch(workload: str) -> Callable[[], Any]:
    """The same with PyTorch."""
    import torch

    _, name, what = workload.split("-")
    case = CASES[name]
    image, weights, gradient = (torch.tensor(a) for a in data(case))
    x, g = (a.permute(0, 3, 1, 2) for a in (image, gradient))
    w = weights.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    stride, padding = [case.stride] * 2, [case.padding] * 2
    torch.set_grad_enabled(False)
    if what == "forward":
        return lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=padding).permute(0, 2, 3, 1)
    wanted = [what == "image", what == "filter", False]
    which, order = (0, (0, 2, 3, 1)) if what == "image" else (1, (2, 3, 1, 0))

    def gradients() -> Any:
        made = torch.ops.aten.convolution_backward(
            g, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, wanted
        )  # fmt: skip
        return made[which].permute(order)

    return gradients
