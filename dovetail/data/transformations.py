"""Transformations for `Dataset.apply`, under the names that TensorFlow 1 had for them in `tf.data.experimental`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator as Walk, Sequence
from typing import Any

import numpy as np

from ..graph.dtypes import int64
from ..graph.errors import InvalidArgumentError
from ..graph.ops.cast import cast
from ..graph.shape import as_dims
from .checks import positive, shapes_for
from .dataset import Dataset
from .given import Given, Seeds
from .mapping import Traced
from .spec import Array, Component, Element, pack

Transformation = Callable[[Dataset], Dataset]


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: int,
    num_parallel_batches: int | None = None,
    drop_remainder: bool = False,
    num_parallel_calls: int | None = None,
) -> Transformation:
    """`map` and then `batch`.

    Args:
        num_parallel_batches: how many batches are worked on at once; or num_parallel_calls: how many elements.
    """
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError("The `num_parallel_batches` and `num_parallel_calls` arguments are mutually exclusive.")
    calls = num_parallel_calls if num_parallel_batches is None else num_parallel_batches * batch_size
    return lambda dataset: dataset.map(map_func, calls).batch(batch_size, drop_remainder)


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
    return lambda dataset: dataset.interleave(map_func, cycle_length, block_length)


def prefetch_to_device(device: str, buffer_size: int | None = None) -> Transformation:
    """`prefetch`: elements lie on the host, and what takes them to a device runs beside other kernels."""
    return lambda dataset: dataset.prefetch(buffer_size or 2)


def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """The data set itself: elements lie on the host until somebody needs them."""
    return lambda dataset: dataset


def unbatch() -> Transformation:
    """The rows of each element, one by one."""

    def unbatched(dataset: Dataset) -> Dataset:
        def rows(seeds: Seeds) -> Walk[Element]:
            for element in dataset._walk(seeds, 0):
                yield from (list(row) for row in zip(*element, strict=True))

        components = [Component(c.dtype, None if c.dims is None else c.dims[1:]) for c in dataset._components]
        return dataset._then(
            dataset._structure, components, lambda seeds, skip: itertools.islice(rows(seeds), skip, None)
        )

    return unbatched


def enumerate_dataset(start: int = 0) -> Transformation:
    """Each element behind its number: `(number, element)`."""
    return lambda dataset: Dataset.zip((Counter(start), dataset))


def Counter(start: int = 0, step: int = 1, dtype: Any = int64) -> Dataset:
    """The numbers `start`, `start + step`, ... without end."""

    def walk(seeds: Seeds, skip: int) -> Walk[Element]:
        return ([np.array(n, np.int64)] for n in itertools.count(start + skip * step, step))

    numbers = Dataset(0, [Component(int64, ())], walk, float("inf"))
    return numbers if dtype is int64 else numbers.map(lambda n: cast(n, dtype))


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements before the first one for which a function of graph ops gives False."""

    def taken(dataset: Dataset) -> Dataset:
        traced = Traced(dataset, predicate)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            holds = traced.callable()
            return itertools.islice(
                itertools.takewhile(lambda e: bool(holds(e)[0]), dataset._walk(seeds, 0)), skip, None
            )

        return dataset._then(dataset._structure, dataset._components, walk)

    return taken


# --- from several data sets ------------------------------------------------------------------------------------------


def _alike(datasets: Sequence[Dataset]) -> list[Component]:
    """The components of data sets of one structure. TypeError: they differ."""
    if not datasets:
        raise ValueError("Invalid `datasets`: there are none")
    types = {tuple(c.dtype for c in d._components) for d in datasets}
    if len(types) > 1:
        raise TypeError("the data sets must have elements of the same types")
    columns = zip(*[d._components for d in datasets], strict=True)
    return [Component(c[0].dtype, c[0].dims if len({x.dims for x in c}) == 1 else None) for c in columns]


def _given(datasets: Sequence[Dataset]) -> list[Given]:
    return [g for d in datasets for g in d._given]


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Sequence[float] | None = None, seed: int | None = None
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

    def drawn(seeds: Seeds) -> Walk[Element]:
        key = [seeds[0] if seed is None else seed, *seeds[1:]]
        rng = np.random.default_rng([int(k) & (2**64 - 1) for k in key])
        walks = [d._walk((*seeds, i), 0) for i, d in enumerate(datasets)]
        left = shares.copy()
        while left.any():
            at = int(rng.choice(len(walks), p=left / left.sum()))
            element = next(walks[at], None)
            if element is None:
                left[at] = 0
            else:
                yield element

    structure = datasets[0]._structure
    return Dataset(
        structure, components, lambda seeds, skip: itertools.islice(drawn(seeds), skip, None), given=_given(datasets)
    )


def choose_from_datasets(datasets: Sequence[Dataset], choice_dataset: Dataset) -> Dataset:
    """Elements of the data sets whose numbers another one gives; it ends with that one.

    Raises:
        TypeError: `choice_dataset` does not give int64 numbers, or the elements are of different types.
    """
    components = _alike(datasets)
    if [c.dtype for c in choice_dataset._components] != [int64]:
        raise TypeError("`choice_dataset` must be a dataset of scalar `tf.int64` tensors.")

    def chosen(seeds: Seeds) -> Walk[Element]:
        walks = [d._walk((*seeds, i), 0) for i, d in enumerate(datasets)]
        for (at,) in choice_dataset._walk((*seeds, len(walks)), 0):
            element = next(walks[int(at)], None)
            if element is not None:
                yield element

    structure = datasets[0]._structure
    return Dataset(
        structure,
        components,
        lambda seeds, skip: itertools.islice(chosen(seeds), skip, None),
        given=_given([*datasets, choice_dataset]),
    )


