"""Taking the next element of a data set.

A pipeline is Python: functions, generators, threads. It stays in the process that built the graph, like a `py_func`, and so does
the node that takes from it. What is left to the graph is a *position*, a variable of two whole numbers: the seed with which the
pipeline was started, and how many elements it has given. The pipeline is a function of the position, so whoever assigns a position
(an initializer, a restored checkpoint) moves the pipeline there, and a position that is saved is the state of the input.

An iterator that may take from several data sets has one pipeline, too; the position's third number says from which. A *handle* is
text that names an iterator: a node that is fed one takes from that.
"""

from __future__ import annotations

import json
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import DType, int64, string
from ..errors import FailedPreconditionError, InvalidArgumentError, OpError, OutOfRangeError, UnknownError
from ..graph import Graph
from ..node import Node, Tensor
from ..opdef import Attrs, Output, Trait, define
from ..shape import as_dims, compatible, text
from ..state import Context, VariableState
from .python_function import process_nonce
from .state import place_of

Array = np.ndarray[Any, Any]
Start = Callable[..., Iterator[Sequence[Array]]]
"""(seed, elements to leave out), and the number of the data set where there are several -> the elements from there on."""

Give = Callable[[int, int, Sequence[Array], "int | None"], None]
"""(number of the data set, seed, values of its tensors, the seed that is not needed any more)."""


class Pipeline:
    """A pipeline, and where it stands. Its graph holds it."""

    def __init__(self, start: Start, give: Give | None) -> None:
        self._start, self._give = start, give
        self._seed: int | None = None
        self._lock = threading.Lock()
        self._state: VariableState | None = None
        self._at: tuple[int, ...] | None = None
        self._live: Iterator[Sequence[Array]] | None = None

    def begin(self, state: VariableState) -> None:
        """Start, unless another step has done so."""
        with self._lock:
            if not state.is_initialized:
                state.assign(np.array([secrets.randbits(62), 0]))

    def give(self, which: int, seed: int, values: Sequence[Array]) -> None:
        """The values of tensors with which it starts next, with this seed; those of the start before are forgotten."""
        with self._lock:
            assert self._give is not None
            self._give(which, seed, values, self._seed)
            self._seed = seed

    def after(self, state: VariableState, *position: int) -> Sequence[Array] | None:
        """The element that follows a position; None: there is none."""
        with self._lock:
            if self._live is None or self._state is not state or self._at != position:
                self.stop()
                self._live, self._state = self._start(*position), state
            self._at = None  # if the pipeline fails it is started anew
            found = next(self._live, None)
            if found is None:
                self.stop()
            else:
                self._at = _next_position(position)
            return found

    def stop(self) -> None:
        """Let go of the elements that are under way, and their threads."""
        live, self._live = self._live, None
        if live is not None and hasattr(live, "close"):
            live.close()


def _next_position(position: Sequence[int]) -> tuple[int, ...]:
    seed, count, *which = position
    return seed, count + 1, *which


_pipelines: weakref.WeakValueDictionary[str, Pipeline] = weakref.WeakValueDictionary()


def register(start: Start, graph: Graph, give: Give | None = None) -> dict[str, Any]:
    """Keep a pipeline as long as its graph lives; the attrs by which a node finds it."""
    token = f"pipeline_{secrets.token_hex(8)}"
    _pipelines[token] = pipeline = Pipeline(start, give)
    graph.add_to_collection("pipelines", pipeline)
    return {"token": token, "process": process_nonce()}


def _infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for name in ("token", "process"):
        if not isinstance(attrs.get(name), str):
            raise TypeError(f"attribute {name} must be text")
    if not isinstance(attrs.get("one_shot"), bool):
        raise TypeError("attribute one_shot must be True or False")
    dtype, dims = place_of(inputs[0])
    if not inputs[0].dtype.is_ref or dtype is not int64 or not any(compatible(dims, (n,)) for n in (2, 3)):
        raise TypeError("the position must be a reference variable of two int64, or three")
    return _outputs(attrs)


def _outputs(attrs: Attrs) -> list[Output]:
    dtypes, shapes = attrs.get("output_types"), attrs.get("output_shapes")
    if not isinstance(dtypes, tuple) or not all(isinstance(d, DType) for d in dtypes):
        raise TypeError("attribute output_types must hold element types")
    if not isinstance(shapes, tuple) or len(shapes) != len(dtypes):
        raise TypeError("attribute output_shapes must have one shape per component")
    return [(d.base, as_dims(s)) for d, s in zip(dtypes, shapes, strict=True)]


def _next(
    context: Context,
    state: VariableState,
    *,
    token: str,
    process: str,
    one_shot: bool,
    output_types: tuple[DType, ...],
    output_shapes: tuple[Any, ...],
) -> Any:
    return _taken(context, state, token, process, one_shot, output_types, output_shapes)


