"""`dt.data.experimental`: transformations for `Dataset.apply`, and iterator positions in checkpoints.

The names are those of `tf.data.experimental` in TensorFlow 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ..graph.core.build import convert
from ..graph.core.default_graph import GraphKeys
from ..graph.core.dtypes import int64
from ..graph.core.shape import as_dims, common
from ..graph.ops.math.cast import cast
from .checks import AUTOTUNE, positive, shapes_for
from .dataset import Dataset
from .function import trace_dataset_function, trace_fold, trace_function
from .iterator import Iterator, single_element
from .options import DistributeOptions, OptimizationOptions, StatsOptions, ThreadingOptions
from .runtime_values import RuntimeInputs, seed_of
from .spec import Component, pack, same_structure

Transformation = Callable[[Dataset], Dataset]


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: Any,
    num_parallel_batches: int | None = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Transformation:
    """`map` and then `batch`.

    Args:
        map_func: as in `Dataset.map`.
        batch_size: as in `Dataset.batch`.
        num_parallel_batches: number of batches to process in parallel.
        drop_remainder: as in `Dataset.batch`.
        num_parallel_calls: number of elements to process in parallel.

    Raises:
        ValueError: both numbers of parallel calls are given.
    """
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError("The `num_parallel_batches` and `num_parallel_calls` arguments are mutually exclusive.")
    calls = num_parallel_calls if num_parallel_batches is None else num_parallel_batches * batch_size
    return lambda dataset: dataset._mapped(map_func, calls, "map_and_batch", ends=False).batch(
        batch_size, drop_remainder
    )


def shuffle_and_repeat(buffer_size: int, count: int | None = None, seed: int | None = None) -> Transformation:
    """`shuffle` and then `repeat`."""
    return lambda dataset: dataset.shuffle(buffer_size, seed).repeat(count)


def parallel_interleave(
    map_func: Callable[..., Dataset],
    cycle_length: int,
    block_length: int = 1,
    sloppy: bool = False,
    buffer_output_elements: int | None = None,
    prefetch_input_elements: int | None = None,
) -> Transformation:
    """`Dataset.interleave` with threads, always in the same order.

    Args:
        map_func: as in `Dataset.interleave`.
        cycle_length: number of data sets that are open, each with a thread.
        block_length: as in `Dataset.interleave`.
        sloppy: accepted without effect.
        buffer_output_elements: accepted without effect.
        prefetch_input_elements: accepted without effect.
    """
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length, cycle_length)


def prefetch_to_device(device: str, buffer_size: int | None = None) -> Transformation:
    """`Dataset.prefetch` in the iterator's task. Elements are in host memory; copies to the device overlap with kernels."""
    return lambda dataset: dataset.prefetch(buffer_size or 2)


def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """The data set itself: elements stay in host memory until a consumer needs them."""
    return lambda dataset: dataset


def unbatch() -> Transformation:
    """`Dataset.unbatch`."""
    return lambda dataset: dataset.unbatch()


def enumerate_dataset(start: int = 0) -> Transformation:
    """`Dataset.enumerate`."""
    return lambda dataset: dataset.enumerate(start)


def Counter(start: int = 0, step: int = 1, dtype: Any = int64) -> Dataset:
    """The numbers `start`, `start + step`, ... without end."""
    numbers = Dataset.range(start, (2**63 - 1) if step > 0 else -(2**63), step)
    numbers._size = float("inf")
    return numbers if dtype is int64 else numbers.map(lambda n: cast(n, dtype))


