"""Iterators of data sets.

The state of an iterator is its *position*, a variable of two ints: the seed with which its data set was started, and the number of elements
that it has returned. The elements are a function of the position. So assigning the position, by an initializer or from a checkpoint, moves
the iterator, and saving it saves the state of the input. An iterator over several data sets has a third int, the number of the data set.

A *pipeline* produces the elements. It runs in the process that has the position. In the process that built the graph, it is found by a
token. To other processes, the description of the data set is sent as attributes of an `IteratorPipeline` node. There the pipeline is kept
with the position's variable, and so are the values of the data set's tensors (`IteratorGive`). A *handle* is a string that identifies an
iterator. A node that is fed a handle takes elements from that iterator.
"""

from __future__ import annotations

import json
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ...core.device import DeviceSpec
from ...core.dtypes import Array, DType, int64, string
from ...core.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    UnknownError,
    invalid,
)
from ...core.graph import Graph, Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define, tuple_attr, typed_attr
from ...core.shape import Dims, as_dims, compatible, text
from ...resources.cancellation import check_cancelled, is_cancelled
from ...resources.resource_manager import Context, Resources
from ...resources.variable import VariableState
from ..control.python_function import MEANING, process_nonce
from ..state.variables import type_and_dims

FULL_BATCH = "full_batch"
"""An attribute of `IteratorGetNext`: the rows of a full batch. The static shape does not tell them if the last batch may be smaller."""
SMALLER_BATCHES = "smaller_batches"
"""Another one: whether a batch may have fewer rows, as the last of an epoch has, unless the number of elements is known to fit."""


class Elements(Protocol):
    """A data set, as a pipeline needs it."""

    def iterate_from(self, seed: int, skip: int, values: Sequence[Any], task: Resources) -> Iterator[Sequence[Array]]:
        """The elements after the first `skip`. `values` are the values of the data set's tensors, empty if they are unknown."""
        ...


decoders: list[Callable[[bytes, Sequence[Array]], Elements]] = []
"""The function that makes a data set from its description. The package of data sets registers it here."""


class Pipeline:
    """Data sets by number, the values of their tensors, and the iteration in progress."""

    def __init__(self, token: str, datasets: dict[int, Elements]) -> None:
        self.token, self.datasets = token, datasets
        # Position -> (number, seed, values) of its last start. Each session of a graph has its own position.
        self._values: weakref.WeakKeyDictionary[VariableState, tuple[int, int, Sequence[Array]]] = (
            weakref.WeakKeyDictionary()
        )
        self._shapes: weakref.WeakKeyDictionary[VariableState, list[Dims]] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._state: weakref.ref[VariableState] | None = (
            None  # the position; weak, or `_of_position` would keep it alive
        )
        self._at: tuple[int, ...] | None = None
        self._live: Iterator[Sequence[Array]] | None = None
        self._task: weakref.ref[Resources] | None = None  # the task of the iteration in progress
        self._ended: tuple[int, ...] | None = None

    def begin(self, state: VariableState, seed: int) -> None:
        """Initialize the position unless another step has done so. A seed of 0 means a random one."""
        with self._lock:
            if not state.is_initialized:
                state.assign(np.array([seed or secrets.randbits(62), 0]))

    def give(self, state: VariableState, which: int, seed: int, values: Sequence[Array]) -> None:
        """Set the values of tensors for the next start with this seed. They replace those of the last start."""
        with self._lock:
            self._values[state] = which, seed, values

    def after(self, state: VariableState, task: Resources, *position: int) -> Sequence[Array] | None:
        """The element after a position, or None at the end. If the step is cancelled, its error is raised and the iteration is dropped."""
        with self._lock:
            check_cancelled()
            is_same = self._state is not None and self._state() is state
            if not is_same:
                self._ended = None
            if self._ended == position:
                return None
            fresh = self._live is None or not is_same or self._at != position
            live = self._started(state, task, position) if fresh else self._live
            assert live is not None
            self._at = _next_position(position)
            try:
                found = next(live, None)
                check_cancelled()
            except Exception:
                if is_cancelled():
                    self.stop()
                raise
            if found is None:
                self.stop()
                self._ended = position
            else:
                self._shapes[state] = [value.shape for value in found]
            return found

    def last_shapes(self) -> Sequence[Dims] | None:
        """The shapes of the last element; None: there is none, or several sessions have taken some."""
        with self._lock:
            return next(iter(self._shapes.values())) if len(self._shapes) == 1 else None

    def _started(self, state: VariableState, task: Resources, position: Sequence[int]) -> Iterator[Sequence[Array]]:
        """Start the data set again, and return an iterator over the elements after a position."""
        self.stop()
        seed, skip, which = (*position, 0)[:3]
        number, start, values = self._values.get(state, (which, seed, ()))
        if (number, start) != (which, seed):
            values = ()
        self._task, self._state = weakref.ref(task), weakref.ref(state)
        task.inner.add(self)
        self._live = self._dataset(which).iterate_from(seed, skip, values, task)
        return self._live

    def _dataset(self, which: int) -> Elements:
        found = self.datasets.get(which)
        if found is None:
            raise FailedPreconditionError.of(
                "This task does not have the data set of the iterator's position: run the initializer of its data set"
            )
        return found

    def cancel(self, resources: Resources) -> None:
        """Stop prefetching for a task that ends. If the lock is taken, a cancelled step holds it, and stops the iteration itself."""
        if self._task is not None and self._task() is resources and self._lock.acquire(blocking=False):
            self.stop()
            self._lock.release()

    def stop(self) -> None:
        """Drop the iteration in progress, and stop its threads."""
        live, self._live = self._live, None
        if live is not None and hasattr(live, "close"):
            live.close()


