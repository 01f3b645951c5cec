"""`Dataset`: a pipeline of elements.

Theory. A data set is a description: a kind, parameters, and the data sets that it is made from. It is lazy: nothing runs until an
iterator requests an element. `element_iterators.py`, `combined_iterators.py` and `files.py` define how each kind makes its
elements. A description can be sent (`serialize.py`), so an iterator runs where it is placed: in this process, or in a worker's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator as Walk, Sequence
from typing import Any

import numpy as np

from ..graph.core.argument_names import explain_members
from ..graph.core.dtypes import bool_, int64, string, variant
from ..graph.core.graph import Tensor
from ..graph.core.shape import Dims, common
from ..graph.resources.resource_manager import Resources
from . import combined_iterators as _combined, element_iterators as _walks, files as _files  # noqa: F401  (they register kinds)
from .checks import (
    AUTOTUNE,
    at_least_one,
    described,
    dims_of_shape,
    need_tensors,
    padding,
    shapes_for,
)
from .function import DatasetFunction, Function, dataset_traced, folded, given_in, traced
from .iterator import Iterator, single_element
from .kind_registry import Described
from .options import Options
from .runtime_values import At, Given, Source, as_known, known, seed_of, whole_number
from .spec import Component, Element, flatten, pack, same_form, sparse_starts


class Dataset(Described):
    """An input pipeline: a sequence of elements with the same structure, nested tuples and dictionaries of arrays.

    Transformations return a new data set. Elements are computed when an iterator requests them. Counts and sizes may also be tensors, which
    are evaluated when an iterator starts.

    >>> dataset = Dataset.range(10).shuffle(10, seed=1).batch(4)
    >>> x = dataset.make_one_shot_iterator().get_next()
    """

    def __init__(
        self,
        kind: str,
        structure: Any,
        components: Sequence[Component],
        inputs: Sequence[Dataset] = (),
        size: float | None = None,
        **params: Any,
    ) -> None:
        self._kind, self._params = kind, params
        self._structure = structure
        self._components = tuple(components)
        self._inputs = tuple(inputs)
        self._size = size
        self._memory = {}
        self._sent = False  # by another process
        found = [g for d in inputs for g in d._given] + given_in(tuple(params.values()))
        # Tensors whose values the initializer passes in.
        self._given = tuple(dict.fromkeys(g for g in found if g.count))
        self._options: Any = next((d._options for d in inputs if d._options is not None), None)

    def _then(self, kind: str, size: float | None = None, like: Described | None = None, **params: Any) -> Dataset:
        """What a transformation that changes no element makes of this data set. `like`: has the elements that come out."""
        like = like or self
        return Dataset(kind, like._structure, like._components, (self,), size, **params)

    def _from(self, *seeds: int) -> Walk[Element]:
        """All elements, computed in this process."""
        return self._walk(At(seeds))

    def walk_from(self, seed: int, skip: int, values: Sequence[Any], task: Resources) -> Walk[Element]:
        """The elements after the first `skip` ones. `values`: of its tensors, in the order of `_given`; empty: not known."""
        left = iter(values)
        brought = {g: [next(left) for _ in range(g.count)] for g in self._given} if values else {}
        return self._walk(At((seed,), brought, task, sent=self._sent), skip)

    # --- sources ---------------------------------------------------------------------------------------------------

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """A data set with one element for each index of the first axis of the given arrays.

        Args:
            tensors: a structure of arrays, sparse tensors, or graph tensors such as placeholders. Graph tensors are evaluated by the
                initializer of `make_initializable_iterator`, which may be fed.

        Raises:
            ValueError: the first axes have different sizes.

        >>> x = dt.placeholder(dt.float32, [None, 784])
        >>> iterator = dt.data.Dataset.from_tensor_slices(x).batch(32).make_initializable_iterator()
        >>> session.run(iterator.initializer, {x: images})
        """
        source, sparse = Source(flatten(tensors)), sparse_starts(tensors)
        components = _sliced_components(source.components, sparse)
        shapes = [c.dims for c in source.components]
        for i in sparse:  # the sizes of a sparse tensor are its third component
            known_sizes = source.arrays[i + 2]
            rows = (None,) if known_sizes is None else tuple(known_sizes.tolist()[:1])
            shapes[i : i + 3] = [rows] * 3
        sizes = {d[0] if d else None for d in shapes if d is not None}
        if () in shapes or len(sizes - {None}) > 1:
            raise ValueError(f"All components need the same number of rows: {shapes}")
        count = next(iter(sizes)) if len(sizes) == 1 and None not in shapes else None
        params = {"arrays": source.arrays, "given": source.given, "sparse": sparse}
        return Dataset("tensor_slices", tensors, components, (), count, **params)

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """A data set with one element: the given arrays or tensors. See `from_tensor_slices`."""
        source = Source(flatten(tensors))
        return Dataset("tensors", tensors, source.components, (), 1, arrays=source.arrays, given=source.given)

    @staticmethod
    def range(*args: Any) -> Dataset:
        """The int64 numbers of Python's `range(*args)`. The arguments may be tensors: see `from_tensor_slices`."""
        numbers = [whole_number(n) for n in args]
        if not 1 <= len(numbers) <= 3:
            raise ValueError(f"Invalid `args`. The length of `args` should be between 1 and 3 but was {len(numbers)}.")
        ends = [n for n in map(as_known, numbers) if n is not None]
        size = _length(range(*ends)) if len(ends) == len(numbers) else None
        return Dataset("range", 0, [Component(int64, ())], (), size, args=tuple(numbers))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: Sequence[Any] = ()
    ) -> Dataset:
        """The elements that a Python function yields. The function runs in this process only, so the iterator must be in this process.

        Args:
            generator: called in each iteration over the data set; returns an iterable.
            args: arrays or tensors that are passed to it, as arrays.
            output_types: the element types, in the structure of an element.
            output_shapes: the shapes, in the same structure; None: unknown.
        """
        if not callable(generator):
            raise TypeError("`generator` must be callable.")
        structure, components = described(output_types, output_shapes)
        source = Source(list(args))
        return Dataset(
            "generator", structure, components, generator=generator, arrays=source.arrays, given=source.given
        )

    @staticmethod
    def list_files(file_pattern: Any, shuffle: bool | None = None, seed: Any = None) -> Dataset:
        """The names of the files that match a pattern, such as `/data/train-*.tfrecord`, or one of several patterns.

        The pattern is matched when an iterator starts, on the task where it runs. If no file matches, the step fails with
        InvalidArgumentError.

        Args:
            file_pattern: a string, several, or a tensor of them.
            shuffle: True or None: random order, different in each round. False: sorted.
            seed: as in `Dataset.shuffle`.
        """
        if isinstance(file_pattern, (list, tuple)):
            file_pattern = [os.fsdecode(p) if isinstance(p, os.PathLike) else p for p in file_pattern]
        elif isinstance(file_pattern, os.PathLike):
            file_pattern = os.fsdecode(file_pattern)
        source = Source([file_pattern])
        names = Dataset("matching_files", "", [Component(string, ())], arrays=source.arrays, given=source.given)
        return names if shuffle is False else names.shuffle(2**31, seed)

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """Combine the elements of several data sets in the structure of `datasets`. The shortest data set determines the length."""
        parts: list[Any] = flatten(datasets)
        for part in parts:
            if not isinstance(part, Dataset):
                raise TypeError(
                    f"The argument to `Dataset.zip()` must be a nested structure of `Dataset` objects, not {part!r}"
                )
        structure = pack(datasets, [p._structure for p in parts])
        sizes = [p._size for p in parts]
        size = None if None in sizes else min(s for s in sizes if s is not None)
        return Dataset("zip", structure, [c for p in parts for c in p._components], parts, size)

    # --- one by one ------------------------------------------------------------------------------------------------

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Apply a transformation: `transformation_func(self)`."""
        found = transformation_func(self)
        if not isinstance(found, Dataset):
            raise TypeError(f"`transformation_func` must return a Dataset, not {found!r}")
        return found

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None) -> Dataset:
        """Apply a function of graph ops to each element. A tuple is passed as several arguments.

        The function is traced once in its own graph, and returns tensors in any structure. It may use variables, tables and queues of the
        outer graph that are in the iterator's task, with their values at each call; and other tensors of the outer graph, with their values
        when the iterator starts.

        Args:
            map_func: function of an element.
            num_parallel_calls: number of elements to process in parallel; the order is kept. AUTOTUNE: one per processor.
        """
        return self._mapped(map_func, num_parallel_calls, "Dataset.map()", ends=True)

    def _mapped(self, map_func: Callable[..., Any], num_parallel_calls: Any, what: str, ends: bool) -> Dataset:
        """`ends`: an OutOfRangeError of the function, as an empty closed queue gives it, is the end of the elements; else an error."""
        function, structure = self._traced(map_func, what)
        calls = None if num_parallel_calls is None else whole_number(num_parallel_calls)
        more = {"function": function, "calls": calls, "ends": ends}
        return Dataset("map", structure, function.components, (self,), self._size, **more)

    map_with_legacy_function = map
    """`map` (TensorFlow has an older way to trace functions under this name)."""

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which a function of graph ops returns True."""
        return self._then("filter", function=self._predicate(predicate, "Dataset.filter()"))

    filter_with_legacy_function = filter
    """`filter`, likewise."""

    def _traced(self, function: Callable[..., Any], what: str) -> tuple[Function, Any]:
        return traced(function, self._structure, self._components, what)

    def _predicate(self, function: Callable[..., Any], what: str) -> Function:
        found, _ = self._traced(function, what)
        if (
            len(found.outputs) != 1
            or found.outputs[0].dtype.base is not bool_
            or found.outputs[0].dims not in ((), None)
        ):
            raise ValueError("`predicate` must return a scalar boolean tensor.")
        return found

    def shuffle(self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: bool | None = None) -> Dataset:
        """Shuffle the elements: each one is drawn at random from a buffer of the next `buffer_size` elements.

        Args:
            buffer_size: size of the buffer.
            seed: makes the order the same in each run; None: the seed of the graph (`set_random_seed`), or else another order each time
                that an iterator starts.
            reshuffle_each_iteration: whether each round of a `repeat` has another order; None: True.
        """
        size = whole_number(buffer_size)
        at_least_one("buffer_size", size)
        again = reshuffle_each_iteration is not False
        return self._then("shuffle", self._size, buffer_size=size, seed=seed_of(seed), reshuffle=again)

    def enumerate(self, start: Any = 0) -> Dataset:
        """Pairs `(number, element)`, with numbers from `start` on."""
        return Dataset.zip((Dataset.range(start, 2**63 - 1), self))

    def unbatch(self) -> Dataset:
        """Split each element into its rows.

        Raises:
            ValueError: the components have different numbers of rows.
        """
        need_tensors(self._components, "unbatch")
        sparse = sparse_starts(self._structure)
        dense = [c for i, c in enumerate(self._components) if not any(start <= i < start + 3 for start in sparse)]
        counts = {c.dims[:1] for c in dense if c.dims is not None} - {(None,)}
        if len(counts) > 1 or () in counts:
            raise ValueError(f"unbatch: the components have no common number of rows: {self.output_shapes}")
        components = _sliced_components(self._components, sparse)
        return Dataset("unbatch", self._structure, components, (self,), sparse=sparse)

    def repeat(self, count: Any = None) -> Dataset:
        """Repeat the elements `count` times; None or -1: without end."""
        rounds = whole_number(-1 if count is None else count)
        number, size = as_known(rounds), self._size
        total: float | None = None
        if size is not None and number is not None:
            total = size * number if number >= 0 else (float("inf") if size else 0)
        return self._then("repeat", total, count=rounds)

    def take(self, count: Any) -> Dataset:
        """The first `count` elements; -1: all."""
        number = whole_number(count)
        first = as_known(number)
        size = self._size if first is not None and first < 0 else _least(first, self._size)
        return self._then("take", size, count=number)

    def skip(self, count: Any) -> Dataset:
        """All elements except the first `count`; -1: no elements."""
        number = whole_number(count)
        first = as_known(number)
        size: float | None = None
        if first is not None and self._size is not None:
            size = 0 if first < 0 else max(0, self._size - first)
        return self._then("skip", size, count=number)

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """Every `num_shards`-th element, from number `index` on, so that each worker reads its own part.

        Shuffle after it, or with a seed before it.
        """
        shards, which = whole_number(num_shards), whole_number(index)
        count, first = as_known(shards), as_known(which)
        if count is not None and count < 1:
            raise ValueError(f"num_shards must be >= 1; got {count}")
        if count is not None and first is not None and not 0 <= first < count:
            raise ValueError(f"index must be in [0, {count}), not {first}")
        size = self._size if count is not None and first is not None else None
        if size is not None and count is not None and first is not None and size != float("inf"):
            size = max(0, -(-(size - first) // count))
        return self._then("shard", size, num_shards=shards, index=which)

    def cache(self, filename: Any = "") -> Dataset:
        """Store the elements of the first round, and return them again in later rounds.

        Args:
            filename: file for the elements, which later runs of the program reuse; it is written when a round is complete. "": in memory.
        """
        name = known(filename)
        if isinstance(name, str) and not name:
            return self._then("cache", self._size, filename=None, given=None)
        need_tensors(self._components, "cache in a file")
        source = Source([os.fspath(name) if isinstance(name, os.PathLike) else name])
        return self._then("cache", self._size, filename=source.arrays, given=source.given)

    def prefetch(self, buffer_size: Any) -> Dataset:
        """Compute up to `buffer_size` elements ahead, in a thread of the iterator's task. AUTOTUNE or 0: two."""
        size = whole_number(buffer_size)
        number = as_known(size)
        if number is not None and number < AUTOTUNE:
            raise ValueError(f"buffer_size must be at least 0, or AUTOTUNE, not {number}")
        return self._then("prefetch", self._size, buffer_size=size)

    def with_options(self, options: Options) -> Dataset:
        """The same data set with options.

        Only `experimental_deterministic` has an effect: if False, elements of parallel calls may come in any order.
        """
        sloppy = options.experimental_deterministic is False
        found = self._then("with_options", self._size, sloppy=sloppy)
        found._options = options if self._options is None else self._options.merge(options)
        return found

    def options(self) -> Options:
        """The options of the data set."""
        return self._options or Options()

    # --- batches ---------------------------------------------------------------------------------------------------

    def batch(self, batch_size: Any, drop_remainder: Any = False) -> Dataset:
        """Stack `batch_size` consecutive elements along a new first axis.

        Args:
            batch_size: number of elements per batch; their shapes must agree.
            drop_remainder: drop a last batch with fewer elements.
        """
        return self._batched(
            "batch",
            batch_size,
            drop_remainder,
            [c.dims for c in self._components],
            sparse=sparse_starts(self._structure),
        )

    def padded_batch(
        self,
        batch_size: Any,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: Any = False,
    ) -> Dataset:
        """Like `batch`, for elements of different sizes, which are padded at the end of each axis.

        Args:
            batch_size: number of elements per batch.
            padded_shapes: shapes after padding, in the structure of an element, or int64 tensors of them. None or -1 in a shape: the
                largest size in the batch.
            padding_values: scalars in the same structure; None: zeros, or empty strings.
            drop_remainder: drop a last batch with fewer elements.
        """
        if sparse_starts(self._structure):
            raise TypeError("Batching of padded sparse tensors is not currently supported: use batch")
        shapes: list[Any] = [c.dims for c in self._components]
        late: list[Tensor] = []
        if padded_shapes is not None:
            padded = zip(shapes_for(padded_shapes, self._structure), self._components, strict=True)
            shapes = [dims_of_shape(s, late, c.dims) for s, c in padded]
        values = [None] * len(shapes) if padding_values is None else flatten(padding_values)
        if len(values) != len(shapes):
            values = values * len(shapes) if len(values) == 1 else values
        fills = [padding(v, c) for c, v in zip(self._components, values, strict=True)]
        source = Source(fills)
        return self._batched(
            "padded_batch", batch_size, drop_remainder, [None if d == "given" else d for d in shapes],
            shapes=tuple(shapes), shapes_given=Given(late) if late else None, values=source.arrays, values_given=source.given,
        )  # fmt: skip

    def window(self, size: Any, shift: Any = None, stride: Any = 1, drop_remainder: Any = False) -> Dataset:
        """Group elements into windows: each element of the result is a data set, or a structure of data sets, one for each component.

        `flat_map` and `interleave` take such elements. Iterators, `map` and `batch` do not.

        Args:
            size: number of elements of a window.
            shift: number of elements from the beginning of a window to that of the next one; None: `size`.
            stride: number of elements from one element of a window to the next one.
            drop_remainder: drop the last windows, which have fewer elements.

        >>> Dataset.range(5).window(3, shift=1, drop_remainder=True).flat_map(lambda w: w.batch(3))  # [0 1 2], [1 2 3], [2 3 4]
        """
        numbers = tuple([whole_number(n) for n in (size, size if shift is None else shift, stride)])
        for name, number in zip(("size", "shift", "stride"), numbers, strict=True):
            at_least_one(name, number)
        if sparse_starts(self._structure):
            raise TypeError("window takes no sparse tensors: batch them instead")
        leaves = zip(flatten(self._structure), self._components, strict=True)
        windows = [Dataset("window", leaf if c.dtype is variant else 0, [c]) for leaf, c in leaves]
        structure = pack(self._structure, windows)
        dropped = whole_number(drop_remainder)
        return Dataset(
            "windows", structure, [Component(variant, ())] * len(windows), (self,), None, numbers=numbers, drop=dropped
        )

    def with_elements(self, elements: Given) -> Dataset:
        """A data set of such elements that walks get by name."""
        return Dataset("window", self._structure, self._components, elements=elements)

    def _batched(self, kind: str, size: Any, drop: Any, row_dims: Sequence[Dims], **params: Any) -> Dataset:
        need_tensors(self._components, kind)
        rows, dropped = whole_number(size), whole_number(drop)
        at_least_one("batch_size", rows)
        number, cut = as_known(rows), as_known(dropped)
        first = number if cut else None
        components = [
            Component(c.dtype, None if dims is None else (first, *dims))
            for c, dims in zip(self._components, row_dims, strict=True)
        ]
        for i in params.get("sparse", ()):
            rank = None if (dims := self._components[i].dims) is None else dims[1]
            wider = None if rank is None else rank + 1
            sizes = ((None, wider), (None,), (wider,))
            components[i : i + 3] = [Component(c.dtype, n) for c, n in zip(components[i : i + 3], sizes, strict=True)]
        count = None if number is None or cut is None else self._size
        if number is not None and count is not None and count != float("inf"):
            count = count // number if cut else -(-count // number)
        return Dataset(kind, self._structure, components, (self,), count, batch_size=rows, drop=dropped, **params)

    # --- several ---------------------------------------------------------------------------------------------------

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this data set, then those of another one.

        Raises:
            TypeError: structures or types differ.
        """
        mine, theirs = self._components, dataset._components
        if not same_form(self._structure, dataset._structure) or [c.dtype for c in mine] != [c.dtype for c in theirs]:
            raise TypeError(
                f"Two datasets to concatenate have different types {self.output_types} and {dataset.output_types}"
            )
        components = [
            c if c.dims == o.dims else Component(c.dtype, common(c.dims, o.dims))
            for c, o in zip(mine, theirs, strict=True)
        ]
        total = None if self._size is None or dataset._size is None else self._size + dataset._size
        return Dataset("concatenate", self._structure, components, (self, dataset), total)

    def interleave(
        self,
        map_func: Callable[..., Dataset],
        cycle_length: Any = 1,
        block_length: Any = 1,
        num_parallel_calls: Any = None,
    ) -> Dataset:
        """Map each element to a data set, and interleave the elements of `cycle_length` data sets round-robin.

        Args:
            map_func: returns a `Dataset` for an element; it is traced like the function of `map`.
            cycle_length: number of data sets that are open at a time. AUTOTUNE: one per processor.
            block_length: number of consecutive elements of each data set.
            num_parallel_calls: if given, each open data set computes elements ahead in its own thread. The order is kept.
        """
        cycle, block = whole_number(cycle_length), whole_number(block_length)
        if as_known(cycle) != AUTOTUNE:
            at_least_one("cycle_length", cycle)
        at_least_one("block_length", block)
        function = self._dataset_traced(map_func)
        return self._then(
            "interleave", like=function.result, function=function, cycle_length=cycle, block_length=block,
            calls=None if num_parallel_calls is None else whole_number(num_parallel_calls),
        )  # fmt: skip

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Map each element to a data set, and concatenate these; see `interleave`."""
        return self.interleave(map_func, cycle_length=1)

    def _dataset_traced(self, function: Callable[..., Any]) -> DatasetFunction:
        return dataset_traced(function, self._structure, self._components, "map_func")

    # --- folded ----------------------------------------------------------------------------------------------------

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Reduce all elements to one state, as tensors. Each step iterates over the whole data set.

        Args:
            initial_state: the first state, in any structure.
            reduce_func: (state, element) -> next state; traced like the function of `map`.

        >>> session.run(Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x))
        10
        """
        fold = folded(self, initial_state, reduce_func, "reduce_func")
        return single_element(Dataset("reduce", fold.state, fold.components, (self,), 1, **fold.params))

    # --- iterators -------------------------------------------------------------------------------------------------

    def make_one_shot_iterator(self, name: str | None = None) -> Iterator:
        """An iterator that needs no initialization and iterates once."""
        return Iterator(self, True, name)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Iterator:
        """An iterator that starts, or starts again, when its `initializer` runs."""
        return Iterator(self, False, shared_name)

    def __iter__(self) -> Walk[Any]:
        """Iterate over the elements as NumPy arrays, in this process and without a graph."""
        need_tensors(self._components, "iteration")
        for element in self._from(np.random.SeedSequence().entropy % 2**62):  # type: ignore[operator]
            yield pack(self._structure, element)

    def __repr__(self) -> str:
        return f"<dt.data.{type(self).__name__} shapes: {self.output_shapes}, types: {self.output_types}>"


def _sliced_components(components: Sequence[Component], sparse: Sequence[int]) -> list[Component]:
    """The components of the rows of an element. `sparse`: where the three components of sparse tensors begin."""
    sliced = [Component(c.dtype, None if c.dims is None else c.dims[1:]) for c in components]
    for i in sparse:
        sizes = components[i + 2].dims
        rank = None if sizes is None or sizes[0] is None else max(0, sizes[0] - 1)
        dims = ((None, rank), (None,), (rank,))
        sliced[i : i + 3] = [Component(c.dtype, n) for c, n in zip(components[i : i + 3], dims, strict=True)]
    return sliced


def _length(numbers: range) -> int:
    """How many there are: `len` takes no range of 2**63 and more."""
    return max(0, (numbers.stop - numbers.start + numbers.step - (1 if numbers.step > 0 else -1)) // numbers.step)


def _least(count: int | None, size: float | None) -> float | None:
    return None if count is None or size is None else min(count, size)


def make_one_shot_iterator(dataset: Dataset) -> Iterator:
    """`dataset.make_one_shot_iterator()`, as TensorFlow 2's compatibility names have it."""
    return dataset.make_one_shot_iterator()


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Iterator:
    """`dataset.make_initializable_iterator()`, likewise."""
    return dataset.make_initializable_iterator(shared_name)


explain_members(Dataset)

__all__ = ["Dataset", "make_initializable_iterator", "make_one_shot_iterator"]
