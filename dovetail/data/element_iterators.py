"""The iterators of sources and transformations of data sets: see `kind_registry.py`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator as Walk, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ..graph.core.errors import DataLossError, InvalidArgumentError, OutOfRangeError
from ..graph.resources.cancellation import is_cancelled
from .cache_files import cached_in_file
from .checks import AUTOTUNE, checked
from .kind_registry import QUICK, Described, kind, quick
from .prefetch import Ahead, InOrder
from .resumable import Steps, after, filtered, first, flattened, then
from .runtime_values import At, arrays_of
from .spec import Array, Element

# --- sources ---------------------------------------------------------------------------------------------------------


@kind("tensor_slices")
def _slices(d: Described, at: At, skip: int) -> Walk[Element]:
    parts = arrays_of(at, d._params["arrays"], d._params["given"])
    counts, row = _rows_of(parts, d._params.get("sparse", ()))
    if len(counts) != 1 or None in counts:
        raise ValueError(f"All components need the same number of rows: {[p.shape for p in parts]}")
    return map(row, range(skip, counts.pop() or 0))


def _rows_of(arrays: Sequence[Array], sparse: Sequence[int]) -> tuple[set[int | None], Callable[[int], Element]]:
    """Returns the numbers of rows (None for a scalar), and a function that returns a row. `sparse`: where the three arrays of sparse
    tensors begin.
    """
    if not sparse:
        counts = {len(a) if a.ndim else None for a in arrays}
        # Also text stays an array of objects.
        return counts, lambda n: [a[n : n + 1].reshape(a.shape[1:]) for a in arrays]
    at, parts = 0, []
    while at < len(arrays):
        is_sparse = at in sparse
        parts.append(_rows_of_sparse(*arrays[at : at + 3]) if is_sparse else _rows_of(arrays[at : at + 1], ()))
        at += 3 if is_sparse else 1
    return set().union(*[c for c, _ in parts]), lambda n: [a for _, row in parts for a in row(n)]


def _rows_of_sparse(indices: Array, values: Array, shape: Array) -> tuple[set[int | None], Callable[[int], Element]]:
    """Does the same for one sparse tensor. A row has its values, the other coordinates, and the other sizes."""
    if not len(shape):
        return {None}, lambda n: []
    order = np.argsort(indices[:, 0], kind="stable")
    first, others, values = indices[order, 0], indices[order, 1:], values[order]

    def row(n: int) -> Element:
        begin, end = np.searchsorted(first, [n, n + 1])
        return [others[begin:end], values[begin:end], shape[1:]]

    return {int(shape[0])}, row


@kind("tensors")
def _tensors(d: Described, at: At, skip: int) -> Walk[Element]:
    if skip == 0:
        yield arrays_of(at, d._params["arrays"], d._params["given"])


@kind("range")
def _range(d: Described, at: At, skip: int) -> Walk[Element]:
    for n in range(*[at.number(n) for n in d._params["args"]])[skip:]:
        yield [np.asarray(n, np.int64)]


@kind("generator")
def _generated(d: Described, at: At, skip: int) -> Walk[Element]:
    arguments = arrays_of(at, d._params["arrays"], d._params["given"])
    elements = iter(d._params["generator"](*arguments))
    return map(partial(checked, structure=d._structure, components=d._components), after(elements, skip))


@kind("window")
def _window(d: Described, at: At, skip: int) -> Walk[Element]:
    """Iterates over elements that another iterator has collected."""
    return iter(at.of(d._params["elements"])[skip:])


@kind("windows")
def _windows(d: Described, at: At, skip: int) -> Walk[Element]:
    """Yields windows of elements, as TensorFlow's kernel makes them. An element that fails fails each window that it is in."""
    size, shift, stride = (at.number(n) for n in d._params["numbers"])
    for name, value in (("size", size), ("shift", shift), ("stride", stride)):
        if value < 1:
            raise InvalidArgumentError.of(f"Window {name} must be greater than zero, not {value}")
    dropped, whole = bool(at.number(d._params["drop"])), (size - 1) * stride + 1
    elements, buffer, passed = d._inputs[0]._walk(at, 0), list[Element | Exception](), 0

    def taken() -> Element | Exception:
        nonlocal elements
        try:
            return next(elements)
        except StopIteration:
            elements = iter(())
            raise
        except Exception as e:
            if is_cancelled():
                raise
            return e

    def step() -> Element:
        nonlocal passed
        with suppress(StopIteration):
            while passed:  # elements between windows
                taken()
                passed -= 1
            while len(buffer) < whole:
                buffer.append(taken())
        if not buffer or dropped and len(buffer) < whole:
            raise StopIteration
        window = buffer[::stride]
        passed = max(0, shift - len(buffer))
        del buffer[:shift]
        rows = [e for e in window if not isinstance(e, Exception)]
        for failed in window:
            if isinstance(failed, Exception):
                raise failed
        return [_held([[a] for a in column]) for column in zip(*rows, strict=True)]

    return after(Steps(step), skip)


