"""Identity ops, placeholders, ops that stop gradients or add control edges, run-time checks."""

from __future__ import annotations

from builtins import tuple as py_tuple
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, graph_of, make
from ...core.dtypes import Array, bool_
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, define_on_host
from ...core.shape import as_dims, compatible, text
from ...resources.resource_manager import Context
from ...tensors.indexed_slices import IndexedSlices, map_values
from ..math.static_operands import apply_op, need_rank, no_cost, op_scope, same_rule

# --- identity -----------------------------------------------------------------------------------------------


def _refuse_gradient(node: Node, grad: Any) -> Sequence[Any]:
    message = node.attrs.get("message")
    raise LookupError(
        f"No gradient may pass '{node.name}' (created at {node.source})" + (f": {message}" if message else "")
    )


define("Identity", same_rule, lambda x: x, gradient=lambda node, grad: [grad], cost=no_cost)
define("StopGradient", same_rule, lambda x: x, cost=no_cost)
define("PreventGradient", same_rule, lambda x: x, gradient=_refuse_gradient, cost=no_cost, internal_attrs=("message",))


def identity(input: TensorLike, name: str | None = None) -> Any:
    """The same value as a new tensor, on the device of the enclosing device block. `IndexedSlices` give `IndexedSlices`."""
    if hasattr(input, "_mapped"):
        return map_values(lambda values: identity(values, name), input)
    if isinstance(input, Tensor):
        return apply("Identity", (input,), None, name)
    return apply_op("Identity", name, input=input)


def _each_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("at least one input is needed")
    return [(t.dtype.base, t.dims) for t in inputs]


define(
    "IdentityN",
    _each_rule,
    lambda *values: values[0] if len(values) == 1 else values,
    gradient=lambda node, *grads: grads,
    cost=no_cost,
)


def identity_n(input: Sequence[TensorLike], name: str | None = None) -> list[Tensor]:
    """The same values as outputs of one node. All become available together."""
    with op_scope(name, "IdentityN", *input) as scope:
        values = [convert(v, name=f"input_{i}") for i, v in enumerate(input)]
        return list(make("IdentityN", values, None, scope).outputs)


def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """The same value, which `gradients` treats as a constant."""
    return apply_op("StopGradient", name, input=input)


def prevent_gradient(input: TensorLike, message: str = "", name: str | None = None) -> Tensor:
    """The same value. `gradients` through it raises LookupError with `message`."""
    return apply_op("PreventGradient", name, {"message": message}, input=input)


def _default_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dims = as_dims(attrs.get("shape"))
    if not compatible(x.dims, dims):
        raise ValueError(f"the default value has shape {text(x.dims)}, which does not fit {text(dims)}")
    return [(x.dtype.base, dims)]


define(
    "PlaceholderWithDefault",
    _default_rule,
    lambda x: x,
    gradient=lambda node, grad: [grad],
    cost=no_cost,
    internal_attrs=("shape",),
)


