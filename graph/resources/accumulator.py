"""Conditional accumulators: many steps add gradients, and one takes their mean or sum.

An accumulator has a global step. A gradient that was computed for an older step is stale, and dropped silently. A take
waits until enough gradients have arrived. It returns the sum or mean of all gradients, clears it, and advances the global
step by one. Takes are served in the order of arrival.

If other processes add to a dense accumulator, a `SharedAccumulator` holds its state. Takes still wait in its own task.

A sparse accumulator sums rows by their index. For the mean, each row is divided by the number of gradients that contain it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..core.dtypes import Array, DType
from ..core.errors import InvalidArgumentError, OpError, UnavailableError, invalid
from ..core.rows import sum_rows
from ..core.shape import Dims, compatible, text
from .async_request import AsyncResource, Request, check_room
from .shared_accumulator import SharedAccumulator, encode_state, state_bytes
from .shared_storage import Publishable, SharedSumValue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccumulatorKind:
    """The properties that two programs must agree on to share an accumulator."""

    sparse: bool
    dtype: DType
    shape: Dims
    reduction: str  # "MEAN" or "SUM"

    def check_same(self, other: AccumulatorKind, name: str) -> None:
        """InvalidArgumentError if another program's accumulator of that name differs. The message names the first difference."""
        if self == other:
            return
        for field in ("sparse", "dtype", "shape", "reduction"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise invalid(f"Shared accumulator '{name}' has {field} {mine} but requested {field} was {theirs}")


class TakeGradient(Request):
    """A take that needs `count` gradients."""

    __slots__ = ("count",)

    def __init__(self, what: str, count: int) -> None:
        super().__init__(what)
        self.count = count


class Accumulator(AsyncResource[TakeGradient]):
    """The base class of dense and sparse accumulators.

    Attributes:
        count: number of gradients since the last take.
        global_step: the current step. Gradients of older steps are dropped.
    """

    def __init__(self, name: str, kind: AccumulatorKind) -> None:
        super().__init__()
        self.name = name
        self.kind = kind
        self.count = 0
        self.global_step = 0
        self._takes: deque[TakeGradient] = deque()

    def __str__(self) -> str:
        return f"accumulator '{self.name}'"

    def take(self, count: int) -> Any:
        """The mean or sum of at least `count` gradients, or a request for it. InvalidArgumentError if `count` is below 1."""
        if count < 1:
            raise invalid(f"Argument num_required must be >= 1, is {count}: {self}")
        return self.ask(TakeGradient(f"{count} gradients in {self}", count))

    def counted(self) -> int:
        """The number of gradients since the last take."""
        return self.count

    def set_global_step(self, step: int) -> None:
        """From now on, drop gradients of steps before `step`."""
        with self.lock:
            self._set(step)

    def _set(self, step: int) -> None:
        if step < self.global_step:
            logger.warning("%s: the global step goes back from %d to %d", self, self.global_step, step)
        self.global_step = step

    def _mismatch(self, shape: tuple[int, ...], expected: Any) -> InvalidArgumentError:
        return invalid(f"Shape mismatch at {self}: expected {text(expected)}, got a gradient of shape {text(shape)}")

    def _total(self) -> Any:
        """Return the mean or sum, and reset it."""
        raise NotImplementedError

    # --- rules of `AsyncResource` ----------------------------------------------------------------------------------

    def _admit(self, request: TakeGradient) -> None:
        check_room(self._takes, request.what)
        self._takes.append(request)

    def _serve(self) -> None:
        while self._takes and self.count >= self._takes[0].count:
            request = self._takes.popleft()
            total = self._total()
            self.count = 0
            self.global_step += 1
            request.answer(total)

    def _withdraw(self, request: TakeGradient) -> None:
        self._takes.remove(request)

    def _waiting(self) -> Iterator[TakeGradient]:
        yield from self._takes


class DenseAccumulator(Accumulator, Publishable):
    """An accumulator of dense gradients, which have one shape.

    A read-only first gradient, such as one from a message, is stored without a copy until the second one arrives.
    """

    def __init__(self, name: str, kind: AccumulatorKind) -> None:
        super().__init__(name, kind)
        self._sum: Array | None = None
        self._is_own = True  # whether the sum may be overwritten
        self._shared: SharedAccumulator | None = None  # holds sum and count while other processes add

    def apply(self, gradient: Array, local_step: int) -> None:
        """Add a gradient, unless it is stale.

        Raises:
            InvalidArgumentError: the gradient has another shape.
            UnavailableError: another process does not release the lock.
        """
        self._check(gradient)

        def event() -> None:
            if self._shared is None:
                if local_step < self.global_step:
                    return
                self._add(gradient)
            else:
                with self._shared as shared:
                    if not shared.add(gradient, local_step):
                        return
            self._serve()

        self.perform(event)

    def counted(self) -> int:
        """As `Accumulator.counted`."""
        with self.lock:
            if self._shared is None:
                return self.count
            with self._shared as shared:
                return shared.count

    def set_global_step(self, step: int) -> None:
        """As `Accumulator.set_global_step`."""
        with self.lock:
            if self._shared is None:
                self._set(step)
                return
            with self._shared as shared:
                self.global_step = shared.step
                self._set(step)
                shared.step = step

    def ask(self, request: TakeGradient) -> Any:
        """As `AsyncResource.ask`. If the shared state cannot be read, the request fails at once."""
        try:
            return super().ask(request)
        except OpError:
            with self.lock, contextlib.suppress(ValueError):
                self._takes.remove(request)
            raise

    def _check(self, gradient: Array) -> None:
        if gradient.shape != self.kind.shape and not compatible(gradient.shape, self.kind.shape):
            raise self._mismatch(gradient.shape, self.kind.shape)

    def _add(self, gradient: Array) -> None:
        total = self._sum
        if total is None:
            self._is_own = bool(gradient.flags.writeable)
            self._sum = np.array(gradient) if self._is_own else np.asarray(gradient)
        elif total.shape != gradient.shape:
            raise self._mismatch(gradient.shape, total.shape)
        else:
            out = total if self._is_own else np.empty_like(total)
            self._sum, self._is_own = np.add(total, gradient, out=out), True
        self.count += 1

    def _total(self) -> Array:
        total, self._sum = self._sum, None
        assert total is not None
        if self.kind.reduction == "MEAN":
            out = total if self._is_own else np.empty_like(total)
            np.true_divide(total, np.asarray(self.count).astype(total.dtype), out=out)
            return out
        return total

    def _serve(self) -> None:
        shared, takes = self._shared, self._takes
        if shared is None:
            super()._serve()
            return
        # Set before the check, so that processes that add from now on wake this one.
        shared.opened.wanted = takes[0].count if takes else 0
        if not takes:
            return
        with shared:
            while takes and shared.count >= takes[0].count:
                request = takes.popleft()
                shared.opened.wanted = takes[0].count if takes else 0
                request.answer(shared.take(self.kind.reduction == "MEAN"))

    def _cancel(self, request: TakeGradient) -> None:
        with contextlib.suppress(UnavailableError):  # a later event serves the next take
            super()._cancel(request)

    # --- shared with other processes ---------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """As `Publishable.is_shared`."""
        return self._shared is not None

    def publish(self, share: Callable[[Array], SharedSumValue | None] | None) -> None:
        """As `Publishable.publish`. Other processes add to the shared state."""
        dtype, dims = self.kind.dtype.np, self.kind.shape
        with self.lock:
            if self._shared is not None:
                self.count, self.global_step, self._sum = self._shared.close()
                self._is_own, self._shared = True, None
            if share is not None and state_bytes(dims, dtype) is not None:
                shape = tuple(int(n or 0) for n in dims or ())
                found = share(encode_state(self._sum, shape, dtype, self.count, self.global_step))
                if found is not None:
                    self._shared, self._sum = SharedAccumulator(found, shape, dtype), None
                    found.wanted = self._takes[0].count if self._takes else 0

    def look(self) -> None:
        """Serve takes that wait for gradients of other processes. If the state cannot be read, the takes fail."""
        shared = self._shared
        if shared is None or not shared.is_full():
            return
        try:
            self.perform(self._serve)
        except UnavailableError as error:
            self.perform(partial(self._refuse, error))

    def _refuse(self, error: OpError) -> None:
        while self._takes:
            self._takes.popleft().refuse(error)


class RemoteAccumulator(DenseAccumulator):
    """An accumulator of another process. Takes are not possible here."""

    def __init__(self, name: str, kind: AccumulatorKind, opened: SharedSumValue) -> None:
        super().__init__(name, kind)
        self._reached = SharedAccumulator(opened, tuple(int(n or 0) for n in kind.shape or ()), kind.dtype.np)

    def apply(self, gradient: Array, local_step: int) -> None:
        """As `DenseAccumulator.apply`. Wakes the accumulator's task if a take has enough gradients."""
        self._check(gradient)
        with self.lock, self._reached as shared:
            added = shared.add(gradient, local_step)
        if added and self._reached.is_full():
            self._reached.wake()


class SparseAccumulator(Accumulator):
    """An accumulator of sparse gradients: indices and rows."""

    def __init__(self, name: str, kind: AccumulatorKind) -> None:
        super().__init__(name, kind)
        self._parts: list[tuple[Array, Array]] = []  # (sorted unique indices, rows) per gradient
        self._rows: Dims = None  # shape of a row, set by the first gradient since the last take

    def apply(self, indices: Array, values: Array, shape: Array, local_step: int) -> None:
        """Add a gradient's rows, unless it is stale.

        Args:
            indices: int64 of shape [n], in any order. Indices may repeat.
            values: the rows, of shape [n, ...].
            shape: the dense shape, or an empty vector if it is unknown.
            local_step: the step for which the gradient was computed.

        Raises:
            InvalidArgumentError: the shapes do not fit each other or earlier gradients, or an index is out of range.
        """
        if indices.ndim != 1 or values.ndim < 1 or len(indices) != len(values):
            raise invalid(
                f"{self}: indices of shape {text(indices.shape)} do not fit values of shape {text(values.shape)}"
            )
        given: Dims = tuple(int(n) for n in shape) if shape.size else (None, *values.shape[1:])
        if not compatible(given, (None, *values.shape[1:])):
            raise self._mismatch(values.shape, given)
        assert given is not None
        if given[0] is not None and indices.size and not (indices.min() >= 0 and indices.max() < given[0]):
            raise invalid(f"{self}: an index is outside [0, {given[0]})")
        wanted = self.kind.shape or ()  # sizes of the first axes: a gradient may have more axes
        if len(given) < len(wanted) or not compatible(given[: len(wanted)], wanted):
            raise self._mismatch(tuple(-1 if d is None else d for d in given), wanted)
        if wanted and wanted[0] is not None and indices.size and indices.max() >= wanted[0]:
            raise invalid(
                f"Shape mismatch at {self}: an index exceeded limits of shape: {indices.max()} exceeded {wanted[0]}"
            )
        unique, places = np.unique(indices, return_inverse=True)
        rows = sum_rows(values, places, len(unique))

        def add() -> None:
            if local_step < self.global_step:
                return
            if not compatible(rows.shape[1:], self._rows):
                raise self._mismatch((-1, *rows.shape[1:]), (None, *(self._rows or ())))
            self._rows = rows.shape[1:]
            self._parts.append((unique, rows))
            self.count += 1
            self._serve()

        self.perform(add)

    def _total(self) -> tuple[Array, Array, Array]:
        parts, self._parts = self._parts, []
        self._rows = None
        indices, places, counts = np.unique(
            np.concatenate([p[0] for p in parts]), return_inverse=True, return_counts=True
        )
        all_rows = np.concatenate([p[1] for p in parts])
        rows = sum_rows(all_rows, places, len(indices))
        if self.kind.reduction == "MEAN":
            rows /= counts.reshape(-1, *[1] * (rows.ndim - 1)).astype(rows.dtype)
        length = self.kind.shape[0] if self.kind.shape else None
        shape = np.array([-1 if length is None else length, *rows.shape[1:]], np.int64)
        return indices.astype(np.int64), rows, shape
