"""TensorFlow 1's classes of queues.

An object represents the node that creates the queue, and adds the nodes that use it. The queue itself is in the task of that node, and
outlives the sessions that use it. Clients share it by its `shared_name`.
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
    """The common base of queues.

    An element is a tuple of components. It is enqueued and dequeued as a tensor, a list of tensors, or with `names` a dictionary.

    Attributes:
        dtypes: the element type of each component.
        shapes: the shape of each component.
        names: the name of each component, or None.
        name: the name of the node that creates the queue.
        queue_ref: the handle.
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
        """The queue that the scalar tensor `index` selects in the step. All queues must be on one device.

        Raises:
            TypeError: the list is empty or has something else, or types or names of components differ.
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

    # --- properties ------------------------------------------------------------------------------------------------

    @property
    def queue_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def name(self) -> str:
        """Name of the node that creates the queue."""
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

    # --- enqueue ---------------------------------------------------------------------------------------------------

    def enqueue(self, vals: Any, name: str | None = None) -> Node:
        """A node that adds one element. It waits while the queue is full.

        Args:
            vals: a tensor, a list of tensors, or with `names` a dictionary.
            name: name of the node.

        Raises:
            ValueError: the number, names or shapes of components do not fit.
            TypeError: a component has another type.
            CancelledError: in a step, the queue is closed.
        """
        return self._put("QueueEnqueueV2", vals, name or f"{self._name}_enqueue", many=False)

    def enqueue_many(self, vals: Any, name: str | None = None) -> Node:
        """A node that adds one element per row of the components, one by one while there is room."""
        return self._put("QueueEnqueueManyV2", vals, name or f"{self._name}_EnqueueMany", many=True)

    def _put(self, op: str, vals: Any, name: str, *, many: bool) -> Node:
        with self._handle.graph.op_scope(name) as scope:
            components = self._components(vals)
        for i, t in enumerate(components):
            dims = None if self._shapes is None else self._shapes[i]
            given = t.dims
            if many and given is not None:
                if not given:
                    raise ValueError(f"component {i} is a scalar: it needs a first axis for the elements")
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

    # --- dequeue ---------------------------------------------------------------------------------------------------

    def dequeue(self, name: str | None = None) -> Any:
        """The next element: a tensor, a list of tensors, or a dictionary. It waits while the queue is empty.

        Raises (when it runs):
            OutOfRangeError: the queue is closed and empty.
            CancelledError: the session was closed.
        """
        return self._taken("QueueDequeueV2", (), name or f"{self._name}_Dequeue")

    def dequeue_many(self, n: TensorLike, name: str | None = None) -> Any:
        """The next `n` elements, each component stacked along a new first axis. It waits until there are `n`.

        The queue must have been created with `shapes`. A step that ends while it waits puts its elements back in order.

        Raises (when it runs):
            OutOfRangeError: the queue is closed and has fewer than `n` elements.
        """
        return self._many("QueueDequeueManyV2", n, name or f"{self._name}_DequeueMany")

    def dequeue_up_to(self, n: TensorLike, name: str | None = None) -> Any:
        """`dequeue_many` that returns the remaining elements, at least one, when the queue is closed."""
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

    # --- close and size --------------------------------------------------------------------------------------------

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Node:
        """A node that closes the queue. Later enqueues fail with CancelledError. Dequeues get the remaining elements.

        It first waits for pending enqueues. With `cancel_pending_enqueues` they fail with CancelledError instead.
        """
        attrs = {"cancel_pending_enqueues": bool(cancel_pending_enqueues)}
        return make("QueueCloseV2", (self._handle,), attrs, name or f"{self._name}_Close")

    def is_closed(self, name: str | None = None) -> Tensor:
        """Scalar bool: whether the queue is closed."""
        return apply("QueueIsClosedV2", (self._handle,), None, name or f"{self._name}_Is_Closed")

    def size(self, name: str | None = None) -> Tensor:
        """Scalar int32: the number of elements in the queue."""
        return apply("QueueSizeV2", (self._handle,), None, name or f"{self._name}_Size")

    def __repr__(self) -> str:
        return f"<dt.{type(self).__name__} '{self._name}'>"


def _types(dtypes: Any) -> list[DType]:
    return [as_dtype(d).base for d in (dtypes if isinstance(dtypes, (list, tuple)) else [dtypes])]


def _shape_list(shapes: Any, count: int) -> list[Dims] | None:
    if shapes is None:
        return None
    if count == 1:
        # With one component, `shapes=[2]`, `shapes=[]` and `shapes=TensorShape([2])` are the shape itself, not a list of shapes.
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
                f"{what} needs complete shapes, not {text(dims)}; a PaddingFIFOQueue takes components with unknown sizes"
            )
    return shapes


class FIFOQueue(QueueBase):
    """A queue whose elements are dequeued in the order in which they were enqueued.

    Args:
        capacity: the largest number of elements. Below 1: no limit.
        dtypes: the element type, or one per component.
        shapes: the complete shape, or one per component. Required for `dequeue_many`.
        names: the names of components, for elements that are dictionaries.
        shared_name: queues with the same name, container and task are the same, also in different sessions. None means the node's name.
        name: name of the node.

    Raises:
        ValueError: shapes or names do not fit the types.
        InvalidArgumentError: in a step, a queue of that name exists with another capacity, types or shapes.

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
    """A queue whose elements are dequeued in random order. Other arguments as for `FIFOQueue`.

    Args:
        min_after_dequeue: the least number of elements that stay in the queue after a dequeue, until it is closed.
        seed: a seed that makes the order reproducible (see `get_seed`).
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
        # The seed must be the same in all programs that share the queue.
        if seed is None and first is not None and shared_name is not None:
            second = zlib.crc32(f"{first}{shared_name}".encode()) & 0x7FFFFFFF
        super().__init__(
            *_make(
                "RandomShuffleQueueV2", capacity, types, dims, names, shared_name, name,
                min_after_dequeue=int(min_after_dequeue), seed=first or 0, seed2=second or 0,
            )
        )  # fmt: skip


class PaddingFIFOQueue(QueueBase):
    """A `FIFOQueue` whose shapes may have unknown sizes. `dequeue_many` pads smaller elements with zeros."""

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
    """A queue that dequeues the element with the lowest priority value first, and of equal ones the oldest.

    Arguments as for `FIFOQueue`. Elements have an additional first component, the priority, a scalar int64.
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
