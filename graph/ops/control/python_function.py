"""Python functions that nodes call.

A function cannot be sent, because no process evaluates code from a message. So the function stays in a table of the process that built
the graph. The node carries its token and that process's nonce. Running the node in another process is an error with this reason.
The placer keeps these nodes on the client's own task (trait HOST_ONLY).
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
    """Holds one function. Its graph holds the holder: what the function refers to may well be the graph."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


_functions: weakref.WeakValueDictionary[str, _Function] = weakref.WeakValueDictionary()
_nonce: list[tuple[int, str]] = []  # (process id, nonce): a forked child is another process


def process_nonce() -> str:
    """A random name of this process, drawn at first use."""
    if not _nonce or _nonce[0][0] != os.getpid():
        _nonce[:] = [(os.getpid(), secrets.token_hex(8))]
    return _nonce[0][1]


def register(function: Callable[..., Any], graph: Graph) -> str:
    """Keep a function for as long as the graph lives; gives its token."""
    token = f"pyfunc_{secrets.token_hex(8)}"
    _functions[token] = holder = _Function(function)
    graph.add_to_collection("python_functions", holder)
    return token


def function_of(token: str) -> Callable[..., Any] | None:
    """The function that was kept under a token; None: its graph is gone, or it is another process's."""
    holder = _functions.get(token)
    return None if holder is None else holder.call


MEANING: dict[type[Exception], type[OpError]] = {
    StopIteration: OutOfRangeError,
    TypeError: InvalidArgumentError,
    ValueError: InvalidArgumentError,
    MemoryError: ResourceExhaustedError,
    NotImplementedError: UnimplementedError,
}