def _held(elements: list[Element]) -> Array:
    """The elements of a data set as one component."""
    out = np.empty((), object)
    out[()] = elements
    return out


# --- one after the other ---------------------------------------------------------------------------------------------


@kind("map")
def _map(d: Described, at: At, skip: int) -> Walk[Element]:
    call, calls = d._params["function"].at(at, ends=d._params.get("ends", True)), d._params["calls"]
    if calls is not None:
        calls = (os.cpu_count() or 1) if calls == AUTOTUNE else at.number(calls)
    numbered = zip(d._inputs[0]._walk(at, skip), itertools.count(skip), strict=False)
    if calls is not None and calls > 1:
        return _Mapped(InOrder(call, numbered, calls, at.sloppy))
    return _Mapped(itertools.starmap(call, numbered))


class _Mapped:
    """Iterates over the results of a function. It ends when a queue or an iterator that the function reads ends."""

    def __init__(self, found: Walk[Element]) -> None:
        self._found: Walk[Element] | None = found

    def __iter__(self) -> _Mapped:
        return self

    def __next__(self) -> Element:
        if self._found is None:
            raise StopIteration
        try:
            return next(self._found)
        except OutOfRangeError:
            self._found = None
            raise StopIteration from None


@kind("with_options")
def _with_options(d: Described, at: At, skip: int) -> Walk[Element]:
    return d._inputs[0]._walk(replace(at, sloppy=True) if d._params["sloppy"] else at, skip)


@kind("filter")
def _filter(d: Described, at: At, skip: int) -> Walk[Element]:
    keep = d._params["function"].at(at)
    return after(filtered(d._inputs[0]._walk(at, 0), lambda i, element: bool(keep(element, i)[0])), skip)


@kind("ignore_errors")
def _without_errors(d: Described, at: At, skip: int) -> Walk[Element]:
    elements = d._inputs[0]._walk(at, 0)

    def step() -> Element:
        while True:
            try:
                return next(elements)
            except StopIteration:
                raise
            except Exception:
                if is_cancelled():
                    raise

    return after(Steps(step), skip)


@kind("take_while")
def _take_while(d: Described, at: At, skip: int) -> Walk[Element]:
    holds = d._params["function"].at(at)
    pairs = itertools.takewhile(lambda pair: holds(pair[1], pair[0])[0], enumerate(d._inputs[0]._walk(at, 0)))
    return after(map(itemgetter(1), pairs), skip)


@kind("shuffle")
def _shuffle(d: Described, at: At, skip: int) -> Walk[Element]:
    size = at.number(d._params["buffer_size"])
    if size < 1:
        raise InvalidArgumentError.of(f"buffer_size must be greater than zero, not {size}")
    rng = at.random(d._params["seed"], d._params["reshuffle"])

    elements = d._inputs[0]._walk(at, 0)
    buffer: list[Element] = []

    def draw() -> Element:
        while len(buffer) < size:
            buffer.append(next(elements))
        i = int(rng.integers(size))
        buffer[i], buffer[-1] = buffer[-1], buffer[i]
        return buffer.pop()

    def rest() -> Walk[Element]:
        return map(buffer.__getitem__, rng.permutation(len(buffer)))

    return after(then(Steps(draw), rest), skip)


