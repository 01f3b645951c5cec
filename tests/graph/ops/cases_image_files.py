"""Pictures in files: what is written is read again, what Pillow wrote is read, and what is no picture is refused."""

from __future__ import annotations

import io
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from op_table import ScriptCase
from PIL import Image
from reference_interpreter import Interpreter

from dovetail.compat.tf1.image import files
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError, UnimplementedError

Y, X = np.mgrid[:24, :40]
RAMP = np.stack([Y * 5, X * 6, Y + X * 2, 255 - Y * 5], -1).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 1 << 16, (9, 7, 4), np.uint16)


def run(fetches: Any) -> Any:
    return Interpreter(get_default_graph(), check=True).run(fetches)


def written(node: Any) -> bytes:
    """The bytes of a file that the graph makes."""
    found: bytes = run(node).item()
    return found


def saved(pixels: Any, kind: str, mode: str | None = None, **options: Any) -> bytes:
    """What Pillow makes of it."""
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def _png() -> None:
    for channels in (1, 2, 3, 4):
        for pixels in (RAMP[..., :channels], NOISE[..., :channels], (NOISE >> 8).astype(np.uint8)[..., :channels]):
            found = files.decode_png(files.encode_png(pixels), dtype=pixels.dtype)
            assert found.shape.as_list() == [None, None, None]
            np.testing.assert_array_equal(run(found), pixels)
    grey = RAMP[..., :1]
    for channels, expected in ((0, grey), (3, np.repeat(grey, 3, 2)), (4, np.insert(np.repeat(grey, 3, 2), 3, 255, 2))):
        node = files.decode_png(files.encode_png(grey), channels)
        assert node.shape.as_list() == [None, None, channels or None]
        np.testing.assert_array_equal(run(node), expected)
    wide = run(files.decode_png(files.encode_png(RAMP), dtype="uint16"))
    np.testing.assert_array_equal(wide, RAMP.astype(np.uint16) * 257)
    few = saved(RAMP[..., :3], "PNG", "P")
    np.testing.assert_array_equal(run(files.decode_png(few)), np.asarray(Image.open(io.BytesIO(few)).convert("RGB")))
    for level in (1, 9):
        assert len(written(files.encode_png(RAMP, level))) < RAMP.size / 4  # its rows differ little


def _channels_of_png() -> None:
    """The grey of colours is libpng's, to the bit."""
    for pixels, half in ((RAMP, 0), (NOISE, 1 << 14)):
        full = np.full_like(pixels[..., :1], np.iinfo(pixels.dtype).max)
        red, green, blue = np.moveaxis(pixels[..., :3].astype(int), 2, 0)
        grey = (9797 * red + 19234 * green + 3737 * blue + half >> 15)[..., None]
        expected = {1: grey, 2: np.dstack([grey, full]), 4: np.dstack([pixels[..., :3], full])}
        for channels, right in expected.items():
            node = files.decode_png(files.encode_png(pixels[..., :3]), channels, pixels.dtype)
            np.testing.assert_array_equal(run(node), right)
        for own, channels, right in ((4, 3, pixels[..., :3]), (4, 2, np.dstack([grey, pixels[..., 3]])),
                                     (1, 3, np.repeat(pixels[..., :1], 3, 2)), (2, 4, pixels[..., [0, 0, 0, 1]])):  # fmt: skip
            node = files.decode_png(files.encode_png(pixels[..., :own]), channels, pixels.dtype)
            np.testing.assert_array_equal(run(node), right)


