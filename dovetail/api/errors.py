"""`dt.errors`: one class per status code, under TensorFlow's names."""

from ..graph.core.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownError,
)
from ..public_paths import exported as _exported

OK = 0
ABORTED = AbortedError.error_code
ALREADY_EXISTS = AlreadyExistsError.error_code
CANCELLED = CancelledError.error_code
DATA_LOSS = DataLossError.error_code
DEADLINE_EXCEEDED = DeadlineExceededError.error_code
FAILED_PRECONDITION = FailedPreconditionError.error_code
INTERNAL = InternalError.error_code
INVALID_ARGUMENT = InvalidArgumentError.error_code
NOT_FOUND = NotFoundError.error_code
OUT_OF_RANGE = OutOfRangeError.error_code
PERMISSION_DENIED = PermissionDeniedError.error_code
RESOURCE_EXHAUSTED = ResourceExhaustedError.error_code
UNAUTHENTICATED = UnauthenticatedError.error_code
UNAVAILABLE = UnavailableError.error_code
UNIMPLEMENTED = UnimplementedError.error_code
UNKNOWN = UnknownError.error_code

_CLASSES: dict[int, type[OpError]] = {kind.error_code: kind for kind in OpError.__subclasses__()}


def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """The class of an error code. KeyError: no class has the code."""
    return _CLASSES[error_code]


def error_code_from_exception_type(cls: type[OpError]) -> int:
    """The error code of an error class."""
    return cls.error_code


__all__ = _exported(globals())
