"""`Dataset`: a pipeline of elements.

A data set is a description: a kind, parameters, and input data sets. It is lazy: nothing runs until an iterator requests an element.
`element_iterators.py`, `combined_iterators.py` and `files.py` define how each kind makes its elements. A description can be sent
to a worker (`serialize.py`), so an iterator runs in the task where it is placed.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.core.argument_names import explain_members
from ..graph.core.dtypes import bool_, int64, string, variant
from ..graph.core.graph import Tensor
from ..graph.core.shape import Dims, common
from ..graph.resources.resource_manager import Resources
from . import combined_iterators as _combined, element_iterators as _iterators, files as _files  # noqa: F401  (they register kinds)
from .checks import (
    AUTOTUNE,
    at_least_one,
    dims_of_shape,
    element_spec,
    need_tensors,
    padding,
    shapes_for,
)
from .function import Function, runtime_inputs_in, trace_dataset_function, trace_fold, trace_function
from .iterator import Iterator, single_element
from .kind_registry import DatasetBase
from .options import Options
from .runtime_values import (
    IterationContext,
    RuntimeInputs,
    Source,
    int_input,
    seed_of,
    static_int,
    static_value_or_tensor,
)
from .spec import Component, Element, flatten, pack, row_components, same_structure, sparse_components, sparse_starts


class Dataset(DatasetBase):
    """An input pipeline: a sequence of elements with one structure. An element is a nest of tuples and dictionaries of arrays.

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
        self._sent = False  # whether another process sent it
        found = [g for d in inputs for g in d._runtime_inputs] + runtime_inputs_in(tuple(params.values()))
        # The initializer passes in the values of these tensors.
        self._runtime_inputs = tuple(dict.fromkeys(g for g in found if g.count))
        self._options: Any = next((d._options for d in inputs if d._options is not None), None)

    def _transformed(
        self, kind: str, size: float | None = None, like: DatasetBase | None = None, **params: Any
    ) -> Dataset:
        """Returns a data set of `kind` with this one as its input. Its elements have the structure of `like`; None: of this one."""
        like = like or self
        return Dataset(kind, like._structure, like._components, (self,), size, **params)

    def _iterate_with_seeds(self, *seeds: int) -> abc.Iterator[Element]:
        """Yields all elements, computed in this process."""
        return self._iterate(IterationContext(seeds))

    def iterate_from(self, seed: int, skip: int, values: Sequence[Any], task: Resources) -> abc.Iterator[Element]:
        """Implements `Elements.iterate_from` of `graph/ops/io/iterators.py`. `values` follows the order of `_runtime_inputs`."""
        left = iter(values)
        brought = {g: [next(left) for _ in range(g.count)] for g in self._runtime_inputs} if values else {}
        return self._iterate(IterationContext((seed,), brought, task, sent=self._sent), skip)

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
        components = row_components(source.components, sparse)
        shapes = [c.dims for c in source.components]
        for i in sparse:  # the third component of a sparse tensor is its dense shape
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
        """A data set with one element: the given arrays or tensors.

        Args:
            tensors: as in `from_tensor_slices`.
        """
        source = Source(flatten(tensors))
        return Dataset("tensors", tensors, source.components, (), 1, arrays=source.arrays, given=source.given)

    @staticmethod
    def range(*args: Any) -> Dataset:
        """The int64 numbers of Python's `range(*args)`.

        Args:
            args: stop; start and stop; or start, stop and step. Integers, or tensors as in `from_tensor_slices`.

        Raises:
            ValueError: there are no arguments, or more than three.
        """
        numbers = [int_input(n) for n in args]
        if not 1 <= len(numbers) <= 3:
            raise ValueError(f"Invalid `args`. The length of `args` should be between 1 and 3 but was {len(numbers)}.")
        ends = [n for n in map(static_int, numbers) if n is not None]
        size = _iterators.range_length(*ends) if len(ends) == len(numbers) else None
        return Dataset("range", 0, [Component(int64, ())], (), size, args=tuple(numbers))

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: Sequence[Any] = ()
    ) -> Dataset:
        """The elements that a Python function yields. The function runs in this process only, so the iterator must be in this process.

        Args:
            generator: function that returns an iterable of elements. Each iteration over the data set calls it.
            output_types: the element types, in the structure of an element.
            output_shapes: the shapes, in the same structure; None: unknown.
            args: arrays or tensors. The function receives them as arrays.

        Raises:
            TypeError: `generator` is not callable.
        """
        if not callable(generator):
            raise TypeError("`generator` must be callable.")
        structure, components = element_spec(output_types, output_shapes)
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
        source = _files.file_names_source(file_pattern)
        names = Dataset("matching_files", "", [Component(string, ())], arrays=source.arrays, given=source.given)
        return names if shuffle is False else names.shuffle(2**31, seed)

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """Combine the elements of several data sets. The shortest data set determines the length.

        Args:
            datasets: a structure of data sets. An element of the result has the same structure.

        Raises:
            TypeError: a part of the structure is not a data set.

        >>> Dataset.zip((Dataset.range(3), Dataset.range(5, 8)))  # (0, 5), (1, 6), (2, 7)
        """
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

    # --- element by element ----------------------------------------------------------------------------------------

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """Apply a transformation: `transformation_func(self)`.

        Raises:
            TypeError: the result is not a data set.
        """
        found = transformation_func(self)
        if not isinstance(found, Dataset):
            raise TypeError(f"`transformation_func` must return a Dataset, not {found!r}")
        return found

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None) -> Dataset:
        """Apply a function of graph ops to each element. A tuple is passed as several arguments.

        The function is traced once in its own graph. It may use variables, tables and queues of the outer graph that are in the
        iterator's task; each call sees their current values. It may also capture other tensors of the outer graph; it sees their values
        from when the iterator started.

        Args:
            map_func: function of an element; it returns tensors in any structure.
            num_parallel_calls: number of elements to process in parallel; the order is kept. AUTOTUNE: one per processor.

        Raises:
            TypeError: the function returns something that is not a tensor.

        >>> Dataset.range(3).map(lambda x: x * x)  # 0, 1, 4
        """
        return self._mapped(map_func, num_parallel_calls, "Dataset.map()", ends=True)

    def _mapped(self, map_func: Callable[..., Any], num_parallel_calls: Any, what: str, ends: bool) -> Dataset:
        """Implements `map`. `ends`: whether an OutOfRangeError of the function, as from a closed queue, ends the data set."""
        function, structure = self._trace(map_func, what)
        calls = None if num_parallel_calls is None else int_input(num_parallel_calls)
        more = {"function": function, "calls": calls, "ends": ends}
        return Dataset("map", structure, function.components, (self,), self._size, **more)

    map_with_legacy_function = map
    """`map` (TensorFlow has an older way to trace functions under this name)."""

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which a function of graph ops returns True.

        Args:
            predicate: function of an element; it returns a bool scalar.

        Raises:
            ValueError: the result is not a bool scalar.
        """
        return self._transformed("filter", function=self._predicate(predicate, "Dataset.filter()"))

    filter_with_legacy_function = filter
    """`filter` (TensorFlow has an older way to trace functions under this name)."""

    def _trace(self, function: Callable[..., Any], what: str) -> tuple[Function, Any]:
        return trace_function(function, self._structure, self._components, what)

    def _predicate(self, function: Callable[..., Any], what: str) -> Function:
        found, _ = self._trace(function, what)
        if [c.dtype for c in found.components] != [bool_] or found.components[0].dims not in ((), None):
            raise ValueError("`predicate` must return a scalar boolean tensor.")
        return found

    def shuffle(self, buffer_size: Any, seed: Any = None, reshuffle_each_iteration: bool | None = None) -> Dataset:
        """Shuffle the elements: each one is drawn at random from a buffer of the next `buffer_size` elements.

        Args:
            buffer_size: size of the buffer.
            seed: seed of the order. None: the graph's seed (`set_random_seed`); if it has none, the order differs at each start.
            reshuffle_each_iteration: whether each round of a `repeat` has another order; None: True.

        Raises:
            ValueError: `buffer_size` is less than 1.
        """
        size = int_input(buffer_size)
        at_least_one("buffer_size", size)
        again = reshuffle_each_iteration is not False
        return self._transformed("shuffle", self._size, buffer_size=size, seed=seed_of(seed), reshuffle=again)

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
        components = row_components(self._components, sparse)
        return Dataset("unbatch", self._structure, components, (self,), sparse=sparse)

    def repeat(self, count: Any = None) -> Dataset:
        """Repeat the elements `count` times; None or -1: without end.

        >>> Dataset.range(2).repeat(2)  # 0, 1, 0, 1
        """
        rounds = int_input(-1 if count is None else count)
        number, size = static_int(rounds), self._size
        total: float | None = None
        if size is not None and number is not None:
            total = size * number if number >= 0 else (float("inf") if size else 0)
        return self._transformed("repeat", total, count=rounds)

    def take(self, count: Any) -> Dataset:
        """The first `count` elements; -1: all."""
        number = int_input(count)
        first = static_int(number)
        size = None if first is None or self._size is None else self._size if first < 0 else min(first, self._size)
        return self._transformed("take", size, count=number)

    def skip(self, count: Any) -> Dataset:
        """All elements except the first `count`; -1: no elements."""
        number = int_input(count)
        first = static_int(number)
        size: float | None = None
        if first is not None and self._size is not None:
            size = 0 if first < 0 else max(0, self._size - first)
        return self._transformed("skip", size, count=number)

    def shard(self, num_shards: Any, index: Any) -> Dataset:
        """Every `num_shards`-th element, from number `index` on, so that each worker reads its own part.

        Shuffle after this. A shuffle before it needs a seed, so that all workers have the same order.

        Args:
            num_shards: number of parts.
            index: number of this part, from 0.

        Raises:
            ValueError: `index` is not below `num_shards`, or a number is negative.
        """
        shards, which = int_input(num_shards), int_input(index)
        count, first = static_int(shards), static_int(which)
        if count is not None and count < 1:
            raise ValueError(f"num_shards must be >= 1; got {count}")
        if count is not None and first is not None and not 0 <= first < count:
            raise ValueError(f"index must be in [0, {count}), not {first}")
        size = self._size if count is not None and first is not None else None
        if size is not None and count is not None and first is not None and size != float("inf"):
            size = max(0, -(-(size - first) // count))
        return self._transformed("shard", size, num_shards=shards, index=which)

    def cache(self, filename: Any = "") -> Dataset:
        """Store the elements of the first round, and return them again in later rounds.

        Args:
            filename: path of a file for the elements; "": in memory. The file is complete after the first round. Later runs of the
                program read it.
        """
        name = static_value_or_tensor(filename)
        if isinstance(name, str) and not name:
            return self._transformed("cache", self._size, filename=None, given=None)
        need_tensors(self._components, "cache in a file")
        source = _files.file_names_source(name)
        return self._transformed("cache", self._size, filename=source.arrays, given=source.given)

    def prefetch(self, buffer_size: Any) -> Dataset:
        """Compute up to `buffer_size` elements ahead, in a thread of the iterator's task.

        Args:
            buffer_size: number of elements; AUTOTUNE or 0: 2.

        Raises:
            ValueError: it is negative.
        """
        size = int_input(buffer_size)
        number = static_int(size)
        if number is not None and number < AUTOTUNE:
            raise ValueError(f"buffer_size must be at least 0, or AUTOTUNE, not {number}")
        return self._transformed("prefetch", self._size, buffer_size=size)

    def with_options(self, options: Options) -> Dataset:
        """The same data set with options.

        Only `experimental_deterministic` has an effect: if False, elements of parallel calls may come in any order.
        """
        sloppy = options.experimental_deterministic is False
        found = self._transformed("with_options", self._size, sloppy=sloppy)
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

        >>> Dataset.range(5).batch(2)  # [0, 1], [2, 3], [4]
        """
        dims, sparse = [c.dims for c in self._components], sparse_starts(self._structure)
        return self._batched("batch", batch_size, drop_remainder, dims, sparse=sparse)

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
            padded_shapes: shapes after padding, in the structure of an element; shapes may be int64 tensors. None or -1 in a shape
                stands for the largest size in the batch.
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
            shapes=tuple(shapes), shapes_given=RuntimeInputs(late) if late else None, values=source.arrays, values_given=source.given,
        )  # fmt: skip

    def window(self, size: Any, shift: Any = None, stride: Any = 1, drop_remainder: Any = False) -> Dataset:
        """Group elements into windows. An element of the result is a data set, or a structure with a data set for each component.

        Only `flat_map` and `interleave` accept such elements. Iterators, `map` and `batch` raise an error.

        Args:
            size: number of elements of a window.
            shift: distance between the starts of two windows, in elements; None: `size`.
            stride: distance between two elements of a window.
            drop_remainder: drop the last windows if they have fewer elements.

        >>> Dataset.range(5).window(3, shift=1, drop_remainder=True).flat_map(lambda w: w.batch(3))  # [0 1 2], [1 2 3], [2 3 4]
        """
        numbers = tuple([int_input(n) for n in (size, size if shift is None else shift, stride)])
        for name, number in zip(("size", "shift", "stride"), numbers, strict=True):
            at_least_one(name, number)
        if sparse_starts(self._structure):
            raise TypeError("window takes no sparse tensors: batch them instead")
        leaves = zip(flatten(self._structure), self._components, strict=True)
        windows = [Dataset("window", leaf if c.dtype is variant else 0, [c]) for leaf, c in leaves]
        structure = pack(self._structure, windows)
        dropped = int_input(drop_remainder)
        return Dataset(
            "windows", structure, [Component(variant, ())] * len(windows), (self,), None, numbers=numbers, drop=dropped
        )

    def with_elements(self, elements: RuntimeInputs) -> Dataset:
        """Returns a data set whose elements are passed in at run time under the key `elements`."""
        return Dataset("window", self._structure, self._components, elements=elements)

    def _batched(self, kind: str, size: Any, drop: Any, row_dims: Sequence[Dims], **params: Any) -> Dataset:
        need_tensors(self._components, kind)
        rows, dropped = int_input(size), int_input(drop)
        at_least_one("batch_size", rows)
        number, cut = static_int(rows), static_int(dropped)
        first = number if cut else None
        components = [
            Component(c.dtype, None if dims is None else (first, *dims))
            for c, dims in zip(self._components, row_dims, strict=True)
        ]
        for i in params.get("sparse", ()):
            rank = None if (dims := self._components[i].dims) is None else dims[1]
            components[i : i + 3] = sparse_components(components[i : i + 3], None if rank is None else rank + 1)
        count = None if number is None or cut is None else self._size
        if number is not None and count is not None and count != float("inf"):
            count = count // number if cut else -(-count // number)
        return Dataset(kind, self._structure, components, (self,), count, batch_size=rows, drop=dropped, **params)

    # --- from several data sets ------------------------------------------------------------------------------------

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this data set, then those of `dataset`.

        Raises:
            TypeError: the structures or element types differ.
        """
        mine, theirs = self._components, dataset._components
        if not same_structure(self._structure, dataset._structure) or [c.dtype for c in mine] != [
            c.dtype for c in theirs
        ]:
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
            map_func: function of an element that returns a `Dataset`. It is traced like the function of `map`.
            cycle_length: number of data sets that are open at a time. AUTOTUNE: one per processor.
            block_length: number of consecutive elements of each data set.
            num_parallel_calls: if given, each open data set computes elements ahead in its own thread. The order is kept.

        Raises:
            TypeError: `map_func` does not return a data set.

        >>> files = Dataset.list_files("/data/train-*.tfrecord")
        >>> records = files.interleave(TFRecordDataset, cycle_length=4)
        """
        cycle, block = int_input(cycle_length), int_input(block_length)
        if static_int(cycle) != AUTOTUNE:
            at_least_one("cycle_length", cycle)
        at_least_one("block_length", block)
        function = trace_dataset_function(map_func, self._structure, self._components, "map_func")
        return self._transformed(
            "interleave", like=function.result, function=function, cycle_length=cycle, block_length=block,
            calls=None if num_parallel_calls is None else int_input(num_parallel_calls),
        )  # fmt: skip

    def flat_map(self, map_func: Callable[..., Dataset]) -> Dataset:
        """Map each element to a data set, and concatenate these data sets.

        Args:
            map_func: as in `interleave`.
        """
        return self.interleave(map_func, cycle_length=1)

    # --- reduction -------------------------------------------------------------------------------------------------

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Reduce all elements to one state, as tensors. Each step iterates over the whole data set.

        Args:
            initial_state: the first state, in any structure.
            reduce_func: (state, element) -> next state; traced like the function of `map`.

        >>> session.run(Dataset.range(5).reduce(np.int64(0), lambda total, x: total + x))
        10
        """
        fold = trace_fold(self, initial_state, reduce_func, "reduce_func")
        return single_element(Dataset("reduce", fold.state, fold.components, (self,), 1, **fold.params))

    # --- iterators -------------------------------------------------------------------------------------------------

    def make_one_shot_iterator(self, name: str | None = None) -> Iterator:
        """An iterator that needs no initialization and iterates once."""
        return Iterator(self, True, name)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Iterator:
        """An iterator that starts, or starts again, when its `initializer` runs."""
        return Iterator(self, False, shared_name)

    def __iter__(self) -> abc.Iterator[Any]:
        """Iterate over the elements as NumPy arrays, in this process and without a graph."""
        need_tensors(self._components, "iteration")
        for element in self._iterate_with_seeds(np.random.SeedSequence().entropy % 2**62):  # type: ignore[operator]
            yield pack(self._structure, element)

    def __repr__(self) -> str:
        return f"<dt.data.{type(self).__name__} shapes: {self.output_shapes}, types: {self.output_types}>"


explain_members(Dataset)
