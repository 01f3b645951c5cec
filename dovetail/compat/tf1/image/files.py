"""Image files: decoding and encoding.

Pillow reads JPEG, PNG, GIF and BMP; the first kernel that needs it loads it. Each function reads all of these formats, as
TensorFlow's do. PNG is written without Pillow.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert
from ....graph.core.constant_value import static_value
from ....graph.core.dtypes import Array, DType, as_dtype, float32, int32, int64, string, text_array, uint8, uint16
from ....graph.core.errors import UnimplementedError, invalid
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define, typed_attr
from ....graph.formats.png import COLOURS, SIGNATURE, png_of
from ....graph.ops.math.compare import equal
from ....graph.ops.math.static_operands import as_bytes, need_index, need_rank, op_scope
from ....graph.ops.random.random import random_uniform
from ....graph.ops.strings.split_join import substr
from .colour import convert_image_dtype

_JPEG = b"\xff\xd8\xff"


def _pillow() -> Any:
    """Pillow's module of images.

    Raises:
        UnimplementedError: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UnimplementedError(
            None,
            None,
            "JPEG, PNG, GIF and BMP need Pillow where they are read or written: pip install 'dovetail[image]'",
        ) from None
    return Image


def _opened(contents: bytes) -> Any:
    """The picture, not read yet. InvalidArgumentError: it is in none of the formats."""
    pillow = _pillow()
    try:
        return pillow.open(io.BytesIO(contents), formats=("JPEG", "PNG", "GIF", "BMP"))
    except OSError:
        raise invalid(
            f"Expected image (JPEG, PNG, GIF or BMP), got {len(contents)} bytes that begin with {contents[:8]!r}"
        ) from None


def _pixels(image: Any, channels: int) -> Array:
    """A frame as `[height, width, channels]`, uint8, or uint16 where it has 16 bits. channels 0: as many as it has."""
    if channels == 0:
        own = {"1": 1, "L": 1, "I;16": 1, "I": 1, "LA": 2, "RGBA": 4, "PA": 4}
        channels = 4 if image.mode == "P" and "transparency" in image.info else own.get(image.mode, 3)
    if image.mode == "CMYK":
        inks = 255.0 - np.asarray(image)
        found = np.rint(inks[..., :3] * inks[..., 3:] / 255).astype(np.uint8)
        return found if channels == 3 else np.asarray(_pillow().fromarray(found).convert("L"))[..., None]
    if image.mode in ("I", "I;16") and channels == 1:
        return np.asarray(image).astype(np.uint16)[..., None]
    mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    found = np.asarray(image if image.mode == mode else image.convert(mode))
    return found if found.ndim == 3 else found[..., None]


def _with_channels(pixels: Array, channels: int) -> Array:
    """A PNG file's pixels with other channels, as libpng makes them: grey of 8 bits is truncated, and that of 16 bits rounded."""
    own = pixels.shape[2]
    if channels in (0, own):
        return pixels
    colours = pixels[..., : 3 if own > 2 else 1]
    if channels < 3 <= own:
        half = 1 << 14 if pixels.dtype == np.uint16 else 0
        red, green, blue = np.moveaxis(colours.astype(np.uint32), 2, 0)
        colours = ((9797 * red + 19234 * green + 3737 * blue + half) >> 15).astype(pixels.dtype)[..., None]
    elif own < 3 <= channels:
        colours = np.repeat(colours, 3, 2)
    if channels % 2:
        return colours
    alpha = pixels[..., -1:] if own % 2 == 0 else np.full_like(pixels[..., :1], np.iinfo(pixels.dtype).max)
    return np.concatenate([colours, alpha], 2)


