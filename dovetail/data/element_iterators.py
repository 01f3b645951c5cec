"""The iterators of sources, and of transformations of one data set. `kind_registry.py` describes their contract."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
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
from .kind_registry import RANDOM_ACCESS_KINDS, DatasetBase, kind, stop_when_cancelled
from .prefetch import ParallelMap, Prefetcher
from .resumable import StepIterator, chain_lazily, filter_numbered, first, flatten_iterators, skip_elements
from .runtime_values import IterationContext, source_arrays
from .spec import Array, Element

# --- sources ---------------------------------------------------------------------------------------------------------


@kind("tensor_slices")
def _slices(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    parts = source_arrays(context, d._params["arrays"], d._params["given"])
    counts, row = _rows_of(parts, d._params.get("sparse", ()))
    if len(counts) != 1 or None in counts:
        raise ValueError(f"All components need the same number of rows: {[p.shape for p in parts]}")
    return map(row, range(skip, counts.pop() or 0))


def _rows_of(arrays: Sequence[Array], sparse: Sequence[int]) -> tuple[set[int | None], Callable[[int], Element]]:
    """Returns the set of row counts (None for a scalar), and a function that returns one row of each array.

    `sparse`: the index of the first of the three arrays of each sparse tensor.
    """
    if not sparse:
        counts = {len(a) if a.ndim else None for a in arrays}
        # `a[n]` would be a `bytes` object for strings; the reshaped slice stays an array.
        return counts, lambda n: [a[n : n + 1].reshape(a.shape[1:]) for a in arrays]
    start, parts = 0, []
    while start < len(arrays):
        is_sparse = start in sparse
        width = 3 if is_sparse else 1
        columns = arrays[start : start + width]
        parts.append(_rows_of_sparse(*columns) if is_sparse else _rows_of(columns, ()))
        start += width
    return set().union(*[c for c, _ in parts]), lambda n: [a for _, row in parts for a in row(n)]


def _rows_of_sparse(indices: Array, values: Array, shape: Array) -> tuple[set[int | None], Callable[[int], Element]]:
    """Does the same for one sparse tensor. A row has the coordinates and sizes of the other axes."""
    if not len(shape):
        return {None}, lambda n: []
    order = np.argsort(indices[:, 0], kind="stable")
    first, others, values = indices[order, 0], indices[order, 1:], values[order]

    def row(n: int) -> Element:
        begin, end = np.searchsorted(first, [n, n + 1])
        return [others[begin:end], values[begin:end], shape[1:]]

    return {int(shape[0])}, row


@kind("tensors")
def _tensors(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    if skip == 0:
        yield source_arrays(context, d._params["arrays"], d._params["given"])


@kind("range")
def _range(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    for n in range(*[context.int_of(n) for n in d._params["args"]])[skip:]:
        yield [np.asarray(n, np.int64)]


def range_length(*args: int) -> int:
    """The length of `range(*args)`. It may be 2**63 or more, where `len` raises OverflowError."""
    numbers = range(*args)
    return max(0, (numbers.stop - numbers.start + numbers.step - (1 if numbers.step > 0 else -1)) // numbers.step)


@kind("generator")
def _generated(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    arguments = source_arrays(context, d._params["arrays"], d._params["given"])
    elements = iter(d._params["generator"](*arguments))
    return map(partial(checked, structure=d._structure, components=d._components), skip_elements(elements, skip))


@kind("window")
def _window(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    """Iterates over elements that another iterator collected."""
    return iter(context.values_of(d._params["elements"])[skip:])


@kind("windows")
def _windows(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    """Yields windows of elements, as TensorFlow's kernel does. If an element fails, each window that contains it fails."""
    size, shift, stride = (context.int_of(n) for n in d._params["numbers"])
    for name, value in (("size", size), ("shift", shift), ("stride", stride)):
        if value < 1:
            raise InvalidArgumentError.of(f"Window {name} must be greater than zero, not {value}")
    dropped, whole = bool(context.int_of(d._params["drop"])), (size - 1) * stride + 1
    elements, buffer, passed = d._inputs[0]._iterate(context, 0), list[Element | Exception](), 0

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

    return skip_elements(StepIterator(step), skip)


