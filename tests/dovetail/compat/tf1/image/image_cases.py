"""Questions about pictures that TensorFlow and Dovetail answer alike. Run with TensorFlow's Python, it writes down its answers:

python tests/dovetail/compat/tf1/image/image_cases.py > tests/dovetail/compat/tf1/image/image_answers.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np


def cases(tf: Any) -> dict[str, Callable[[], Any]]:
    """name -> what makes the nodes."""
    rng = np.random.RandomState(0)
    f = np.round(rng.rand(4, 5, 3), 2).astype(np.float32)
    u = rng.randint(0, 256, (4, 5, 3)).astype(np.uint8)
    b = np.round(rng.rand(2, 3, 4, 3), 2).astype(np.float32)
    odd = np.round(rng.rand(7, 9, 1), 2).astype(np.float32)
    corners = np.array([[[0, 0, 0], [0.5, 0.5, 0.5], [0, 0, 1]]], np.float32)
    im = tf.image
    nearest = im.ResizeMethod.NEAREST_NEIGHBOR
    return {
        "left and right": lambda: im.flip_left_right(f),
        "up and down": lambda: im.flip_up_down(b),
        "rows and columns": lambda: im.transpose_image(f),
        "a quarter": lambda: im.rot90(f),
        "a half": lambda: im.rot90(b, 2),
        "three quarters": lambda: im.rot90(f, 3),
        "cropped": lambda: im.crop_to_bounding_box(f, 1, 2, 2, 3),
        "padded": lambda: im.pad_to_bounding_box(b, 1, 2, 6, 8),
        "middle": lambda: im.central_crop(f, 0.5),
        "odd middle": lambda: im.central_crop(odd, 0.33),
        "lower and wider": lambda: im.resize_image_with_crop_or_pad(f, 2, 8),
        "higher and narrower": lambda: im.resize_image_with_crop_or_pad(b, 7, 3),
        "bytes cut": lambda: im.resize_image_with_crop_or_pad(u, 3, 4),
        "bilinear": lambda: im.resize_images(f, [7, 3]),
        "aligned": lambda: im.resize_images(b, [2, 8], align_corners=True),
        "of bytes": lambda: im.resize_images(u, [8, 2]),
        "nearest": lambda: im.resize_images(u, [7, 3], method=nearest),
        "nearest aligned": lambda: im.resize_images(f, [7, 9], method=nearest, align_corners=True),
        "proportions": lambda: im.resize_images(f, [10, 7], preserve_aspect_ratio=True),
        "same size": lambda: im.resize_images(u, [4, 5]),
        "same size with pad": lambda: im.resize_image_with_pad(u, 4, 6),
        "one pixel": lambda: im.resize_images(f, [1, 1], align_corners=True),
        "resize_bilinear": lambda: im.resize_bilinear(b, [5, 5]),
        "resize_nearest_neighbor": lambda: im.resize_nearest_neighbor(b, [5, 5]),
        "bytes to floats": lambda: im.convert_image_dtype(u, tf.float32),
        "floats to bytes": lambda: im.convert_image_dtype(f, tf.uint8),
        "bytes to int32": lambda: im.convert_image_dtype(u, tf.int32),
        "cut off": lambda: im.convert_image_dtype(f * 3 - 1, tf.uint8, saturate=True),
        "int32 to bytes": lambda: im.convert_image_dtype(u.astype(np.int32) * 1000000, tf.uint8),
        "bytes to int16": lambda: im.convert_image_dtype(u, tf.int16),
        "brighter": lambda: im.adjust_brightness(f, 0.2),
        "brighter bytes": lambda: im.adjust_brightness(u, 0.2),
        "contrast": lambda: im.adjust_contrast(f, 2.0),
        "contrast of bytes": lambda: im.adjust_contrast(u, 0.5),
        "gamma": lambda: im.adjust_gamma(f, 2.0, 0.5),
        "paler": lambda: im.adjust_saturation(f, 0.3),
        "stronger": lambda: im.adjust_saturation(f, 2.5),
        "hue": lambda: im.adjust_hue(f, 0.3),
        "hue of bytes": lambda: im.adjust_hue(u, -0.2),
        "grey": lambda: im.rgb_to_grayscale(f),
        "grey bytes": lambda: im.rgb_to_grayscale(u),
        "to hsv": lambda: im.rgb_to_hsv(f),
        "from hsv": lambda: im.hsv_to_rgb(b),
        "hsv of greys": lambda: im.rgb_to_hsv(corners),
        "standard": lambda: im.per_image_standardization(f),
        "standard of bytes": lambda: im.per_image_standardization(u),
        "standard of faint bytes": lambda: im.per_image_standardization(u % 5),
        "standard of each": lambda: im.per_image_standardization(b),
        "standard of one colour": lambda: im.per_image_standardization(f * 0 + 3),
        "three channels": lambda: im.grayscale_to_rgb(tf.constant(f[:, :, :1])),
        "variation": lambda: im.total_variation(tf.constant(f)),
        "variation of each": lambda: im.total_variation(tf.constant(b)),
    }


def main() -> None:
    """Print TensorFlow's answers: type, shape and values of each."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    session = tf.Session()
    answers = {}
    for name, ask in cases(tf).items():
        value = np.asarray(session.run(ask()))
        values = (
            np.round(value.astype(float), 5).ravel().tolist() if value.dtype.kind == "f" else value.ravel().tolist()
        )
        answers[name] = [value.dtype.name, list(value.shape), values]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(a, separators=(',', ':'))}" for name, a in answers.items())
    print("{" + lines + "}")


if __name__ == "__main__":
    main()
