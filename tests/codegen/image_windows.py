"""Windows over images that every convolution's test goes through."""

from __future__ import annotations

from dovetail.graph.ops.nn.conv_geometry import Window

Sizes = tuple[int, int, int, int, int]  # images, height, width, channels in and out


def window_of(taps: tuple[int, int], strides: tuple[int, int] = (1, 1), dilations: tuple[int, int] = (1, 1)) -> Window:
    """A window whose result has as many pixels as the image, but for strides."""
    return Window(taps, strides, dilations, "SAME")


WINDOWS = (
    window_of((1, 1)), window_of((1, 1), (2, 3)), window_of((3, 3)), window_of((3, 3), (2, 2)),
    window_of((2, 5), (3, 1)), window_of((3, 3), (1, 1), (2, 3)), window_of((3, 2), (2, 2), (3, 2)),
    Window((3, 1), (1, 2)), Window((4, 3), (2, 1), padding="EXPLICIT", explicit=((5, 2), (0, 4))),
)  # fmt: skip


def name_of(window: Window) -> str:
    """What a test with such a window is called."""
    return f"{window.size}{window.strides}{window.dilations}{window.padding}"


ONE_PIXEL = (
    (window_of((1, 1)), (1, 1, 1, 1, 1)),
    (window_of((3, 3)), (1, 1, 1, 9, 33)),
    (Window((5, 5), (1, 1)), (3, 5, 5, 4, 6)),  # the window is the image
    (Window((2, 2), (2, 2)), (1, 2, 2, 16, 1)),  # each pixel of the image meets one tap
    (Window((2, 2), (2, 2)), (1, 2, 10, 1, 3)),
)
