"""The iterators of sources and transformations of data sets: see `kind_registry.py`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator as Walk, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..graph.core.errors import DataLossError, InvalidArgumentError, OutOfRangeError
from .cache_files import cached_in_file
from .checks import AUTOTUNE, checked, positive
from .kind_registry import Described, kind
from .prefetch import Ahead, InOrder
from .runtime_values import At, arrays_of
from .spec import Array, Element

# --- sources ---------------------------------------------------------------------------------------------------------


@kind("tensor_slices")
def _slices(d: Described, at: At, skip: int) -> Walk[Element]:
    parts = arrays_of(at, d._params["arrays"], d._params["given"])
    counts, row = _rows_of(parts, d._params.get("sparse", ()))
    if len(counts) != 1 or None in counts:
        raise ValueError(f"All components need the same number of rows: {[p.shape for p in parts]}")
    yield from map(row, range(skip, counts.pop() or 0))


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
    try:
        for _ in range(skip):
            next(elements)
    except Exception:  # it has failed there before, or ended
        return
    for element in elements:
        yield checked(element, d._structure, d._components)


@kind("window")
def _window(d: Described, at: At, skip: int) -> Walk[Element]:
    """Iterates over elements that another iterator has collected."""
    return iter(at.of(d._params["elements"])[skip:])


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
    kept = (e for i, e in enumerate(d._inputs[0]._walk(at, 0)) if keep(e, i)[0])
    return itertools.islice(kept, skip, None)


@kind("take_while")
def _take_while(d: Described, at: At, skip: int) -> Walk[Element]:
    holds = d._params["function"].at(at)

    def taken() -> Walk[Element]:
        for i, element in enumerate(d._inputs[0]._walk(at, 0)):
            if not holds(element, i)[0]:
                return
            yield element

    return itertools.islice(taken(), skip, None)


@kind("shuffle")
def _shuffle(d: Described, at: At, skip: int) -> Walk[Element]:
    size = at.number(d._params["buffer_size"])
    if size < 1:
        raise InvalidArgumentError.of(f"buffer_size must be greater than zero, not {size}")
    rng = at.random(d._params["seed"], d._params["reshuffle"])

    def draw() -> Walk[Element]:
        buffer: list[Element] = []
        for element in d._inputs[0]._walk(at, 0):
            if len(buffer) < size:
                buffer.append(element)
                continue
            i = int(rng.integers(size))
            drawn, buffer[i] = buffer[i], element
            yield drawn
        for i in rng.permutation(len(buffer)):
            yield buffer[i]

    return itertools.islice(draw(), skip, None)


@kind("take")
def _take(d: Described, at: At, skip: int) -> Walk[Element]:
    count, elements = at.number(d._params["count"]), d._inputs[0]._walk(at, skip)
    return elements if count < 0 else itertools.islice(elements, max(0, count - skip))


@kind("skip")
def _skip(d: Described, at: At, skip: int) -> Walk[Element]:
    count = at.number(d._params["count"])
    return iter(()) if count < 0 else d._inputs[0]._walk(at, count + skip)


@kind("shard")
def _shard(d: Described, at: At, skip: int) -> Walk[Element]:
    count, index = at.number(d._params["num_shards"]), at.number(d._params["index"])
    if not 0 <= index < count:
        raise InvalidArgumentError.of(f"index must be in [0, {count}), not {index}")
    return itertools.islice(d._inputs[0]._walk(at, index + skip * count), 0, None, count)


@kind("repeat")
def _repeat(d: Described, at: At, skip: int) -> Walk[Element]:
    (source,), size = d._inputs, d._inputs[0]._size
    count = at.number(d._params["count"])
    rounds = None if count < 0 else count
    first = 0
    if size == 0:
        return
    if size is not None and size != float("inf"):
        first, skip = divmod(skip, int(size))
    for i in itertools.count(first) if rounds is None else range(first, rounds):
        seen = -1
        for seen, element in enumerate(source._walk(at.into(i), skip if size is not None else 0)):  # noqa: B007
            if size is None and skip > 0:  # how long a round is shows only at its end
                skip -= 1
                continue
            yield element
        if size is not None:
            skip = 0
        elif seen < 0:
            return  # an empty round: there will never be anything


@kind("cache")
def _cache(d: Described, at: At, skip: int) -> Walk[Element]:
    params, source = d._params, d._inputs[0]
    # Whichever round fills the cache, it holds the elements of the first one: a restored iterator may begin in a later round.
    first = replace(at, seeds=(at.seeds[0], *[0] * len(at.seeds[1:])))
    if params["filename"]:
        name = arrays_of(at, params["filename"], params["given"])[0].item().decode()
        at.check_file(name)
        return itertools.islice(cached_in_file(name, lambda: source._walk(first, 0), d._components), skip, None)
    return _cached(d, first, skip)


def _cached(d: Described, at: At, skip: int) -> Walk[Element]:
    kept: dict[int, list[Element]] = d._memory
    start = at.seeds[0] if d._given else 0  # a data set of tensors has other elements with each start
    if start in kept:
        yield from kept[start][skip:]
        return
    elements: list[Element] = []
    for i, element in enumerate(d._inputs[0]._walk(at, 0)):
        elements.append(element)
        if i >= skip:
            yield element
    kept.clear()
    kept[start] = elements


@kind("prefetch")
def _prefetch(d: Described, at: At, skip: int) -> Walk[Element]:
    size = at.number(d._params["buffer_size"])
    if size == AUTOTUNE or size == 0:
        size = 2  # one that is taken, one that is made
    if size < 1:
        raise InvalidArgumentError.of(f"buffer_size must be >= 0, not {size}")
    return Ahead(d._inputs[0]._walk(at, skip), size)


# --- batches ---------------------------------------------------------------------------------------------------------


def _rows(d: Described, at: At, skip: int) -> Walk[list[Element]]:
    size, drop = at.number(d._params["batch_size"]), bool(at.number(d._params["drop"]))
    if size < 1:
        raise InvalidArgumentError.of(f"Batch size must be greater than zero, not {size}")
    elements = d._inputs[0]._walk(at, skip * size)
    while rows := list(itertools.islice(elements, size)):
        if drop and len(rows) < size:
            return
        yield rows


@kind("batch")
def _batch(d: Described, at: At, skip: int) -> Walk[Element]:
    for rows in _rows(d, at, skip):
        columns = list(zip(*rows, strict=True))
        sparse = d._params["sparse"]
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
            yield [np.stack(column) for column in columns]
            continue
        batch: list[Array] = []
        while len(batch) < len(columns):
            i = len(batch)
            batch += _stacked_sparse(*columns[i : i + 3]) if i in sparse else [np.stack(columns[i])]
        yield batch


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
    for rows in _rows(d, at, skip):
        yield [_filled(c, shapes[i], values[i], i) for i, c in enumerate(zip(*rows, strict=True))]


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
    def rows() -> Walk[Element]:
        for element in d._inputs[0]._walk(at, 0):
            counts, row = _rows_of(element, d._params.get("sparse", ()))
            if len(counts) != 1 or None in counts:
                raise InvalidArgumentError.of(
                    f"The components of an element have different numbers of rows: {[a.shape for a in element]}"
                )
            yield from map(row, range(counts.pop() or 0))

    return itertools.islice(rows(), skip, None)


# --- several ---------------------------------------------------------------------------------------------------------


@kind("zip")
def _zip(d: Described, at: At, skip: int) -> Walk[Element]:
    for elements in zip(*[p._walk(at.into(i), skip) for i, p in enumerate(d._inputs)], strict=False):
        yield [a for e in elements for a in e]


@kind("concatenate")
def _concatenate(d: Described, at: At, skip: int) -> Walk[Element]:
    first, second = d._inputs
    size = first._size
    if size is None:
        both = itertools.chain(first._walk(at.into(0), 0), second._walk(at.into(1), 0))
        yield from itertools.islice(both, skip, None)
        return
    yield from first._walk(at.into(0), skip)
    yield from second._walk(at.into(1), int(max(0, skip - size)))


@kind("interleave")
def _interleave(d: Described, at: At, skip: int) -> Walk[Element]:
    cycle, block = at.number(d._params["cycle_length"]), at.number(d._params["block_length"])
    if cycle == AUTOTUNE:
        cycle = os.cpu_count() or 1
    for name, value in (("cycle_length", cycle), ("block_length", block)):
        if value < 1:
            raise InvalidArgumentError.of(f"`{name}` must be > 0, not {value}")
    calls = d._params["calls"]
    parallel = calls is not None and ((number := at.number(calls)) == AUTOTUNE or number > 1)
    walk = _Interleaved(d, at, cycle, block, parallel)
    return itertools.islice(walk, skip, None) if skip else walk


class _Interleaved:
    """Interleaves the data sets that a function makes of elements, round-robin. An error belongs to one element."""

    def __init__(self, d: Described, at: At, cycle: int, block: int, parallel: bool) -> None:
        self._at, self._block, self._parallel = at, block, parallel
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
                i, element = next(self._inputs, (-1, None))
                if element is None:
                    idle += 1
                    self._turn()
                    continue
                here = self._opened(element, i, self._at.into(i))
                if self._parallel:
                    here = Ahead(here, self._block + 1)
                self._slots[self._slot] = here
            idle = 0
            try:
                element = next(here, None)
            except BaseException:
                self._count()
                raise
            if element is not None:
                self._count()
                found: Element = element
                return found
            self._slots[self._slot] = None  # it has ended: the next round starts the next data set
            self._turn()
        raise StopIteration

    def _count(self) -> None:
        self._taken += 1
        if self._taken == self._block:
            self._turn()

    def _turn(self) -> None:
        self._slot, self._taken = (self._slot + 1) % len(self._slots), 0

    def close(self) -> None:
        """Closes the open data sets and stops their threads."""
        self._slots = [None] * len(self._slots)


@kind("sample")
def _sample(d: Described, at: At, skip: int) -> Walk[Element]:
    rng, left = at.random(d._params["seed"]), np.array(d._params["weights"], float)

    def drawn() -> Walk[Element]:
        walks = [p._walk(at.into(i), 0) for i, p in enumerate(d._inputs)]
        while left.any():
            i = int(rng.choice(len(walks), p=left / left.sum()))
            element = next(walks[i], None)
            if element is None:
                left[i] = 0
            else:
                yield element

    return itertools.islice(drawn(), skip, None)


@kind("choose")
def _choose(d: Described, at: At, skip: int) -> Walk[Element]:
    *datasets, choice = d._inputs

    def chosen() -> Walk[Element]:
        walks = [p._walk(at.into(i), 0) for i, p in enumerate(datasets)]
        for (which,) in choice._walk(at.into(len(walks)), 0):
            if not 0 <= which < len(walks):
                raise InvalidArgumentError.of(
                    f"The choice {which} is none of the {len(walks)} data sets: they count from 0"
                )
            element = next(walks[int(which)], None)
            if element is not None:
                yield element

    return itertools.islice(chosen(), skip, None)


# --- by groups -------------------------------------------------------------------------------------------------------


def _collected(
    elements: Walk[Element], key_of: Callable[[Element, int], int], size_of: Callable[[int], int]
) -> Walk[tuple[int, list[Element]]]:
    """Yields (key, elements of a window): full windows as soon as they are full, then the partial ones by key."""
    waiting: dict[int, list[Element]] = {}
    for i, element in enumerate(elements):
        key = key_of(element, i)
        window = waiting.setdefault(key, [])
        window.append(element)
        if len(window) >= size_of(key):
            yield key, waiting.pop(key)
    yield from sorted(waiting.items())


@kind("group_by_window")
def _grouped(d: Described, at: At, skip: int) -> Walk[Element]:
    key, reduced = d._params["key"].at(at), d._params["reduce"].at(at)
    window_size, elements = d._params["window_size"], d._params["elements"]
    sizes = None if isinstance(window_size, int) else window_size.at(at)

    def size_of(key: int) -> int:
        size = window_size if sizes is None else int(sizes([np.array(key, np.int64)], 0)[0])
        positive("window_size", size)
        return int(size)

    def windows() -> Walk[Element]:
        full = _collected(d._inputs[0]._walk(at, 0), lambda e, i: int(key(e, i)[0]), size_of)
        for number, (found, window) in enumerate(full):
            inside = at.into(number).with_values({elements: window})
            yield from reduced([np.array(found, np.int64)], number, inside)

    return itertools.islice(windows(), skip, None)


@kind("bucket")
def _bucket(d: Described, at: At, skip: int) -> Walk[Element]:
    """Batches a window; there is one input after the first for each bucket."""
    length, ends = d._params["length"].at(at), np.asarray(d._params["boundaries"], np.int64)
    source, *batchers = d._inputs

    def bucket_of(element: Element, i: int) -> int:
        return int(np.searchsorted(ends, int(length(element, i)[0]), side="right"))

    def batches() -> Walk[Element]:
        for bucket, window in _collected(source._walk(at, 0), bucket_of, d._params["sizes"].__getitem__):
            if d._params["bounded"] and bucket == len(ends):
                raise ValueError(f"When pad_to_bucket_boundary=True, elements must have length < {ends[-1]}")
            yield from batchers[bucket]._walk(at.with_values({d._params["elements"]: window}), 0)

    return itertools.islice(batches(), skip, None)


@kind("in_whole_rounds")
def _in_whole_rounds(d: Described, at: At, skip: int) -> Walk[Element]:
    """Yields the batches, then empty batches until the last round is complete. The shape of an empty sparse batch has no rows either."""
    replicas, taken, last = d._params["replicas"], skip, None
    for last in d._inputs[0]._walk(at, skip):
        taken += 1
        yield last
    if last is not None and taken % replicas:
        shapes = set(d._params["shapes"])
        empty = [np.concatenate([[0], a[1:]]).astype(a.dtype) if i in shapes else a[:0] for i, a in enumerate(last)]
        yield from itertools.repeat(empty, replicas - taken % replicas)


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

    def scanned() -> Walk[Element]:
        state: Element = arrays_of(at, d._params["arrays"], d._params["given"])
        for i, element in enumerate(d._inputs[0]._walk(at, 0)):
            found = function([*state, *element], i)
            state = found[:kept]
            yield found[kept:]

    return itertools.islice(scanned(), skip, None)


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
