"""`dt.onnx.load`: adds an ONNX model to the default graph."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...graph.core.build import TensorLike, convert, placeholder
from ...graph.core.default_graph import get_default_graph, name_scope
from ...graph.core.dtypes import as_dtype
from ...graph.core.errors import UnimplementedError
from ...graph.core.graph import Graph, Tensor
from ...graph.core.shape import compatible, text
from ...graph.core.source_location import shows_users_frames
from ...graph.variables.variable import Variable
from .graph_builder import (
    Builder,
    ModelSourceLocations,
    Scope,
    Weights,
    all_nodes,
    has_function,
    input_names,
    node_description,
    placeholder_like,
    required_nodes,
    scope_name,
    static_value_names,
)
from .messages import array_of, opset_of, read_model, type_of
from .registry import IMPORTERS, UnsupportedError

# Inputs of ops that are running statistics. They are state, but gradients do not change them.
_STATISTICS = {"BatchNormalization": (3, 4)}


@dataclass(frozen=True, slots=True)
class Model:
    """An ONNX model that was added to a graph.

    Attributes:
        inputs: name in the model -> input tensor, which was passed to `load` or is a placeholder.
        outputs: name in the model -> output tensor.
        variables: name in the model -> variable of a weight.
        values: name in the model -> tensor, for all inputs, weights and results of nodes outside branches and loops.
        nodes: name of a node in the model -> its first output. Nodes without a name are omitted.
    """

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    variables: Mapping[str, Variable]
    values: Mapping[str, Tensor]
    nodes: Mapping[str, Tensor]


@shows_users_frames
def load(
    model: str | os.PathLike[str] | Any,
    inputs: Mapping[str, TensorLike] | None = None,
    *,
    outputs: Sequence[str] | None = None,
    weights: str = "variables",
    trainable: bool | Callable[[str], bool] = True,
    name: str | None = None,
) -> Model:
    """Add an ONNX model to the default graph.

    Device blocks around the call apply to the model's nodes, so it can be partitioned over devices, run on a cluster, and trained.

    Args:
        model: the path of a file, or a `ModelProto`.
        inputs: name -> tensor or value of an input. Other inputs become placeholders.
        outputs: names of the values to return, which may be intermediate ones. Only the nodes that they depend on are added. None: the
            model's outputs.
        weights: "variables": floating-point weights become variables, except scalars and values that must be static, such as the
            factors of Resize. "constants": all weights become constants.
        trainable: whether the variables are trainable, or a predicate on a weight's name. Running means and variances of batch
            normalization are never trainable.
        name: the name scope of the nodes; None: the name of the model's graph.

    Returns:
        A `Model` with its `inputs`, `outputs` and `variables` by their names in the model.

    Raises:
        UnimplementedError: the package onnx is not installed, or ops of the model are not supported. The message lists all of these with
            their nodes. The graph is unchanged, as with the other errors.
        InvalidArgumentError: it is not a valid model, or its version is not supported.
        ValueError, TypeError: the name, type or shape of an input or output is wrong.

    >>> model = dt.onnx.load("model.onnx", {"x": images})
    >>> loss = dt.reduce_mean(dt.square(model.outputs["y"] - labels))
    """
    if weights not in ("variables", "constants"):
        raise ValueError(f"weights must be 'variables' or 'constants', not {weights!r}")
    message, called = read_model(model)
    graph = message.graph
    wanted = list(dict.fromkeys(outputs if outputs is not None else [o.name for o in graph.output]))
    nodes = required_nodes(graph.node, set(wanted))
    _check_names(called, graph, inputs or {}, wanted)
    opset = opset_of(message.opset_import)
    _check_ops(called, nodes, opset)
    try:
        arrays = {t.name: array_of(t) for t in graph.initializer}
        types = {i.name: type_of(i) for i in graph.input if i.name not in arrays}
    except UnsupportedError as e:
        raise UnimplementedError.of(f"{called} cannot be imported: {e}") from None
    given = {key: _checked(called, key, value, types[key]) for key, value in (inputs or {}).items()}

    def build(problems: dict[str, str] | None, feeds: Mapping[str, Tensor], found: Weights) -> Model:
        with name_scope(scope_name(name or graph.name or "onnx")):
            places, before = ModelSourceLocations(called.strip("'")), len(get_default_graph())
            made = {
                key: feeds[key] if key in feeds else placeholder(*types[key], name=scope_name(key)) for key in types
            }
            used = {i for n in nodes for i in input_names(n)} | set(wanted)
            scope = Scope({**made, **{key: found.make(key) for key in arrays if key in used}})
            places.mark(before, "inputs and weights")
            Builder(opset, problems, places).nodes(nodes, scope, set(wanted))
            values = {key: t for key, t in scope.values.items() if t is not None}
            ends = {o: values[o] for o in wanted if o in values}
            makers = {n.name: next((values[o] for o in n.output if o in values), None) for n in nodes if n.name}
            return Model(made, ends, found.made, values, {key: t for key, t in makers.items() if t is not None})

    choice = _weights(nodes, arrays, weights == "variables", trainable)
    problems: dict[str, str] = {}
    with Graph().as_default():
        build(problems, {key: placeholder_like(t) for key, t in given.items()}, Weights(arrays, *choice, checking=True))
    if problems:
        listed = "".join(f"\n  {node}: {why}" for node, why in problems.items())
        raise UnimplementedError.of(f"{called} cannot be imported, and nothing was added to the graph:{listed}")
    return build(None, given, Weights(arrays, *choice))


def _weights(
    nodes: Sequence[Any], arrays: Mapping[str, Any], wanted: bool, trainable: bool | Callable[[str], bool]
) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of the initializers that become variables, and of those that are trainable."""
    fixed = static_value_names(nodes)
    variables = frozenset(
        key for key, a in arrays.items() if wanted and a.ndim and key not in fixed and as_dtype(a.dtype).is_floating
    )
    kept = {n.input[i] for n in all_nodes(nodes) for i in _STATISTICS.get(n.op_type, ()) if i < len(n.input)}
    learn = trainable if callable(trainable) else lambda key: bool(trainable)
    return variables, frozenset(key for key in variables if key not in kept and learn(key))


