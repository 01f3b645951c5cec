"""Functions of elements. A function is traced once as a graph, and called on the arrays of each element.

`graph/control_flow/function_graph.py` says how a function captures tensors and state of the outer graph.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.control_flow.function_graph import FunctionGraph
from ..graph.core.build import convert, placeholder
from ..graph.core.default_graph import get_default_graph
from ..graph.core.dtypes import variant
from ..graph.core.errors import InvalidArgumentError, OutOfRangeError
from ..graph.core.graph import Graph, Node, Tensor
from ..graph.core.opdef import Trait
from ..graph.core.shape import common
from ..graph.core.source_location import at_caller
from ..graph.resources.resource_manager import Resources
from ..runtime.session.functions import Call, compile_function
from .checks import need_tensors
from .kind_registry import DatasetBase
from .runtime_values import IterationContext, RuntimeInputs, Source
from .spec import Array, Component, Element, as_array, flatten, pack


class Function:
    """A traced function of an element.

    Attributes:
        graph: the function's graph.
        inputs: the components of the element, then the captured tensors.
        outputs: the results.
        given: the captured tensors; None if there are none.
        state_nodes: nodes of the outer graph whose state the function uses.
        components: the types and shapes of the results.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        given: RuntimeInputs | None = None,
        state_nodes: Sequence[Node] = (),
    ) -> None:
        self.graph, self.inputs, self.outputs, self.given = graph, tuple(inputs), tuple(outputs), given
        self.state_nodes = tuple(state_nodes)
        self._lock = threading.Lock()
        self._has_state = any(n.opdef.is_stateful and "seed" not in n.attrs for n in graph.nodes)
        self._call: Call | None = None  # the compiled function, if it has no state; all tasks of this process share it

    @property
    def components(self) -> list[Component]:
        return [Component(t.dtype.base, t.dims) for t in self.outputs]

    @property
    def is_identity(self) -> bool:
        """Whether the function returns the components of the element and has no state."""
        return not self._has_state and [_passed_on(t) for t in self.outputs] == list(self.inputs)

    def bind(self, context: IterationContext, ends: bool = False) -> Callable[[Element, int], list[Array]]:
        """Returns a Python function of an element and its number.

        Args:
            context: the iteration in which it is called.
            ends: whether it may raise OutOfRangeError; if not, it raises InvalidArgumentError instead.
        """
        with self._lock:
            call = context.task.functions.get(self) if self._has_state else self._call
            if call is None:
                effects = [n for n in self.graph.nodes if _has_effect(n)]
                task = context.task if self._has_state else Resources()
                call = compile_function(self.graph, self.inputs, (*self.outputs, *effects), task)
                if self._has_state:
                    context.task.functions[self] = call
                else:
                    self._call = call
        more = context.values_of(self.given) if self.given is not None else ()
        types, seed = [t.dtype.base for t in self.outputs], context.seeds[0]

        def run(element: Element, number: int) -> list[Array]:
            try:
                found = call(seed, context.call_number(number), *element, *more)
            except OutOfRangeError as e:
                if ends:
                    raise
                text = f"Function invocation produced OutOfRangeError: {e.message}"
                raise InvalidArgumentError.of(text) from None
            return [as_array(v, t) for v, t in zip(found, types, strict=False)]

        return run