@kind("take")
def _take(d: Described, at: At, skip: int) -> Walk[Element]:
    count, elements = at.number(d._params["count"]), d._inputs[0]._walk(at, skip)
    return elements if count < 0 else first(elements, count - skip)


@kind("skip")
def _skip(d: Described, at: At, skip: int) -> Walk[Element]:
    """Leaves out elements. One that fails does not count and its error is raised, as in TensorFlow 1; 2.21 then forgets those before it."""
    count, (source,) = at.number(d._params["count"]), d._inputs
    if count < 0:
        return iter(())
    if source._kind in QUICK:  # its elements do not fail, so none of them has to be made
        return source._walk(at, count + skip)
    left, elements = count, source._walk(at, 0)

    def step() -> Element:
        nonlocal left
        while left:
            next(elements)
            left -= 1
        return next(elements)

    return after(Steps(step), skip)


@kind("shard")
def _shard(d: Described, at: At, skip: int) -> Walk[Element]:
    count, index = at.number(d._params["num_shards"]), at.number(d._params["index"])
    if not 0 <= index < count:
        raise InvalidArgumentError.of(f"index must be in [0, {count}), not {index}")
    return filtered(d._inputs[0]._walk(at, skip * count), lambda i, element: i % count == index)


@kind("repeat")
def _repeat(d: Described, at: At, skip: int) -> Walk[Element]:
    (source,), size = d._inputs, d._inputs[0]._size
    count = at.number(d._params["count"])
    begin, left = 0, 0  # the first round, and the elements to leave out of it
    if size == float("inf"):
        left = skip
    elif size:
        begin, left = divmod(skip, int(size))
    rounds = itertools.count(begin) if count < 0 else iter(range(begin, count))
    walk: Walk[Element] = iter(())
    is_empty = False  # the round so far

    def step() -> Element:
        nonlocal walk, is_empty
        while True:
            try:
                element = next(walk)
            except StopIteration:
                if is_empty and count < 0:
                    raise  # an endless repetition of nothing
                i = next(rounds)
                passed = left if i == begin else 0
                walk, is_empty = source._walk(at.into(i), passed), not passed
            else:
                is_empty = False
                return element

    # How long a round of unknown size is shows only at its end.
    return Steps(step) if size else after(Steps(step), skip)


@kind("cache")
def _cache(d: Described, at: At, skip: int) -> Walk[Element]:
    params, source = d._params, d._inputs[0]
    # Whichever round fills the cache, it holds the elements of the first one: a restored iterator may begin in a later round.
    begin = replace(at, seeds=(at.seeds[0], *[0] * len(at.seeds[1:])))
    if params["filename"]:
        name = arrays_of(at, params["filename"], params["given"])[0].item().decode()
        at.check_file(name)
        return after(cached_in_file(name, lambda: source._walk(begin, 0), d._components), skip)
    return _cached(d, begin, skip)


def _cached(d: Described, at: At, skip: int) -> Walk[Element]:
    kept: dict[int, list[Element]] = d._memory
    start = at.seeds[0] if d._given else 0  # a data set of tensors has other elements with each start
    if start in kept:
        return quick(iter(kept[start][skip:]))
    elements: list[Element] = []
    source = d._inputs[0]._walk(at, 0)

    def step() -> Element:
        try:
            elements.append(next(source))
        except StopIteration:
            kept.clear()
            kept[start] = elements
            raise
        return elements[-1]

    return after(Steps(step), skip)


@kind("prefetch")
def _prefetch(d: Described, at: At, skip: int) -> Walk[Element]:
    size = at.number(d._params["buffer_size"])
    if size == AUTOTUNE or size == 0:
        size = 2  # one that is taken, one that is made
    if size < 1:
        raise InvalidArgumentError.of(f"buffer_size must be >= 0, not {size}")
    return Ahead(d._inputs[0]._walk(at, skip), size)


