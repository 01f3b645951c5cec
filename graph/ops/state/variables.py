"""Ops that create, read and assign variables.

TensorFlow 1 has two kinds of variable, and a graph may have both:

- The output of a *reference* variable (`VariableV2`) has a reference type. An op that assigns it lists that input in `ref_inputs`. Its
  kernel gets the state and returns it, so that assignments can be chained. The kernels of all other ops get the value.
- The output of a *resource* variable (`VarHandleOp`) is a handle, a scalar of type `resource`. `ReadVariableOp` returns the value. Reads
  are nodes, so that control edges can order them and assignments.

In a step both are a `VariableState`. All assignments are atomic, so the argument `use_locking` has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.dtypes import Array, DType, as_dtype, bool_, int32, int64, resource, text_array
from ...core.errors import OutOfRangeError, invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, Trait, define, nbytes, size, typed_attr
from ...core.shape import Dims, as_dims, compatible, merge, text
from ...resources.resource_manager import Context
from ...resources.variable import VariableState
from ..math.static_operands import no_cost

# --- rules that the ops share -------------------------------------------------------------------------------


_PASS_HANDLES = frozenset({"Identity", "Switch", "Enter", "Merge", "Exit", "NextIteration"})


def type_and_dims(tensor: Tensor) -> tuple[DType, Dims]:
    """The value type and static shape of the variable that a reference or handle refers to.

    Raises:
        TypeError: the tensor is neither.
    """
    if tensor.dtype.is_ref:
        return tensor.dtype.base, tensor.dims
    if tensor.dtype is resource:
        node = tensor.op
        while node.type in _PASS_HANDLES:
            node = node.inputs[0].op
        if node.type == "VarHandleOp":
            return node.attrs["dtype"], node.attrs["shape"]
        raise TypeError(f"{tensor.name} is a handle of unknown kind; a variable's handle comes from a VarHandleOp")
    raise TypeError(f"input 0 must be a variable (a reference or a handle), not a value of type {tensor.dtype.name}")


def expect_type(tensor: Tensor, dtype: DType, what: str) -> None:
    """TypeError unless the tensor holds values of the variable's type."""
    if tensor.dtype.base is not dtype:
        raise TypeError(f"the variable holds {dtype.name}, the {what} is {tensor.dtype.base.name}; use dt.cast")


def type_and_dims_of_handle(tensor: Tensor) -> tuple[DType, Dims]:
    """`type_and_dims` of a handle. TypeError for a reference."""
    if tensor.dtype is not resource:
        raise TypeError(f"input 0 must be a variable's handle, not a value of type {tensor.dtype.name}")
    return type_and_dims(tensor)


def _variable_type(attrs: Attrs) -> tuple[DType, Dims]:
    """The checked attributes `dtype` and `shape` of an op that creates a variable."""
    dtype = attrs.get("dtype")
    if not isinstance(dtype, DType) or dtype.is_ref or dtype is resource:
        raise TypeError(f"attribute dtype must be an element type of values, not {dtype!r}")
    typed_attr(attrs, "shared_name", str)
    return dtype, as_dims(attrs.get("shape"))


def one_pass(node: Node) -> Cost:
    """The cost of an op that reads the variable and its operands, and writes the variable."""
    dtype, dims = type_and_dims(node.inputs[0])
    held = (size(node.inputs[-1]) if dims is None else max(1, int(np.prod([d or 1 for d in dims])))) * dtype.size
    return Cost(held / dtype.size, 2 * held + sum(nbytes(t) for t in node.inputs[1:]))


# --- creation -----------------------------------------------------------------------------------------------