def _check_names(called: str, graph: Any, inputs: Mapping[str, TensorLike], outputs: Sequence[str]) -> None:
    """Raises ValueError for inputs and outputs that the model does not have."""
    weights = {t.name for t in graph.initializer}
    there = [i.name for i in graph.input if i.name not in weights]
    for key in inputs:
        if key not in there:
            raise ValueError(f"{called} has no input '{key}'. Its inputs: {', '.join(map(repr, there)) or 'none'}")
    made = {o for n in graph.node for o in n.output if o} | weights | set(there)
    for key in outputs:
        if key not in made:
            raise ValueError(
                f"{called} has no value '{key}'. Its outputs: {', '.join(repr(o.name) for o in graph.output)}"
            )


def _check_ops(called: str, nodes: Sequence[Any], opset: int) -> None:
    """Raises UnimplementedError with all ops that cannot be imported and their nodes."""
    missing: dict[str, list[str]] = {}
    for node in all_nodes(nodes):
        standard = node.domain in ("", "ai.onnx")
        if not (standard and (node.op_type in IMPORTERS or has_function(node, opset))):
            op = node.op_type if standard else f"{node.domain}.{node.op_type}"
            missing.setdefault(op, []).append(node_description(node))
    if missing:
        listed = "".join(f"\n  {op}: {', '.join(where)}" for op, where in missing.items())
        raise UnimplementedError.of(
            f"{called} has ops that cannot be imported. Nothing was added to the graph:{listed}",
        )


def _checked(called: str, key: str, value: TensorLike, declared: Any) -> Tensor:
    """Converts an input to a tensor, and checks it against the model's type and shape."""
    dtype, dims = declared
    tensor = convert(value, None if isinstance(value, Tensor) else dtype, name=scope_name(key))
    if tensor.dtype.base is not dtype:
        raise TypeError(
            f"Input '{key}' of {called} is {dtype.name}, not {tensor.dtype.base.name}: {tensor!r}. Use dt.cast"
        )
    if not compatible(tensor.dims, dims):
        raise ValueError(f"Input '{key}' of {called} has shape {text(dims)}, not {text(tensor.dims)}: {tensor!r}")
    return tensor