# --- batches ---------------------------------------------------------------------------------------------------------


def _rows(d: Described, at: At, skip: int, whole: bool = False) -> Walk[list[Element]]:
    """Yields the elements of batches. If one fails, those before it in its batch are lost, as in TensorFlow, and the next batch begins
    after it. `whole`: those after it in its batch are lost, too.
    """
    size, drop = at.number(d._params["batch_size"]), bool(at.number(d._params["drop"]))
    if size < 1:
        raise InvalidArgumentError.of(f"Batch size must be greater than zero, not {size}")
    elements = d._inputs[0]._walk(at, skip * size)

    def step() -> list[Element]:
        rows: list[Element] = []
        try:
            rows.extend(itertools.islice(elements, size))  # those before one that fails stay in the list
        except Exception:
            if whole and not is_cancelled():
                _pass_over(elements, size - len(rows) - 1)
            raise
        if not rows or drop and len(rows) < size:
            raise StopIteration
        return rows

    return Steps(step)


def _pass_over(elements: Walk[Element], count: int) -> None:
    """Leave out so many elements, also those that fail."""
    for _ in range(count):
        try:
            next(elements)
        except StopIteration:
            return
        except Exception:
            if is_cancelled():
                raise


def _is_map(d: Described) -> bool:
    """Whether a data set is a map, apart from what passes all elements on. TensorFlow makes one step of a map and a batch, and drops maps
    that change nothing.
    """
    passed = {"take": ("count", -1), "skip": ("count", 0), "repeat": ("count", 1), "shard": ("num_shards", 1)}
    while True:
        if d._kind == "map":
            if not d._params["function"].is_identity:
                return True
        elif d._kind not in passed or d._params[passed[d._kind][0]] != passed[d._kind][1]:
            return False
        (d,) = d._inputs


@kind("batch")
def _batch(d: Described, at: At, skip: int) -> Walk[Element]:
    sparse = d._params["sparse"]

    def stacked(rows: list[Element]) -> Element:
        columns = list(zip(*rows, strict=True))
        for i, column in enumerate(columns):
            if any(start <= i < start + 3 for start in sparse):
                continue
            other = next((a for a in column if a.shape != column[0].shape), None)
            if other is not None:
                raise InvalidArgumentError.of(
                    f"Cannot batch tensors with different shapes in component {i}. First element had shape "
                    f"{list(column[0].shape)} and element {next(n for n, a in enumerate(column) if a is other)} had shape "
                    f"{list(other.shape)}.",
                )
        if not sparse:
            return [np.stack(column) for column in columns]
        batch: list[Array] = []
        while len(batch) < len(columns):
            i = len(batch)
            batch += _stacked_sparse(*columns[i : i + 3]) if i in sparse else [np.stack(columns[i])]
        return batch

    return map(stacked, _rows(d, at, skip, whole=_is_map(d._inputs[0])))


def _stacked_sparse(indices: Sequence[Array], values: Sequence[Array], shapes: Sequence[Array]) -> list[Array]:
    """Stacks sparse arrays along a new first axis; the result has the largest sizes."""
    if len({len(s) for s in shapes}) > 1:
        ranks = sorted({len(s) for s in shapes})
        raise InvalidArgumentError.of(f"Cannot batch sparse tensors of different ranks: {ranks}")
    numbered = [np.insert(a, 0, i, axis=1) for i, a in enumerate(indices)]
    return [np.concatenate(numbered), np.concatenate(values), np.array([len(shapes), *np.max(shapes, 0)], np.int64)]


