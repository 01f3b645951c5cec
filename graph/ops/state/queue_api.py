"""Queues in programs: TensorFlow 1's classes.

A queue object represents the node that makes the queue, and builds the nodes that use it. The queue itself is in the task of that
node and outlives the sessions that use it. Clients with the same `shared_name` share it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from ...core.build import TensorLike, apply, convert, make
from ...core.default_graph import get_default_graph
from ...core.dtypes import DType, as_dtype, int32, int64
from ...core.graph import Node, Tensor
from ...core.shape import Dims, TensorShape, as_dims, common, compatible, is_static, text
from ..random.random_common import get_seed
from . import queues as _queues  # noqa: F401  (defines the ops)


class QueueBase:
    """What all queues can do.

    Attributes:
        dtypes: element type per component.
        shapes: shape per component.
        names: name per component, or None.
        name: of the node that makes the queue.
        queue_ref: its handle.

    Elements are tuples of components: one tensor, a list, or with `names` a dictionary, and so they come out.
    """

    def __init__(
        self,
        dtypes: Sequence[DType],
        shapes: Sequence[Dims] | None,
        names: Sequence[str] | None,
        handle: Tensor,
    ) -> None:
        self._dtypes = list(dtypes)
        self._shapes = None if shapes is None else list(shapes)
        self._names = None if names is None else list(names)
        self._handle = handle
        self._name = handle.op.name

    @staticmethod
    def from_list(index: TensorLike, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue that `index` chooses when the graph runs. All must be on one device.

        Raises:
            TypeError: they differ in types or names of components, or are no queues.
            ValueError: there are none.
        """
        if not queues or not all(isinstance(q, QueueBase) for q in queues):
            raise TypeError("A list of queues expected")
        first = queues[0]
        if any(q.dtypes != first.dtypes for q in queues):
            raise TypeError("Queues do not have matching component dtypes.")
        if any(q.names != first.names for q in queues):
            raise TypeError("Queues do not have matching component names.")
        given = [q._shapes for q in queues if q._shapes is not None]
        shapes = [reduce(common, dims) for dims in zip(*given, strict=True)] if len(given) == len(queues) else None
        chosen = make("SelectHandle", (convert(index, name="index"), *[q._handle for q in queues]))
        return QueueBase(first._dtypes, shapes, first._names, chosen.outputs[0])

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def queue_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def name(self) -> str:
        """Name of the node that makes the queue."""
        return self._name

    @property
    def dtypes(self) -> list[DType]:
        """Element type per component."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[TensorShape]:
        """Static shape per component."""
        return [TensorShape(d) for d in self._shapes or [None] * len(self._dtypes)]

    @property
    def names(self) -> list[str] | None:
        """Name per component, or None."""
        return None if self._names is None else list(self._names)

    # --- putting in ------------------------------------------------------------------------------------------------

    def enqueue(self, vals: Any, name: str | None = None) -> Node:
        """A node that puts one element in; it waits while the queue is full.

        Args:
            vals: a tensor, a list of tensors, or with `names` a dictionary.

        Raises:
            ValueError, TypeError: components of the wrong number, names, types or shapes. When it runs:
            CancelledError: the queue is closed.
        """
        return self._put("QueueEnqueueV2", vals, name or f"{self._name}_enqueue", many=False)

    def enqueue_many(self, vals: Any, name: str | None = None) -> Node:
        """A node that puts in one element per row of the components, one by one as there is room."""
        return self._put("QueueEnqueueManyV2", vals, name or f"{self._name}_EnqueueMany", many=True)

    def _put(self, op: str, vals: Any, name: str, *, many: bool) -> Node:
        with self._handle.graph.op_scope(name) as scope:
            components = self._components(vals)
        for i, t in enumerate(components):
            dims = None if self._shapes is None else self._shapes[i]
            given = t.dims
            if many and given is not None:
                if not given:
                    raise ValueError(f"component {i} is a scalar: it needs a first axis, the elements")
                given = given[1:]
            if not compatible(given, dims):
                raise ValueError(f"component {i} has shape {text(given)}, the queue {text(dims)}: they must be equal")
        return make(op, (self._handle, *components), None, scope)

    def _components(self, vals: Any) -> list[Tensor]:
        if isinstance(vals, Mapping):
            if self._names is None:
                raise ValueError("Queue must have names to enqueue a dictionary")
            if sorted(vals) != sorted(self._names):
                raise ValueError(
                    f"Keys in dictionary to enqueue do not match names of Queue: {sorted(vals)} and {sorted(self._names)}"
                )
            vals = [vals[n] for n in self._names]
        elif self._names is not None:
            raise ValueError("You must enqueue a dictionary in a Queue with names")
        elif not isinstance(vals, (list, tuple)) or len(self._dtypes) == 1 and len(vals) != 1:
            vals = [vals]
        if len(vals) != len(self._dtypes):
            raise ValueError(f"The queue has {len(self._dtypes)} components, {len(vals)} were given")
        return [convert(v, d, name=f"component_{i}") for i, (v, d) in enumerate(zip(vals, self._dtypes, strict=True))]

    # --- taking out ------------------------------------------------------------------------------------------------

    def dequeue(self, name: str | None = None) -> Any:
        """The next element: a tensor, a list of tensors, or a dictionary. It waits while there is none.

        Raises (when it runs):
            OutOfRangeError: the queue is closed and empty.
            CancelledError: the session was closed.
        """
        return self._taken("QueueDequeueV2", (), name or f"{self._name}_Dequeue")

    def dequeue_many(self, n: TensorLike, name: str | None = None) -> Any:
        """`n` elements, each component stacked along a new first axis. It waits until it has all of them.

        The queue must have been made with `shapes`. A step that ends before it has all puts its elements back, in order.

        Raises (when it runs):
            OutOfRangeError: the queue is closed and has fewer.
        """
        return self._many("QueueDequeueManyV2", n, name or f"{self._name}_DequeueMany")

    def dequeue_up_to(self, n: TensorLike, name: str | None = None) -> Any:
        """As `dequeue_many`; when the queue is closed, the remaining elements, at least one."""
        return self._many("QueueDequeueUpToV2", n, name or f"{self._name}_DequeueUpTo")

    def _many(self, op: str, n: TensorLike, name: str) -> Any:
        with self._handle.graph.op_scope(name) as scope:
            count = convert(n, int32, name="n")
        return self._taken(op, (count,), scope)

    def _taken(self, op: str, more: tuple[Tensor, ...], name: str) -> Any:
        attrs = {
            "component_types": tuple(self._dtypes),
            "shapes": None if self._shapes is None else tuple(self._shapes),
        }
        outputs = list(make(op, (self._handle, *more), attrs, name).outputs)
        if self._names is not None:
            return dict(zip(self._names, outputs, strict=True))
        return outputs[0] if len(outputs) == 1 else outputs

    # --- the rest --------------------------------------------------------------------------------------------------

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Node:
        """A node that closes the queue for enqueues.

        Enqueues that wait for room finish first, and it waits for them; with `cancel_pending_enqueues` they fail with
        CancelledError instead. Later enqueues fail; dequeues get what is left.
        """
        attrs = {"cancel_pending_enqueues": bool(cancel_pending_enqueues)}
        return make("QueueCloseV2", (self._handle,), attrs, name or f"{self._name}_Close")

    def is_closed(self, name: str | None = None) -> Tensor:
        """Scalar bool: whether it is closed."""
        return apply("QueueIsClosedV2", (self._handle,), None, name or f"{self._name}_Is_Closed")

    def size(self, name: str | None = None) -> Tensor:
        """Scalar int32: how many elements it holds."""
        return apply("QueueSizeV2", (self._handle,), None, name or f"{self._name}_Size")

    def __repr__(self) -> str:
        return f"<dt.{type(self).__name__} '{self._name}'>"


def _types(dtypes: Any) -> list[DType]:
    return [as_dtype(d).base for d in (dtypes if isinstance(dtypes, (list, tuple)) else [dtypes])]


def _shape_list(shapes: Any, count: int) -> list[Dims] | None:
    if shapes is None:
        return None
    if count == 1:
        # A single shape needs no list: `shapes=[2]`, `shapes=[]` and `shapes=TensorShape([2])` are one of them, not a list.
        single = isinstance(shapes, TensorShape) or not any(
            s is None or isinstance(s, (list, tuple, TensorShape)) for s in shapes
        )
        if single:
            shapes = [shapes]
    found = [as_dims(s) for s in shapes]
    if len(found) != count:
        raise ValueError(
            f"Queue shapes must have the same length as dtypes, received {len(found)} shapes, {count} dtypes"
        )
    return found


def _make(
    op: str,
    capacity: int,
    dtypes: list[DType],
    shapes: list[Dims] | None,
    names: Any,
    shared_name: str | None,
    name: str,
    **more: int,
) -> tuple[list[DType], list[Dims] | None, list[str] | None, Tensor]:
    if names is not None:
        names = [names] if isinstance(names, str) else list(names)
        if len(names) != len(dtypes):
            raise ValueError(f"There must be one name per component: {len(dtypes)}, not {len(names)}")
        if len(set(names)) != len(names):
            raise ValueError(f"Names of components must differ: {names}")
    attrs = {
        "component_types": tuple(dtypes),
        "shapes": None if shapes is None else tuple(shapes),
        "capacity": int(capacity),
        "shared_name": shared_name or "",
        **more,
    }
    graph = get_default_graph()
    with graph.device("/device:CPU:*"):
        return dtypes, shapes, names, apply(op, (), attrs, name)


def _complete(shapes: list[Dims] | None, what: str) -> list[Dims] | None:
    for dims in shapes or ():
        if not is_static(dims):
            raise ValueError(
                f"{what} needs complete shapes, not {text(dims)}; a PaddingFIFOQueue takes parts of any size"
            )
    return shapes


class FIFOQueue(QueueBase):
    """First in, first out.

    Args:
        capacity: how many elements it may hold; below 1: any number.
        dtypes: element type, or one per component.
        shapes: complete shape, or one per component; needed for `dequeue_many`.
        names: names of components, for dictionaries.
        shared_name: queues of one name, container and task are one queue, whichever session made them; None: the node's name.
        name: of the node.

    Raises:
        ValueError: shapes or names do not fit the types. When it runs: InvalidArgumentError: another program made a queue of
            that name with other capacity, types or shapes.

    >>> queue = FIFOQueue(10, ["float32"], shapes=[[2]])
    >>> put, got = queue.enqueue([[1.0, 2.0]]), queue.dequeue()
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        types = _types(dtypes)
        dims = _complete(_shape_list(shapes, len(types)), "FIFOQueue")
        super().__init__(*_make("FIFOQueueV2", capacity, types, dims, names, shared_name, name))


