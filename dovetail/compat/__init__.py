"""Compatibility: `tf1/` holds what only TensorFlow 1 programs need. `dt.compat` gives TensorFlow's helpers of that name, such as `as_text`.

Only `dovetail/__init__` and `tools` may import what lies here, and `dovetail/__init__` only when an old name is used.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "v1":
        return import_module(".tf1.names.v1", __name__)
    return getattr(import_module(".tf1.names.compat", __name__), name)


def __dir__() -> list[str]:
    return sorted(import_module(".tf1.names.compat", __name__).__all__)
