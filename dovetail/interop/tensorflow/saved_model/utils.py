"""Tensor descriptions of signatures."""

from __future__ import annotations

from typing import Any

from ....graph.core.build import convert
from ....graph.core.default_graph import get_default_graph
from ....graph.core.graph import Tensor
from ....graph.core.shape import set_dims
from ....graph.formats.protos import message


def build_tensor_info(tensor: Any) -> Any:
    """Create the `TensorInfo` of a tensor or variable: its name, type and shape.

    >>> build_tensor_info(x).name
    'x:0'
    """
    found = tensor if isinstance(tensor, Tensor) else convert(tensor)
    info = message("TensorInfo")(name=found.name, dtype=found.dtype.base.enum)
    set_dims(info.tensor_shape, found.dims)
    return info


def get_tensor_from_tensor_info(tensor_info: Any, graph: Any = None, import_scope: str | None = None) -> Tensor:
    """Return the tensor that a `TensorInfo` names.

    Args:
        tensor_info: the `TensorInfo`.
        graph: the graph; None: the default graph.
        import_scope: prefix of the name.

    Raises:
        KeyError, ValueError: there is no such tensor.
    """
    name = f"{import_scope}/{tensor_info.name}" if import_scope else tensor_info.name
    found: Tensor = (graph or get_default_graph()).get_tensor_by_name(name)
    return found


__all__ = ["build_tensor_info", "get_tensor_from_tensor_info"]
