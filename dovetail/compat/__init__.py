"""Compatibility: `tf1/` holds what only TensorFlow 1 programs need. `dt.compat` gives TensorFlow's helpers of that name, such as `as_text`.

Only `dovetail/__init__` and `tools` may import what lies here, and `dovetail/__init__` only when an old name is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tf1.names import v1 as v1
    from .tf1.names.compat import (
        as_bytes as as_bytes,
        as_str as as_str,
        as_str_any as as_str_any,
        as_text as as_text,
        bytes_or_text_types as bytes_or_text_types,
        complex_types as complex_types,
        dimension_at_index as dimension_at_index,
        dimension_value as dimension_value,
        integral_types as integral_types,
        path_to_str as path_to_str,
        real_types as real_types,
    )

else:

    def __getattr__(name: str) -> Any:
        if name == "v1":
            return import_module(".tf1.names.v1", __name__)
        return getattr(import_module(".tf1.names.compat", __name__), name)


def __dir__() -> list[str]:
    return sorted(import_module(".tf1.names.compat", __name__).__all__)
