"""`Dataset`: a pipeline of elements.

Theory. A data set is a description; nothing runs until an iterator takes from it. It can be walked from any position: `walk(seeds,
skip)` gives the elements after the first `skip` ones. Most kinds leave elements out without making them (a batch of 64 leaves out
64 rows, a `map` does not call its function, a `repeat` leaves out whole rounds), so an input is restored quickly. What is random
depends only on the seeds: those of the iterator, of the shuffle, and the number of the round.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator as Walk, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .. import gfile
from ..graph.dtypes import bool_, int64
from ..graph.errors import NotFoundError
from ..graph.shape import Dims, TensorShape, as_dims
from .checks import AUTOTUNE, checked, described, positive, shapes_for
from .given import Given, Seeds, Source, whole_number
from .iterator import Iterator
from .mapping import Traced, ahead, in_order
from .spec import Array, Component, Element, as_array, flatten, pack, refuse_sparse


class Dataset:
    """Elements of one structure: nested tuples and dictionaries of arrays.

    >>> dataset = Dataset.range(10).shuffle(10, seed=1).batch(4)
    >>> x = dataset.make_one_shot_iterator().get_next()
    """

    def __init__(
        self,
        structure: Any,
        components: Sequence[Component],
        walk: Callable[[Seeds, int], Walk[Element]],
        size: float | None = None,
        given: Sequence[Given] = (),
    ) -> None:
        self._structure = structure
        self._components = tuple(components)
        self._walk = walk
        self._size = size  # how many elements; infinity: without end; None: nobody knows
        self._given = tuple(given)  # whose values an initializer brings

    def _then(
        self,
        structure: Any,
        components: Sequence[Component],
        walk: Callable[[Seeds, int], Walk[Element]],
        size: float | None = None,
        given: Sequence[Given] = (),
    ) -> Dataset:
        """What a transformation makes of this data set."""
        return Dataset(structure, components, walk, size, (*self._given, *given))

    # --- sources ---------------------------------------------------------------------------------------------------

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """One element for each index of the first axis of arrays in a structure.

        Args:
            tensors: arrays, or tensors, such as placeholders: their values are those that the initializer of
                `make_initializable_iterator` finds or is fed.

        Raises:
            ValueError: not one number of rows.

        >>> x = dt.placeholder(dt.float32, [None, 784])
        >>> iterator = dt.data.Dataset.from_tensor_slices(x).batch(32).make_initializable_iterator()
        >>> session.run(iterator.initializer, {x: images})
        """
        refuse_sparse(tensors, "from_tensor_slices")
        source = Source(flatten(tensors))
        shapes = [c.dims for c in source.components]
        sizes = {d[0] if d else None for d in shapes if d is not None}
        if () in shapes or len(sizes - {None}) > 1:
            raise ValueError(f"All components need the same number of rows: {shapes}")

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            parts = source.of(seeds)
            counts = {len(p) if p.ndim else None for p in parts}
            if len(counts) != 1 or None in counts:
                raise ValueError(f"All components need the same number of rows: {[p.shape for p in parts]}")
            for i in range(skip, len(parts[0])):
                yield [p[i : i + 1].reshape(p.shape[1:]) for p in parts]  # also text stays an array of objects

        components = [Component(c.dtype, None if c.dims is None else c.dims[1:]) for c in source.components]
        count = next(iter(sizes)) if len(sizes) == 1 and None not in shapes else None
        return Dataset(tensors, components, walk, count, source.given)

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """One element: the arrays, or tensors, as they are; see `from_tensor_slices`."""
        source = Source(flatten(tensors))

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            if skip == 0:
                yield source.of(seeds)

        return Dataset(tensors, source.components, walk, 1, source.given)

    @staticmethod
    def range(*args: int) -> Dataset:
        """int64 numbers, as Python's `range` has them."""
        numbers = range(*args)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            for n in numbers[skip:]:
                yield [np.asarray(n, np.int64)]

        return Dataset(0, [Component(int64, ())], walk, len(numbers))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: Sequence[Any] = ()
    ) -> Dataset:
        """What a Python function generates, each time it is called.

        Args:
            generator: gives something to iterate over. args: what it is called with.
            output_types: the element types, in the structure of an element. output_shapes: their shapes; None: unknown.
        """
        structure, components = described(output_types, output_shapes)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            for element in itertools.islice(iter(generator(*args)), skip, None):
                yield checked(element, structure, components)

        return Dataset(structure, components, walk)

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """The names of the files that match a pattern, or one of several: `/data/train-*.tfrecord`.

        Args:
            shuffle: in random order, another one in each round; None: so, too. False: sorted. seed: as of `shuffle`.

        Raises:
            NotFoundError: no file matches.
        """
        patterns = [file_pattern] if isinstance(file_pattern, (str, bytes, os.PathLike)) else list(file_pattern)
        found = sorted({name for p in patterns for name in gfile.Glob(os.fsdecode(p))})
        if not found:
            raise NotFoundError(None, None, f"No files matched pattern: {', '.join(map(os.fsdecode, patterns))}")
        names = Dataset.from_tensor_slices(np.array(found, object))
        return names if shuffle is False else names.shuffle(len(found), seed)

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """Elements of several data sets side by side, in a tuple or dictionary, as long as the shortest."""
        parts: list[Dataset] = flatten(datasets)
        structure = pack(datasets, [p._structure for p in parts])

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            for elements in zip(*[p._walk((*seeds, i), skip) for i, p in enumerate(parts)], strict=False):
                yield [a for e in elements for a in e]

        sizes = [p._size for p in parts]
        size = None if None in sizes else min(s for s in sizes if s is not None)
        return Dataset(
            structure, [c for p in parts for c in p._components], walk, size, [g for p in parts for g in p._given]
        )

    # --- what an element is ----------------------------------------------------------------------------------------

    @property
    def output_types(self) -> Any:
        """Element types, in the structure of an element."""
        return pack(self._structure, [c.dtype for c in self._components])

    @property
    def output_shapes(self) -> Any:
        """Shapes, in the structure of an element."""
        return pack(self._structure, [TensorShape(c.dims) for c in self._components])

    # --- transformations -------------------------------------------------------------------------------------------

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """`transformation_func(self)`."""
        return transformation_func(self)

    def map(self, map_func: Callable[..., Any], num_parallel_calls: int | None = None) -> Dataset:
        """A function of each element, made of graph ops; a tuple is given as several arguments.

        Args:
            map_func: is called once, with placeholders in a graph of its own, and gives tensors in any structure.
            num_parallel_calls: how many elements are worked on at once; their order stays. AUTOTUNE: one per processor.
        """
        if num_parallel_calls == AUTOTUNE:
            num_parallel_calls = os.cpu_count() or 1
        traced = Traced(self, map_func)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            call = traced.callable()
            elements = self._walk(seeds, skip)
            if not num_parallel_calls or num_parallel_calls == 1:
                for element in elements:
                    yield call(element)
                return
            with ThreadPoolExecutor(num_parallel_calls) as pool:
                yield from in_order(pool, call, elements, num_parallel_calls)

        return self._then(traced.structure, traced.components, walk, self._size)

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which a function of graph ops gives True."""
        traced = Traced(self, predicate)
        if len(traced.components) != 1 or traced.components[0].dtype is not bool_:
            raise ValueError("`predicate` must return a scalar boolean tensor.")

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            keep = traced.callable()
            return itertools.islice((e for e in self._walk(seeds, 0) if keep(e)[0]), skip, None)

        return self._then(self._structure, self._components, walk)

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True) -> Dataset:
        """In random order: each element is drawn from the next `buffer_size` ones.

        Args:
            seed: for the same order in each run. reshuffle_each_iteration: another order in each round of a `repeat`.
        """
        positive("buffer_size", buffer_size)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            started, *rounds = seeds
            key = [started if seed is None else seed, *(rounds if reshuffle_each_iteration else ())]
            rng = np.random.default_rng([int(k) & (2**64 - 1) for k in key])

            def draw() -> Walk[Element]:
                buffer: list[Element] = []
                for element in self._walk(seeds, 0):
                    if len(buffer) < buffer_size:
                        buffer.append(element)
                        continue
                    i = int(rng.integers(buffer_size))
                    drawn, buffer[i] = buffer[i], element
                    yield drawn
                for i in rng.permutation(len(buffer)):
                    yield buffer[i]

            return itertools.islice(draw(), skip, None)

        return self._then(self._structure, self._components, walk, self._size)

    def batch(self, batch_size: Any, drop_remainder: bool = False) -> Dataset:
        """`batch_size` elements stacked; the last batch may have fewer, unless `drop_remainder`. Shapes must agree.

        The size may be a tensor: see `from_tensor_slices`.
        """
        return self._batched(batch_size, drop_remainder, np.stack, [c.dims for c in self._components])

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Dataset:
        """The same for elements of different sizes, filled up at their ends.

        Args:
            padded_shapes: shapes to fill up to, in the structure of an element; None in a shape: the largest of the batch.
            padding_values: what with, in the same structure; None: zeros, or empty text.
        """
        shapes: list[Dims] = [c.dims for c in self._components]
        if padded_shapes is not None:
            shapes = [as_dims(s) for s in shapes_for(padded_shapes, self._structure)]
        values = [None] * len(shapes) if padding_values is None else flatten(padding_values)
        fills = [
            (b"" if c.dtype.np == np.dtype(object) else 0) if v is None else as_array(v, c.dtype)
            for c, v in zip(self._components, values, strict=True)
        ]

        def fill(arrays: Sequence[Array], i: int) -> Array:
            rank = arrays[0].ndim
            wanted = shapes[i] if shapes[i] is not None else (None,) * rank
            assert wanted is not None
            if not wanted:
                return np.stack(arrays)
            largest = [max(a.shape[k] for a in arrays) if d is None else d for k, d in enumerate(wanted)]
            out = np.full((len(arrays), *largest), fills[i], arrays[0].dtype)
            for row, a in zip(out, arrays, strict=True):
                if any(n > m for n, m in zip(a.shape, largest, strict=True)):
                    raise ValueError(f"an element of shape {a.shape} does not fit into {tuple(largest)}")
                row[tuple(slice(n) for n in a.shape)] = a
            return out

        return self._batched(batch_size, drop_remainder, fill, shapes, indexed=True)

    def _batched(
        self, size: Any, drop: bool, join: Callable[..., Array], shapes: Sequence[Dims], indexed: bool = False
    ) -> Dataset:
        rows_of, known, given = whole_number(size)
        if known is not None:
            positive("batch_size", known)
        refuse_sparse(self._structure, "batch")

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            size = rows_of(seeds)
            positive("batch_size", size)
            elements = self._walk(seeds, skip * size)
            while rows := list(itertools.islice(elements, size)):
                if drop and len(rows) < size:
                    return
                columns = list(zip(*rows, strict=True))
                yield [join(c, i) if indexed else join(c) for i, c in enumerate(columns)]

        first = known if drop else None
        components = [
            Component(c.dtype, None if dims is None else (first, *dims))
            for c, dims in zip(self._components, shapes, strict=True)
        ]
        count = None if known is None else self._size
        if known is not None and count is not None and count != float("inf"):
            count = count // known if drop else -(-count // known)
        return self._then(self._structure, components, walk, count, given)

    def repeat(self, count: Any = None) -> Dataset:
        """The elements again and again: `count` rounds; None or -1: without end. The number may be a tensor: see `from_tensor_slices`."""
        count_of, known, given = whole_number(-1 if count is None else count)
        size = self._size

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            count = count_of(seeds)
            rounds = None if count < 0 else count
            first = 0
            if size == 0:
                return
            if size is not None and size != float("inf"):
                first, skip = divmod(skip, int(size))
            for i in itertools.count(first) if rounds is None else range(first, rounds):
                seen = -1
                for seen, element in enumerate(self._walk((*seeds, i), skip if size is not None else 0)):  # noqa: B007
                    if size is None and skip > 0:  # how long a round is shows only at its end
                        skip -= 1
                        continue
                    yield element
                if size is not None:
                    skip = 0
                elif seen < 0:
                    return  # an empty round: there will never be anything

        total: float | None = None
        if size is not None and known is not None:
            total = size * known if known >= 0 else (float("inf") if size else 0)
        return self._then(self._structure, self._components, walk, total, given)

    def take(self, count: Any) -> Dataset:
        """The first `count` elements; -1: all. The number may be a tensor: see `from_tensor_slices`."""
        count_of, known, given = whole_number(count)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            count = count_of(seeds)
            elements = self._walk(seeds, skip)
            return elements if count < 0 else itertools.islice(elements, max(0, count - skip))

        size = self._size if known is not None and known < 0 else _least(known, self._size)
        return self._then(self._structure, self._components, walk, size, given)

    def skip(self, count: Any) -> Dataset:
        """All but the first `count` elements; -1: none. The number may be a tensor: see `from_tensor_slices`."""
        count_of, known, given = whole_number(count)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            count = count_of(seeds)
            return iter(()) if count < 0 else self._walk(seeds, count + skip)

        size: float | None = None
        if known is not None and self._size is not None:
            size = 0 if known < 0 else max(0, self._size - known)
        return self._then(self._structure, self._components, walk, size, given)

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every `num_shards`-th element, from `index` on: each worker its own. Shuffle after it, or with a seed before it."""
        if not 0 <= index < num_shards:
            raise ValueError(f"index must be in [0, {num_shards}), not {index}")

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            return itertools.islice(self._walk(seeds, index + skip * num_shards), 0, None, num_shards)

        size = self._size
        if size is not None and size != float("inf"):
            size = max(0, -(-(size - index) // num_shards))
        return self._then(self._structure, self._components, walk, size)

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of another data set after these."""
        size = self._size

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            if size is None:
                both = itertools.chain(self._walk((*seeds, 0), 0), dataset._walk((*seeds, 1), 0))
                yield from itertools.islice(both, skip, None)
                return
            yield from self._walk((*seeds, 0), skip)
            yield from dataset._walk((*seeds, 1), int(max(0, skip - size)))

        components = [
            c if c.dims == o.dims else Component(c.dtype, None)
            for c, o in zip(self._components, dataset._components, strict=True)
        ]
        total = None if size is None or dataset._size is None else size + dataset._size
        return self._then(self._structure, components, walk, total, dataset._given)

    def interleave(self, map_func: Callable[..., Dataset], cycle_length: int = 1, block_length: int = 1) -> Dataset:
        """A data set for each element, `cycle_length` of them at once, `block_length` elements of each in turn.

        Args:
            map_func: a Python function that gives a `Dataset`; it gets NumPy arrays (text as bytes), not tensors.
        """
        positive("cycle_length", cycle_length)
        positive("block_length", block_length)
        first = next(self._walk((0,), 0), None)
        if first is None:
            raise ValueError("there is no element from which to see what the data sets hold")
        like = self._called(map_func, first)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            def mixed() -> Walk[Element]:
                inputs = enumerate(self._walk(seeds, 0))
                slots: list[Walk[Element] | None] = [None] * cycle_length
                for at in itertools.cycle(range(cycle_length)):
                    if slots[at] is None:
                        i, element = next(inputs, (-1, None))
                        if element is not None:
                            slots[at] = self._called(map_func, element)._walk((*seeds, i), 0)
                    here = slots[at]
                    if here is not None:
                        block = list(itertools.islice(here, block_length))
                        yield from block
                        if len(block) < block_length:  # it has ended: the next one is taken in the next turn
                            slots[at] = None
                    elif not any(slots):
                        return

            return itertools.islice(mixed(), skip, None)

        return self._then(like._structure, like._components, walk)

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """The elements of a data set for each element, one data set after the other; see `interleave`."""
        return self.interleave(map_func, cycle_length=1)

    def _called(self, map_func: Callable[..., Dataset], element: Element) -> Dataset:
        given = pack(self._structure, [a.item() if a.dtype == object and a.ndim == 0 else a for a in element])
        found = map_func(*given) if isinstance(given, tuple) else map_func(given)
        if not isinstance(found, Dataset):
            raise TypeError(f"`map_func` must return a Dataset, not {found!r}")
        return found

    def cache(self) -> Dataset:
        """Keep the elements of the first round in memory, and give the same ones in the rounds after it."""
        kept: dict[int, list[Element]] = {}

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            start = seeds[0] if self._given else 0  # a data set of tensors has other elements with each start
            if start in kept:
                yield from kept[start][skip:]
                return
            elements: list[Element] = []
            for i, element in enumerate(self._walk(seeds, 0)):
                elements.append(element)
                if i >= skip:
                    yield element
            kept.clear()
            kept[start] = elements

        return self._then(self._structure, self._components, walk, self._size)

    def prefetch(self, buffer_size: int) -> Dataset:
        """Make up to `buffer_size` elements ahead, in a thread; AUTOTUNE: two."""
        if buffer_size == AUTOTUNE:
            buffer_size = 2  # one that is taken, one that is made
        positive("buffer_size", buffer_size)
        return self._then(
            self._structure, self._components, lambda s, skip: ahead(self._walk(s, skip), buffer_size), self._size
        )

    # --- iterators -------------------------------------------------------------------------------------------------

    def make_one_shot_iterator(self, name: str | None = None) -> Iterator:
        """An iterator that starts by itself."""
        return Iterator(self, True, name)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Iterator:
        """An iterator that starts when its `initializer` runs, and starts again each time."""
        return Iterator(self, False, shared_name)

    def __iter__(self) -> Walk[Any]:
        """The elements as NumPy arrays, here and now, without a graph."""
        for element in self._walk((np.random.SeedSequence().entropy % 2**62,), 0):  # type: ignore[operator]
            yield pack(self._structure, element)

    def __repr__(self) -> str:
        return f"<dt.data.Dataset shapes: {self.output_shapes}, types: {self.output_types}>"


def _least(count: int | None, size: float | None) -> float | None:
    return None if count is None or size is None else min(count, size)
