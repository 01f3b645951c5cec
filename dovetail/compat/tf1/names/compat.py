"""What helps a program to run on several versions, under TensorFlow's names (`dt.compat`).

`dt.compat.v1` is `dt` itself: `import dovetail.compat.v1 as tf` and `import dovetail as tf` give the same names.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ....graph.core.shape import dimension_at_index, dimension_value
from . import v1

bytes_or_text_types = (bytes, str)
"""Types of text."""
integral_types = (int, np.integer)
"""Types of whole numbers."""
real_types = (float, int, np.integer, np.floating)
"""Types of real numbers."""
complex_types = (complex, float, int, np.number)
"""Types of numbers."""


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    """Text as bytes. TypeError: it is no text."""
    if isinstance(bytes_or_text, (bytes, bytearray)):
        return bytes(bytes_or_text)
    if isinstance(bytes_or_text, str):
        return bytes_or_text.encode(encoding)
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    """Bytes as text. TypeError: it is no text."""
    if isinstance(bytes_or_text, str):
        return bytes_or_text
    if isinstance(bytes_or_text, bytes):
        return bytes_or_text.decode(encoding)
    raise TypeError(f"Expected binary or unicode string, got {bytes_or_text!r}")


as_str = as_text


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """Anything as text."""
    return as_text(value, encoding) if isinstance(value, (bytes, str)) else str(value)


def path_to_str(path: Any) -> str:
    """A path as text."""
    return os.fspath(path) if hasattr(path, "__fspath__") else as_str_any(path)


__all__ = [
    "as_bytes",
    "as_str",
    "as_str_any",
    "as_text",
    "bytes_or_text_types",
    "complex_types",
    "dimension_at_index",
    "dimension_value",
    "integral_types",
    "path_to_str",
    "real_types",
    "v1",
]
