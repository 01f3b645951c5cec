"""Errors of kernels, as the user is to see them: of the class that fits, with the node, the user's line and the device in the text."""

from __future__ import annotations

from typing import Any

from ..codegen.backend import NodeError
from ..codegen.gpu.driver.api import CudaError
from ..codegen.ir.program import Call, Guarded
from ..graph.core.errors import (
    InternalError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)

# Errors that NumPy and Python functions raise, by what they mean to the user (TensorFlow's own table for py_func).
_MEANING: tuple[tuple[type[BaseException], type[OpError]], ...] = (
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (IndexError, InvalidArgumentError),
    (ZeroDivisionError, InvalidArgumentError),
    (CudaError, InternalError),
)


def explained(e: Exception, instruction: Any, device: str) -> OpError:
    """The error of the right class, with the node, the user's line and the device in its text."""
    fused = e.node if isinstance(e, NodeError) else None
    if isinstance(e, NodeError):
        e = e.__cause__ if isinstance(e.__cause__, Exception) else e
    if isinstance(e, OpError):
        kind, text = type(e), e.message
    else:
        kind = next((mine for theirs, mine in _MEANING if isinstance(e, theirs)), UnknownError)
        text = f"{type(e).__name__}: {e}"
    if isinstance(instruction, Guarded):
        instruction = instruction.call
    if fused is not None:
        return kind(
            fused.name, fused.name, f"{text}\n  node '{fused.name}' ({fused.type}), made at {fused.source}, on {device}"
        )
    if not isinstance(instruction, Call):
        return kind(None, None, f"{text}\n  on {device}")
    return kind(
        instruction.node,
        instruction.node,
        f"{text}\n  node '{instruction.node}' ({instruction.op}), made at {instruction.source}, on {device}",
    )
