"""Errors: one class per status code, as TensorFlow 1 has them (`tf.errors`).

The class gives the kind of error; `fault` gives its origin: the user, a peer (another process or the network), or Dovetail.
An error that concerns a node refers to it, so that its text can end with the user's source line.
Errors are sent between processes as (code, message, node, task) and are rebuilt with `from_code`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

SUMMARY_CHARS = 65_536  # maximal length of an error's message that is sent to other tasks

Fault = Literal["user", "peer", "dovetail"]


class OpError(Exception):
    """Base of every error that running a graph can raise.

    Attributes:
        node_def: the node (or its name) that failed, or None.
        op: the same as `node_def`, TensorFlow 1's second name.
        message: the message without class name.
        error_code: TensorFlow's integer status code.
        fault: the origin of the error: "user", "peer" or "dovetail".
        task: the task where it happened, if that is not the task that reports it.
    """

    code: ClassVar[str] = "UNKNOWN"
    error_code: ClassVar[int] = 2
    fault: ClassVar[Fault] = "dovetail"

    def __init__(self, node_def: Any, op: Any, message: str) -> None:
        super().__init__(message)
        self.node_def = node_def
        self.op = op
        self.message = message
        self.task = ""

    @classmethod
    def of(cls, message: str) -> Self:
        """An error that does not concern a node."""
        return cls(None, None, message)

    def __str__(self) -> str:
        return self.message

    @property
    def node_name(self) -> str | None:
        """The name of the node that failed."""
        name = _name_of(self.op)
        return name if isinstance(name, str) else None

    @property
    def summary(self) -> str:
        """The message as it is sent to other tasks. A very long one is shortened to its beginning and its end, which names the node."""
        left = len(self.message) - SUMMARY_CHARS
        if left <= 0:
            return self.message
        half = SUMMARY_CHARS // 2
        return f"{self.message[:half]}\n... ({left} characters left out) ...\n{self.message[-half:]}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Nodes belong to a graph; an error that is pickled (multiprocessing, pytest-xdist) keeps only their names.
        return type(self), (_name_of(self.node_def), _name_of(self.op), self.message)


def _name_of(node: Any) -> Any:
    return getattr(node, "name", node)


class CancelledError(OpError):
    """The step was cancelled: its session was closed, or another part of the step failed."""

    code, error_code, fault = "CANCELLED", 1, "user"


class UnknownError(OpError):
    """An error of no other class, such as an address that is already in use."""

    code, error_code, fault = "UNKNOWN", 2, "dovetail"


class InvalidArgumentError(OpError):
    """An argument is invalid: a feed, a device, a value."""

    code, error_code, fault = "INVALID_ARGUMENT", 3, "user"


class DeadlineExceededError(OpError):
    """A timeout expired before the work was done."""

    code, error_code, fault = "DEADLINE_EXCEEDED", 4, "peer"


class NotFoundError(OpError):
    """A named object does not exist: a file, a session target, a container."""

    code, error_code, fault = "NOT_FOUND", 5, "user"


class AlreadyExistsError(OpError):
    """An object to be created already exists."""

    code, error_code, fault = "ALREADY_EXISTS", 6, "user"


class PermissionDeniedError(OpError):
    """The caller is not allowed to do this."""

    code, error_code, fault = "PERMISSION_DENIED", 7, "user"


class ResourceExhaustedError(OpError):
    """Memory, or a bounded queue, is full."""

    code, error_code, fault = "RESOURCE_EXHAUSTED", 8, "user"


class FailedPreconditionError(OpError):
    """The state is not ready for the operation, such as an uninitialized variable."""

    code, error_code, fault = "FAILED_PRECONDITION", 9, "user"


class AbortedError(OpError):
    """The work was lost and may be retried: a task restarted, a session was closed."""

    code, error_code, fault = "ABORTED", 10, "peer"


class OutOfRangeError(OpError):
    """An input is exhausted: the end of a queue, a data set, a file."""

    code, error_code, fault = "OUT_OF_RANGE", 11, "user"


class UnimplementedError(OpError):
    """No kernel or feature for this exists."""

    code, error_code, fault = "UNIMPLEMENTED", 12, "dovetail"


class InternalError(OpError):
    """An invariant of Dovetail was broken: please report it."""

    code, error_code, fault = "INTERNAL", 13, "dovetail"


class UnavailableError(OpError):
    """A task cannot be reached: dead, stopped, cut off, or not started yet."""

    code, error_code, fault = "UNAVAILABLE", 14, "peer"


class DataLossError(OpError):
    """Stored or received data are damaged beyond use."""

    code, error_code, fault = "DATA_LOSS", 15, "dovetail"


class UnauthenticatedError(OpError):
    """The caller has no key that the server accepts."""

    code, error_code, fault = "UNAUTHENTICATED", 16, "user"


def invalid(message: str, node: Any = None) -> InvalidArgumentError:
    """The error for an invalid argument. `node` is the node or its name. If it is None, the executor adds the node that runs."""
    return InvalidArgumentError(node, None, message)


_CLASSES: tuple[type[OpError], ...] = (
    CancelledError, UnknownError, InvalidArgumentError, DeadlineExceededError, NotFoundError, AlreadyExistsError,
    PermissionDeniedError, ResourceExhaustedError, FailedPreconditionError, AbortedError, OutOfRangeError,
    UnimplementedError, InternalError, UnavailableError, DataLossError, UnauthenticatedError,
)  # fmt: skip
_BY_CODE = {cls.code: cls for cls in _CLASSES}


def from_code(code: str, message: str, node: Any = None) -> OpError:
    """The error with this code; an unknown code gives `UnknownError`, for compatibility with newer peers.

    >>> from_code("UNAVAILABLE", "gone")
    UnavailableError(...)
    """
    return _BY_CODE.get(code, UnknownError)(node, node, message)
