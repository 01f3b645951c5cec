"""Builds the nodes of a model in a graph.

A model is built twice. The first build is in a temporary graph. It finds all nodes that cannot be imported before anything is added to the
user's graph. The second build is in the default graph, under the open blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...graph.core.build import constant, placeholder
from ...graph.core.constant_value import static_value
from ...graph.core.default_graph import get_default_graph, name_scope
from ...graph.core.dtypes import DType, as_dtype
from ...graph.core.graph import Graph, Tensor
from ...graph.core.shape import Dims
from ...graph.core.source_location import RecordedFile
from ...graph.variables.variable import Variable
from . import importers as _importers  # noqa: F401  (registers them)
from .messages import array_of, attributes, onnx, opset_of, type_message
from .registry import IMPORTERS, STATIC, Call, UnsupportedError

FunctionAttributes: TypeAlias = Mapping[str, Any] | None
"""The attributes of the call of a function whose body is built, as messages; None outside functions."""

_UNFIT = re.compile(r"[^A-Za-z0-9_.\-/]+")


def scope_name(name: str) -> str:
    """Converts a model's name to a valid scope name of the graph."""
    fitting = re.sub(r"/+", "/", _UNFIT.sub("_", name)).strip("/_")
    return fitting if fitting and re.match(r"[A-Za-z0-9.]", fitting) else f"n{fitting}"


class MissingValueError(Exception):
    """A value does not exist, because its node cannot be imported."""


@dataclass(slots=True)
class Scope:
    """The named values at one level of a model: the model, a branch, or a function."""

    values: dict[str, Tensor | None]
    outer: Scope | None = None

    def get(self, name: str) -> Tensor:
        """Returns the value of this name, from this scope or an enclosing one.

        Raises:
            MissingError: its node could not be imported.
        """
        if name in self.values:
            found = self.values[name]
            if found is not None:
                return found
        elif self.outer is not None:
            return self.outer.get(name)
        raise MissingValueError(name)


class _Shadow(Scope):
    """The outer values of a body that is built in a separate graph. They become constants or placeholders of the same types."""

    __slots__ = ("real",)

    def __init__(self, real: Scope) -> None:
        super().__init__({})
        self.real = real

    def get(self, name: str) -> Tensor:
        """Returns a placeholder or constant for the value of this name."""
        found = self.values.get(name)
        if found is None:
            found = self.values[name] = placeholder_like(self.real.get(name))
        return found


def placeholder_like(tensor: Tensor) -> Tensor:
    """Returns a constant or placeholder of the default graph with the static value, type and shape of another graph's tensor."""
    value = static_value(tensor)
    if value is not None:
        return constant(value, tensor.dtype.base)
    return placeholder(tensor.dtype.base, tensor.dims)


@dataclass(slots=True)
class Weights:
    """The initializers of a model, and the variables that they become.

    Attributes:
        arrays: the values by name.
        variables: names of the initializers that become variables. The others become constants.
        trainable: names of the variables that are trainable.
        checking: whether the graph is temporary. Placeholders then replace the variables, which avoids copies.
        made: the variables by name.
    """

    arrays: Mapping[str, Any]
    variables: frozenset[str]
    trainable: frozenset[str]
    checking: bool = False
    made: dict[str, Variable] = field(default_factory=dict)

    def make(self, name: str) -> Tensor:
        """Returns the tensor of an initializer."""
        if name not in self.variables:
            return constant(self.arrays[name], name=scope_name(name))
        if self.checking:
            return placeholder(as_dtype(self.arrays[name].dtype), self.arrays[name].shape)
        self.made[name] = Variable(self.arrays[name], trainable=name in self.trainable, name=scope_name(name))
        value: Tensor = self.made[name].value()
        return value