def placeholder_with_default(input: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """A tensor of static shape `shape` that may be fed. It has the value of `input` in steps that do not feed it."""
    return apply_op("PlaceholderWithDefault", name, {"shape": as_dims(shape)}, input=input)


# --- control edges ------------------------------------------------------------------------------------------

define("NoOp", lambda inputs, attrs: [], lambda: (), cost=no_cost)


def no_op(name: str | None = None) -> Node:
    """A node that only waits for its control inputs."""
    return make("NoOp", (), None, name)


def group(*inputs: Any, name: str | None = None) -> Node:
    """A node that runs after all `inputs`.

    Inputs on several devices are first grouped by device, so that each device sends one message.

    Args:
        inputs: nodes, tensors, variables, and nested lists and dicts of them.
        name: name of the node.

    Raises:
        TypeError: an input is something else.
    """
    nodes = [_node_of(x) for x in _flat(inputs)]
    if not nodes:
        return no_op(name)
    graph = nodes[0].graph
    with graph.as_default(), graph.name_scope(name or "group_deps") as scope:
        by_device: dict[str, list[Node]] = {}
        for node in nodes:
            by_device.setdefault(node.device, []).append(node)
        if len(by_device) == 1:
            ((device, waited),) = by_device.items()
            return _wait_for(waited, device, scope)
        gates = [_wait_for(by_device[device], device, None) for device in sorted(by_device)]
        with graph.device(None):
            return _wait_for(gates, "", scope)


def _wait_for(nodes: list[Node], device: str, name: str | None) -> Node:
    graph = nodes[0].graph
    with graph.control_dependencies(nodes):
        if not device:
            return no_op(name)
        # Device blocks around the call must not complete a partial device such as '/job:ps'.
        with graph.device(None), graph.device(device):
            return no_op(name)


def _flat(values: Any) -> Iterator[Any]:
    if isinstance(values, dict):
        values = [values[k] for k in sorted(values)]
    if isinstance(values, (list, py_tuple)):
        for v in values:
            yield from _flat(v)
    elif values is not None:
        yield values


def _node_of(value: Any) -> Node:
    if isinstance(value, Node):
        return value
    if isinstance(value, Tensor):
        return value.op
    as_element = getattr(value, "_control_element", None) or getattr(value, "_as_graph_element", None)
    if as_element is not None and not isinstance(value, IndexedSlices):
        element: Any = as_element()
        return element if isinstance(element, Node) else element.op
    node = getattr(value, "op", None)
    if isinstance(node, Node):
        return node
    raise TypeError(f"group takes nodes, tensors and variables, not {value!r}")


def with_dependencies(dependencies: Sequence[Any], output_tensor: Any, name: str | None = None) -> Any:
    """The value of `output_tensor`, available after `dependencies` have run. The node is colocated with `output_tensor`."""
    graph = graph_of(output_tensor) if isinstance(output_tensor, Tensor) else output_tensor.graph
    node = _node_of(output_tensor)
    with (
        graph.name_scope(name or "control_dependency") as scope,
        graph.colocate_with(node),
        graph.control_dependencies(dependencies),
    ):
        return identity(output_tensor, scope)


def tuple(tensors: Any, name: str | None = None, control_inputs: Sequence[Any] | None = None) -> list[Any]:
    """The same tensors, each available only after all of them and `control_inputs` have been computed. None stays None.

    Raises:
        ValueError: there is no tensor.
    """
    waited = [_node_of(t) for t in tensors if t is not None]
    if not waited:
        raise ValueError("tuple needs at least one tensor")
    graph = waited[0].graph
    with graph.name_scope(name or "tuple"):
        gate = group(*waited, *(control_inputs or ()))
        return [None if t is None else with_dependencies([gate], t) for t in tensors]


# --- run-time checks ----------------------------------------------------------------------------------------


def shown(value: Array, summarize: int | None) -> str:
    """The first `summarize` elements of an array, in row-major order, as TensorFlow prints them. None means 3. -1 means all."""
    limit = 3 if summarize is None else summarize
    flat = np.ravel(value)
    head = flat if limit < 0 else flat[:limit]
    return f"[{' '.join(_item(v) for v in head)}{'...' if len(head) < len(flat) else ''}]"


def _item(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    return str(value)


def _assert_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("Assert needs a condition")
    condition = inputs[0]
    if condition.dtype.base is not bool_:
        raise TypeError(f"the condition must be bool, not {condition.dtype.base.name}")
    need_rank(condition.dims, 0, "the condition")
    return []


def _assert(context: Context, condition: Array, *data: Array, summarize: int | None) -> Sequence[Array]:
    if not condition:
        raise invalid("assertion failed: " + " ".join(shown(d, summarize) for d in data))
    return ()


define_on_host("Assert", _assert_rule, _assert)


def Assert(
    condition: TensorLike, data: Sequence[TensorLike], summarize: int | None = None, name: str | None = None
) -> Node:
    """A node that fails its step unless a condition is true.

    It checks only in steps in which it runs. Use `control_dependencies([Assert(...)])` for the nodes that depend on the check.

    Args:
        condition: a bool scalar.
        data: tensors to print in the error.
        summarize: the number of elements printed of each. None means 3. -1 means all.
        name: name scope of the nodes.

    Raises:
        InvalidArgumentError: in a step, the condition is false.
    """
    with op_scope(name, "Assert", condition, data):
        operands = [convert(condition, bool_, name="condition")]
        operands += [convert(d, name=f"data_{i}") for i, d in enumerate(data)]
        return make("Assert", operands, {"summarize": summarize}, "Assert")
