"""The package `onnx`, loaded when it is used: messages, checks, the definitions of the standard's ops."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...graph.core.errors import UnimplementedError


def onnx(part: str = "") -> Any:
    """The package `onnx`, or one of its modules.

    Raises:
        UnimplementedError: it is not installed.
    """
    try:
        return import_module(f"onnx.{part}" if part else "onnx")
    except ModuleNotFoundError as e:
        if e.name != "onnx":
            raise
        raise UnimplementedError(
            None, None, "Models in ONNX's format need the package onnx: pip install 'dovetail[onnx]'"
        ) from None
