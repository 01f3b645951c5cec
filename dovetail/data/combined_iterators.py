"""The iterators of transformations that take from several data sets, or divide one into groups: see `kind_registry.py`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator as Walk

import numpy as np

from ..graph.core.errors import InvalidArgumentError
from ..graph.resources.cancellation import is_cancelled
from .checks import AUTOTUNE, positive
from .kind_registry import Described, kind
from .prefetch import Ahead
from .resumable import Steps, after, flattened, then
from .runtime_values import At
from .spec import Array, Element

# --- several ---------------------------------------------------------------------------------------------------------


@kind("zip")
def _zip(d: Described, at: At, skip: int) -> Walk[Element]:
    walks = [p._walk(at.into(i), skip) for i, p in enumerate(d._inputs)]

    def step() -> Element:
        found: list[Array] = []
        failed: Exception | None = None
        for walk in walks:  # all, also if one fails: the next elements belong together
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

    return Steps(step)


@kind("concatenate")
def _concatenate(d: Described, at: At, skip: int) -> Walk[Element]:
    one, other = d._inputs
    size = one._size
    if size is None:
        return after(then(one._walk(at.into(0), 0), lambda: other._walk(at.into(1), 0)), skip)
    return then(one._walk(at.into(0), skip), lambda: other._walk(at.into(1), int(max(0, skip - size))))


@kind("interleave")
def _interleave(d: Described, at: At, skip: int) -> Walk[Element]:
    cycle, block = at.number(d._params["cycle_length"]), at.number(d._params["block_length"])
    if cycle == AUTOTUNE:
        cycle = os.cpu_count() or 1
    for name, value in (("cycle_length", cycle), ("block_length", block)):
        if value < 1:
            raise InvalidArgumentError.of(f"`{name}` must be > 0, not {value}")
    calls = d._params["calls"]
    return after(_Interleaved(d, at, cycle, block, None if calls is None else at.number(calls)), skip)


class _Interleaved:
    """Interleaves the data sets that a function makes of elements, round-robin. An error belongs to one element.

    As in TensorFlow, an element that fails takes a turn only if a number of parallel calls is given, be it 1. A data set that cannot be
    made is then one of a single element, which fails.
    """

    def __init__(self, d: Described, at: At, cycle: int, block: int, calls: int | None) -> None:
        self._at, self._block, self._parallel = at, block, calls is not None
        self._ahead = calls is not None and (calls == AUTOTUNE or calls > 1)
        self._opened = d._params["function"].at(at)
        self._inputs = enumerate(d._inputs[0]._walk(at, 0))
        self._slots: list[Walk[Element] | None] = [None] * cycle
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
            self._slots[self._slot] = None  # it has ended: the next round starts the next data set
            self._turn()
        raise StopIteration

    def _open(self) -> Walk[Element] | None:
        """The data set of the next element; None: there is none."""
        try:
            i, element = next(self._inputs, (-1, None))
            if element is None:
                return None
            here = self._opened(element, i, self._at.into(i))
        except Exception as e:
            if not self._parallel or is_cancelled():
                raise
            return _failing(e)
        return Ahead(here, self._block + 1) if self._ahead else here

    def _count(self) -> None:
        self._taken += 1
        if self._taken == self._block:
            self._turn()

    def _turn(self) -> None:
        self._slot, self._taken = (self._slot + 1) % len(self._slots), 0

    def close(self) -> None:
        """Closes the open data sets and stops their threads."""
        self._slots = [None] * len(self._slots)


def _failing(error: Exception) -> Walk[Element]:
    yield from ()
    raise error


@kind("sample")
def _sample(d: Described, at: At, skip: int) -> Walk[Element]:
    rng, left = at.random(d._params["seed"]), np.array(d._params["weights"], float)

    walks = [p._walk(at.into(i), 0) for i, p in enumerate(d._inputs)]

    def draw() -> Element:
        while left.any():
            i = int(rng.choice(len(walks), p=left / left.sum()))
            element = next(walks[i], None)
            if element is not None:
                return element
            left[i] = 0
        raise StopIteration

    return after(Steps(draw), skip)


@kind("choose")
def _choose(d: Described, at: At, skip: int) -> Walk[Element]:
    *datasets, choice = d._inputs

    walks = [p._walk(at.into(i), 0) for i, p in enumerate(datasets)]
    choices = choice._walk(at.into(len(walks)), 0)

    def choose() -> Element:
        while True:
            (which,) = next(choices)
            if not 0 <= which < len(walks):
                raise InvalidArgumentError.of(
                    f"The choice {which} is none of the {len(walks)} data sets: they count from 0"
                )
            element = next(walks[int(which)], None)
            if element is not None:
                return element

    return after(Steps(choose), skip)


# --- by groups -------------------------------------------------------------------------------------------------------


def _collected(
    elements: Walk[Element], key_of: Callable[[Element, int], int], size_of: Callable[[int], int]
) -> Walk[tuple[int, list[Element]]]:
    """Yields (key, elements of a window): full windows as soon as they are full, then the partial ones by key."""
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

    return then(Steps(step), lambda: iter(sorted(waiting.items())))


@kind("group_by_window")
def _grouped(d: Described, at: At, skip: int) -> Walk[Element]:
    key, reduced = d._params["key"].at(at), d._params["reduce"].at(at)
    window_size, elements = d._params["window_size"], d._params["elements"]
    sizes = None if isinstance(window_size, int) else window_size.at(at)

    def size_of(key: int) -> int:
        size = window_size if sizes is None else int(sizes([np.array(key, np.int64)], 0)[0])
        positive("window_size", size)
        return int(size)

    def opened(numbered: tuple[int, tuple[int, list[Element]]]) -> Walk[Element]:
        number, (found, window) = numbered
        made: Walk[Element] = reduced(
            [np.array(found, np.int64)], number, at.into(number).with_values({elements: window})
        )
        return made

    full = _collected(d._inputs[0]._walk(at, 0), lambda e, i: int(key(e, i)[0]), size_of)
    return after(flattened(map(opened, enumerate(full))), skip)


@kind("bucket")
def _bucket(d: Described, at: At, skip: int) -> Walk[Element]:
    """Batches a window; there is one input after the first for each bucket."""
    length, ends = d._params["length"].at(at), np.asarray(d._params["boundaries"], np.int64)
    source, *batchers = d._inputs

    def bucket_of(element: Element, i: int) -> int:
        return int(np.searchsorted(ends, int(length(element, i)[0]), side="right"))

    def batches(collected: tuple[int, list[Element]]) -> Walk[Element]:
        bucket, window = collected
        if d._params["bounded"] and bucket == len(ends):
            raise ValueError(f"When pad_to_bucket_boundary=True, elements must have length < {ends[-1]}")
        return batchers[bucket]._walk(at.with_values({d._params["elements"]: window}), 0)

    full = _collected(source._walk(at, 0), bucket_of, d._params["sizes"].__getitem__)
    return after(flattened(map(batches, full)), skip)


@kind("in_whole_rounds")
def _in_whole_rounds(d: Described, at: At, skip: int) -> Walk[Element]:
    """Yields the batches, then empty batches until the last round is complete. The shape of an empty sparse batch has no rows either."""
    replicas, taken, elements = d._params["replicas"], skip, d._inputs[0]._walk(at, skip)
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

    def rest() -> Walk[Element]:
        if last is None or taken % replicas == 0:
            return iter(())
        shapes = set(d._params["shapes"])
        empty = [np.concatenate([[0], a[1:]]).astype(a.dtype) if i in shapes else a[:0] for i, a in enumerate(last)]
        return itertools.repeat(empty, replicas - taken % replicas)

    return then(Steps(step), rest)
