"""Taking the next element of a data set.

A pipeline is Python: functions, generators, threads. It stays in the process that built the graph, like a `py_func`, and so does
the node that takes from it. What is left to the graph is a *position*, a variable of two whole numbers: the seed with which the
pipeline was started, and how many elements it has given. The pipeline is a function of the position, so whoever assigns a position
(an initializer, a restored checkpoint) moves the pipeline there, and a position that is saved is the state of the input.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import DType, int64
from ..errors import FailedPreconditionError, InvalidArgumentError, OpError, OutOfRangeError, UnknownError
from ..graph import Graph
from ..node import Node, Tensor
from ..opdef import Attrs, Output, Trait, define
from ..shape import as_dims, compatible, text
from ..state import Context, VariableState
from .python_function import process_nonce
from .state import place_of

Array = np.ndarray[Any, Any]
Start = Callable[[int, int], Iterator[Sequence[Array]]]
"""(seed, elements to leave out) -> the elements from there on."""


class Pipeline:
    """A pipeline, and where it stands. Its graph holds it."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._state: VariableState | None = None
        self._at: tuple[int, int] | None = None
        self._live: Iterator[Sequence[Array]] | None = None

    def begin(self, state: VariableState) -> None:
        """Start, unless another step has done so."""
        with self._lock:
            if not state.is_initialized:
                state.assign(np.array([secrets.randbits(62), 0]))

    def after(self, state: VariableState, seed: int, count: int) -> Sequence[Array] | None:
        """The element that follows a position; None: there is none."""
        with self._lock:
            if self._live is None or self._state is not state or self._at != (seed, count):
                self.stop()
                self._live, self._state = self._start(seed, count), state
            self._at = None  # if the pipeline fails it is started anew
            found = next(self._live, None)
            if found is None:
                self.stop()
            else:
                self._at = seed, count + 1
            return found

    def stop(self) -> None:
        """Let go of the elements that are under way, and their threads."""
        live, self._live = self._live, None
        if live is not None and hasattr(live, "close"):
            live.close()


_pipelines: weakref.WeakValueDictionary[str, Pipeline] = weakref.WeakValueDictionary()


def register(start: Start, graph: Graph) -> dict[str, Any]:
    """Keep a pipeline as long as its graph lives; the attrs by which a node finds it."""
    token = f"pipeline_{secrets.token_hex(8)}"
    _pipelines[token] = pipeline = Pipeline(start)
    graph.add_to_collection("pipelines", pipeline)
    return {"token": token, "process": process_nonce()}


def _infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for name in ("token", "process"):
        if not isinstance(attrs.get(name), str):
            raise TypeError(f"attribute {name} must be text")
    if not isinstance(attrs.get("one_shot"), bool):
        raise TypeError("attribute one_shot must be True or False")
    dtype, dims = place_of(inputs[0])
    if not inputs[0].dtype.is_ref or dtype is not int64 or not compatible(dims, (2,)):
        raise TypeError("the position must be a reference variable of two int64")
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
    pipeline = _pipelines.get(token)
    if pipeline is None or process != process_nonce():
        raise InvalidArgumentError(
            None, None,
            "A data set runs only in the client's own process, where its graph was built, and this is another one. "
            "Put the iterator on the client's task, or feed the elements.",
        )  # fmt: skip
    if not state.is_initialized:
        if not one_shot:
            raise FailedPreconditionError(
                None, None,
                f"The iterator of '{context.node_name}' has no position: run iterator.initializer before the first element",
            )  # fmt: skip
        pipeline.begin(state)
    element: list[Sequence[Array]] = []

    def advance(old: Array) -> Array:
        seed, count = (int(n) for n in old)
        try:
            found = pipeline.after(state, seed, count)
        except OpError:
            raise
        except Exception as e:
            raise UnknownError(None, None, f"The data set failed: {type(e).__name__}: {e}") from e
        if found is None:
            raise OutOfRangeError(None, None, "End of sequence")
        element.append(found)
        return np.array([seed, count + 1])

    state.update(advance)
    for i, (value, dims) in enumerate(zip(element[0], output_shapes, strict=True)):
        if not compatible(value.shape, as_dims(dims)):
            raise InvalidArgumentError(
                None,
                None,
                f"Component {i} of the element has shape {text(value.shape)}, the data set says {text(dims)}",
            )
    return element[0][0] if len(element[0]) == 1 else tuple(element[0])


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