# --- by groups -------------------------------------------------------------------------------------------------------


def _collected(
    elements: Walk[Element], key_of: Callable[[Element], int], size_of: Callable[[int], int]
) -> Walk[tuple[int, list[Element]]]:
    """Elements of one key, with it: as soon as there are enough of them; what is left at the end, by key."""
    waiting: dict[int, list[Element]] = {}
    for element in elements:
        key = key_of(element)
        window = waiting.setdefault(key, [])
        window.append(element)
        if len(window) >= size_of(key):
            yield key, waiting.pop(key)
    yield from sorted(waiting.items())


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[[Any, Dataset], Dataset],
    window_size: int | None = None,
    window_size_func: Callable[[Any], int] | None = None,
) -> Transformation:
    """Elements of one key are collected; what a function makes of each full window, as a data set, is what comes out.

    Args:
        key_func: of graph ops; gives an int64 for an element.
        reduce_func: a Python function of a key (a NumPy number) and a data set of the window's elements; gives a data set.
        window_size: how many elements a window has; or window_size_func: that for a key.

    Raises:
        ValueError: neither or both sizes are given; or there is no element from which to see what comes out.
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("Must pass either window_size or window_size_func.")

    def size_of(key: int) -> int:
        size = window_size if window_size_func is None else int(window_size_func(np.int64(key)))
        assert size is not None
        positive("window_size", size)
        return size

    def grouped(dataset: Dataset) -> Dataset:
        traced = Traced(dataset, key_func)

        def of_window(key: int, elements: list[Element]) -> Dataset:
            window = Dataset(
                dataset._structure, dataset._components, lambda seeds, skip: iter(elements[skip:]), len(elements)
            )
            found = reduce_func(np.int64(key), window)
            if not isinstance(found, Dataset):
                raise TypeError(f"`reduce_func` must return a Dataset, not {found!r}")
            return found

        def windows(seeds: Seeds) -> Walk[Element]:
            call = traced.callable()
            full = _collected(dataset._walk(seeds, 0), lambda e: int(call(e)[0]), size_of)
            for number, (key, elements) in enumerate(full):
                yield from of_window(key, elements)._walk((*seeds, number), 0)

        first = next(dataset._walk((0,), 0), None)
        if first is None:
            raise ValueError("there is no element from which to see what the windows give")
        like = of_window(int(traced.callable()(first)[0]), [first])
        return dataset._then(
            like._structure, like._components, lambda seeds, skip: itertools.islice(windows(seeds), skip, None)
        )

    return grouped


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
    ends = np.asarray(bucket_boundaries, np.int64)

    def bucketed(dataset: Dataset) -> Dataset:
        traced = Traced(dataset, element_length_func)
        structure = dataset._structure

        def batched(bucket: int, elements: list[Element]) -> Walk[Element]:
            size = bucket_batch_sizes[bucket]
            window = Dataset(structure, dataset._components, lambda seeds, skip: iter(elements[skip:]), len(elements))
            if no_padding:
                found = window.batch(size, drop_remainder)
            else:
                shapes = padded_shapes
                if pad_to_bucket_boundary:
                    if bucket == len(ends):
                        raise ValueError(f"When pad_to_bucket_boundary=True, elements must have length < {ends[-1]}")
                    shapes = _filled(shapes, dataset, int(ends[bucket]) - 1)
                found = window.padded_batch(size, shapes, padding_values, drop_remainder)
            return found._walk((0,), 0)

        def batches(seeds: Seeds) -> Walk[Element]:
            length = traced.callable()

            def bucket_of(element: Element) -> int:
                return int(np.searchsorted(ends, int(length(element)[0]), side="right"))

            for bucket, elements in _collected(dataset._walk(seeds, 0), bucket_of, bucket_batch_sizes.__getitem__):
                yield from batched(bucket, elements)

        shapes = [c.dims for c in dataset._components]
        if padded_shapes is not None:
            shapes = [as_dims(s) for s in shapes_for(padded_shapes, structure)]
        components = [
            Component(c.dtype, None if dims is None else (None, *dims))
            for c, dims in zip(dataset._components, shapes, strict=True)
        ]
        return dataset._then(structure, components, lambda seeds, skip: itertools.islice(batches(seeds), skip, None))

    return bucketed


def _filled(shapes: Any, dataset: Dataset, size: int) -> Any:
    """Shapes to fill up to, with a size where they leave one open; in the structure of an element."""
    known = [c.dims for c in dataset._components] if shapes is None else shapes_for(shapes, dataset._structure)
    dims = [as_dims(s) for s in known]
    return pack(dataset._structure, [None if d is None else [size if n is None else n for n in d] for d in dims])


def get_single_element(dataset: Dataset) -> Any:
    """The element of a data set that has one, as tensors.

    Each run of the graph takes it anew. InvalidArgumentError in the step: there is none, or there are several.
    """

    def walk(seeds: Seeds, skip: int) -> Walk[Element]:
        elements: list[list[Array]] = [list(e) for e in itertools.islice(dataset._walk(seeds, 0), 2)]
        if len(elements) != 1:
            what = "was empty" if not elements else "had more than one element"
            raise InvalidArgumentError(None, None, f"Dataset {what}.")
        while True:
            yield elements[0]

    return dataset._then(dataset._structure, dataset._components, walk).make_one_shot_iterator().get_next()


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
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
]
