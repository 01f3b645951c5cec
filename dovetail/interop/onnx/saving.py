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

_LARGEST = 2**31 - 2**20  # a message of protobuf's has less than 2 GiB

_READS = ("ReadVariableOp", "Identity")
_PLACES = ("VarHandleOp", "VariableV2")

Ends: TypeAlias = Sequence[Any] | Mapping[str, Any]


@shows_users_frames
def export(outputs: Ends, inputs: Ends | None = None, session: Any = None, *, name: str = "dovetail") -> Any:
    """Export tensors, and all nodes that they need, as an ONNX model.

    Args:
        outputs: tensors, or a mapping from names in the model to tensors; default: the names of their nodes.
        inputs: the input tensors, likewise; None: the placeholders that the outputs need.
        session: the session with the values of variables; None: the default session. Not needed without variables.
        name: the name of the model's graph.

    Returns:
        A `ModelProto` of opset 18. Unknown sizes are symbolic: `batch` for the first axis, `<input>_<axis>` for others.

    Raises:
        UnimplementedError: the package onnx is not installed; or a node has no counterpart in ONNX: the message lists all of them, with
            their source lines. FailedPreconditionError: there are variables, but no session, or they have no values.
        ValueError: an output needs a placeholder that is not among the inputs, or two have the same name.
    """
    ends, starts = _named(outputs), None if inputs is None else _named(inputs)
    nodes = _needed([t for _, t in ends], {t for _, t in starts or ()})
    for node in nodes[:1]:
        node.graph.table.check_values()
    placeholders = [n.outputs[0] for n in nodes if n.type == "Placeholder"]
    if starts is None:
        starts = _named(placeholders)
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
    """Write tensors, and all nodes that they need, as an ONNX model to a file. Arguments and errors as in `export`.

    If the model is too large for one message (2 GiB), its arrays are in a second file, `<path>.data`.

    >>> dt.onnx.save("model.onnx", outputs={"y": y}, inputs={"x": x}, session=session)
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"dt.onnx.save takes the path first, then tensors: save('model.onnx', outputs), not {path!r} as the path"
        )
    model = export(outputs, inputs, session)
    large = sum(len(t.raw_data) for t in model.graph.initializer) > _LARGEST
    beside = f"{Path(path).name}.data"
    onnx().save(model, os.fspath(path), save_as_external_data=large, location=beside if large else None)


def _named(tensors: Ends) -> list[tuple[str, Tensor]]:
    """Returns the tensors with their names: the given ones, or those of their nodes."""
    if isinstance(tensors, Mapping):
        pairs = [(str(key), convert(t)) for key, t in tensors.items()]
    else:
        if not isinstance(tensors, Iterable):
            raise TypeError(
                f"The outputs of a model are tensors of a graph, one, several or a mapping of names to them, not {tensors!r}; the weights "
                "are those of a session, as in export(logits, session=session)"
            )
        made = [convert(t) for t in ([tensors] if isinstance(tensors, Tensor) else tensors)]
        pairs = [(t.op.name if t.value_index == 0 else f"{t.op.name}_{t.value_index}", t) for t in made]
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError(f"Two tensors have one name: {', '.join(repr(key) for key, _ in pairs)}; give a mapping")
    return pairs


def _needed(ends: Iterable[Tensor], starts: set[Tensor]) -> list[Node]:
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
        elif node.type in _READS and node.inputs[0].op.type in _PLACES or node.type == "VariableV2":
            reads.append(node.outputs[0])
        elif node.type == "ResourceGather":
            reads.append(node.inputs[0])
    if not reads:
        return
    session = session if session is not None else get_default_session()
    if session is None:
        raise FailedPreconditionError.of(
            f"The value of the variable '{reads[0].op.name}' is asked of a session: give one, or open `with session:`",
        )
    writer.values.update(zip(reads, session.run([_readable(t) for t in reads]), strict=True))


def _readable(tensor: Tensor) -> Tensor:
    """Returns the value tensor of a variable's reference."""
    if tensor.op.type != "VarHandleOp":
        return tensor
    for reader in tensor.consumers():
        if reader.type == "ReadVariableOp":
            return reader.outputs[0]
    raise UnimplementedError.of(f"The variable '{tensor.op.name}' is read by no node, so its value is not known")


def _nodes(writer: Writer, nodes: Sequence[Node], starts: set[Tensor]) -> None:
    """Write all nodes.

    Raises:
        UnimplementedError: some have no counterpart.
    """
    problems: list[str] = []
    lost: set[Tensor] = set()
    for node in nodes:
        if node.type in _PLACES or node.outputs and all(t in writer.values or t in starts for t in node.outputs):
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
        writer.nodes.append(helper.make_node("Identity", [there], [key], writer.fresh(f"{key}/output")))
        writer.makers.append(writer.scope)
    graph = helper.make_graph(
        writer.nodes,
        name,
        [_described(helper, key, t) for key, t in starts],
        [_described(helper, key, t) for key, t in ends],
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


def _described(helper: Any, key: str, tensor: Tensor) -> Any:
    """Returns an input or output with its type; an unknown first size is named as the batch's."""
    names = ["batch", *(f"{key}_{i}" for i in range(1, len(tensor.dims or ())))]
    return helper.make_value_info(key, type_message(tensor, names))