def _infer_variable(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    dtype, dims = _variable_type(attrs)
    return [(dtype.ref, dims)]


def _infer_handle(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _variable_type(attrs)
    return [(resource, ())]


def _find_state(context: Context, *, dtype: DType, shared_name: str) -> VariableState:
    name = shared_name or context.node_name
    found = context.resources.find(context.container, name)
    if type(found) is VariableState and found.dtype is dtype:  # it exists: no lock is needed
        return found
    return context.resources.variable(context.container, name, dtype)


for _name, _infer in (("VariableV2", _infer_variable), ("VarHandleOp", _infer_handle)):
    _traits = Trait.STATEFUL | Trait.STATE_HANDLE
    define(_name, _infer, _find_state, cost=no_cost, traits=_traits, internal_attrs=("shape",))


def variable_op_v2(shape: Any, dtype: Any, name: str = "Variable", shared_name: str = "") -> Tensor:
    """The reference of a new reference variable, of type `<dtype>_ref`. Users create a `dt.Variable` instead."""
    attrs = {"shape": as_dims(shape), "dtype": as_dtype(dtype).base, "shared_name": shared_name}
    return apply("VariableV2", (), attrs, name)


def var_handle_op(shape: Any, dtype: Any, shared_name: str = "", name: str = "VarHandleOp") -> Tensor:
    """The handle of a new resource variable. Users create a `dt.Variable(..., use_resource=True)` instead."""
    attrs = {"shape": as_dims(shape), "dtype": as_dtype(dtype).base, "shared_name": shared_name}
    return apply("VarHandleOp", (), attrs, name)


# --- assignment ---------------------------------------------------------------------------------------------


def _assigned_dims(inputs: Sequence[Tensor], attrs: Attrs) -> tuple[DType, Dims]:
    variable, value = inputs
    dtype, dims = type_and_dims(variable)
    expect_type(value, dtype, "value")
    if typed_attr(attrs, "validate_shape", bool):
        if not compatible(dims, value.dims):
            raise ValueError(f"the variable has shape {text(dims)}, the value {text(value.dims)}; they must be equal")
        return dtype, merge(dims, value.dims)
    return dtype, value.dims


def _infer_assign(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    dtype, dims = _assigned_dims(inputs, attrs)
    return [(dtype.ref, dims)]


def _infer_assign_resource(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _assigned_dims(inputs, attrs)
    as_dims(attrs.get("shape"))
    return []


def _store(state: VariableState, value: Array, dims: Dims) -> None:
    # The shape of the present value takes precedence over the static shape. It may differ after an assignment by another graph or without
    # validation.
    state.assign(value, state.read().shape if state.is_initialized else dims)


def _assign(context: Context, state: VariableState, value: Array, *, validate_shape: bool) -> VariableState:
    if validate_shape:
        _store(state, value, context.output_dims[0])
    else:
        state.assign(value)
    return state


def _assign_resource(
    context: Context, state: VariableState, value: Array, *, validate_shape: bool, shape: Dims = None
) -> tuple[()]:
    # The op has no output with a static shape, so the shape is an attribute.
    if validate_shape:
        _store(state, value, shape)
    else:
        state.assign(value)
    return ()


define("Assign", _infer_assign, _assign, cost=one_pass, traits=Trait.STATEFUL, ref_inputs=(0,))
define("AssignVariableOp", _infer_assign_resource, _assign_resource, cost=one_pass, traits=Trait.STATEFUL)


def _check_accumulate(inputs: Sequence[Tensor], attrs: Attrs) -> None:
    variable, delta = inputs
    dtype, dims = type_and_dims(variable)
    expect_type(delta, dtype, "value")
    if not compatible(dims, delta.dims):
        raise ValueError(f"the variable has shape {text(dims)}, the value {text(delta.dims)}; they must be equal")


def _accumulate(combine: Callable[[Array, Array], Any], context: Context, state: VariableState, delta: Array) -> None:
    def change(old: Array) -> Any:
        if old.shape != delta.shape:
            raise invalid(
                f"Variable '{state.name}' has shape {text(old.shape)}, the value {text(delta.shape)}: they must be equal",
                context.node_name,
            )
        return combine(old, delta)

    state.update(change)


def define_change(
    name: str,
    check: Callable[[Sequence[Tensor], Attrs], None],
    kernel: Callable[..., None],
    cost: Callable[[Node], Cost],
    on_handle: str | None = None,
) -> None:
    """Define an op that updates a variable, in two forms.

    Args:
        name: the op that takes and returns a reference.
        check: raises TypeError or ValueError unless the inputs and attributes fit.
        kernel: updates the variable, `kernel(context, state, *operands, **attrs)`.
        cost: the cost of a node.
        on_handle: the op that takes a handle. None means `Resource<name>`.
    """

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        check(inputs, attrs)
        dtype, dims = type_and_dims(inputs[0])
        return [(dtype.ref, dims)] if inputs[0].dtype.is_ref else []

    @wraps(kernel)  # keeps the signature, which names the attributes
    def on_reference(context: Context, state: VariableState, *operands: Array, **attrs: Any) -> VariableState:
        kernel(context, state, *operands, **attrs)
        return state

    @wraps(kernel)
    def on_resource(context: Context, state: VariableState, *operands: Array, **attrs: Any) -> tuple[()]:
        kernel(context, state, *operands, **attrs)
        return ()

    define(name, infer, on_reference, cost=cost, traits=Trait.STATEFUL, ref_inputs=(0,))
    define(on_handle or f"Resource{name}", infer, on_resource, cost=cost, traits=Trait.STATEFUL)


for _name, _combine in {"Add": np.add, "Sub": np.subtract}.items():
    _kernel = partial(_accumulate, _combine)
    define_change(f"Assign{_name}", _check_accumulate, _kernel, one_pass, f"Assign{_name}VariableOp")


def as_ref_or_handle(ref: Any) -> Tensor:
    """The reference or handle of a variable, or of the result of an assignment. TypeError for anything else."""
    variable = ref if isinstance(ref, Tensor) else getattr(ref, "_ref_or_handle", lambda: None)()
    if not isinstance(variable, Tensor) or not (variable.dtype.is_ref or variable.dtype is resource):
        raise TypeError(f"Expected a variable, which can be changed, not {ref!r}")
    return variable


def _change(op: str, ref: Any, value: TensorLike, attrs: dict[str, Any] | None, name: str | None) -> Tensor:
    """Add a node that updates a reference variable. A Python value becomes the Const `<name>/value`."""
    variable = as_ref_or_handle(ref)
    if not isinstance(value, Tensor):
        with variable.graph.op_scope(name or op) as name:
            value = convert(value, variable.dtype.base, name="value")
    return apply(op, (variable, value), attrs, name)


def assign(
    ref: Any,
    value: TensorLike,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Any:
    """Assign a value to a variable.

    Args:
        ref: a variable, a slice of one (`v[1:3]`), or the result of another assignment.
        value: the new value, of the variable's element type, and of its shape unless `validate_shape` is False.
        validate_shape: whether the shapes must agree. None means True.
        use_locking: accepted without effect. Assignments are always atomic.
        name: name of the node.

    Returns:
        The variable's reference, so that assignments can be chained. Its value is the new value.

    Raises:
        TypeError: the value has another element type.
        ValueError: the value has another shape.

    >>> step = dt.assign(v, v * 2)
    """
    is_slice = isinstance(ref, Tensor) and ref.op.type == "StridedSlice"
    if is_slice or not isinstance(ref, Tensor) and as_ref_or_handle(ref).dtype is resource:
        return ref.assign(value, name=name)
    return _change("Assign", ref, value, {"validate_shape": validate_shape is not False}, name)


def assign_add(ref: Any, value: TensorLike, use_locking: bool | None = None, name: str | None = None) -> Any:
    """Add `value` to a variable of the same shape, atomically. Arguments and result as for `assign`."""
    if not isinstance(ref, Tensor) and as_ref_or_handle(ref).dtype is resource:
        return ref.assign_add(value)
    return _change("AssignAdd", ref, value, None, name)


def assign_sub(ref: Any, value: TensorLike, use_locking: bool | None = None, name: str | None = None) -> Any:
    """Subtract `value` from a variable of the same shape, atomically. Arguments and result as for `assign`."""
    if not isinstance(ref, Tensor) and as_ref_or_handle(ref).dtype is resource:
        return ref.assign_sub(value)
    return _change("AssignSub", ref, value, None, name)


# --- reading ------------------------------------------------------------------------------------------------


def _infer_is_initialized(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    type_and_dims(inputs[0])
    return [(bool_, ())]


def _is_initialized(context: Context, state: VariableState) -> Any:
    return np.asarray(state.is_initialized)


_LOOKS = Trait.STATEFUL | Trait.READS_ONLY
define(
    "ReadVariableOp",
    lambda inputs, attrs: [type_and_dims_of_handle(inputs[0])],
    lambda context, state: state.read(),
    gradient=lambda node, grad: (grad,),
    cost=lambda node: Cost(0.0, nbytes(node.outputs[0])),
    traits=_LOOKS,
)
define("IsVariableInitialized", _infer_is_initialized, _is_initialized, cost=no_cost, traits=_LOOKS, ref_inputs=(0,))
define("VarIsInitializedOp", _infer_is_initialized, _is_initialized, cost=no_cost, traits=_LOOKS)


def is_variable_initialized(variable: Any, name: str | None = None) -> Tensor:
    """Scalar bool: whether the variable has a value."""
    variable = as_ref_or_handle(variable)
    return apply(
        "VarIsInitializedOp" if variable.dtype is resource else "IsVariableInitialized", (variable,), None, name
    )


def _infer_initialized_value(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    variable, initial = inputs
    dtype, dims = type_and_dims(variable)
    expect_type(initial, dtype, "initial value")
    return [(dtype, dims if compatible(dims, initial.dims) else None)]


define(
    "InitializedValue",
    _infer_initialized_value,
    lambda context, state, initial: state.read() if state.is_initialized else initial,
    cost=no_cost,
    traits=_LOOKS,
    ref_inputs=(0,),
)


def _infer_uninitialized(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    names = attrs.get("names")
    if not isinstance(names, (tuple, list)) or not all(isinstance(n, str) for n in names) or len(names) != len(inputs):
        raise ValueError("attribute names must hold one name per input")
    for t in inputs:
        if t.dtype.base is not bool_ or t.dims != ():
            raise TypeError(f"inputs must be scalars of type bool, not {t.dtype.name} {text(t.dims)}")
    return [(as_dtype("string"), (None,))]


def _uninitialized(*flags: Array, names: Sequence[str]) -> Array:
    missing = [n.encode() for n, known in zip(names, flags, strict=True) if not known]
    return text_array(missing)


define("UninitializedNames", _infer_uninitialized, _uninitialized, device_types=("CPU",))


def _infer_count(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    dtype, dims = type_and_dims(inputs[0])
    if dtype not in (int32, int64) or not compatible(dims, ()):
        raise TypeError(f"only a scalar variable of type int32 or int64 can count, not {dtype.name} {text(dims)}")
    typed_attr(attrs, "limit", int)
    return [(dtype, ())]


def _count_up_to(context: Context, state: VariableState, *, limit: int) -> Array:
    def change(old: Array) -> Any:
        if old >= limit:
            raise OutOfRangeError(context.node_name, None, f"Reached limit of {limit}")
        return old + 1

    counted: Array = state.update(change) - np.asarray(1, state.dtype.np)
    return counted


define("CountUpTo", _infer_count, _count_up_to, traits=Trait.STATEFUL, ref_inputs=(0,))


def count_up_to(ref: Any, limit: int, name: str | None = None) -> Tensor:
    """Increment a counter, and return its old value. OutOfRangeError in a step that finds it at `limit`.

    Args:
        ref: a scalar reference variable, int32 or int64.
        limit: where the counter stops.
        name: name of the node.
    """
    return apply("CountUpTo", (as_ref_or_handle(ref),), {"limit": limit}, name)


def read_variable(handle: Tensor, name: str | None = None) -> Tensor:
    """The value of a resource variable at the time when this node runs."""
    return apply("ReadVariableOp", (handle,), None, name)


def change_resource(op: str, handle: Tensor, value: TensorLike, name: str | None, validate_shape: bool = True) -> Node:
    """Add a node of the op `op` that updates a resource variable by a value of its type and shape."""
    dtype, dims = type_and_dims(handle)
    with handle.graph.as_default():
        value = convert(value, dtype)
    return make(
        op,
        (handle, value),
        {"validate_shape": validate_shape, "shape": dims} if op == "AssignVariableOp" else None,
        name,
    )
