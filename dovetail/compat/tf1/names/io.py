"""Names of `dt.io` that only programs of TensorFlow 1 use: files of images, examples with sequences."""

from ..image.files import (
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
)
from ..ops.sequence_parsing import (
    decode_json_example,
    parse_sequence_example,
    parse_single_sequence_example,
    parse_tensor,
    serialize_tensor,
)
