"""Switches between the behaviours of TensorFlow 1 and 2. Here there is only one: that of TensorFlow 1, with graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ....graph.core.errors import UnimplementedError


def executing_eagerly() -> bool:
    """False: ops are built into a graph, and run by sessions."""
    return False


executing_eagerly_outside_functions = executing_eagerly


def control_flow_v2_enabled() -> bool:
    """False: branches and loops are made of TensorFlow 1's nodes."""
    return False


def disable_v2_behavior() -> None:
    """Does nothing: behaviour is that of TensorFlow 1."""


disable_eager_execution = disable_control_flow_v2 = disable_v2_tensorshape = disable_tensor_equality = (
    disable_v2_behavior
)


def _refused(name: str, instead: str) -> Callable[..., NoReturn]:
    def enable(*args: Any, **kwargs: Any) -> NoReturn:
        raise UnimplementedError(None, None, f"{name}: {instead}")

    enable.__name__ = enable.__qualname__ = name
    enable.__doc__ = f"UnimplementedError: {instead}."
    return enable


_GRAPHS = "there are only graphs, which sessions run; build the ops and give what you want to know to Session.run"

enable_eager_execution = _refused("enable_eager_execution", _GRAPHS)
enable_v2_behavior = _refused("enable_v2_behavior", _GRAPHS)
enable_v2_tensorshape = _refused(
    "enable_v2_tensorshape", "axes of a TensorShape are Dimensions; shape.as_list() has numbers"
)
enable_tensor_equality = _refused("enable_tensor_equality", "== compares who a tensor is; dt.equal compares values")


__all__ = [
    "control_flow_v2_enabled",
    "disable_control_flow_v2",
    "disable_eager_execution",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "enable_eager_execution",
    "enable_tensor_equality",
    "enable_v2_behavior",
    "enable_v2_tensorshape",
    "executing_eagerly",
    "executing_eagerly_outside_functions",
]