def _passed_on(tensor: Tensor) -> Tensor:
    """Returns the tensor behind a chain of `Identity` nodes."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _has_effect(node: Node) -> bool:
    """Whether a node has a side effect, as a print, an assertion or an assignment. Such a node runs without consumers."""
    return (
        node.opdef.is_stateful
        and Trait.STATE_HANDLE not in node.opdef.traits
        and node.type != "ReadVariableOp"
        and "seed" not in node.attrs
        and node.graph.is_fetchable(node)
    )


Windows: TypeAlias = tuple[tuple[int, RuntimeInputs], ...]


class DatasetFunction:
    """A function of an element that returns a data set.

    Attributes:
        function: computes the runtime inputs of the data set.
        result: the data set.
        windows: for each component of the element that is a data set: its index, and the key under which `result` finds its elements.
    """

    def __init__(self, function: Function, result: DatasetBase, windows: Windows = ()) -> None:
        self.function, self.result, self.windows = function, result, windows

    def bind(self, context: IterationContext) -> Callable[[Element, int, IterationContext], Iterator[Element]]:
        """Returns a function (element, its number, context of its data set) -> the elements of its data set."""
        call = self.function.bind(context) if self.function.outputs else None
        held = {i for i, _ in self.windows}

        def walk(element: Element, number: int, inside: IterationContext) -> Iterator[Element]:
            if held:
                inside = inside.with_values({given: element[i].item() for i, given in self.windows})
                element = [a for i, a in enumerate(element) if i not in held]
            values = iter(call(element, number) if call is not None else ())
            brought = {given: [next(values) for _ in range(given.count)] for given in self.result._runtime_inputs}
            return self.result._iterate(inside.with_values(brought), 0)

        return walk


def trace_function(
    function: Callable[..., Any], structure: Any, components: Sequence[Component], what: str
) -> tuple[Function, Any]:
    """Traces a function of elements. Returns it and the structure of its results.

    Args:
        function: the user's function.
        structure: structure of an element.
        components: types and shapes of an element.
        what: name of the argument or method, for error messages.

    Raises:
        TypeError: an element holds data sets, or a result is not a tensor.
    """
    need_tensors(components, what)
    graph, inputs, found, _ = _trace_call(function, structure, components)
    if isinstance(found, list):
        found = tuple(found)  # mostly the outputs of one op; `dt.stack` would make one tensor of them
    with graph.as_default():
        try:
            outputs = [graph.own(convert(t)) for t in flatten(found)]
        except (TypeError, ValueError) as e:
            raise TypeError(f"Unsupported return value from function passed to {what}: {found}. {e}") from None
    return _function(graph, inputs, outputs), pack(found, [0] * len(outputs))


def trace_dataset_function(
    function: Callable[..., Any], structure: Any, components: Sequence[Component], what: str, *more: Any
) -> DatasetFunction:
    """Traces a function that returns a data set. `more`: further arguments. The others are those of `trace_function`."""
    graph, inputs, found, windows = _trace_call(function, structure, components, *more)
    if not isinstance(found, DatasetBase):
        raise TypeError(f"`{what}` must return a `Dataset` object, not {found!r}")
    with graph.as_default():
        outputs = [graph.own(t) for given in found._runtime_inputs for t in given.tensors]
    return DatasetFunction(_function(graph, inputs, outputs), found, windows)


@dataclass(frozen=True, slots=True)
class TracedFold:
    """A traced function of a state and an element.

    Attributes:
        state: structure of the state.
        components: types and shapes of the state.
        more: structure and components of the other outputs.
        params: parameters of the data set that runs the fold.
    """

    state: Any
    components: list[Component]
    more: tuple[Any, list[Component]]
    params: dict[str, Any]


def trace_fold(
    dataset: DatasetBase, initial_state: Any, function: Callable[..., Any], what: str, outputs: bool = False
) -> TracedFold:
    """Traces a function (state, element) -> state, or -> (state, outputs). A size of the state that changes becomes unknown.

    Args:
        dataset: the data set of the elements.
        initial_state: the first state, in any structure.
        function: the user's function.
        what: name of the argument, for error messages.
        outputs: whether the function also returns outputs.

    Raises:
        TypeError: the new state differs from the initial one in structure or types.
    """
    source = Source(flatten(initial_state))
    state = pack(initial_state, [0] * len(source.components))
    components, size = source.components, len(source.components)
    while True:
        found, structure = trace_function(
            function, (state, dataset._structure), [*components, *dataset._components], what
        )
        made, more = (structure[0], structure[1]) if outputs else (structure, ())
        left = found.components[:size]
        if len(flatten(made)) != size or [c.dtype for c in left] != [c.dtype for c in components]:
            raise TypeError(
                f"The element types for the new state must match the initial state. Expected "
                f"{[c.dtype.name for c in components]}; got {[c.dtype.name for c in left]}, from {what}"
            )
        wider = [Component(a.dtype, common(a.dims, b.dims)) for a, b in zip(components, left, strict=True)]
        if wider == components:
            params = {"function": found, "arrays": source.arrays, "given": source.given}
            return TracedFold(state, components, (more, found.components[size:]), params)
        components = wider


def runtime_inputs_in(value: Any) -> list[RuntimeInputs]:
    """Returns the runtime inputs of a data set's parameter."""
    if isinstance(value, RuntimeInputs):
        return [value]
    if isinstance(value, Function):
        return [value.given] if value.given is not None else []
    if isinstance(value, DatasetFunction):
        return runtime_inputs_in(value.function)
    return [g for part in value for g in runtime_inputs_in(part)] if type(value) is tuple else []


def state_nodes_in(dataset: DatasetBase) -> list[Node]:
    """Returns the nodes of the default graph whose state the functions of a data set use."""
    found: dict[Node, None] = {}
    for part in dataset._params.values():
        function = part.function if isinstance(part, DatasetFunction) else part
        if isinstance(function, Function):
            found.update(dict.fromkeys(function.state_nodes))
        if isinstance(part, DatasetFunction):
            found.update(dict.fromkeys(state_nodes_in(part.result)))
    for source in dataset._inputs:
        found.update(dict.fromkeys(state_nodes_in(source)))
    graph = get_default_graph()
    return [node for node in found if node.graph is graph]


def constant_function(tensors: Sequence[Tensor]) -> Function:
    """Returns a function without arguments that computes tensors of the default graph.

    Raises:
        ValueError: the tensors depend on a placeholder or on state.
    """
    graph = FunctionGraph(get_default_graph(), by_value=True)
    with graph.as_default():
        outputs = [graph.own(t) for t in tensors]
    return _function(graph, (), outputs)


def _trace_call(
    function: Callable[..., Any], structure: Any, components: Sequence[Component], *more: Any
) -> tuple[FunctionGraph, list[Tensor], Any, Windows]:
    graph = FunctionGraph(get_default_graph())
    # Each component has its own key: two components may be windows of one data set.
    windows = tuple([(i, RuntimeInputs((), "the window", 0)) for i, c in enumerate(components) if c.dtype is variant])
    names = dict(windows)
    with graph.as_default():
        taken = [
            leaf.with_elements(names[i]) if i in names else placeholder(c.dtype, c.dims)
            for i, (leaf, c) in enumerate(zip(flatten(structure), components, strict=True))
        ]
        given = pack(structure, taken)
        arguments = (*given, *more) if type(given) is tuple else (given, *more)
        _check_takes(function, arguments)
        return graph, [t for t in taken if isinstance(t, Tensor)], function(*arguments), windows


def _check_takes(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """TypeError if a function does not take so many arguments. The parts of an element that is a tuple are arguments of their own."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as e:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{name}() takes other arguments than an element of the data set has parts: {name}{signature} is called with "
            f"{len(arguments)} ({e}){at_caller()}"
        ) from None


def _function(graph: FunctionGraph, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Function:
    captured, state_nodes = graph.captured, graph.state_nodes
    graph.finished()
    given = RuntimeInputs(list(captured)) if captured else None
    return Function(graph, [*inputs, *captured.values()], outputs, given, state_nodes)