def _frames(contents: bytes, channels: int, ratio: int = 1) -> tuple[str, Array]:
    """The format, and all frames as `[n, height, width, channels]`."""
    if _is_deep_png(contents):
        return "PNG", _with_channels(_decode_deep_png(contents), channels)[None]
    image = _opened(contents)
    try:
        if image.format == "JPEG" and (ratio > 1 or channels == 1):
            width, height = image.size
            image.draft("L" if channels == 1 else image.mode, (-(-width // ratio), -(-height // ratio)))
        if image.format == "PNG":
            return "PNG", _with_channels(_pixels(image, 0), channels)[None]
        if image.format != "GIF":
            return image.format, _pixels(image, channels)[None]
        frames = []
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(_pixels(image.convert("RGB"), channels or 3))
        return "GIF", np.stack(frames)
    except (OSError, SyntaxError, EOFError, ValueError) as e:
        kind = image.format
        raise invalid(f"Invalid {kind} data, size {len(contents)}: {e}") from None


def _in_type(frames: Array, dtype: DType) -> Array:
    """As uint8 or uint16, whatever the file has."""
    if dtype is uint16 and frames.dtype == np.uint8:
        return frames.astype(np.uint16) * 257
    return (frames >> 8).astype(np.uint8) if dtype is uint8 and frames.dtype == np.uint16 else frames


def _one(contents: Array, channels: int, dtype: DType, ratio: int = 1) -> Array:
    """The only frame."""
    _, frames = _frames(as_bytes(contents.item()), channels, ratio)
    if len(frames) != 1:
        raise invalid(
            f"Got {len(frames)} frames, but animated gifs can only be decoded by tf.image.decode_gif or tf.image.decode_image"
        )
    return _in_type(frames[0], dtype)


# --- rules ------------------------------------------------------------------------------------------------------------


def _need_text(x: Tensor) -> None:
    if x.dtype.base is not string:
        raise TypeError(f"contents must be text, not {x.dtype.base.name}")
    need_rank(x.dims, 0, "contents")


def _decode_rule(allowed: tuple[int, ...], types: tuple[DType, ...] = (uint8, uint16)) -> Any:
    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        _need_text(inputs[0])
        channels, dtype = attrs.get("channels"), attrs.get("dtype", uint8)
        if channels not in allowed:
            raise ValueError(f"channels must be one of {allowed}, not {channels!r}")
        if dtype not in types:
            raise TypeError(f"dtype must be {' or '.join(t.name for t in types)}, not {dtype}")
        if attrs.get("ratio", 1) not in (1, 2, 4, 8):
            raise ValueError(f"ratio must be 1, 2, 4 or 8, not {attrs['ratio']!r}")
        return [(dtype, (None, None, channels or None))]

    return infer


def _crop_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    contents, window = inputs
    need_index(window, "crop_window")
    ((dtype, (_, _, channels)),) = _decode_rule((0, 1, 3))([contents], attrs)
    known = static_value(window)
    size = (None, None) if known is None else tuple(int(n) if n > 0 else None for n in known[2:4])
    return [(dtype, (*size, channels))]


def _crop(contents: Array, window: Array, *, channels: int, ratio: int) -> Array:
    image = _one(contents, channels, uint8, ratio)
    top, left, height, width = (int(n) for n in window)
    if top < 0 or left < 0 or height < 1 or width < 1 or top + height > image.shape[0] or left + width > image.shape[1]:
        raise invalid(f"Invalid JPEG data or crop window: {window.tolist()} of a picture of {image.shape[:2]} pixels")
    return image[top : top + height, left : left + width]


def _any_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    ((dtype, dims),) = _decode_rule((0, 1, 3, 4), (uint8, uint16, float32))(inputs, attrs)
    return [(dtype, None if typed_attr(attrs, "expand_animations", bool) else dims)]


def _any(contents: Array, *, channels: int, dtype: DType, expand_animations: bool) -> Array:
    kind, frames = _frames(as_bytes(contents.item()), channels)
    good = {"JPEG": (0, 1, 3), "GIF": (0, 3), "BMP": (0, 3, 4)}.get(kind, (0, 1, 3, 4))
    if channels not in good:
        raise invalid(f"Channels must be in (None, {good}) when decoding {kind} images")
    if dtype is float32:
        frames = _in_type(frames, uint16) if kind == "PNG" else frames
        frames = frames * np.float32(1 / np.iinfo(frames.dtype).max)
    elif kind != "PNG" and dtype is uint16:
        frames = frames.astype(np.uint16) * 256  # as `convert_image_dtype` has it
    else:
        frames = _in_type(frames, dtype)
    return frames if kind == "GIF" and expand_animations else frames[0]


def _gif(contents: Array) -> Array:
    return _in_type(_frames(as_bytes(contents.item()), 3)[1], uint8)


def _gif_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _need_text(inputs[0])
    return [(uint8, (None, None, None, 3))]


def _shape_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _need_text(inputs[0])
    if attrs.get("output_type") not in (int32, int64):
        raise TypeError("output_type must be int32 or int64")
    return [(attrs["output_type"], (3,))]


def _jpeg_shape(contents: Array, *, output_type: DType) -> Array:
    image = _opened(as_bytes(contents.item()))
    return np.array([image.height, image.width, len(image.getbands())], output_type.np)


def _encode_rule(types: tuple[DType, ...], channels: tuple[int, ...]) -> Any:
    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        x = inputs[0]
        if x.dtype.base not in types:
            raise TypeError(f"image must be {' or '.join(t.name for t in types)}, not {x.dtype.base.name}")
        need_rank(x.dims, 3, "image")
        if x.dims is not None and x.dims[2] not in (None, *channels):
            raise ValueError(f"image must have {channels} channels, not {x.dims[2]}")
        return [(string, ())]

    return infer


def _encode_jpeg(image: Array, quality: int, **options: Any) -> Array:
    if image.ndim != 3 or image.shape[2] not in (1, 3):
        raise invalid(f"image must have shape [height, width, 1 or 3], not {image.shape}")
    if not 0 <= quality <= 100:
        raise invalid(f"quality must be in [0,100], got {quality}")
    file = io.BytesIO()
    whole = _pillow().fromarray(np.ascontiguousarray(image[..., 0] if image.shape[2] == 1 else image))
    whole.save(file, "JPEG", quality=quality, **options)
    return text_array([file.getvalue()], ())


def _encode_png(image: Array, *, compression: int) -> Array:
    if image.ndim != 3 or not 1 <= image.shape[2] <= 4 or 0 in image.shape:
        raise invalid(f"image must have shape [height, width, 1 to 4], not {image.shape}")
    return text_array([png_of(image, compression)], ())


_CPUS = ("CPU",)
define(
    "DecodeJpeg",
    _decode_rule((0, 1, 3)),
    lambda contents, *, channels, ratio: _one(contents, channels, uint8, ratio),
    device_types=_CPUS,
)
define("DecodeAndCropJpeg", _crop_rule, _crop, device_types=_CPUS)
define(
    "DecodePng",
    _decode_rule((0, 1, 2, 3, 4)),
    lambda contents, *, channels, dtype: _one(contents, channels, dtype),
    device_types=_CPUS,
)
define(
    "DecodeBmp",
    _decode_rule((0, 3, 4)),
    lambda contents, *, channels: _one(contents, channels, uint8),
    device_types=_CPUS,
)
define("DecodeGif", _gif_rule, _gif, device_types=_CPUS)
define("DecodeImage", _any_rule, _any, device_types=_CPUS)
define("ExtractJpegShape", _shape_rule, _jpeg_shape, device_types=_CPUS)
define(
    "EncodeJpeg",
    _encode_rule((uint8,), (1, 3)),
    lambda image, *, quality, progressive, optimize_size, chroma_downsampling: _encode_jpeg(
        image, quality, progressive=progressive, optimize=optimize_size, subsampling=2 if chroma_downsampling else 0
    ),
    device_types=_CPUS,
)
define(
    "EncodeJpegVariableQuality",
    _encode_rule((uint8,), (1, 3)),
    lambda image, quality: _encode_jpeg(image, int(quality)),
    device_types=_CPUS,
)
define("EncodePng", _encode_rule((uint8, uint16), (1, 2, 3, 4)), _encode_png, device_types=_CPUS)


# --- what users call --------------------------------------------------------------------------------------------------


def decode_jpeg(
    contents: TensorLike,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1.0,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """The picture in a JPEG file (or PNG, GIF of one frame, BMP): uint8 `[height, width, channels]`. Needs Pillow.

    Args:
        contents: the file's bytes, a scalar, such as `read_file` gives.
        channels: 0: as in the file; 1: grey; 3: RGB.
        ratio: 1, 2, 4 or 8: as much smaller. The others are accepted for TensorFlow's sake: all of the file must be there.

    Raises:
        InvalidArgumentError, in a step: it is no such file. UnimplementedError: Pillow is not installed there.
    """
    with op_scope(name, "DecodeJpeg", contents) as scope:
        attrs = {"channels": int(channels or 0), "ratio": int(ratio)}
        return apply("DecodeJpeg", (convert(contents, string, name="contents"),), attrs, scope)


def decode_and_crop_jpeg(
    contents: TensorLike,
    crop_window: TensorLike,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1.0,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """A part of what `decode_jpeg` gives: `crop_window` is its top, left, height and width, in pixels."""
    with op_scope(name, "DecodeAndCropJpeg", contents, crop_window) as scope:
        operands = convert(contents, string, name="contents"), convert(crop_window, int32, name="crop_window")
        return apply("DecodeAndCropJpeg", operands, {"channels": int(channels or 0), "ratio": int(ratio)}, scope)


def decode_png(contents: TensorLike, channels: int = 0, dtype: Any = uint8, name: str | None = None) -> Tensor:
    """The picture in a PNG file (or another that `decode_jpeg` reads): `[height, width, channels]` of `dtype`, uint8 or uint16.

    Args:
        contents: the file's bytes.
        channels: 0: as in the file; 1: grey; 2: with alpha; 3: RGB; 4: RGBA.
    """
    with op_scope(name, "DecodePng", contents) as scope:
        attrs = {"channels": int(channels or 0), "dtype": as_dtype(dtype).base}
        return apply("DecodePng", (convert(contents, string, name="contents"),), attrs, scope)


def decode_bmp(contents: TensorLike, channels: int = 0, name: str | None = None) -> Tensor:
    """The picture in a BMP file (or another that `decode_jpeg` reads): uint8 `[height, width, channels]`; channels 0, 3 or 4."""
    with op_scope(name, "DecodeBmp", contents) as scope:
        return apply("DecodeBmp", (convert(contents, string),), {"channels": int(channels or 0)}, scope)


def decode_gif(contents: TensorLike, name: str | None = None) -> Tensor:
    """All frames of a GIF file: uint8 `[frames, height, width, 3]`."""
    with op_scope(name, "DecodeGif", contents) as scope:
        return apply("DecodeGif", (convert(contents, string, name="contents"),), None, scope)


def decode_image(
    contents: TensorLike,
    channels: int | None = None,
    dtype: Any = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """The picture in a file of any format that is read here; `[frames, height, width, 3]` of a GIF.

    Args:
        contents: the file's bytes.
        channels: 0 or None: as in the file; 1: grey; 3: RGB; 4: RGBA.
        dtype: what `convert_image_dtype` takes.
        expand_animations: False: of a GIF the first frame, so that the rank is always 3.
    """
    if channels not in (None, 0, 1, 3, 4):
        raise ValueError("channels must be in (None, 0, 1, 3, 4)")
    wanted = as_dtype(dtype).base
    with op_scope(name, "decode_image", contents):
        attrs = {
            "channels": int(channels or 0),
            "dtype": wanted if wanted in (uint8, uint16) else float32 if wanted.is_floating else uint8,
            "expand_animations": bool(expand_animations),
        }
        found = apply("DecodeImage", (convert(contents, string, name="contents"),), attrs)
        return convert_image_dtype(found, wanted)


def extract_jpeg_shape(contents: TensorLike, output_type: Any = int32, name: str | None = None) -> Tensor:
    """Height, width and channels of the picture in a JPEG file. Only the header is read."""
    with op_scope(name, "ExtractJpegShape", contents) as scope:
        attrs = {"output_type": as_dtype(output_type).base}
        return apply("ExtractJpegShape", (convert(contents, string, name="contents"),), attrs, scope)


def is_jpeg(contents: TensorLike, name: str | None = None) -> Tensor:
    """Whether the bytes begin as a JPEG file does."""
    with op_scope(name, "is_jpeg", contents):
        return equal(substr(contents, 0, 3), _JPEG)


def encode_jpeg(
    image: TensorLike,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    """A picture, uint8 `[height, width, 1 or 3]`, as the bytes of a JPEG file. Needs Pillow.

    Args:
        quality: from 0 to 100.
        progressive: seen roughly before it is whole.
        optimize_size: smaller, slower.
        chroma_downsampling: colours at half of the resolution.
        format: "" or what fits the channels. The others are accepted for TensorFlow's sake.
    """
    if format not in ("", "grayscale", "rgb"):
        raise ValueError(f"format must be '', 'grayscale' or 'rgb', not {format!r}")
    with op_scope(name, "EncodeJpeg", image) as scope:
        attrs = {
            "quality": int(quality), "progressive": bool(progressive), "optimize_size": bool(optimize_size),
            "chroma_downsampling": bool(chroma_downsampling),
        }  # fmt: skip
        return apply("EncodeJpeg", (convert(image, name="image"),), attrs, scope)


def encode_png(image: TensorLike, compression: int = -1, name: str | None = None) -> Tensor:
    """A picture, uint8 or uint16 `[height, width, 1 to 4]`, as the bytes of a PNG file; compression: -1, or 0 to 9."""
    with op_scope(name, "EncodePng", image) as scope:
        return apply("EncodePng", (convert(image, name="image"),), {"compression": int(compression)}, scope)


def adjust_jpeg_quality(image: TensorLike, jpeg_quality: TensorLike, name: str | None = None) -> Tensor:
    """The picture as a JPEG file of that quality, 0 to 100, would show it; the type stays. Needs Pillow."""
    with op_scope(name, "adjust_jpeg_quality", image):
        x = convert(image, name="image")
        operands = convert_image_dtype(x, uint8), convert(jpeg_quality, int32, name="quality")
        return convert_image_dtype(decode_jpeg(apply("EncodeJpegVariableQuality", operands)), x.dtype.base)


def random_jpeg_quality(
    image: TensorLike, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Tensor:
    """`adjust_jpeg_quality` by a whole number drawn from [min_jpeg_quality, max_jpeg_quality)."""
    if not 0 <= min_jpeg_quality < max_jpeg_quality <= 100:
        raise ValueError("min_jpeg_quality must be less than max_jpeg_quality, and both between 0 and 100.")
    return adjust_jpeg_quality(image, random_uniform([], min_jpeg_quality, max_jpeg_quality, int32, seed))


# --- PNG: an encoder, and a decoder for 16 bits in several channels, which Pillow reduces to 8 ------------------------
# A row is stored as differences from its left or upper neighbours, by one of five filters: http://www.w3.org/TR/png, chapter 9.


_CHANNELS = {colour: channels for channels, colour in COLOURS.items()}


def _is_deep_png(contents: bytes) -> bool:
    """Whether it is a file of 16 bits, of several channels."""
    return contents[:8] == SIGNATURE and len(contents) > 25 and contents[24] == 16 and contents[25] in (2, 4, 6)


def _png_chunks(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at + 8 <= len(contents):
        (length,) = struct.unpack_from(">I", contents, at)
        yield contents[at + 4 : at + 8], contents[at + 8 : at + 8 + length]
        at += length + 12


def _decode_deep_png(contents: bytes) -> Array:
    """The picture in a file of 16 bits: uint16 `[height, width, channels]`.

    Raises:
        ValueError: it is damaged, or interlaced.
    """
    parts = list(_png_chunks(contents))
    width, height, _, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", parts[0][1])
    if interlaced:
        raise ValueError("interlaced PNG files of 16 bits cannot be read")
    channels = _CHANNELS[colour]
    step = 2 * channels
    try:
        data = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
        rows = np.frombuffer(data, np.uint8).reshape(height, 1 + step * width)
    except (zlib.error, ValueError) as e:
        raise ValueError(f"the PNG file is damaged: {e}") from None
    out = np.zeros((height + 1, width + 1, step), np.int64)  # with a row and a pixel of zeros in front
    for y, row in enumerate(rows, 1):
        _unfilter(int(row[0]), row[1:].reshape(width, step).astype(np.int64), out[y], out[y - 1])
    pixels = out[1:, 1:].astype(np.uint8).tobytes()
    return np.frombuffer(pixels, ">u2").reshape(height, width, channels).astype(np.uint16)


def _unfilter(way: int, stored: Array, row: Array, above: Array) -> None:
    """Unfilter a row: compute its bytes from the stored ones. A pixel of zeros precedes it."""
    if way == 1:
        np.cumsum(stored, 0, out=row[1:])
        row[1:] &= 255
    elif way == 0:
        row[1:] = stored & 255
    elif way == 2:
        row[1:] = (stored + above[1:]) & 255
    elif way in (3, 4):
        for x, pixel in enumerate(stored, 1):
            left, up, corner = row[x - 1], above[x], above[x - 1]
            if way == 3:
                near = (left + up) // 2
            else:  # Paeth's: the one that is nearest to left + up - corner
                to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                near = np.where(
                    (to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner)
                )
            row[x] = (pixel + near) & 255
    else:
        raise ValueError(f"the PNG file is damaged: there is no filter {way}")


explain_members(sys.modules[__name__])
