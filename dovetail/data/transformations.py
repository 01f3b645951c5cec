"""Transformations for `Dataset.apply`, under the names that TensorFlow 1 had for them in `tf.data.experimental`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ..graph.core.build import convert
from ..graph.core.dtypes import int64
from ..graph.core.shape import as_dims
from ..graph.ops.math.cast import cast
from .checks import common, positive, shapes_for
from .dataset import Dataset
from .function import dataset_traced, folded, traced
from .iterator import single_element
from .runtime_values import Given, seed_of
from .spec import Component, pack, same_form

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
        num_parallel_batches: how many batches are worked on at once; or num_parallel_calls: how many elements.
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
    """`interleave`, always in the same order.

    Args:
        sloppy, buffer_output_elements, prefetch_input_elements: accepted: they tell how TensorFlow's threads work.
    """
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length, cycle_length)


def prefetch_to_device(device: str, buffer_size: int | None = None) -> Transformation:
    """`prefetch`, on the task where the iterator is placed. Elements are in its host memory; copies to the device overlap with
    other kernels."""
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


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements before the first one for which a function of graph ops gives False."""
    return lambda dataset: dataset._then("take_while", function=dataset._predicate(predicate, "take_while"))


def scan(initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> Transformation:
    """The outputs of a function of a state and each element: (state, element) -> (next state, output)."""

    def scanned(dataset: Dataset) -> Dataset:
        fold = folded(dataset, initial_state, scan_func, "scan_func", outputs=True)
        structure, components = fold.more
        return Dataset(
            "scan", structure, components, (dataset,), dataset._size, state_size=len(fold.components), **fold.params
        )

    return scanned


# --- from several data sets ------------------------------------------------------------------------------------------


def _alike(datasets: Sequence[Dataset]) -> list[Component]:
    """The components of data sets of one structure. TypeError: they differ."""
    if not datasets:
        raise ValueError("Invalid `datasets`: there are none")
    types = {tuple(c.dtype for c in d._components) for d in datasets}
    if len(types) > 1 or not all(same_form(d._structure, datasets[0]._structure) for d in datasets):
        raise TypeError("the data sets must have elements of the same structure and types")
    columns = zip(*[d._components for d in datasets], strict=True)
    return [Component(c[0].dtype, c[0].dims if len({x.dims for x in c}) == 1 else None) for c in columns]


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Sequence[float] | None = None, seed: Any = None
) -> Dataset:
    """Elements of data sets drawn at random, until all have ended; each keeps its order.

    Args:
        weights: how likely each one is, while it lasts; None: alike.

    Raises:
        ValueError: not a weight for each one. TypeError: the elements are of different types.
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
    """Elements of the data sets that `choice_dataset` selects by number. It ends with `choice_dataset`.

    Raises:
        TypeError: `choice_dataset` does not give int64 numbers, or the elements are of different types.
    """
    components = _alike(datasets)
    if [c.dtype for c in choice_dataset._components] != [int64]:
        raise TypeError("`choice_dataset` must be a dataset of scalar `tf.int64` tensors.")

    return Dataset("choose", datasets[0]._structure, components, (*datasets, choice_dataset))


# --- by groups -------------------------------------------------------------------------------------------------------


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Any, Dataset], Dataset],
    window_size: int | None = None,
    window_size_func: Callable[[Any], int] | None = None,
) -> Transformation:
    """Collects elements by key. A function turns each full window into a data set, whose elements are the output.

    Args:
        key_func: of graph ops; gives an int64 for an element.
        reduce_func: of graph ops: (the key, a data set of the window's elements) -> a data set.
        window_size: how many elements a window has; or window_size_func: that for a key, of graph ops.

    Raises:
        ValueError: neither or both sizes are given.
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func.")

    if window_size is not None:
        positive("window_size", window_size)

    def grouped(dataset: Dataset) -> Dataset:
        key, _ = dataset._traced(lambda *element: _int64(key_func(*element)), "key_func")
        if [c.dtype for c in key.components] != [int64]:
            raise ValueError("`key_func` must return a single tf.int64 tensor.")
        sizes: Any = window_size
        if window_size_func is not None:
            sizes, _ = traced(window_size_func, 0, [Component(int64, ())], "window_size_func")
        elements = Given((), "the window", 0)
        window = Dataset("window", dataset._structure, dataset._components, elements=elements)
        reduced = dataset_traced(reduce_func, 0, [Component(int64, ())], "reduce_func", window)
        return dataset._then(
            "group_by_window", like=reduced.result, key=key, reduce=reduced, window_size=sizes, elements=elements
        )

    return grouped


def _int64(key: Any) -> Any:
    """A key that a function gives; a Python number is int64."""
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
    """Batches of elements of about the same length.

    Args:
        element_length_func: of graph ops; gives an element's length.
        bucket_boundaries: the lengths at which a next bucket begins, rising. bucket_batch_sizes: the batch size of each bucket, one more.
        padded_shapes, padding_values, drop_remainder: as of `Dataset.padded_batch`.
        pad_to_bucket_boundary: fill up sizes that are None to the bucket's upper boundary less one, not to the batch's largest; elements
            of the last bucket are an error then. no_padding: `batch` them as they are.

    Raises:
        ValueError: not one batch size more than boundaries.
    """
    if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
        raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1")
    ends = [int(n) for n in bucket_boundaries]

    def bucketed(dataset: Dataset) -> Dataset:
        length, _ = dataset._traced(element_length_func, "element_length_func")
        elements = Given((), "the bucket", 0)
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
    """Shapes to fill up to, with a size where they leave one open; in the structure of an element."""
    known = [c.dims for c in dataset._components] if shapes is None else shapes_for(shapes, dataset._structure)
    dims = [as_dims(s) for s in known]
    return pack(dataset._structure, [None if d is None else [size if n is None else n for n in d] for d in dims])


def get_single_element(dataset: Dataset) -> Any:
    """The element of a data set that has one, as tensors.

    Each run of the graph takes it again. InvalidArgumentError in the step: there is none, or there are several.
    """

    return single_element(dataset._then("single"))


__all__ = [
    "Counter",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "get_single_element",
    "group_by_window",
    "map_and_batch",
    "parallel_interleave",
    "prefetch_to_device",
    "sample_from_datasets",
    "scan",
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
]
