"""Functions of elements: traced once as a graph, called on the arrays of each element.

What a function uses of the graph around it comes with it: `graph/control_flow/function_graph.py` says how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator as Walk, Sequence
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
from ..graph.resources.resource_manager import Resources
from ..runtime.session.functions import Call, compile_function
from .checks import need_tensors
from .kind_registry import Described
from .runtime_values import At, Given, Source
from .spec import Array, Component, Element, as_array, flatten, pack


class Function:
    """A graph of an element.

    Attributes:
        graph: the function's graph. inputs: the components of the element, then the captured tensors. outputs: the results.
        given: the captured tensors; None: none. places: nodes of the outer graph whose state it uses.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        given: Given | None = None,
        places: Sequence[Node] = (),
    ) -> None:
        self.graph, self.inputs, self.outputs, self.given = graph, tuple(inputs), tuple(outputs), given
        self.places = tuple(places)
        self._lock = threading.Lock()
        self._has_state = any(n.opdef.is_stateful and "seed" not in n.attrs for n in graph.nodes)
        self._call: Call | None = None  # of a function without state, for all tasks of this process

    @property
    def components(self) -> list[Component]:
        """Of the results."""
        return [Component(t.dtype.base, t.dims) for t in self.outputs]

    @property
    def is_identity(self) -> bool:
        """Whether the results are the components of the element, and nothing else happens."""
        return not self._has_state and [_passed_on(t) for t in self.outputs] == list(self.inputs)

    def at(self, at: At, ends: bool = False) -> Callable[[Element, int], list[Array]]:
        """The function of an element and its number, in a walk. `ends`: it may raise OutOfRangeError, which else is another error."""
        with self._lock:
            call = at.task.functions.get(self) if self._has_state else self._call
            if call is None:
                effects = [n for n in self.graph.nodes if _has_effect(n)]
                task = at.task if self._has_state else Resources()
                call = compile_function(self.graph, self.inputs, (*self.outputs, *effects), task)
                if self._has_state:
                    at.task.functions[self] = call
                else:
                    self._call = call
        more = at.of(self.given) if self.given is not None else ()
        types, seed = [t.dtype.base for t in self.outputs], at.seeds[0]

        def run(element: Element, number: int) -> list[Array]:
            try:
                found = call(seed, at.call_number(number), *element, *more)
            except OutOfRangeError as e:
                if ends:
                    raise
                text = f"Function invocation produced OutOfRangeError: {e.message}"
                raise InvalidArgumentError.of(text) from None
            return [as_array(v, t) for v, t in zip(found, types, strict=False)]

        return run


