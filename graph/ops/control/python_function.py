"""Python functions that nodes call.

A function is not sent, because no process runs code from a message. It stays in a table of the process that built the graph. The node has
the function's token and that process's nonce. It is an error to run the node in another process. The placer keeps such nodes on the
client's task (trait HOST_ONLY).
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable
from typing import Any

from ...core.errors import (
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
)
from ...core.graph import Graph


class _Function:
    """Holds a function. The graph refers to the holder, and the table only weakly, because the function may refer to the graph."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


_functions: weakref.WeakValueDictionary[str, _Function] = weakref.WeakValueDictionary()
_nonce: list[tuple[int, str]] = []  # (process id, nonce), because a forked child is another process


def process_nonce() -> str:
    """A random string that identifies this process."""
    if not _nonce or _nonce[0][0] != os.getpid():
        _nonce[:] = [(os.getpid(), secrets.token_hex(8))]
    return _nonce[0][1]


def register(function: Callable[..., Any], graph: Graph) -> str:
    """Keep a function as long as the graph exists. Returns its token."""
    token = f"pyfunc_{secrets.token_hex(8)}"
    _functions[token] = holder = _Function(function)
    graph.add_to_collection("python_functions", holder)
    return token


def function_of(token: str) -> Callable[..., Any] | None:
    """The function of a token. None if its graph no longer exists, or the token is from another process."""
    holder = _functions.get(token)
    return None if holder is None else holder.call


MEANING: dict[type[Exception], type[OpError]] = {
    StopIteration: OutOfRangeError,
    TypeError: InvalidArgumentError,
    ValueError: InvalidArgumentError,
    MemoryError: ResourceExhaustedError,
    NotImplementedError: UnimplementedError,
}
