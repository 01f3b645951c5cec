"""The iterators of transformations that combine several data sets, or group the elements of one.

`kind_registry.py` describes their contract.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import numpy as np

from ..graph.core.errors import InvalidArgumentError
from ..graph.resources.cancellation import is_cancelled
from .checks import AUTOTUNE, positive
from .kind_registry import DatasetBase, kind
from .prefetch import Prefetcher
from .resumable import StepIterator, chain_lazily, flatten_iterators, skip_elements
from .runtime_values import IterationContext
from .spec import Array, Element

# --- several ---------------------------------------------------------------------------------------------------------


@kind("zip")
def _zip(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    walks = [p._iterate(context.child(i), skip) for i, p in enumerate(d._inputs)]

    def step() -> Element:
        found: list[Array] = []
        failed: Exception | None = None
        for walk in walks:  # advance all, even if one fails, so that they stay aligned
            try:
                found.extend(next(walk))
            except StopIteration:
                walks.clear()
                break
            except Exception as e:
                failed = failed or e
        if failed is not None:
            raise failed
        if not walks:
            raise StopIteration
        return found

    return StepIterator(step)


@kind("concatenate")
def _concatenate(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    one, other = d._inputs
    size = one._size
    if size is None:
        return skip_elements(
            chain_lazily(one._iterate(context.child(0), 0), lambda: other._iterate(context.child(1), 0)), skip
        )
    return chain_lazily(
        one._iterate(context.child(0), skip), lambda: other._iterate(context.child(1), int(max(0, skip - size)))
    )


@kind("interleave")
def _interleave(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    cycle, block = context.int_of(d._params["cycle_length"]), context.int_of(d._params["block_length"])
    if cycle == AUTOTUNE:
        cycle = os.cpu_count() or 1
    for name, value in (("cycle_length", cycle), ("block_length", block)):
        if value < 1:
            raise InvalidArgumentError.of(f"`{name}` must be > 0, not {value}")
    calls = d._params["calls"]
    return skip_elements(_Interleaved(d, context, cycle, block, None if calls is None else context.int_of(calls)), skip)


class _Interleaved:
    """Interleaves the data sets that a function returns for the elements, round-robin. It continues after an error.

    As in TensorFlow, an element that fails counts in its block only if `num_parallel_calls` is given. If the function fails, its data set
    then has one element, which fails.
    """

    def __init__(self, d: DatasetBase, context: IterationContext, cycle: int, block: int, calls: int | None) -> None:
        self._at, self._block, self._parallel = context, block, calls is not None
        self._ahead = calls is not None and (calls == AUTOTUNE or calls > 1)
        self._opened = d._params["function"].bind(context)
        self._inputs = enumerate(d._inputs[0]._iterate(context, 0))
        self._slots: list[Iterator[Element] | None] = [None] * cycle
        self._slot = self._taken = 0

    def __iter__(self) -> _Interleaved:
        return self

    def __next__(self) -> Element:
        idle = 0
        while idle < len(self._slots):
            here = self._slots[self._slot]
            if here is None:
                here = self._open()
                if here is None:
                    idle += 1
                    self._turn()
                    continue
                self._slots[self._slot] = here
            idle = 0
            try:
                element = next(here, None)
            except Exception:
                if self._parallel:
                    self._count()
                raise
            if element is not None:
                self._count()
                found: Element = element
                return found
            self._slots[self._slot] = None  # this data set has ended; the next round opens another one here
            self._turn()
        raise StopIteration

    def _open(self) -> Iterator[Element] | None:
        """Opens the data set of the next element. None: there is no next element."""
        try:
            i, element = next(self._inputs, (-1, None))
            if element is None:
                return None
            here = self._opened(element, i, self._at.child(i))
        except Exception as e:
            if not self._parallel or is_cancelled():
                raise
            return _failing(e)
        return Prefetcher(here, self._block + 1) if self._ahead else here

    def _count(self) -> None:
        self._taken += 1
        if self._taken == self._block:
            self._turn()

    def _turn(self) -> None:
        self._slot, self._taken = (self._slot + 1) % len(self._slots), 0

    def close(self) -> None:
        """Closes the open data sets and stops their threads."""
        self._slots = [None] * len(self._slots)


def _failing(error: Exception) -> Iterator[Element]:
    yield from ()
    raise error


@kind("sample")
def _sample(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    rng, left = context.random(d._params["seed"]), np.array(d._params["weights"], float)

    walks = [p._iterate(context.child(i), 0) for i, p in enumerate(d._inputs)]

    def draw() -> Element:
        while left.any():
            i = int(rng.choice(len(walks), p=left / left.sum()))
            element = next(walks[i], None)
            if element is not None:
                return element
            left[i] = 0
        raise StopIteration

    return skip_elements(StepIterator(draw), skip)


@kind("choose")
def _choose(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    *datasets, choice = d._inputs

    walks = [p._iterate(context.child(i), 0) for i, p in enumerate(datasets)]
    choices = choice._iterate(context.child(len(walks)), 0)

    def choose() -> Element:
        while True:
            (which,) = next(choices)
            if not 0 <= which < len(walks):
                raise InvalidArgumentError.of(
                    f"The choice {which} is not the index of one of the {len(walks)} data sets, which count from 0"
                )
            element = next(walks[int(which)], None)
            if element is not None:
                return element

    return skip_elements(StepIterator(choose), skip)


# --- groups of elements ----------------------------------------------------------------------------------------------


def _collected(
    elements: Iterator[Element], key_of: Callable[[Element, int], int], size_of: Callable[[int], int]
) -> Iterator[tuple[int, list[Element]]]:
    """Yields (key, elements of a window). A window comes when it is full; at the end the partial windows follow, ordered by key."""
    waiting: dict[int, list[Element]] = {}
    numbered = enumerate(elements)

    def step() -> tuple[int, list[Element]]:
        while True:
            i, element = next(numbered)
            key = key_of(element, i)
            window = waiting.setdefault(key, [])
            window.append(element)
            if len(window) >= size_of(key):
                return key, waiting.pop(key)

    return chain_lazily(StepIterator(step), lambda: iter(sorted(waiting.items())))


@kind("group_by_window")
def _grouped(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    key, reduced = d._params["key"].bind(context), d._params["reduce"].bind(context)
    window_size, elements = d._params["window_size"], d._params["elements"]
    sizes = None if isinstance(window_size, int) else window_size.bind(context)

    def size_of(key: int) -> int:
        size = window_size if sizes is None else int(sizes([np.array(key, np.int64)], 0)[0])
        positive("window_size", size)
        return int(size)

    def opened(numbered: tuple[int, tuple[int, list[Element]]]) -> Iterator[Element]:
        number, (found, window) = numbered
        made: Iterator[Element] = reduced(
            [np.array(found, np.int64)], number, context.child(number).with_values({elements: window})
        )
        return made

    full = _collected(d._inputs[0]._iterate(context, 0), lambda e, i: int(key(e, i)[0]), size_of)
    return skip_elements(flatten_iterators(map(opened, enumerate(full))), skip)


@kind("bucket")
def _bucket(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    """Batches elements of similar length. The inputs after the first one are the batched windows, one per bucket."""
    length, ends = d._params["length"].bind(context), np.asarray(d._params["boundaries"], np.int64)
    source, *batchers = d._inputs

    def bucket_of(element: Element, i: int) -> int:
        return int(np.searchsorted(ends, int(length(element, i)[0]), side="right"))

    def batches(collected: tuple[int, list[Element]]) -> Iterator[Element]:
        bucket, window = collected
        if d._params["bounded"] and bucket == len(ends):
            raise ValueError(f"When pad_to_bucket_boundary=True, elements must have length < {ends[-1]}")
        return batchers[bucket]._iterate(context.with_values({d._params["elements"]: window}), 0)

    full = _collected(source._iterate(context, 0), bucket_of, d._params["sizes"].__getitem__)
    return skip_elements(flatten_iterators(map(batches, full)), skip)


@kind("in_whole_rounds")
def _in_whole_rounds(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    """Yields the batches, then empty batches until their number is a multiple of the number of replicas.

    The dense shape of an empty sparse batch has 0 rows.
    """
    replicas, taken, elements = d._params["replicas"], skip, d._inputs[0]._iterate(context, skip)
    last: Element | None = None

    def step() -> Element:
        nonlocal last, taken
        try:
            last = next(elements)
        except StopIteration:
            raise
        except Exception:
            taken += 1
            raise
        taken += 1
        return last

    def rest() -> Iterator[Element]:
        if last is None or taken % replicas == 0:
            return iter(())
        shapes = set(d._params["shapes"])
        empty = [np.concatenate([[0], a[1:]]).astype(a.dtype) if i in shapes else a[:0] for i, a in enumerate(last)]
        return itertools.repeat(empty, replicas - taken % replicas)

    return chain_lazily(StepIterator(step), rest)