def _held(elements: list[Element]) -> Array:
    """Returns a scalar object array that holds the elements of a data set."""
    out = np.empty((), object)
    out[()] = elements
    return out


# --- element by element ----------------------------------------------------------------------------------------------


@kind("map")
def _map(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    call, calls = d._params["function"].bind(context, ends=d._params.get("ends", True)), d._params["calls"]
    if calls is not None:
        calls = (os.cpu_count() or 1) if calls == AUTOTUNE else context.int_of(calls)
    numbered = zip(d._inputs[0]._iterate(context, skip), itertools.count(skip), strict=False)
    if calls is not None and calls > 1:
        return _Mapped(ParallelMap(call, numbered, calls, context.sloppy))
    return _Mapped(itertools.starmap(call, numbered))


class _Mapped:
    """Iterates over the results of a function. It ends when the function raises OutOfRangeError, as a closed queue does."""

    def __init__(self, found: Iterator[Element]) -> None:
        self._found: Iterator[Element] | None = found

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
def _with_options(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    return d._inputs[0]._iterate(replace(context, sloppy=True) if d._params["sloppy"] else context, skip)


@kind("filter")
def _filter(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    keep = d._params["function"].bind(context)
    return skip_elements(
        filter_numbered(d._inputs[0]._iterate(context, 0), lambda i, element: bool(keep(element, i)[0])), skip
    )


@kind("ignore_errors")
def _without_errors(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    elements = d._inputs[0]._iterate(context, 0)

    def step() -> Element:
        while True:
            try:
                return next(elements)
            except StopIteration:
                raise
            except Exception:
                if is_cancelled():
                    raise

    return skip_elements(StepIterator(step), skip)


@kind("take_while")
def _take_while(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    holds = d._params["function"].bind(context)
    pairs = itertools.takewhile(lambda pair: holds(pair[1], pair[0])[0], enumerate(d._inputs[0]._iterate(context, 0)))
    return skip_elements(map(itemgetter(1), pairs), skip)


@kind("shuffle")
def _shuffle(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    size = context.int_of(d._params["buffer_size"])
    if size < 1:
        raise InvalidArgumentError.of(f"buffer_size must be greater than zero, not {size}")
    rng = context.random(d._params["seed"], d._params["reshuffle"])

    elements = d._inputs[0]._iterate(context, 0)
    buffer: list[Element] = []

    def draw() -> Element:
        while len(buffer) < size:
            buffer.append(next(elements))
        i = int(rng.integers(size))
        buffer[i], buffer[-1] = buffer[-1], buffer[i]
        return buffer.pop()

    def rest() -> Iterator[Element]:
        return map(buffer.__getitem__, rng.permutation(len(buffer)))

    return skip_elements(chain_lazily(StepIterator(draw), rest), skip)


@kind("take")
def _take(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    count, elements = context.int_of(d._params["count"]), d._inputs[0]._iterate(context, skip)
    return elements if count < 0 else first(elements, count - skip)


@kind("skip")
def _skip(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    """Skips elements. An element that fails raises its error and does not count, as in TensorFlow 1.

    TensorFlow 2.21 counts from 0 again after an error.
    """
    count, (source,) = context.int_of(d._params["count"]), d._inputs
    if count < 0:
        return iter(())
    if source._kind in RANDOM_ACCESS_KINDS:  # its elements do not fail, so skipping need not make them
        return source._iterate(context, count + skip)
    left, elements = count, source._iterate(context, 0)

    def step() -> Element:
        nonlocal left
        while left:
            next(elements)
            left -= 1
        return next(elements)

    return skip_elements(StepIterator(step), skip)


@kind("shard")
def _shard(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    count, index = context.int_of(d._params["num_shards"]), context.int_of(d._params["index"])
    if not 0 <= index < count:
        raise InvalidArgumentError.of(f"index must be in [0, {count}), not {index}")
    return filter_numbered(d._inputs[0]._iterate(context, skip * count), lambda i, element: i % count == index)


@kind("repeat")
def _repeat(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    (source,), size = d._inputs, d._inputs[0]._size
    count = context.int_of(d._params["count"])
    begin, left = 0, 0  # the first round, and the number of its elements to skip
    if size == float("inf"):
        left = skip
    elif size:
        begin, left = divmod(skip, int(size))
    rounds = itertools.count(begin) if count < 0 else iter(range(begin, count))
    walk: Iterator[Element] = iter(())
    is_empty = False  # whether this round has had no element yet

    def step() -> Element:
        nonlocal walk, is_empty
        while True:
            try:
                element = next(walk)
            except StopIteration:
                if is_empty and count < 0:
                    raise  # repeating an empty data set would never end
                i = next(rounds)
                passed = left if i == begin else 0
                walk, is_empty = source._iterate(context.child(i), passed), not passed
            else:
                is_empty = False
                return element

    # The number of rounds to skip is known only if the size of a round is.
    return StepIterator(step) if size else skip_elements(StepIterator(step), skip)


@kind("cache")
def _cache(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    params, source = d._params, d._inputs[0]
    # The cache holds the elements of the first round, even if a restored iterator fills it in a later one.
    begin = replace(context, seeds=(context.seeds[0], *[0] * len(context.seeds[1:])))
    if params["filename"]:
        name = source_arrays(context, params["filename"], params["given"])[0].item().decode()
        context.check_file(name)
        return skip_elements(cached_in_file(name, lambda: source._iterate(begin, 0), d._components), skip)
    return _cached(d, begin, skip)


def _cached(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    kept: dict[int, list[Element]] = d._memory
    start = context.seeds[0] if d._runtime_inputs else 0  # runtime inputs may differ at each start
    if start in kept:
        return stop_when_cancelled(iter(kept[start][skip:]))
    elements: list[Element] = []
    source = d._inputs[0]._iterate(context, 0)

    def step() -> Element:
        try:
            elements.append(next(source))
        except StopIteration:
            kept.clear()
            kept[start] = elements
            raise
        return elements[-1]

    return skip_elements(StepIterator(step), skip)


@kind("prefetch")
def _prefetch(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    size = context.int_of(d._params["buffer_size"])
    if size == AUTOTUNE or size == 0:
        size = 2  # the consumer takes one while the thread makes the other
    if size < 1:
        raise InvalidArgumentError.of(f"buffer_size must be >= 0, not {size}")
    return Prefetcher(d._inputs[0]._iterate(context, skip), size)


# --- batches ---------------------------------------------------------------------------------------------------------


def _rows(d: DatasetBase, context: IterationContext, skip: int, whole: bool = False) -> Iterator[list[Element]]:
    """Yields the elements of each batch.

    If an element fails, the elements before it in its batch are lost, and the next batch begins after it, as in TensorFlow. `whole`: the
    rest of the batch is lost, too.
    """
    size, drop = context.int_of(d._params["batch_size"]), bool(context.int_of(d._params["drop"]))
    if size < 1:
        raise InvalidArgumentError.of(f"Batch size must be greater than zero, not {size}")
    elements = d._inputs[0]._iterate(context, skip * size)

    def step() -> list[Element]:
        rows: list[Element] = []
        try:
            rows.extend(itertools.islice(elements, size))  # keeps the elements before one that fails
        except Exception:
            if whole and not is_cancelled():
                _pass_over(elements, size - len(rows) - 1)
            raise
        if not rows or drop and len(rows) < size:
            raise StopIteration
        return rows

    return StepIterator(step)


def _pass_over(elements: Iterator[Element], count: int) -> None:
    """Skip `count` elements, also those that fail."""
    for _ in range(count):
        try:
            next(elements)
        except StopIteration:
            return
        except Exception:
            if is_cancelled():
                raise


def _is_map(d: DatasetBase) -> bool:
    """Whether a data set is a map, apart from transformations that do nothing.

    TensorFlow fuses a map with a following batch, and drops maps that return their argument.
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
def _batch(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
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

    return map(stacked, _rows(d, context, skip, whole=_is_map(d._inputs[0])))


def _stacked_sparse(indices: Sequence[Array], values: Sequence[Array], shapes: Sequence[Array]) -> list[Array]:
    """Stacks sparse arrays along a new first axis. The other sizes of the result are the largest ones."""
    if len({len(s) for s in shapes}) > 1:
        ranks = sorted({len(s) for s in shapes})
        raise InvalidArgumentError.of(f"Cannot batch sparse tensors of different ranks: {ranks}")
    numbered = [np.insert(a, 0, i, axis=1) for i, a in enumerate(indices)]
    return [np.concatenate(numbered), np.concatenate(values), np.array([len(shapes), *np.max(shapes, 0)], np.int64)]


@kind("padded_batch")
def _padded_batch(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    given = d._params["shapes_given"]
    late = iter(context.values_of(given)) if given is not None else iter(())
    shapes: list[Any] = []
    for shape in d._params["shapes"]:
        dims = shape if shape != "given" else [None if n == -1 else int(n) for n in next(late).tolist()]
        if any(n is not None and n < 0 for n in dims or ()):
            raise InvalidArgumentError.of(f"padded_shapes must have sizes of at least 0, or -1, not {dims}")
        shapes.append(dims)
    values = source_arrays(context, d._params["values"], d._params["values_given"])

    def padded(rows: list[Element]) -> Element:
        return [_filled(c, shapes[i], values[i], i) for i, c in enumerate(zip(*rows, strict=True))]

    return map(padded, _rows(d, context, skip))


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
    out.fill(value.item())  # np.full would strip trailing zero bytes from strings
    for row, a in zip(out, arrays, strict=True):
        if any(n > m for n, m in zip(a.shape, largest, strict=True)):
            raise DataLossError.of(
                f"Attempted to pad to a smaller size than the input element: an element of shape {a.shape} does not fit into "
                f"{tuple(largest)}, component {component}",
            )
        row[tuple(slice(n) for n in a.shape)] = a
    return out


@kind("unbatch")
def _unbatch(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    def rows(element: Element) -> Iterator[Element]:
        counts, row = _rows_of(element, d._params.get("sparse", ()))
        if len(counts) != 1 or None in counts:
            raise InvalidArgumentError.of(
                f"The components of an element have different numbers of rows: {[a.shape for a in element]}"
            )
        return map(row, range(counts.pop() or 0))

    return skip_elements(flatten_iterators(map(rows, d._inputs[0]._iterate(context, 0))), skip)


# --- with a state ----------------------------------------------------------------------------------------------------


@kind("reduce")
def _reduce(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    function = d._params["function"].bind(context)
    state: Element = source_arrays(context, d._params["arrays"], d._params["given"])
    for i, element in enumerate(d._inputs[0]._iterate(context, 0)):
        state = function([*state, *element], i)
    if skip == 0:
        yield state


@kind("scan")
def _scan(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    function, kept = d._params["function"].bind(context), d._params["state_size"]

    state: Element = source_arrays(context, d._params["arrays"], d._params["given"])

    def scanned(numbered: tuple[int, Element]) -> Element:
        nonlocal state
        i, element = numbered
        found = function([*state, *element], i)
        state = found[:kept]
        rest: Element = found[kept:]
        return rest

    return skip_elements(map(scanned, enumerate(d._inputs[0]._iterate(context, 0))), skip)


@kind("single")
def _single(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    elements = list(itertools.islice(d._inputs[0]._iterate(context, 0), 2))
    if len(elements) != 1:
        what = "was empty" if not elements else "had more than one element"
        raise InvalidArgumentError.of(f"Dataset {what}.")
    return iter(elements[skip:])


@kind("with_values")
def _with_values(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    """Iterates over a data set whose runtime inputs are computed by a function without arguments."""
    found = iter(d._params["function"].bind(context)([], 0))
    brought = {given: [next(found) for _ in range(count)] for given, count in d._params["bound"]}
    return d._inputs[0]._iterate(context.with_values(brought), skip)