class ModelSourceLocations:
    """Source locations in a model. They attribute imported nodes to nodes of the model, instead of lines of the program.

    Args:
        file: the model's name. Line numbers count the model's nodes in the order in which they are built.
    """

    def __init__(self, file: str) -> None:
        self._file, self._count = RecordedFile(file), 0

    def mark(self, before: int, text: str) -> None:
        """Attributes the default graph's nodes from number `before` on to a node of the model.

        Nodes that belong to an inner node of the model keep their location.
        """
        self._count += 1
        self._file.texts[self._count] = text
        for node in get_default_graph().nodes[before:]:
            if node._origin[0] is not self._file:
                node._origin = self._file, self._count


@dataclass(slots=True)
class Builder:
    """Builds the nodes of a model.

    Attributes:
        opset: the model's version of the standard.
        problems: collects the reasons why nodes cannot be imported, by node; None: raise the first one.
        places: the source locations of nodes; None: those of the caller's program.
    """

    opset: int
    problems: dict[str, str] | None = None
    places: ModelSourceLocations | None = None

    def nodes(self, nodes: Sequence[Any], scope: Scope, wanted: set[str], around: FunctionAttributes = None) -> None:
        """Builds nodes in order, and adds their outputs to the scope."""
        used = wanted.union(*(input_names(n) for n in nodes)) if nodes else wanted
        for node in (resolve_attributes(n, around) for n in nodes):
            made: Sequence[Tensor | None]
            before = len(get_default_graph())
            try:
                inputs = [scope.get(i) if i else None for i in node.input]
                with name_scope(scope_name(node.name or node.op_type)):
                    made = self._node(node, inputs, scope, [bool(o) and o in used for o in node.output], around)
            except MissingValueError:
                if self.problems is None:
                    raise
                made = ()
            except (UnsupportedError, TypeError, ValueError) as e:
                if self.problems is None:
                    raise
                self.problems.setdefault(node_description(node), str(e).strip().split("\n", 1)[0])
                made = ()
            if self.places is not None:
                self.places.mark(before, node_description(node))
            for i, output in enumerate(node.output):
                if output:
                    scope.values[output] = made[i] if i < len(made) else None

    def _node(
        self, node: Any, inputs: list[Tensor | None], scope: Scope, wanted: list[bool], around: FunctionAttributes
    ) -> Sequence[Tensor | None]:
        attrs = {
            name: Body(value, self, scope, around) if type(value).__name__ == "GraphProto" else value
            for name, value in attributes(node).items()
        }
        importer = IMPORTERS.get(node.op_type)
        if importer is None:
            return self._function(node, inputs, wanted)
        made = importer(Call(node.op_type, node.name, self.opset, attrs, inputs, wanted), *inputs)
        return (made,) if isinstance(made, Tensor) else made

    def _function(self, node: Any, inputs: list[Tensor | None], wanted: list[bool]) -> list[Tensor | None]:
        """Builds an op that the standard defines as a function of other ops."""
        function = function_of(node, self.opset, inputs)
        if function is None:
            raise UnsupportedError(f"the op {node.op_type} cannot be imported")
        schema = onnx("defs").get_schema(node.op_type, self.opset, "")
        given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
        given.update((a.name, a) for a in node.attribute)
        inner = Scope({name: inputs[i] if i < len(inputs) else None for i, name in enumerate(function.input)})
        left_out = {n for n, t in inner.values.items() if t is None}
        nodes = [without_inputs(n, left_out) for n in function.node]
        version = opset_of(function.opset_import) if function.opset_import else self.opset
        Builder(version).nodes(nodes, inner, set(function.output), given)
        return [inner.get(o) if w else None for o, w in zip(function.output, wanted, strict=False)]


