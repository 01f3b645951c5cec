"""`dt.onnx.save`: writes tensors of a graph, and all nodes that they need, as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ...graph.core.build import convert
from ...graph.core.default_graph import get_default_session
from ...graph.core.errors import FailedPreconditionError, UnimplementedError
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.source_location import shows_users_frames
from . import exporters as _exporters  # noqa: F401  (registers them)
from .messages import onnx, type_message
from .registry import UnsupportedError
from .writing import EXPORTERS, Writer

OPSET = 18
"""The version of the standard that models are written in: the first one in which all reductions take their axes as an input."""

# A protobuf message must be smaller than 2 GiB.
_LARGEST = 2**31 - 2**20

_READS = ("ReadVariableOp", "Identity")
_VARIABLE_OPS = ("VarHandleOp", "VariableV2")

Ends: TypeAlias = Sequence[Any] | Mapping[str, Any]


@shows_users_frames
def export(outputs: Ends, inputs: Ends | None = None, session: Any = None, *, name: str = "dovetail") -> Any:
    """Export tensors, and all nodes that they need, as an ONNX model.

    Args:
        outputs: tensors, or a mapping from names in the model to tensors. Without names, the names of their nodes are used.
        inputs: the input tensors, in the same form; None: the placeholders that the outputs depend on.
        session: the session with the values of variables; None: the default session. A graph without variables needs none.
        name: the name of the model's graph.

    Returns:
        A `ModelProto` of opset 18. Unknown sizes are symbolic: `batch` for the first axis, `<input>_<axis>` for others.

    Raises:
        UnimplementedError: the package onnx is not installed, or nodes have no counterpart in ONNX. The message lists all of these with
            their source lines.
        FailedPreconditionError: there are variables, but no session, or they have no values.
        ValueError: an output depends on a placeholder that is not among the inputs, or two tensors have the same name.
    """
    ends, starts = _with_names(outputs), None if inputs is None else _with_names(inputs)
    nodes = _required_nodes([t for _, t in ends], {t for _, t in starts or ()})
    for node in nodes[:1]:
        node.graph.table.check_values()
    placeholders = [n.outputs[0] for n in nodes if n.type == "Placeholder"]
    if starts is None:
        starts = _with_names(placeholders)
    elif missing := [t for t in placeholders if all(t is not s for _, s in starts)]:
        raise ValueError(
            f"The outputs need {missing[0]!r} (created at {missing[0].op.source}), which is not among the inputs"
        )
    writer = Writer(taken={key for key, _ in (*starts, *ends)})
    writer.names.update((t, key) for key, t in starts)
    _values(writer, nodes, session)
    _nodes(writer, nodes, {t for _, t in starts})
    return _model(writer, starts, ends, name)


@shows_users_frames
def save(path: str | os.PathLike[str], outputs: Ends, inputs: Ends | None = None, session: Any = None) -> None:
    """Write tensors, and all nodes that they need, as an ONNX model to a file.

    The arrays of a model that is too large for one message (2 GiB) are written to a second file, `<path>.data`.

    Args:
        path: the path of the file.
        outputs: as in `export`.
        inputs: as in `export`.
        session: as in `export`.

    Raises:
        TypeError: the first argument is not a path.
        UnimplementedError, FailedPreconditionError, ValueError: as in `export`.

    >>> dt.onnx.save("model.onnx", outputs={"y": y}, inputs={"x": x}, session=session)
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"The first argument of dt.onnx.save must be a path, not {path!r}: save('model.onnx', outputs)")
    model = export(outputs, inputs, session)
    large = sum(len(t.raw_data) for t in model.graph.initializer) > _LARGEST
    beside = f"{Path(path).name}.data"
    onnx().save(model, os.fspath(path), save_as_external_data=large, location=beside if large else None)


def _with_names(tensors: Ends) -> list[tuple[str, Tensor]]:
    """Returns pairs of name and tensor. Without given names, the names of the nodes are used."""
    if isinstance(tensors, Mapping):
        pairs = [(str(key), convert(t)) for key, t in tensors.items()]
    else:
        if not isinstance(tensors, Iterable):
            raise TypeError(
                f"The outputs of a model must be a tensor, several tensors, or a mapping from names to tensors, not {tensors!r}. Pass the "
                "session that has the weights: export(logits, session=session)"
            )
        made = [convert(t) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]
        pairs = [(t.op.name if t.value_index == 0 else f"{t.op.name}_{t.value_index}", t) for t in made]
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError(f"Two tensors have one name: {', '.join(repr(key) for key, _ in pairs)}. Pass a mapping")
    return pairs


def _required_nodes(ends: Iterable[Tensor], starts: set[Tensor]) -> list[Node]:
    """Returns the nodes that these tensors depend on, in order of creation."""
    todo, found = [t.op for t in ends if t not in starts], set[Node]()
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [t.op for t in node.inputs if t not in starts]
    return sorted(found, key=lambda n: n.index)