def ignore_errors() -> Transformation:
    """Drop the elements that fail. If one row of a batch fails, the whole batch is dropped."""
    return lambda dataset: dataset._transformed("ignore_errors")


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements before the first one for which a function of graph ops returns False."""
    return lambda dataset: dataset._transformed("take_while", function=dataset._predicate(predicate, "take_while"))


def scan(initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> Transformation:
    """Map each element to an output, with a state that passes from element to element.

    Args:
        initial_state: the first state, in any structure.
        scan_func: (state, element) -> (next state, output); traced like the function of `Dataset.map`.

    >>> sums = Dataset.range(4).apply(scan(np.int64(0), lambda total, x: (total + x, total + x)))  # 0, 1, 3, 6
    """

    def scanned(dataset: Dataset) -> Dataset:
        fold = trace_fold(dataset, initial_state, scan_func, "scan_func", outputs=True)
        structure, components = fold.more
        return Dataset(
            "scan", structure, components, (dataset,), dataset._size, state_size=len(fold.components), **fold.params
        )

    return scanned


# --- from several data sets ------------------------------------------------------------------------------------------


def _alike(datasets: Sequence[Dataset]) -> list[Component]:
    """Returns the components that data sets of one structure have in common. TypeError: the structures differ."""
    if not datasets:
        raise ValueError("Invalid `datasets`: there are none")
    types = {tuple(c.dtype for c in d._components) for d in datasets}
    if len(types) > 1 or not all(same_structure(d._structure, datasets[0]._structure) for d in datasets):
        raise TypeError("the data sets must have elements of the same structure and types")
    columns = zip(*[d._components for d in datasets], strict=True)
    return [Component(c[0].dtype, c[0].dims if len({x.dims for x in c}) == 1 else None) for c in columns]


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Sequence[float] | None = None, seed: Any = None
) -> Dataset:
    """Interleave data sets at random until all have ended. The elements of each one stay in order.

    Args:
        datasets: data sets of one structure.
        weights: relative probability of each data set; None: equal.
        seed: as in `Dataset.shuffle`.

    Raises:
        ValueError: the number of weights differs from the number of data sets.
        TypeError: the elements have different types.
    """
    components = _alike(datasets)
    shares = np.ones(len(datasets)) if weights is None else np.asarray(weights, float)
    if shares.shape != (len(datasets),) or (shares < 0).any() or not shares.any():
        raise ValueError(
            f"`weights` must be one number of at least 0 for each of {len(datasets)} data sets, not {weights!r}"
        )

    return Dataset(
        "sample", datasets[0]._structure, components, datasets, weights=tuple(shares.tolist()), seed=seed_of(seed)
    )


def choose_from_datasets(datasets: Sequence[Dataset], choice_dataset: Dataset) -> Dataset:
    """Interleave data sets in a given order. The result ends with `choice_dataset`.

    Args:
        datasets: data sets of one structure.
        choice_dataset: int64 scalars; each one is the index in `datasets` from which the next element comes.

    Raises:
        TypeError: the elements of `choice_dataset` are not int64 scalars, or `datasets` have different element types.
    """
    components = _alike(datasets)
    if [c.dtype for c in choice_dataset._components] != [int64]:
        raise TypeError("`choice_dataset` must be a dataset of scalar `tf.int64` tensors.")

    return Dataset("choose", datasets[0]._structure, components, (*datasets, choice_dataset))


# --- groups of elements ----------------------------------------------------------------------------------------------


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Any, Dataset], Dataset],
    window_size: int | None = None,
    window_size_func: Callable[[Any], int] | None = None,
) -> Transformation:
    """Group elements by key into windows, map each full window to a data set, and output the elements of these.

    Args:
        key_func: function of graph ops: element -> int64 key.
        reduce_func: function of graph ops: (key, data set of the window's elements) -> data set.
        window_size: number of elements of a window.
        window_size_func: function of graph ops: key -> number of elements; give one of the two.

    Raises:
        ValueError: neither or both sizes are given.
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func.")

    if window_size is not None:
        positive("window_size", window_size)

    def grouped(dataset: Dataset) -> Dataset:
        key, _ = dataset._trace(lambda *element: _int64(key_func(*element)), "key_func")
        if [c.dtype for c in key.components] != [int64]:
            raise ValueError("`key_func` must return a single tf.int64 tensor.")
        sizes: Any = window_size
        if window_size_func is not None:
            sizes, _ = trace_function(window_size_func, 0, [Component(int64, ())], "window_size_func")
        elements = RuntimeInputs((), "the window", 0)
        window = Dataset("window", dataset._structure, dataset._components, elements=elements)
        reduced = trace_dataset_function(reduce_func, 0, [Component(int64, ())], "reduce_func", window)
        return dataset._transformed(
            "group_by_window", like=reduced.result, key=key, reduce=reduced, window_size=sizes, elements=elements
        )

    return grouped


def _int64(key: Any) -> Any:
    """Converts a key that a function returns; a Python number becomes int64."""
    return convert(key, int64) if isinstance(key, (int, np.integer)) else key


def bucket_by_sequence_length(
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None,
    padding_values: Any = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Transformation:
    """Batch elements of similar length together.

    Args:
        element_length_func: function of graph ops: element -> its length.
        bucket_boundaries: the lengths at which the next bucket begins, in increasing order.
        bucket_batch_sizes: the batch size of each bucket. There is one more bucket than there are boundaries.
        padded_shapes: as in `Dataset.padded_batch`.
        padding_values: as in `Dataset.padded_batch`.
        drop_remainder: as in `Dataset.padded_batch`.
        pad_to_bucket_boundary: pad unknown sizes to the bucket's upper boundary minus 1, instead of the largest size in the batch. An
            element of the last bucket is then an error.
        no_padding: use `batch` instead of `padded_batch`.

    Raises:
        ValueError: the number of batch sizes is not the number of boundaries plus 1.
    """
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")
    ends = [int(n) for n in bucket_boundaries]

    def bucketed(dataset: Dataset) -> Dataset:
        length, _ = dataset._trace(element_length_func, "element_length_func")
        elements = RuntimeInputs((), "the bucket", 0)
        window = Dataset("window", dataset._structure, dataset._components, elements=elements)

        def batched(bucket: int, size: Any) -> Dataset:
            if no_padding:
                return window.batch(size, drop_remainder)
            shapes = padded_shapes
            if pad_to_bucket_boundary and bucket < len(ends):
                shapes = _filled(shapes, dataset, ends[bucket] - 1)
            return window.padded_batch(size, shapes, padding_values, drop_remainder)

        batchers = [batched(i, size) for i, size in enumerate(bucket_batch_sizes)]
        columns = zip(*[b._components for b in batchers], strict=True)
        components = [Component(c[0].dtype, reduce(common, [x.dims for x in c])) for c in columns]
        return Dataset(
            "bucket", dataset._structure, components, (dataset, *batchers), length=length, boundaries=tuple(ends),
            sizes=tuple([int(n) for n in bucket_batch_sizes]), bounded=pad_to_bucket_boundary and not no_padding, elements=elements,
        )  # fmt: skip

    return bucketed


def _filled(shapes: Any, dataset: Dataset, size: int) -> Any:
    """Returns the padded shapes, in the structure of an element. `size` replaces each unknown size."""
    static_value_or_tensor = (
        [c.dims for c in dataset._components] if shapes is None else shapes_for(shapes, dataset._structure)
    )
    dims = [as_dims(s) for s in static_value_or_tensor]
    return pack(dataset._structure, [None if d is None else [size if n is None else n for n in d] for d in dims])


def get_single_element(dataset: Dataset) -> Any:
    """The only element of a data set, as tensors. Each step computes it anew.

    Raises:
        InvalidArgumentError: in a step, if the data set has no element, or more than one.
    """
    return single_element(dataset._transformed("single"))


def make_saveable_from_iterator(iterator: Iterator) -> Any:
    """Save the position of an iterator in checkpoints. Returns the variable with the position.

    The position becomes a global variable: `global_variables_initializer` initializes it, and each `Saver` without a list of variables
    saves it. After a restore the iterator continues at the saved position. A checkpoint has only the chief's position, so with several
    clients call this only on the chief.
    """
    position = iterator.position
    graph = position.graph
    local = graph.get_collection_ref(GraphKeys.LOCAL_VARIABLES)
    local[:] = [v for v in local if v is not position]
    if position not in graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
        graph.add_to_collection(GraphKeys.GLOBAL_VARIABLES, position)
    return position


__all__ = [
    "AUTOTUNE",
    "Counter",
    "DistributeOptions",
    "OptimizationOptions",
    "StatsOptions",
    "ThreadingOptions",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "get_single_element",
    "group_by_window",
    "ignore_errors",
    "make_saveable_from_iterator",
    "map_and_batch",
    "parallel_interleave",
    "prefetch_to_device",
    "sample_from_datasets",
    "scan",
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
]
