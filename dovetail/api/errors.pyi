"""Types of `dovetail.errors`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.graph.core.errors import (
    AbortedError as AbortedError, AlreadyExistsError as AlreadyExistsError, CancelledError as CancelledError, DataLossError as
    DataLossError, DeadlineExceededError as DeadlineExceededError, FailedPreconditionError as FailedPreconditionError, InternalError as
    InternalError, InvalidArgumentError as InvalidArgumentError, NotFoundError as NotFoundError, OpError as OpError, OutOfRangeError as
    OutOfRangeError, PermissionDeniedError as PermissionDeniedError, ResourceExhaustedError as ResourceExhaustedError,
    UnauthenticatedError as UnauthenticatedError, UnavailableError as UnavailableError, UnimplementedError as UnimplementedError,
    UnknownError as UnknownError,
)
def error_code_from_exception_type(cls: type[OpError]) -> int:
    """The error code of an error class."""

def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """The class of an error code. KeyError: no class has the code."""

ABORTED: int
ALREADY_EXISTS: int
CANCELLED: int
DATA_LOSS: int
DEADLINE_EXCEEDED: int
FAILED_PRECONDITION: int
INTERNAL: int
INVALID_ARGUMENT: int
NOT_FOUND: int
OK: int
OUT_OF_RANGE: int
PERMISSION_DENIED: int
RESOURCE_EXHAUSTED: int
UNAUTHENTICATED: int
UNAVAILABLE: int
UNIMPLEMENTED: int
UNKNOWN: int
__all__ = [
    "ABORTED", "ALREADY_EXISTS", "AbortedError", "AlreadyExistsError", "CANCELLED", "CancelledError", "DATA_LOSS", "DEADLINE_EXCEEDED",
    "DataLossError", "DeadlineExceededError", "FAILED_PRECONDITION", "FailedPreconditionError", "INTERNAL", "INVALID_ARGUMENT",
    "InternalError", "InvalidArgumentError", "NOT_FOUND", "NotFoundError", "OK", "OUT_OF_RANGE", "OpError", "OutOfRangeError",
    "PERMISSION_DENIED", "PermissionDeniedError", "RESOURCE_EXHAUSTED", "ResourceExhaustedError", "UNAUTHENTICATED", "UNAVAILABLE",
    "UNIMPLEMENTED", "UNKNOWN", "UnauthenticatedError", "UnavailableError", "UnimplementedError", "UnknownError",
    "error_code_from_exception_type", "exception_type_from_error_code",
]