def _values(writer: Writer, nodes: Sequence[Node], session: Any) -> None:
    """Reads the constants' arrays, and the variables' values from the session in one step."""
    reads: list[Tensor] = []
    for node in nodes:
        if node.type == "Const":
            writer.values[node.outputs[0]] = node.attrs["value"]
        elif node.type in _READS and node.inputs[0].op.type in _VARIABLE_OPS or node.type == "VariableV2":
            reads.append(node.outputs[0])
        elif node.type == "ResourceGather":
            reads.append(node.inputs[0])
    if not reads:
        return
    session = session if session is not None else get_default_session()
    if session is None:
        raise FailedPreconditionError.of(
            f"The value of the variable '{reads[0].op.name}' is in a session. Pass session=, or open `with session:`",
        )
    writer.values.update(zip(reads, session.run([_readable(t) for t in reads]), strict=True))


def _readable(tensor: Tensor) -> Tensor:
    """Returns the value tensor of a variable's reference."""
    if tensor.op.type != "VarHandleOp":
        return tensor
    for reader in tensor.consumers():
        if reader.type == "ReadVariableOp":
            return reader.outputs[0]
    raise UnimplementedError.of(f"No node reads the variable '{tensor.op.name}', so its value is unknown")


def _nodes(writer: Writer, nodes: Sequence[Node], starts: set[Tensor]) -> None:
    """Writes all nodes. UnimplementedError: some have no counterpart in ONNX."""
    problems: list[str] = []
    lost: set[Tensor] = set()
    for node in nodes:
        if node.type in _VARIABLE_OPS or node.outputs and all(t in writer.values or t in starts for t in node.outputs):
            continue
        if lost.intersection(node.inputs):
            lost.update(node.outputs)
            continue
        writer.scope = node.name
        try:
            if node.type not in EXPORTERS:
                raise UnsupportedError(f"{node.type} has no counterpart in ONNX")
            made = EXPORTERS[node.type](writer, node)
        except UnsupportedError as e:
            problems.append(f"\n  '{node.name}' ({node.type}): {e}\n    created at {node.source}")
            lost.update(node.outputs)
            continue
        for tensor, key in zip(node.outputs, [made] if isinstance(made, str) else made, strict=False):
            if tensor not in writer.names:
                writer.names[tensor] = key
    if problems:
        raise UnimplementedError.of(f"The graph cannot be written as an ONNX model:{''.join(problems)}")


def _model(writer: Writer, starts: Sequence[tuple[str, Tensor]], ends: Sequence[tuple[str, Tensor]], name: str) -> Any:
    """Returns the written model after checking it."""
    package, helper = onnx(), onnx("helper")
    for key, tensor in ends:
        writer.scope = tensor.op.name
        try:
            there = writer.name(tensor)
            writer.rank(tensor)
        except UnsupportedError as e:
            raise UnimplementedError.of(f"'{key}' cannot be an output of an ONNX model: {e}") from None
        writer.nodes.append(helper.make_node("Identity", [there], [key], writer.unique_name(f"{key}/output")))
        writer.makers.append(writer.scope)
    graph = helper.make_graph(
        writer.nodes,
        name,
        [_value_info(helper, key, t) for key, t in starts],
        [_value_info(helper, key, t) for key, t in ends],
        list(writer.arrays.values()),
    )
    versions = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        graph, opset_imports=versions, producer_name="dovetail", ir_version=helper.find_min_ir_version_for(versions)
    )
    if sum(len(t.raw_data) for t in graph.initializer) <= _LARGEST:
        package.checker.check_model(model)
        _check_types(model, writer, starts[0][1].graph if starts else ends[0][1].graph)
    return model


def _check_types(model: Any, writer: Writer, graph: Graph) -> None:
    """Raises UnimplementedError for nodes with an element type that the standard does not allow."""
    shown = onnx("shape_inference").infer_shapes(model).graph
    names = {v: k for k, v in onnx().TensorProto.DataType.items()}
    types = {v.name: v.type.tensor_type.elem_type for v in (*shown.value_info, *shown.input, *shown.output)}
    types.update((t.name, t.data_type) for t in shown.initializer)
    problems = []
    for node, maker in zip(model.graph.node, writer.makers, strict=True):
        schema = onnx("defs").get_schema(node.op_type, OPSET, "")
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for i, name in enumerate(node.input):
            formal = schema.inputs[min(i, len(schema.inputs) - 1)].type_str
            kind = f"tensor({names[types[name]].lower()})" if name in types else None
            if kind is not None and formal in allowed and kind not in allowed[formal]:
                made = graph.get_operation_by_name(maker)
                problems.append(
                    f"\n  '{maker}' ({made.type}): {node.op_type} of {kind[7:-1]}\n    created at {made.source}"
                )
                break
    if problems:
        raise UnimplementedError.of(f"The graph cannot be written as an ONNX model:{''.join(problems)}")


def _value_info(helper: Any, key: str, tensor: Tensor) -> Any:
    """Returns the description of an input or output. An unknown size of the first axis is named `batch`."""
    names = ["batch", *(f"{key}_{i}" for i in range(1, len(tensor.dims or ())))]
    return helper.make_value_info(key, type_message(tensor, names))