def _next_position(position: Sequence[int]) -> tuple[int, ...]:
    seed, count, *which = position
    return seed, count + 1, *which


_pipelines: weakref.WeakValueDictionary[str, Pipeline] = weakref.WeakValueDictionary()
_of_position: weakref.WeakKeyDictionary[VariableState, Pipeline] = weakref.WeakKeyDictionary()
"""Position -> its pipeline, that of the last node that has one."""


def register(datasets: dict[int, Any], graph: Graph) -> dict[str, Any]:
    """Keep a pipeline as long as its graph exists. Returns the attributes by which a node finds it."""
    token = f"pipeline_{secrets.token_hex(8)}"
    _pipelines[token] = pipeline = Pipeline(token, datasets)
    graph.add_to_collection("input_pipelines", pipeline)
    return {"token": token, "process": process_nonce()}


def _pipeline(state: VariableState | None, token: str, process: str) -> Pipeline:
    pipeline = _pipelines.get(token) if process == process_nonce() else None
    if state is not None:
        if pipeline is not None and pipeline.datasets:
            _of_position[state] = pipeline
        else:  # the description was sent here, or another graph has an iterator of the same name
            pipeline = _of_position.get(state, pipeline)
    if pipeline is None:
        raise _elsewhere("")
    return pipeline


def last_element(node: Node) -> Sequence[Dims] | None:
    """The shapes of what an `IteratorGetNext` of this process has returned last; None: not known."""
    pipeline = _pipelines.get(node.attrs["token"])
    return None if pipeline is None else pipeline.last_shapes()


def attrs_at(node: Node, task: str) -> Attrs:
    """The attributes with which a node is sent to a task of this process. Descriptions of data sets that run here are left out."""
    if "description" not in node.attrs or node.attrs["process"] != process_nonce():
        return node.attrs
    device, there = DeviceSpec.from_string(node.device), DeviceSpec.from_string(task)
    if (device.job or device.task is not None) and (device.job, device.task or 0) != (there.job, there.task):
        return node.attrs
    return {**node.attrs, "description": b"", "arrays": (), "reason": ""}


def _elsewhere(reason: str) -> InvalidArgumentError:
    return invalid(
        f"The data set runs only in the client's process, which built the graph, and this is another process{reason and ': '}{reason}. "
        "Put the iterator on the client's task. Or use only files, arrays and graph ops in the data set, and place the iterator with "
        "dt.device, so that the data set is sent there."
    )


# --- rules -----------------------------------------------------------------------------------------------------------


def _need_tokens(attrs: Attrs) -> None:
    for name in ("token", "process"):
        typed_attr(attrs, name, str)


def _need_position(tensor: Tensor) -> None:
    dtype, dims = type_and_dims(tensor)
    if not tensor.dtype.is_ref or dtype is not int64 or not any(compatible(dims, (n,)) for n in (2, 3)):
        raise TypeError("the position must be a reference variable of two or three int64")


def _infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _need_tokens(attrs)
    typed_attr(attrs, "one_shot", bool)
    typed_attr(attrs, "seed", int)
    _need_position(inputs[0])
    return _outputs(attrs)


