"""The current context of a thread: the strategy and the replica.

There are two kinds of contexts. The program is in *cross-replica context* inside `strategy.scope()` and in the function of
`merge_call`. There, a value may be a `PerReplica`. It is in *replica context* in the function that `strategy.run` runs once per replica.
Outside every scope, it is in the only replica of the default strategy.

Each thread has its own contexts. A thread that runs a replica starts with the contexts of the caller of `run`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..graph.core.graph import Node, Tensor


class StrategyProtocol(Protocol):
    """The interface of a `Strategy` for modules that `strategy` imports."""

    _devices: tuple[str, ...]
    _first_replica: int
    _input_pipeline: tuple[int, int] | None
    _only_replica: Any

    @property
    def num_replicas_in_sync(self) -> int: ...
    @property
    def cluster_resolver(self) -> Any: ...
    def run(self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None) -> Any: ...
    def group(self, value: Any, name: str | None = None) -> Node: ...
    def gather(self, value: Any, axis: int) -> Any: ...
    def split_batch(self, batch: Any) -> Any: ...
    def experimental_local_results(self, value: Any) -> tuple[Any, ...]: ...
    def _make(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any: ...
    def _current(self) -> Any: ...
    def _require_cross_replica(self) -> None: ...
    def _variable_devices(self) -> Sequence[Any]: ...
    def _replica_names(self) -> Sequence[str]: ...
    def _reduced(self, op: Any, value: Any, device: str | None = None) -> Any: ...
    def _all_reduce(self, op: Any, value: Any) -> Any: ...
    def _aggregated(self, aggregation: Any, value: Any, variable: Any = None) -> Any: ...
    def _read_aggregated(self, variable: Any) -> Tensor: ...
    def _gather_across(self, value: Tensor, axis: int) -> Tensor: ...


class _Contexts(threading.local):
    def __init__(self) -> None:
        self.stack: tuple[tuple[StrategyProtocol, Any], ...] = ()


_contexts = _Contexts()


def contexts() -> tuple[Any, ...]:
    """Returns the open contexts of this thread, innermost last: (strategy, replica context or None)."""
    return _contexts.stack


def set_contexts(stack: tuple[Any, ...]) -> None:
    """Sets the open contexts of this thread."""
    _contexts.stack = stack


class strategy_context:  # noqa: N801  (used as `with entered(...)`)
    """A block in which `strategy` is current. `replica`: the context of a replica; None: cross-replica context."""

    def __init__(self, strategy: StrategyProtocol, replica: Any) -> None:
        self._pair = strategy, replica
        self._outer: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outer = _contexts.stack
        _contexts.stack = (*self._outer, self._pair)

    def __exit__(self, *exc: object) -> None:
        _contexts.stack = self._outer


class outside_strategies:  # noqa: N801  (used as `with outside_strategies()`)
    """A block outside all strategies, for a graph to which the open scopes do not apply."""

    def __enter__(self) -> None:
        self._outer = _contexts.stack
        _contexts.stack = ()

    def __exit__(self, *exc: object) -> None:
        _contexts.stack = self._outer


_make_default: Callable[[], StrategyProtocol]
_default_strategy: StrategyProtocol | None = None


def register_default(make: Callable[[], StrategyProtocol]) -> None:
    """Sets the function that creates the default strategy. It is called once, when the strategy is first needed."""
    global _make_default
    _make_default = make


def _default() -> StrategyProtocol:
    global _default_strategy
    if _default_strategy is None:
        _default_strategy = _make_default()
    return _default_strategy


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current.

    >>> with MirroredStrategy().scope():
    ...     assert has_strategy()
    """
    return bool(_contexts.stack) and _contexts.stack[-1][0] is not _default()


def get_strategy() -> Any:
    """Returns the current strategy. Outside every scope, this is the default strategy, which has one replica."""
    return _contexts.stack[-1][0] if _contexts.stack else _default()


def get_replica_context() -> Any:
    """Returns the context of the current replica, or None in cross-replica context.

    Outside every scope, this is the only replica of the default strategy.
    """
    if _contexts.stack:
        return _contexts.stack[-1][1]
    return _default()._only_replica


def in_cross_replica_context() -> bool:
    """Whether the program is in a strategy's scope, and not in a replica."""
    return get_replica_context() is None