def _pipeline(token: str, process: str) -> Pipeline:
    pipeline = _pipelines.get(token)
    if pipeline is None or process != process_nonce():
        raise InvalidArgumentError(
            None, None,
            "A data set runs only in the client's own process, where its graph was built, and this is another one. "
            "Put the iterator on the client's task, or feed the elements.",
        )  # fmt: skip
    return pipeline


def _taken(
    context: Context,
    state: VariableState,
    token: str,
    process: str,
    one_shot: bool,
    output_types: tuple[DType, ...],
    output_shapes: tuple[Any, ...],
) -> Any:
    """The next element of a pipeline, whose position is `state`."""
    pipeline = _pipeline(token, process)
    if not state.is_initialized:
        if not one_shot:
            raise FailedPreconditionError(
                None, None,
                f"The iterator of '{context.node_name}' has no position: run iterator.initializer before the first element",
            )  # fmt: skip
        pipeline.begin(state)
    element: list[Sequence[Array]] = []

    def advance(old: Array) -> Array:
        position = old.tolist()
        try:
            found = pipeline.after(state, *position)
        except OpError:
            raise
        except Exception as e:
            raise UnknownError(None, None, f"The data set failed: {type(e).__name__}: {e}") from e
        if found is None:
            raise OutOfRangeError(None, None, "End of sequence")
        _check(found, output_types, output_shapes)
        element.append(found)
        return np.array(_next_position(position))

    state.update(advance)
    return element[0][0] if len(element[0]) == 1 else tuple(element[0])


def _check(element: Sequence[Array], types: tuple[DType, ...], shapes: tuple[Any, ...]) -> None:
    """InvalidArgumentError unless an element is as the node says."""
    if [v.dtype for v in element] != [d.base.np for d in types]:
        given, wanted = ", ".join(str(v.dtype) for v in element), ", ".join(d.name for d in types)
        raise InvalidArgumentError(None, None, f"The iterator gives {given}, and {wanted} is expected")
    for i, (value, dims) in enumerate(zip(element, shapes, strict=True)):
        if not compatible(value.shape, as_dims(dims)):
            raise InvalidArgumentError(
                None,
                None,
                f"Component {i} of the element has shape {text(value.shape)}, and {text(dims)} is expected",
            )


# --- values of tensors -----------------------------------------------------------------------------------------------


def _infer_give(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not isinstance(attrs.get("which"), int):
        raise TypeError("attribute which must be a number")
    if inputs[0].dtype.base is not int64 or not compatible(inputs[0].dims, ()):
        raise TypeError("the seed must be one int64")
    return [(int64, ())]


def _given(context: Context, seed: Array, *values: Array, token: str, process: str, which: int) -> Array:
    """The seed, when the pipeline has the values."""
    _pipeline(token, process).give(which, int(seed), [np.array(v) for v in values])
    return seed


# --- by handles ------------------------------------------------------------------------------------------------------


def handle_of(attrs: Attrs, one_shot: bool, container: str, variable: str) -> str:
    """The handle of an iterator: its pipeline (`register`), and the variable that is its position."""
    return json.dumps([attrs["token"], attrs["process"], one_shot, container, variable])


def _infer_by_handle(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if inputs[0].dtype.base is not string or not compatible(inputs[0].dims, ()):
        raise TypeError("the handle must be one text")
    return _outputs(attrs)


def _next_by_handle(
    context: Context, handle: Array, *, output_types: tuple[DType, ...], output_shapes: tuple[Any, ...]
) -> Any:
    try:
        token, process, one_shot, container, name = json.loads(handle.item())
        known = [type(v) for v in (token, process, one_shot, container, name)] == [str, str, bool, str, str]
    except (ValueError, TypeError):
        known = False
    if not known:
        raise InvalidArgumentError(
            None, None, f"Not the handle of an iterator: {handle.item()!r:.80}. Feed what session.run(iterator.string_handle()) gives."
        )  # fmt: skip
    state = context.resources.get_or_create(
        container or context.container, name, VariableState, lambda: VariableState(name, int64)
    )
    return _taken(context, state, token, process, one_shot, output_types, output_shapes)


def _no_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    return [None]


define(
    "IteratorGetNext",
    infer=_infer,
    reference=_next,
    gradient=_no_gradient,
    traits=Trait.STATEFUL | Trait.HOST_ONLY,
    ref_inputs=(0,),
    device_types=("CPU",),
)
define(
    "IteratorGive",
    infer=_infer_give,
    reference=_given,
    traits=Trait.STATEFUL | Trait.HOST_ONLY,
    device_types=("CPU",),
)
define(
    "IteratorGetNextByHandle",
    infer=_infer_by_handle,
    reference=_next_by_handle,
    gradient=_no_gradient,
    traits=Trait.STATEFUL | Trait.HOST_ONLY,
    device_types=("CPU",),
)