class RandomShuffleQueue(QueueBase):
    """Gives a random one of its elements. Arguments as for `FIFOQueue`, and

    Args:
        min_after_dequeue: how many elements stay in the queue to shuffle among, until it is closed.
        seed: with it (or `set_random_seed`) the order is the same every time.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        types = _types(dtypes)
        dims = _complete(_shape_list(shapes, len(types)), "RandomShuffleQueue")
        if capacity > 0 and not 0 <= min_after_dequeue < capacity:
            raise ValueError(f"min_after_dequeue must be in [0, capacity={capacity}), not {min_after_dequeue}")
        first, second = get_seed(seed)
        # The same for each program that shares the queue.
        if seed is None and first is not None and shared_name is not None:
            second = zlib.crc32(f"{first}{shared_name}".encode()) & 0x7FFFFFFF
        super().__init__(
            *_make(
                "RandomShuffleQueueV2", capacity, types, dims, names, shared_name, name,
                min_after_dequeue=int(min_after_dequeue), seed=first or 0, seed2=second or 0,
            )
        )  # fmt: skip


class PaddingFIFOQueue(QueueBase):
    """A `FIFOQueue` whose shapes may have unknown sizes: `dequeue_many` fills smaller elements up with zeros."""

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        types = _types(dtypes)
        dims = _shape_list(shapes, len(types))
        if dims is None or any(d is None for d in dims):
            raise ValueError("A PaddingFIFOQueue needs the rank of every component")
        super().__init__(*_make("PaddingFIFOQueueV2", capacity, types, dims, names, shared_name, name))


class PriorityQueue(QueueBase):
    """Gives the element of lowest priority value first; of equal ones the oldest.

    Arguments as for `FIFOQueue`; elements have one more component, the first: the priority, a scalar int64.
    """

    def __init__(
        self,
        capacity: int,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        own = _types(types)
        dims = _complete(_shape_list(shapes, len(own)), "PriorityQueue")
        all_dims = None if dims is None else [(), *dims]
        super().__init__(*_make("PriorityQueueV2", capacity, [int64, *own], all_dims, names, shared_name, name))


__all__ = ["FIFOQueue", "PaddingFIFOQueue", "PriorityQueue", "QueueBase", "RandomShuffleQueue"]