@kind("padded_batch")
def _padded_batch(d: Described, at: At, skip: int) -> Walk[Element]:
    given = d._params["shapes_given"]
    late = iter(at.of(given)) if given is not None else iter(())
    shapes: list[Any] = []
    for known in d._params["shapes"]:
        dims = known if known != "given" else [None if n == -1 else int(n) for n in next(late).tolist()]
        if any(n is not None and n < 0 for n in dims or ()):
            raise InvalidArgumentError.of(f"padded_shapes must have sizes of at least 0, or -1, not {dims}")
        shapes.append(dims)
    values = arrays_of(at, d._params["values"], d._params["values_given"])

    def padded(rows: list[Element]) -> Element:
        return [_filled(c, shapes[i], values[i], i) for i, c in enumerate(zip(*rows, strict=True))]

    return map(padded, _rows(d, at, skip))


def _filled(arrays: Sequence[Array], dims: Sequence[int | None] | None, value: Array, component: int) -> Array:
    """Pads arrays at their ends to one shape, and stacks them."""
    rank = arrays[0].ndim
    padded = (None,) * rank if dims is None else tuple(dims)
    if any(a.ndim != len(padded) for a in arrays):
        raise InvalidArgumentError.of(
            f"All elements in a batch must have the same rank as the padded shape for component {component}: expected rank "
            f"{len(padded)} but got element with rank {next(a.ndim for a in arrays if a.ndim != len(padded))}",
        )
    if not padded:
        return np.stack(arrays)
    largest = [max(a.shape[k] for a in arrays) if n is None else n for k, n in enumerate(padded)]
    out = np.empty((len(arrays), *largest), arrays[0].dtype)
    out.fill(value.item())  # np.full would take bytes of 0 off the end of text
    for row, a in zip(out, arrays, strict=True):
        if any(n > m for n, m in zip(a.shape, largest, strict=True)):
            raise DataLossError.of(
                f"Attempted to pad to a smaller size than the input element: an element of shape {a.shape} does not fit into "
                f"{tuple(largest)}, component {component}",
            )
        row[tuple(slice(n) for n in a.shape)] = a
    return out


@kind("unbatch")
def _unbatch(d: Described, at: At, skip: int) -> Walk[Element]:
    def rows(element: Element) -> Walk[Element]:
        counts, row = _rows_of(element, d._params.get("sparse", ()))
        if len(counts) != 1 or None in counts:
            raise InvalidArgumentError.of(
                f"The components of an element have different numbers of rows: {[a.shape for a in element]}"
            )
        return map(row, range(counts.pop() or 0))

    return after(flattened(map(rows, d._inputs[0]._walk(at, 0))), skip)


# --- folded ----------------------------------------------------------------------------------------------------------


@kind("reduce")
def _reduce(d: Described, at: At, skip: int) -> Walk[Element]:
    function = d._params["function"].at(at)
    state: Element = arrays_of(at, d._params["arrays"], d._params["given"])
    for i, element in enumerate(d._inputs[0]._walk(at, 0)):
        state = function([*state, *element], i)
    if skip == 0:
        yield state


@kind("scan")
def _scan(d: Described, at: At, skip: int) -> Walk[Element]:
    function, kept = d._params["function"].at(at), d._params["state_size"]

    state: Element = arrays_of(at, d._params["arrays"], d._params["given"])

    def scanned(numbered: tuple[int, Element]) -> Element:
        nonlocal state
        i, element = numbered
        found = function([*state, *element], i)
        state = found[:kept]
        rest: Element = found[kept:]
        return rest

    return after(map(scanned, enumerate(d._inputs[0]._walk(at, 0))), skip)


@kind("single")
def _single(d: Described, at: At, skip: int) -> Walk[Element]:
    elements = list(itertools.islice(d._inputs[0]._walk(at, 0), 2))
    if len(elements) != 1:
        what = "was empty" if not elements else "had more than one element"
        raise InvalidArgumentError.of(f"Dataset {what}.")
    return iter(elements[skip:])


@kind("with_values")
def _with_values(d: Described, at: At, skip: int) -> Walk[Element]:
    """Iterates over a data set whose tensors are computed by a function without arguments."""
    found = iter(d._params["function"].at(at)([], 0))
    brought = {given: [next(found) for _ in range(count)] for given, count in d._params["bound"]}
    return d._inputs[0]._walk(at.with_values(brought), skip)