def _passed_on(tensor: Tensor) -> Tensor:
    """The tensor that identities pass on."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _has_effect(node: Node) -> bool:
    """Whether a node of a function has a side effect and so runs without consumers: a print, an assertion or an assignment."""
    return (
        node.opdef.is_stateful
        and Trait.STATE_HANDLE not in node.opdef.traits
        and node.type != "ReadVariableOp"
        and "seed" not in node.attrs
        and node.graph.is_fetchable(node)
    )


Windows: TypeAlias = tuple[tuple[int, Given], ...]


class DatasetFunction:
    """A function of an element that gives a data set.

    Attributes:
        function: computes the tensors from which the data set is made. result: the data set; its tensors are the function's outputs.
        windows: for each component of the element that is a data set, its number, and by what name `result` knows its elements.
    """

    def __init__(self, function: Function, result: Described, windows: Windows = ()) -> None:
        self.function, self.result, self.windows = function, result, windows

    def at(self, at: At) -> Callable[[Element, int, At], Walk[Element]]:
        """(element, its number, where its data set is walked) -> the elements of its data set."""
        call = self.function.at(at) if self.function.outputs else None
        held = {i for i, _ in self.windows}

        def walk(element: Element, number: int, inside: At) -> Walk[Element]:
            if held:
                inside = inside.with_values({given: element[i].item() for i, given in self.windows})
                element = [a for i, a in enumerate(element) if i not in held]
            values = iter(call(element, number) if call is not None else ())
            brought = {given: [next(values) for _ in range(given.count)] for given in self.result._given}
            return self.result._walk(inside.with_values(brought), 0)

        return walk


def traced(
    function: Callable[..., Any], structure: Any, components: Sequence[Component], what: str
) -> tuple[Function, Any]:
    """A function of elements as a graph, and the structure of its results.

    Raises:
        TypeError: it gives a data set, or what can be no tensor.
    """
    need_tensors(components, what)
    graph, inputs, found, _ = _called(function, structure, components)
    if isinstance(found, list):
        found = tuple(found)  # mostly what an op with several outputs gave: `tf.stack` makes one tensor of them
    with graph.as_default():
        try:
            outputs = [graph.own(convert(t)) for t in flatten(found)]
        except (TypeError, ValueError) as e:
            raise TypeError(f"Unsupported return value from function passed to {what}: {found}. {e}") from None
    return _function(graph, inputs, outputs), pack(found, [0] * len(outputs))


def dataset_traced(
    function: Callable[..., Any], structure: Any, components: Sequence[Component], what: str, *more: Any
) -> DatasetFunction:
    """The same for a function that gives a data set. `more`: further arguments."""
    graph, inputs, found, windows = _called(function, structure, components, *more)
    if not isinstance(found, Described):
        raise TypeError(f"`{what}` must return a `Dataset` object, not {found!r}")
    with graph.as_default():
        outputs = [graph.own(t) for given in found._given for t in given.tensors]
    return DatasetFunction(_function(graph, inputs, outputs), found, windows)


@dataclass(frozen=True, slots=True)
class Fold:
    """A function of a state and an element.

    Attributes:
        state: its structure. components: of the state. more: structure and components of what else comes out.
        params: of the kind of data set that folds.
    """

    state: Any
    components: list[Component]
    more: tuple[Any, list[Component]]
    params: dict[str, Any]


def folded(
    dataset: Described, initial_state: Any, function: Callable[..., Any], what: str, outputs: bool = False
) -> Fold:
    """A function (state, element) -> state, or (state, outputs), traced. Sizes of the state that change are unknown.

    Raises:
        TypeError: the states have other structures or types.
    """
    source = Source(flatten(initial_state))
    state = pack(initial_state, [0] * len(source.components))
    components, size = source.components, len(source.components)
    while True:
        found, structure = traced(function, (state, dataset._structure), [*components, *dataset._components], what)
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
            return Fold(state, components, (more, found.components[size:]), params)
        components = wider


def given_in(value: Any) -> list[Given]:
    """Whose values a parameter of a data set needs."""
    if isinstance(value, Given):
        return [value]
    if isinstance(value, Function):
        return [value.given] if value.given is not None else []
    if isinstance(value, DatasetFunction):
        return given_in(value.function)
    return [g for part in value for g in given_in(part)] if type(value) is tuple else []


def places_in(dataset: Described) -> list[Node]:
    """Nodes of the graph whose state the functions of a data set use."""
    found: dict[Node, None] = {}
    for part in dataset._params.values():
        function = part.function if isinstance(part, DatasetFunction) else part
        if isinstance(function, Function):
            found.update(dict.fromkeys(function.places))
        if isinstance(part, DatasetFunction):
            found.update(dict.fromkeys(places_in(part.result)))
    for source in dataset._inputs:
        found.update(dict.fromkeys(places_in(source)))
    graph = get_default_graph()
    return [node for node in found if node.graph is graph]


def by_value(tensors: Sequence[Tensor]) -> Function:
    """What computes tensors of the default graph without that graph.

    Raises:
        ValueError: they need a placeholder, or something that has state.
    """
    graph = FunctionGraph(get_default_graph(), by_value=True)
    with graph.as_default():
        outputs = [graph.own(t) for t in tensors]
    return _function(graph, (), outputs)


def _called(
    function: Callable[..., Any], structure: Any, components: Sequence[Component], *more: Any
) -> tuple[FunctionGraph, list[Tensor], Any, Windows]:
    graph = FunctionGraph(get_default_graph())
    # Each call has names of its own: two components may be windows of one data set.
    windows = tuple([(i, Given((), "the window", 0)) for i, c in enumerate(components) if c.dtype is variant])
    names = dict(windows)
    with graph.as_default():
        taken = [
            leaf.with_elements(names[i]) if i in names else placeholder(c.dtype, c.dims)
            for i, (leaf, c) in enumerate(zip(flatten(structure), components, strict=True))
        ]
        given = pack(structure, taken)
        arguments = (*given, *more) if type(given) is tuple else (given, *more)
        return graph, [t for t in taken if isinstance(t, Tensor)], function(*arguments), windows


def _function(graph: FunctionGraph, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Function:
    captured, places = graph.captured, graph.places
    graph.finished()
    given = Given(list(captured)) if captured else None
    return Function(graph, [*inputs, *captured.values()], outputs, given, places)


__all__ = [
    "DatasetFunction",
    "Fold",
    "Function",
    "by_value",
    "dataset_traced",
    "folded",
    "given_in",
    "places_in",
    "traced",
]