def _outputs(attrs: Attrs) -> list[Output]:
    dtypes, shapes = tuple_attr(attrs, "output_types", DType), attrs.get("output_shapes")
    if not isinstance(shapes, tuple) or len(shapes) != len(dtypes):
        raise TypeError("attribute output_shapes must have one shape per component")
    return [(d.base, as_dims(s)) for d, s in zip(dtypes, shapes, strict=True)]


def _need_description(attrs: Attrs) -> None:
    _need_tokens(attrs)
    arrays = attrs.get("arrays")
    typed_attr(attrs, "description", bytes)
    typed_attr(attrs, "reason", str)
    if (
        not isinstance(arrays, tuple)
        or not all(isinstance(a, np.ndarray) for a in arrays)
        or not isinstance(attrs.get("which"), int)
    ):
        raise TypeError("attribute arrays must hold arrays, and attribute which must be an int")


# --- get_next --------------------------------------------------------------------------------------------------------


def _next(
    context: Context,
    state: VariableState,
    *,
    token: str,
    process: str,
    one_shot: bool,
    seed: int,
    output_types: tuple[DType, ...],
    output_shapes: tuple[Any, ...],
) -> Any:
    pipeline = _pipeline(state, token, process)
    if one_shot and not state.is_initialized:
        pipeline.begin(state, seed)
    return _taken(context, state, pipeline, output_types, output_shapes)


def _taken(
    context: Context,
    state: VariableState,
    pipeline: Pipeline,
    output_types: tuple[DType, ...],
    output_shapes: tuple[Any, ...],
) -> Any:
    """The next element of a pipeline, whose position is `state`. If it fails, its error is raised and the position moves past it."""
    if not state.is_initialized:
        raise FailedPreconditionError.of(
            f"The iterator has not been initialized: run iterator.initializer before the first element ('{context.node_name}' finds no "
            "position)",
        )
    element: list[Sequence[Array]] = []
    failed: list[OpError] = []

    def advance(old: Array) -> Array:
        position = tuple(old.tolist())
        try:
            found = pipeline.after(state, context.resources, *position)
        except FailedPreconditionError:
            raise
        except Exception as e:
            if is_cancelled():  # the position does not change
                raise
            failed.append(as_op_error(e))
            return np.array(_next_position(position))
        if found is None:
            raise OutOfRangeError.of("End of sequence")
        _check(found, output_types, output_shapes)
        element.append(found)
        return np.array(_next_position(position))

    state.update(advance)
    if failed:
        raise failed[0]
    return element[0][0] if len(element[0]) == 1 else tuple(element[0])


def as_op_error(e: Exception) -> OpError:
    """The error of a step for an exception of a data set. Python's exceptions are converted to the corresponding class."""
    if isinstance(e, OpError):
        return e
    kind = next((c for theirs, c in MEANING.items() if isinstance(e, theirs)), UnknownError)
    error = kind(None, None, f"The data set failed: {type(e).__name__}: {e}")
    error.__cause__ = e
    return error


def _check(element: Sequence[Array], types: tuple[DType, ...], shapes: tuple[Any, ...]) -> None:
    """InvalidArgumentError unless an element has the types and shapes of the node."""
    if [v.dtype for v in element] != [d.base.np for d in types]:
        given, wanted = ", ".join(str(v.dtype) for v in element), ", ".join(d.name for d in types)
        raise invalid(f"The iterator returns {given}, and {wanted} is expected")
    for i, (value, dims) in enumerate(zip(element, shapes, strict=True)):
        if not compatible(value.shape, as_dims(dims)):
            raise invalid(f"Component {i} of the element has shape {text(value.shape)}, and {text(dims)} is expected")


# --- descriptions, and values of tensors -----------------------------------------------------------------------------