class Body:
    """A subgraph of a node, with its outer values."""

    def __init__(self, graph: Any, builder: Builder, scope: Scope, around: FunctionAttributes) -> None:
        self._graph, self._builder, self._scope, self._around = graph, builder, scope, around
        self.inputs, self.outputs = graph.input, graph.output

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Builds the subgraph on these inputs."""
        return self._build(self._builder, self._scope, inputs)

    def result_types(self, inputs: Sequence[tuple[DType, Dims]]) -> list[tuple[DType, Dims]]:
        """Returns the types and shapes of the outputs, for inputs of these types and shapes. The graph is unchanged."""
        with Graph().as_default():
            made = self._build(
                Builder(self._builder.opset), _Shadow(self._scope), [placeholder(t, d) for t, d in inputs]
            )
            return [(t.dtype.base, t.dims) for t in made]

    def _build(self, builder: Builder, around: Scope, inputs: Sequence[Tensor]) -> list[Tensor]:
        scope = Scope({i.name: t for i, t in zip(self._graph.input, inputs, strict=True)}, around)
        for tensor in self._graph.initializer:
            scope.values[tensor.name] = constant(array_of(tensor), name=scope_name(tensor.name))
        wanted = {o.name for o in self._graph.output}
        Builder(builder.opset, places=builder.places).nodes(self._graph.node, scope, wanted, self._around)
        return [scope.get(o.name) for o in self._graph.output]


def node_description(node: Any) -> str:
    """Returns a node's description for error messages."""
    return f"'{node.name}' ({node.op_type})" if node.name else f"{node.op_type} with the output '{node.output[0]}'"


def resolve_attributes(node: Any, around: FunctionAttributes) -> Any:
    """Returns a node of a function with the attributes that the function's call passes."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            copy.attribute.append(a)
        elif around and a.ref_attr_name in around:
            copy.attribute.add().ParseFromString(around[a.ref_attr_name].SerializeToString())
            copy.attribute[-1].name = a.name
    return copy


def without_inputs(node: Any, names: set[str]) -> Any:
    """Returns a node of a function without the inputs that the function's call omits."""
    if not names.intersection(node.input):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    for i, name in enumerate(copy.input):
        if name in names:
            copy.input[i] = ""
    return copy


def has_function(node: Any, opset: int) -> bool:
    """Whether the standard defines an op as a function of other ops."""
    definitions = onnx("defs")
    try:
        schema = definitions.get_schema(node.op_type, opset, "")
    except definitions.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def function_of(node: Any, opset: int, inputs: Sequence[Tensor | None]) -> Any | None:
    """Returns the standard's definition of an op as a function. None: there is none for these inputs."""
    package = onnx()
    if not has_function(node, opset):
        return None
    schema = onnx("defs").get_schema(node.op_type, opset, "")
    message = package.FunctionProto()
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        version = max(versions, default=min(schema.context_dependent_function_opset_versions))
        about = [type_message(t).SerializeToString() for t in inputs]
        body = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), about)
        if not body:
            return None
        message.ParseFromString(body)
    else:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        body = schema.get_function_with_opset_version(max(versions, default=min(schema.function_opset_versions)))
        message.ParseFromString(body)
    return message


def bodies_of(node: Any) -> Iterator[Any]:
    """Yields the subgraphs of a node."""
    for a in node.attribute:
        if a.HasField("g"):
            yield a.g
        yield from a.graphs


def all_nodes(nodes: Sequence[Any]) -> Iterator[Any]:
    """Yields these nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for body in bodies_of(node):
            yield from all_nodes(body.node)


def input_names(node: Any) -> set[str]:
    """Returns the names of the values that a node and its subgraphs read."""
    taken = set(node.input)
    for body in bodies_of(node):
        taken |= {o.name for o in body.output}
        for inner in body.node:
            taken |= input_names(inner)
    return taken


def required_nodes(nodes: Sequence[Any], outputs: set[str]) -> list[Any]:
    """Returns the nodes that these values depend on, in order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted |= input_names(node)
    return kept[::-1]


def static_value_names(nodes: Sequence[Any]) -> set[str]:
    """Returns the names of values that must be static when the graph is built."""
    return {n.input[i] for n in all_nodes(nodes) for i in STATIC.get(n.op_type, ()) if i < len(n.input)}