def _rows_of_png() -> None:
    """Files of 16 bits with each of the filters."""
    for way in range(5):
        stored = NOISE[..., :3].astype(">u2").view(np.uint8).reshape(9, 7 * 6).astype(int)
        rows = []
        for y in range(9):
            up = stored[y - 1] if y else np.zeros(42, int)
            left, corner = (np.concatenate([np.zeros(6, int), row[:-6]]) for row in (stored[y], up))
            guess = left + up - corner
            near = np.abs(np.stack([left, up, corner]) - guess).argmin(0)
            paeth = np.choose(near, [left, up, corner])
            rows.append(np.r_[way, (stored[y] - [0, left, up, (left + up) // 2, paeth][way]) & 255])
        whole = written(files.encode_png(NOISE[..., :3]))
        chunk = zlib.compress(np.array(rows, np.uint8).tobytes())
        contents = whole[:33] + len(chunk).to_bytes(4, "big") + b"IDAT" + chunk + bytes(4)
        np.testing.assert_array_equal(run(files.decode_png(contents, dtype="uint16")), NOISE[..., :3])


def _jpeg() -> None:
    colours = RAMP[..., :3]
    made = written(files.encode_jpeg(colours, quality=98, chroma_downsampling=False))
    node = files.decode_jpeg(made)
    assert node.shape.as_list() == [None, None, None]
    found, shape = run([node, files.extract_jpeg_shape(made)])
    assert np.abs(found.astype(int) - colours).max() <= 6 and shape.tolist() == [24, 40, 3]
    np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(made))))
    grey, half = run([files.decode_jpeg(made, channels=1), files.decode_jpeg(made, ratio=2)])
    assert grey.shape == (24, 40, 1) and half.shape == (12, 20, 3)
    assert np.abs(grey[..., 0] - colours @ [0.299, 0.587, 0.114]).max() < 4
    node = files.decode_and_crop_jpeg(made, [3, 5, 7, 9])
    part = run(node)
    assert node.shape.as_list() == [7, 9, None]
    np.testing.assert_array_equal(part, found[3:10, 5:14])
    for window in ([-1, 0, 2, 2], [0, 0, 25, 40], [0, 0, 0, 3]):
        with pytest.raises(InvalidArgumentError, match="crop window"):
            run(files.decode_and_crop_jpeg(made, window))
    inks = saved(colours, "JPEG", "CMYK", quality=98)
    assert np.abs(run(files.decode_jpeg(inks)).astype(int) - colours).mean() < 3
    assert run(files.extract_jpeg_shape(inks, "int64")).tolist() == [24, 40, 4]
    assert len(written(files.encode_jpeg(colours, quality=20))) < len(made)
    worse, same = run(
        [files.adjust_jpeg_quality(colours / np.float32(255), 5), files.random_jpeg_quality(colours, 90, 100)]
    )
    assert worse.dtype == np.float32 and 0.005 < np.abs(worse - colours / 255).mean() < 0.1
    assert np.abs(same.astype(int) - colours).mean() < 3
    assert run([files.is_jpeg(made), files.is_jpeg(b"BM")]) == [True, False]


def _others() -> None:
    frames = [Image.fromarray(np.full((6, 5, 3), 40 * i, np.uint8)) for i in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    moving = file.getvalue()
    node = files.decode_gif(moving)
    assert node.shape.as_list() == [None, None, None, 3]
    found = run([node, files.decode_image(moving), files.decode_image(moving, expand_animations=False)])
    np.testing.assert_array_equal(found[0], np.stack([np.asarray(f) for f in frames]))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0][0])
    with pytest.raises(InvalidArgumentError, match="Got 3 frames"):
        run(files.decode_jpeg(moving))
    plain = saved(RAMP[..., :3], "BMP")
    as_png, as_jpeg = written(files.encode_png(RAMP[..., :3])), written(files.encode_jpeg(RAMP[..., :3]))
    for node in (
        files.decode_bmp(plain),
        files.decode_png(plain),
        files.decode_image(plain),
        files.decode_jpeg(as_png),
    ):
        np.testing.assert_array_equal(run(node), RAMP[..., :3])
    for contents in (plain, as_png, as_jpeg):
        bytes_, floats, wide = run(
            [files.decode_image(contents, 3, dtype=kind) for kind in ("uint8", "float32", "uint16")]
        )
        np.testing.assert_allclose(floats, bytes_ / np.float32(255), rtol=1e-6)
        np.testing.assert_array_equal(wide, bytes_.astype(np.uint16) * (257 if contents is as_png else 256))
    with pytest.raises(InvalidArgumentError, match="Channels must be in"):
        run(files.decode_image(moving, channels=4))


def _refused() -> None:
    for contents in (b"nonsense", b""):
        with pytest.raises(InvalidArgumentError, match="Expected image"):
            run(files.decode_image(contents))
    whole = written(files.encode_jpeg(RAMP[..., :3]))
    with pytest.raises(InvalidArgumentError, match="Invalid JPEG data"):
        run(files.decode_jpeg(whole[:-100]))
    with pytest.raises(ValueError, match="channels must be one of"):
        files.decode_jpeg(whole, channels=4)
    with pytest.raises(TypeError, match="must be uint8"):
        files.encode_jpeg(np.zeros((2, 2, 3), np.float32))
    with pytest.raises(InvalidArgumentError, match="quality"):
        run(files.adjust_jpeg_quality(RAMP[..., :3], 101))


def _without_pillow() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "PIL", None)
        made = written(files.encode_png(RAMP))
        with pytest.raises(UnimplementedError, match=r"pip install 'dovetail\[image\]'"):
            run(files.decode_png(made))


CASES: list[Any] = [
    ScriptCase(("DecodePng", "EncodePng"), _png, "lossless"),
    ScriptCase(("DecodePng",), _channels_of_png, "channels"),
    ScriptCase(("DecodePng",), _rows_of_png, "filters"),
    ScriptCase(
        ("DecodeJpeg", "EncodeJpeg", "EncodeJpegVariableQuality", "ExtractJpegShape", "DecodeAndCropJpeg"),
        _jpeg,
        "jpeg",
    ),
    ScriptCase(("DecodeGif", "DecodeImage", "DecodeBmp"), _others, "other formats"),
    ScriptCase(("DecodeImage",), _refused, "refused"),
    ScriptCase(("DecodePng",), _without_pillow, "without Pillow"),
]
