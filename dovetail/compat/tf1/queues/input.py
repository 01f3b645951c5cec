"""Input pipelines of queues, TensorFlow 1's oldest way to feed a model.

Each function adds a queue to the graph, and a `QueueRunner` that keeps it full: `start_queue_runners` starts the threads, as
`MonitoredTrainingSession` does. `dt.data` does the same without threads of the client's per queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....graph.control_flow.cond_while import cond
from ....graph.core.build import convert
from ....graph.core.default_graph import GraphKeys, control_dependencies, name_scope
from ....graph.core.dtypes import DType, bool_, int64, string
from ....graph.core.graph import Tensor
from ....graph.core.shape import TensorShape
from ....graph.ops.array.dynamic_partition import boolean_mask
from ....graph.ops.array.gather import gather
from ....graph.ops.array.identity_and_placeholders import Assert, group, identity, no_op
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.shapes import shape, size
from ....graph.ops.math.compare import greater
from ....graph.ops.random.random import random_shuffle
from ....graph.ops.state.queue_api import FIFOQueue, PaddingFIFOQueue, QueueBase, RandomShuffleQueue
from ....graph.ops.state.variables import count_up_to
from ....graph.tensors.sparse_tensor import SparseTensor, is_sparse
from ....graph.variables.variable import Variable
from ....train.loops.queue_runner import QueueRunner, add_queue_runner
from ..ops.encoded_sparse import decode_sparse, encode_sparse
from ..ops.sets import convert_to_tensor_or_sparse_tensor


def limit_epochs(tensor: Any, num_epochs: int | None = None, name: str | None = None) -> Tensor:
    """The tensor `num_epochs` times, then OutOfRangeError. The counter is a local variable; None: for ever.

    Raises:
        ValueError: `num_epochs` is below 1.
    """
    value = convert(tensor, name="tensor")
    if num_epochs is None:
        return value
    if num_epochs <= 0:
        raise ValueError(f"num_epochs must be > 0 not {num_epochs}.")
    with name_scope(name or "limit_epochs"):
        epochs = Variable(
            convert(0, int64),
            trainable=False,
            collections=[GraphKeys.LOCAL_VARIABLES],
            name="epochs",
            use_resource=False,
        )
        with control_dependencies([count_up_to(epochs, num_epochs)]):
            found: Tensor = identity(value)
            return found


def input_producer(
    input_tensor: Any,
    element_shape: Any = None,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    summary_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> FIFOQueue:
    """A queue that gets the rows of a tensor, over and over.

    Args:
        input_tensor: at least one axis: the rows. element_shape: shape of a row where the tensor's is unknown.
        num_epochs: how often each row comes; None: for ever. With it the program must run `local_variables_initializer`.
        shuffle: whether each round has an order of its own. seed: of these. capacity: of the queue.

    Raises:
        ValueError: the shape of a row is unknown.
    """
    with name_scope(name or "input_producer"):
        rows = convert(input_tensor, name="input_tensor")
        dims = TensorShape(element_shape if rows.dims is None else rows.dims[1:])
        if not dims.is_fully_defined():
            raise ValueError(
                "Either `input_tensor` must have a fully defined shape or `element_shape` must be specified"
            )
        if shuffle:
            rows = random_shuffle(rows, seed=seed)
        rows = limit_epochs(rows, num_epochs)
        queue = FIFOQueue(capacity, [rows.dtype.base], [dims], shared_name=shared_name, name="fifo_queue")
        add_queue_runner(QueueRunner(queue, [queue.enqueue_many([rows])], cancel_op=cancel_op))
        return queue


def string_input_producer(
    string_tensor: Any,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
    cancel_op: Any = None,
) -> FIFOQueue:
    """A queue of texts, mostly names of files; arguments as of `input_producer`.

    Raises:
        ValueError: there are no texts.

    >>> names = dt.train.string_input_producer(["a.csv", "b.csv"], num_epochs=2)
    """
    if not hasattr(string_tensor, "get_shape") and not list(string_tensor):
        raise ValueError("string_input_producer requires a non-null input tensor")
    texts = convert(string_tensor, string, name="string_tensor")
    if texts.dims is None or 0 in texts.dims or None in texts.dims:
        told = "string_input_producer requires a non-null input tensor"
        with control_dependencies([Assert(greater(size(texts), 0), [told])]):
            texts = identity(texts)
    return input_producer(
        texts, [], num_epochs, shuffle, seed, capacity, shared_name, None, name or "input_producer", cancel_op
    )


def range_input_producer(
    limit: int | Tensor,
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue:
    """A queue of the numbers from 0 to `limit - 1`; arguments as of `input_producer`."""
    with name_scope(name or "input_producer"):
        return input_producer(range_(limit), [], num_epochs, shuffle, seed, capacity, shared_name, name="numbers")


def slice_input_producer(
    tensor_list: Sequence[Any],
    num_epochs: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    capacity: int = 32,
    shared_name: str | None = None,
    name: str | None = None,
) -> list[Tensor]:
    """One row of each tensor, the next one in each step; all have the same number of rows. Arguments as of `input_producer`.

    >>> image, label = dt.train.slice_input_producer([images, labels])
    >>> x, y = dt.train.batch([image, label], batch_size=32)
    """
    if not tensor_list:
        raise ValueError("Expected at least one tensor in slice_input_producer().")
    with name_scope(name or "input_producer"):
        tensors = [convert(t, name="tensor") for t in tensor_list]
        first = tensors[0]
        known = None if first.dims is None else first.dims[0]
        queue = range_input_producer(
            shape(first)[0] if known is None else known, num_epochs, shuffle, seed, capacity, shared_name, "rows"
        )
        row = queue.dequeue()
        return [gather(t, row) for t in tensors]


def batch(
    tensors: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Elements made into batches, in order.

    Args:
        tensors: a tensor, a list, or a dictionary: one element. Those that are sparse come as one that is as large as the largest.
        batch_size: how many make a batch.
        num_threads: of the client, that fetch elements; with more than one the order is not kept.
        capacity: elements that the queue holds. enqueue_many: whether `tensors` hold many elements along their first axis.
        shapes: of elements, where they are not known. dynamic_pad: whether sizes may differ: zeros fill up.
        allow_smaller_final_batch: whether the last batch may be smaller; otherwise its elements are dropped.

    Returns:
        The batch, in the structure of `tensors`; for a list of one tensor a tensor. A step raises OutOfRangeError when the input has ended.

    Raises:
        ValueError: the shape of an element is not known.
    """
    return maybe_batch(
        tensors, True, batch_size, num_threads, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch,
        shared_name, name or "batch",
    )  # fmt: skip


def batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """As `batch`, out of several sources: a thread for each entry of `tensors_list`."""
    return maybe_batch_join(
        tensors_list, True, batch_size, capacity, enqueue_many, shapes, dynamic_pad, allow_smaller_final_batch, shared_name,
        name or "batch_join",
    )  # fmt: skip


def maybe_batch(
    tensors: Any,
    keep_input: Any,
    batch_size: Any,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """As `batch`, of those elements only for which `keep_input` is true.

    Args:
        keep_input: a scalar bool; with `enqueue_many` also a vector, a bool for each element.
    """
    return maybe_batch_join(
        [tensors] * num_threads, keep_input, batch_size, capacity, enqueue_many, shapes, dynamic_pad,
        allow_smaller_final_batch, shared_name, name or "maybe_batch",
    )  # fmt: skip


def maybe_batch_join(
    tensors_list: Sequence[Any],
    keep_input: Any,
    batch_size: Any,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """As `batch_join`, of those elements only for which `keep_input` is true, which is as of `maybe_batch`."""

    def queue(types: list[DType], dims: list[Any]) -> QueueBase:
        kind = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        return kind(capacity, types, dims, shared_name=shared_name)

    how = batch_size, enqueue_many, shapes, allow_smaller_final_batch
    return _batched(tensors_list, keep_input, queue, *how, name or "maybe_batch_join")


def shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Elements made into batches, in random order; arguments as of `batch`, and

    Args:
        min_after_dequeue: how many elements stay in the queue to draw from. seed: of the order.
    """
    return maybe_shuffle_batch(
        tensors, batch_size, capacity, min_after_dequeue, True, num_threads, seed, enqueue_many, shapes,
        allow_smaller_final_batch, shared_name, name or "shuffle_batch",
    )  # fmt: skip


def shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """As `shuffle_batch`, out of several sources: a thread for each entry of `tensors_list`."""
    return maybe_shuffle_batch_join(
        tensors_list, batch_size, capacity, min_after_dequeue, True, seed, enqueue_many, shapes, allow_smaller_final_batch,
        shared_name, name or "shuffle_batch_join",
    )  # fmt: skip


def maybe_shuffle_batch(
    tensors: Any,
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """As `shuffle_batch`, of those elements only for which `keep_input` is true, which is as of `maybe_batch`."""
    return maybe_shuffle_batch_join(
        [tensors] * num_threads, batch_size, capacity, min_after_dequeue, keep_input, seed, enqueue_many, shapes,
        allow_smaller_final_batch, shared_name, name or "maybe_shuffle_batch",
    )  # fmt: skip


def maybe_shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: Any,
    capacity: int,
    min_after_dequeue: int,
    keep_input: Any,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """As `shuffle_batch_join`, of those elements only for which `keep_input` is true, which is as of `maybe_batch`."""

    def queue(types: list[DType], dims: list[Any]) -> QueueBase:
        return RandomShuffleQueue(capacity, min_after_dequeue, types, dims, seed=seed, shared_name=shared_name)

    how = batch_size, enqueue_many, shapes, allow_smaller_final_batch
    return _batched(tensors_list, keep_input, queue, *how, name or "maybe_shuffle_batch_join")


def _batched(
    sources: Sequence[Any], keep_input: Any, make_queue: Callable[[list[DType], list[Any]], QueueBase], batch_size: Any,
    many: bool, shapes: Any, smaller: bool, name: str,
) -> Any:  # fmt: skip
    if not sources:
        raise ValueError("there must be at least one source of elements")
    with name_scope(name):
        keep = _checked_keep(keep_input, many)
        given = [_parts(s, sources[0]) for s in sources]
        types = [p.dtype.base for p in given[0]]
        for other in given[1:]:
            if [p.dtype.base for p in other] != types or [is_sparse(p) for p in other] != [
                is_sparse(p) for p in given[0]
            ]:
                raise TypeError("All sources must have the same element types, and be sparse in the same places")
        ranks = [_rank(column, many) if is_sparse(column[0]) else None for column in zip(*given, strict=True)]
        parts = [[encode_sparse(p, many) if is_sparse(p) else p for p in each] for each in given]
        dims: list[Any] = list(shapes) if shapes is not None else [None] * len(types)
        for i, column in enumerate(zip(*parts, strict=True)):
            if shapes is None or is_sparse(given[0][i]):
                dims[i] = _element(column, many)
        queue = make_queue([string if is_sparse(p) else p.dtype.base for p in given[0]], dims)
        add_queue_runner(QueueRunner(queue, [_enqueue(queue, p, many, keep) for p in parts]))
        taken = queue.dequeue_up_to(batch_size) if smaller else queue.dequeue_many(batch_size)
        outputs = list(taken) if isinstance(taken, (list, tuple)) else [taken]
        outputs = [
            decode_sparse(out, dtype, rank) if is_sparse(p) else out
            for out, p, dtype, rank in zip(outputs, given[0], types, ranks, strict=True)
        ]
    first = sources[0]
    if isinstance(first, Mapping):
        return dict(zip(sorted(first), outputs, strict=True))
    return outputs if len(outputs) > 1 else outputs[0]


def _parts(source: Any, first: Any) -> list[Any]:
    """The tensors, and sparse tensors, of a source."""
    if isinstance(source, Mapping):
        if source.keys() != first.keys():
            raise ValueError(f"All sources must have the same keys: {sorted(first)} and {sorted(source)}")
        source = [source[k] for k in sorted(source)]
    several = isinstance(source, (list, tuple)) and not is_sparse(source)
    found = [convert_to_tensor_or_sparse_tensor(t) for t in (source if several else [source])]
    if not found:
        raise ValueError("Expected at least one tensor in batch().")
    return found


def _checked_keep(keep_input: Any, many: bool) -> Any:
    """None: every element is kept."""
    if keep_input is True:
        return None
    keep = convert(keep_input, bool_)
    if keep.dims is None:
        raise ValueError("`keep_input` dimensions must be known at graph construction.")
    if len(keep.dims) == 1 and not many:
        raise ValueError("`keep_input` cannot be a vector when `enqueue_many=False`.")
    if len(keep.dims) > 1:
        raise ValueError("`keep_input` must be 0 or 1 dimensions.")
    return keep


def _rank(column: Sequence[SparseTensor], many: bool) -> int | None:
    """The rank of the elements of a sparse component, if it is known."""
    sizes = [s.dense_shape.dims[0] for s in column if s.dense_shape.dims is not None]
    found = {n for n in sizes if n is not None}
    if len(found) > 1:
        raise ValueError(
            f"Inconsistent SparseTensors list: sources must give elements of one rank, not {sorted(found)}"
        )
    return found.pop() - int(many) if found else None


def _element(column: Sequence[Tensor], many: bool) -> TensorShape:
    """What is known of the shape of one component in all sources."""
    for t in column:
        if t.dims is None:
            raise ValueError(f"Cannot infer Tensor's rank: {t}. Say it by `shapes`, or give the tensor a shape")
    shapes = [TensorShape(t.dims[1:] if many else t.dims) for t in column if t.dims is not None]
    ranks = {len(s.as_list()) for s in shapes}
    if len(ranks) > 1:
        raise ValueError(f"Sources must give elements of one rank, not {sorted(ranks)}")
    return TensorShape([d[0] if len(set(d)) == 1 else None for d in zip(*[s.as_list() for s in shapes], strict=True)])


def _enqueue(queue: QueueBase, parts: list[Tensor], many: bool, keep: Any) -> Any:
    put = queue.enqueue_many if many else queue.enqueue
    if keep is None:
        return put(parts)
    if len(keep.dims) == 1:
        return put([boolean_mask(p, keep) for p in parts])
    return group(cond(keep, lambda: put(parts), no_op))


__all__ = [
    "batch",
    "batch_join",
    "input_producer",
    "limit_epochs",
    "maybe_batch",
    "maybe_batch_join",
    "maybe_shuffle_batch",
    "maybe_shuffle_batch_join",
    "range_input_producer",
    "shuffle_batch",
    "shuffle_batch_join",
    "slice_input_producer",
    "string_input_producer",
]