def _infer_pipeline(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _need_description(attrs)
    _need_position(inputs[0])
    return []


def _keep(
    context: Context,
    state: VariableState,
    *,
    token: str,
    process: str,
    which: int,
    description: bytes,
    arrays: tuple[Array, ...],
    reason: str,
) -> tuple[()]:
    """Make the pipeline of a description, and keep it with the position, unless this process built the graph."""
    if process == process_nonce():
        return ()
    if not description:
        raise _elsewhere(reason)
    pipeline = _of_position.get(state)
    if pipeline is None or pipeline.token != token:
        pipeline = _of_position[state] = Pipeline(token, {})
    if which not in pipeline.datasets:
        pipeline.datasets[which] = decoders[0](description, arrays)
    return ()


def _infer_give(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _need_tokens(attrs)
    typed_attr(attrs, "which", int)
    _need_position(inputs[0])
    if inputs[1].dtype.base is not int64 or not compatible(inputs[1].dims, ()):
        raise TypeError("the seed must be one int64")
    return [(int64, ())]


def _given(
    context: Context, state: VariableState, seed: Array, *values: Array, token: str, process: str, which: int
) -> Array:
    """Give the pipeline the values of its tensors. Returns the seed."""
    _pipeline(state, token, process).give(state, which, int(seed), [np.array(v) for v in values])
    return seed


def _infer_single(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _need_description(attrs)
    return _outputs(attrs)


def _single(
    context: Context,
    *values: Array,
    token: str,
    process: str,
    which: int,
    seed: int,
    description: bytes,
    arrays: tuple[Array, ...],
    reason: str,
    output_types: tuple[DType, ...],
    output_shapes: tuple[Any, ...],
) -> Any:
    """The first element of a data set, which is started anew."""
    if process == process_nonce():
        dataset = _pipeline(None, token, process).datasets[which]
    elif not description:
        raise _elsewhere(reason)
    else:
        dataset = decoders[0](description, arrays)
    walk = dataset.iterate_from(seed or context.session.seed + context.run_number(), 0, values, context.resources)
    try:
        found = next(walk, None)
    except OpError:
        raise
    except Exception as e:
        raise as_op_error(e) from e
    if found is None:
        raise invalid("Dataset was empty.")
    _check(found, output_types, output_shapes)
    return found[0] if len(found) == 1 else tuple(found)


# --- by handles ------------------------------------------------------------------------------------------------------


def handle_of(attrs: Attrs, one_shot: bool, seed: int, container: str, variable: str) -> str:
    """The handle of an iterator: its pipeline (`register`), and the variable of its position."""
    return json.dumps([attrs["token"], attrs["process"], one_shot, seed, container, variable])


def _infer_by_handle(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if inputs[0].dtype.base is not string or not compatible(inputs[0].dims, ()):
        raise TypeError("the handle must be a scalar string")
    return _outputs(attrs)


def _next_by_handle(
    context: Context, handle: Array, *, output_types: tuple[DType, ...], output_shapes: tuple[Any, ...]
) -> Any:
    try:
        token, process, one_shot, seed, container, name = json.loads(handle.item())
        parts = (token, process, one_shot, seed, container, name)
        known = [type(v) for v in parts] == [str, str, bool, int, str, str]
    except (ValueError, TypeError):
        known = False
    if not known:
        raise invalid(
            f"Not the handle of an iterator: {handle.item()!r:.80}. Feed the result of session.run(iterator.string_handle())."
        )
    state = context.resources.get_or_create(
        container or context.container, name, VariableState, lambda: VariableState(name, int64)
    )
    pipeline = _pipeline(state, token, process)
    if one_shot and not state.is_initialized:
        pipeline.begin(state, seed)
    return _taken(context, state, pipeline, output_types, output_shapes)


def _no_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    return [None for _ in node.inputs]


def _define(name: str, **parts: Any) -> None:
    define(name, device_types=("CPU",), traits=parts.pop("traits", Trait.STATEFUL), **parts)


_TAKES = Trait.STATEFUL | Trait.UNBOUNDED


_define(
    "IteratorGetNext", infer=_infer, reference=_next, gradient=_no_gradient, ref_inputs=(0,), internal_attrs=(FULL_BATCH, SMALLER_BATCHES),
    traits=_TAKES,
)  # fmt: skip
_define("IteratorPipeline", infer=_infer_pipeline, reference=_keep, ref_inputs=(0,))
_define("IteratorGive", infer=_infer_give, reference=_given, ref_inputs=(0,))
_define(
    "IteratorGetNextByHandle", infer=_infer_by_handle, reference=_next_by_handle, gradient=_no_gradient, traits=_TAKES
)
_define("DatasetToSingleElement", infer=_infer_single, reference=_single, gradient=_no_gradient, traits=_TAKES)
# Nodes that are colocated with it stay in the client's process.
_define(
    "InClient", infer=lambda inputs, attrs: [], reference=lambda context: (), traits=Trait.STATEFUL | Trait.HOST_ONLY
)
