"""The update ops of optimizers. One op updates a variable and its slots by a gradient, atomically.

Each rule is one function from old values and a gradient to new values. It defines four ops, with TensorFlow's inputs:

    ApplyX            reference variables, a dense gradient
    SparseApplyX      reference variables, a sparse gradient: the rows `grad` and their row numbers `indices`
    ResourceApplyX, ResourceSparseApplyX    the same for resource variables

The variable and its slots are locked together, so that updates never interleave. If a row occurs twice in a sparse gradient, its gradients
are added. Rows that do not occur in it are unchanged. A rule whose slots decay in every step (Adam) has `decays` set, and its sparse
gradients are converted to dense ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.dtypes import FLOATS, Array, resource
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, Trait, define, nbytes, typed_attr
from ...core.rows import sum_rows
from ...core.shape import Dims, compatible, merge, text
from ...resources.resource_manager import Context
from ...resources.variable import VariableState, changing, update_together
from ..math.static_operands import need_index
from .scatter_state import check_bounds, row_count
from .variables import as_ref_or_handle, expect_type, type_and_dims

# (old values of the variable and its slots, gradient, scalars by name, flags by name) -> new values, in the same order
Step = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """How an optimizer updates a variable.

    Attributes:
        name: the part of the ops' names after `Apply`.
        slots: names of the rule's slots, which have the variable's shape.
        before: scalar inputs before the gradient.
        after: scalar inputs after the gradient and its indices.
        flags: boolean attributes with their defaults.
        step: the formula.
        flops: flops per element.
        decays: whether the variable or its slots change where the gradient is zero.
        linear: whether two steps equal one step with the sum of their gradients, except for rounding.
        gradient: name of the gradient's input.
    """

    name: str
    slots: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    flags: dict[str, bool]
    step: Step
    flops: float
    decays: bool = False
    linear: bool = False
    gradient: str = "grad"


# --- the rules ----------------------------------------------------------------------------------------------


def _gradient_descent(var: Array, grad: Array, *, alpha: Array) -> Sequence[Array]:
    step = np.asarray(alpha * grad)
    return (np.subtract(var, step, out=step),)  # reuse the memory: allocating it costs more than the arithmetic


def _momentum(
    var: Array, accum: Array, grad: Array, *, lr: Array, momentum: Array, use_nesterov: bool
) -> Sequence[Array]:
    accum = accum * momentum + grad
    if use_nesterov:
        return var - (grad * lr + accum * momentum * lr), accum
    return var - lr * accum, accum


def _keras_momentum(
    var: Array, accum: Array, grad: Array, *, lr: Array, momentum: Array, use_nesterov: bool
) -> Sequence[Array]:
    # The learning rate is part of the accumulated steps, so a later change of the rate does not rescale earlier steps.
    accum = accum * momentum - lr * grad
    return var + (accum * momentum - lr * grad if use_nesterov else accum), accum


def _adagrad(var: Array, accum: Array, grad: Array, *, lr: Array, update_slots: bool) -> Sequence[Array]:
    if update_slots:
        accum = accum + grad * grad
    return var - lr * grad / np.sqrt(accum), accum


def _adam(
    var: Array,
    m: Array,
    v: Array,
    grad: Array,
    *,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    use_nesterov: bool,
) -> Sequence[Array]:
    # Kingma and Ba, 2015 (arXiv:1412.6980), in the form just before section 2.1: epsilon is added to the uncorrected root.
    one = np.ones((), var.dtype)
    alpha = lr * np.sqrt(one - beta2_power) / (one - beta1_power)
    m = m + (grad - m) * (one - beta1)
    v = v + (grad * grad - v) * (one - beta2)
    moved = grad * (one - beta1) + beta1 * m if use_nesterov else m
    return var - moved * alpha / (np.sqrt(v) + epsilon), m, v


def _adam_w(
    var: Array, m: Array, v: Array, grad: Array, *, lr: Array, weight_decay: Array, **adam: Any
) -> Sequence[Array]:
    # Loshchilov and Hutter, 2019 (arXiv:1711.05101): the decay does not affect the moments.
    return _adam(var * (np.ones((), var.dtype) - lr * weight_decay), m, v, grad, lr=lr, **adam)


def _lamb(
    var: Array,
    m: Array,
    v: Array,
    grad: Array,
    *,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    weight_decay: Array,
) -> Sequence[Array]:
    # You et al., 2020 (arXiv:1904.00962). `lr` includes the layer's trust ratio. It is computed before, because it needs norms of all
    # elements, and this rule works element by element.
    one = np.ones((), var.dtype)
    m = beta1 * m + (one - beta1) * grad
    v = beta2 * v + (one - beta2) * grad * grad
    step = m / (one - beta1_power) / (np.sqrt(v / (one - beta2_power)) + epsilon) + weight_decay * var
    return var - lr * step, m, v


def _rms_prop(
    var: Array, ms: Array, mom: Array, grad: Array, *, lr: Array, rho: Array, momentum: Array, epsilon: Array
) -> Sequence[Array]:
    ms = ms + (grad * grad - ms) * (np.ones((), var.dtype) - rho)
    mom = mom * momentum + lr * grad / np.sqrt(ms + epsilon)
    return var - mom, ms, mom


def _centered_rms_prop(
    var: Array,
    mg: Array,
    ms: Array,
    mom: Array,
    grad: Array,
    *,
    lr: Array,
    rho: Array,
    momentum: Array,
    epsilon: Array,
) -> Sequence[Array]:
    one = np.ones((), var.dtype)
    ms = ms + (grad * grad - ms) * (one - rho)
    mg = mg + (grad - mg) * (one - rho)
    mom = mom * momentum + lr * grad / np.sqrt(ms - mg * mg + epsilon)
    return var - mom, mg, ms, mom


def _adadelta(
    var: Array, accum: Array, accum_update: Array, grad: Array, *, lr: Array, rho: Array, epsilon: Array
) -> Sequence[Array]:
    one = np.ones((), var.dtype)
    accum = accum * rho + grad * grad * (one - rho)
    update = np.sqrt(accum_update + epsilon) / np.sqrt(accum + epsilon) * grad
    return var - lr * update, accum, accum_update * rho + update * update * (one - rho)


def _shrunk(x: Array, by: Array) -> Array:
    """Soft thresholding, sign(x) * max(|x| - by, 0): the proximal operator of an L1 penalty."""
    shrunk: Array = np.sign(x) * np.maximum(np.abs(x) - by, np.zeros((), x.dtype))
    return shrunk


def _ftrl(var: Array, accum: Array, linear: Array, grad: Array, *, lr: Array, l1: Array, l2: Array) -> Sequence[Array]:
    # McMahan et al., 2013, with lr_power = -1/2, TensorFlow's default.
    new = accum + grad * grad
    linear = linear + grad - (np.sqrt(new) - np.sqrt(accum)) / lr * var
    return -_shrunk(linear, l1) / (np.sqrt(new) / lr + l2 + l2), new, linear


def _ftrl_v2(
    var: Array,
    accum: Array,
    linear: Array,
    grad: Array,
    *,
    lr: Array,
    l1: Array,
    l2: Array,
    l2_shrinkage: Array,
    lr_power: Array,
) -> Sequence[Array]:
    # The same with any power, and an L2 penalty (shrinkage) that is not part of the accumulated squares.
    new = accum + grad * grad
    before, after = np.power(accum, -lr_power), np.power(new, -lr_power)
    linear = linear + grad + (l2_shrinkage + l2_shrinkage) * var - (after - before) / lr * var
    return -_shrunk(linear, l1) / (after / lr + l2 + l2), new, linear


def _dual_averaging(
    var: Array,
    sums: Array,
    squares: Array,
    grad: Array,
    *,
    lr: Array,
    l1: Array,
    l2: Array,
    global_step: Array,
) -> Sequence[Array]:
    # Duchi, Hazan and Singer, 2011: the weights are computed from the sums of all gradients, not from the old weights.
    sums = sums + grad
    squares = squares + grad * grad
    return -lr * _shrunk(sums, l1 * global_step) / (l2 * global_step * lr + np.sqrt(squares)), sums, squares


def _proximal_gradient_descent(var: Array, grad: Array, *, alpha: Array, l1: Array, l2: Array) -> Sequence[Array]:
    # Duchi and Singer, 2009: a gradient step, followed by the proximal step of the penalties.
    return (_shrunk(var - alpha * grad, alpha * l1) / (np.ones((), var.dtype) + alpha * l2),)


def _proximal_adagrad(var: Array, accum: Array, grad: Array, *, lr: Array, l1: Array, l2: Array) -> Sequence[Array]:
    accum = accum + grad * grad
    rate = lr / np.sqrt(accum)
    return _shrunk(var - rate * grad, rate * l1) / (np.ones((), var.dtype) + rate * l2), accum


_RMS_SCALARS = ("lr", "rho", "momentum", "epsilon")
_ADAM_SCALARS = ("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon")
_FTRL_SCALARS = ("lr", "l1", "l2")
_DUAL_SLOTS, _DUAL_SCALARS = ("gradient_accumulator", "gradient_squared_accumulator"), (*_FTRL_SCALARS, "global_step")
_DECAYED = (*_ADAM_SCALARS, "weight_decay")
_NESTEROV = {"use_nesterov": False}
_PROXIMAL = ("alpha", "l1", "l2")
RULES = {
    rule.name: rule
    for rule in (
        UpdateRule("GradientDescent", (), ("alpha",), (), {}, _gradient_descent, 2, linear=True, gradient="delta"),
        UpdateRule("Momentum", ("accum",), ("lr",), ("momentum",), _NESTEROV, _momentum, 4),
        UpdateRule("KerasMomentum", ("accum",), ("lr",), ("momentum",), _NESTEROV, _keras_momentum, 5, decays=True),
        UpdateRule("Adagrad", ("accum",), ("lr",), (), {"update_slots": True}, _adagrad, 6),
        UpdateRule("Adam", ("m", "v"), _ADAM_SCALARS, (), _NESTEROV, _adam, 12, decays=True),
        UpdateRule("AdamW", ("m", "v"), _DECAYED, (), _NESTEROV, _adam_w, 14, decays=True),
        UpdateRule("Lamb", ("m", "v"), _DECAYED, (), {}, _lamb, 16, decays=True),
        UpdateRule("RMSProp", ("ms", "mom"), _RMS_SCALARS, (), {}, _rms_prop, 11),
        UpdateRule("CenteredRMSProp", ("mg", "ms", "mom"), _RMS_SCALARS, (), {}, _centered_rms_prop, 16),
        UpdateRule("Adadelta", ("accum", "accum_update"), ("lr", "rho", "epsilon"), (), {}, _adadelta, 15),
        UpdateRule("Ftrl", ("accum", "linear"), (), _FTRL_SCALARS, {}, _ftrl, 16),
        UpdateRule("FtrlV2", ("accum", "linear"), (), (*_FTRL_SCALARS, "l2_shrinkage", "lr_power"), {}, _ftrl_v2, 30),
        UpdateRule("DualAveraging", _DUAL_SLOTS, (), _DUAL_SCALARS, {}, _dual_averaging, 14),
        UpdateRule("ProximalGradientDescent", (), _PROXIMAL, (), {}, _proximal_gradient_descent, 8, gradient="delta"),
        UpdateRule("ProximalAdagrad", ("accum",), _FTRL_SCALARS, (), {}, _proximal_adagrad, 12),
    )
}


# --- from a rule to its ops ---------------------------------------------------------------------------------


def _layout(rule: UpdateRule, is_sparse: bool) -> list[str]:
    """Names of the inputs, in TensorFlow's order."""
    rows = ["indices"] if is_sparse else []
    return ["var", *rule.slots, *rule.before, rule.gradient, *rows, *rule.after]


def _infer(rule: UpdateRule, is_sparse: bool, is_ref: bool) -> Callable[[Sequence[Tensor], Attrs], Sequence[Output]]:
    names = _layout(rule, is_sparse)
    count = 1 + len(rule.slots)

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        if len(inputs) != len(names):
            raise TypeError(f"takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}")
        for name in rule.flags:
            typed_attr(attrs, name, bool)
        given = dict(zip(names, inputs, strict=True))
        dtype, dims = type_and_dims(inputs[0])
        if dtype not in FLOATS:
            raise TypeError(f"the variable must be of a floating type to be trained, not {dtype.name}")
        for name, variable in zip(names[:count], inputs[:count], strict=True):
            if variable.dtype.is_ref is not is_ref:
                kind = "reference" if is_ref else "resource"
                raise TypeError(f"{name} must be a {kind} variable, not {variable.dtype.name}")
            slot_type, slot_dims = type_and_dims(variable)
            if slot_type is not dtype:
                raise TypeError(f"{name} holds {slot_type.name}, the variable {dtype.name}")
            dims = merge(dims, slot_dims)
        grad = given[rule.gradient]
        expect_type(grad, dtype, "gradient")
        expected: Dims = dims
        if is_sparse:
            indices = given["indices"]
            need_index(indices, "indices")
            if not compatible(indices.dims, (None,)):
                raise ValueError(f"indices must have one dimension, not shape {text(indices.dims)}")
            expected = None if dims is None else ((indices.dims or (None,))[0], *dims[1:])
        if not compatible(grad.dims, expected):
            raise ValueError(f"the gradient has shape {text(grad.dims)}, where {text(expected)} is needed")
        for name in (*rule.before, *rule.after):
            expect_type(given[name], dtype, name)
            if not compatible(given[name].dims, ()):
                raise ValueError(f"{name} must be a scalar, not of shape {text(given[name].dims)}")
        return [(dtype.ref, dims)] if is_ref else []

    return infer


def _reference(rule: UpdateRule, is_sparse: bool, is_ref: bool) -> Callable[..., Any]:
    names = _layout(rule, is_sparse)
    count = 1 + len(rule.slots)

    def reference(context: Context, *inputs: Any, **flags: bool) -> Any:
        states: Sequence[VariableState] = inputs[:count]
        given = dict(zip(names[count:], inputs[count:], strict=True))
        grad = np.asarray(given.pop(rule.gradient))
        indices = np.asarray(given.pop("indices")) if is_sparse else None

        def change(*old: Array) -> Sequence[Array]:
            _check_shapes(context.node_name, states, old, grad, indices)
            if indices is None:
                return rule.step(*old, grad, **given, **flags)
            return rule.step(*old, sum_rows(grad, indices, len(old[0])), **given, **flags)

        if indices is not None and not rule.decays:
            _check_different(context.node_name, states)
            with changing(states, indices) as held:
                _check_shapes(context.node_name, states, held, grad, indices)
                rows, group = np.unique(indices, return_inverse=True)
                summed = sum_rows(grad, group.reshape(-1), len(rows))
                for value, new in zip(held, rule.step(*[v[rows] for v in held], summed, **given, **flags), strict=True):
                    value[rows] = new
            return states[0] if is_ref else ()
        update_together(states, change)
        return states[0] if is_ref else ()

    return reference


def _check_different(node: str, states: Sequence[VariableState]) -> None:
    """InvalidArgumentError unless the variable and its slots are different variables."""
    if len(set(states)) < len(states):
        names = ", ".join(f"'{s.name}'" for s in states)
        raise invalid(f"'{node}': a variable and its slots must be different variables, not {names}", node)


def _check_shapes(
    node: str, states: Sequence[VariableState], old: Sequence[Array], grad: Array, indices: Array | None
) -> None:
    """InvalidArgumentError unless slots and gradient fit the variable's present shape."""
    shape = old[0].shape
    for state, value in zip(states, old, strict=True):
        if value.shape != shape:
            raise invalid(
                f"'{node}': slot '{state.name}' has shape {text(value.shape)}, "
                f"variable '{states[0].name}' {text(shape)}",
                node,
            )
    if indices is not None:
        what = f"variable '{states[0].name}'"
        check_bounds(indices, row_count(old[0], node, what), node, what)
        shape = (*indices.shape, *shape[1:])
    if grad.shape != shape:
        raise invalid(f"'{node}': the gradient has shape {text(grad.shape)}, where {text(shape)} is needed", node)


def _cost(rule: UpdateRule, is_sparse: bool) -> Callable[[Node], Cost]:
    def cost(node: Node) -> Cost:
        dtype, dims = type_and_dims(node.inputs[0])
        held = int(np.prod([d or 1 for d in dims or ()]))
        grad = node.inputs[_layout(rule, is_sparse).index(rule.gradient)]
        touched = nbytes(grad) / dtype.size if is_sparse and not rule.decays else held
        return Cost(rule.flops * touched, 2 * touched * dtype.size * (1 + len(rule.slots)) + nbytes(grad))

    return cost


def update_op(rule: str, *, is_ref: bool, is_sparse: bool) -> str:
    """The op of a rule for reference or resource variables, and dense or sparse gradients."""
    return f"{'' if is_ref else 'Resource'}{'Sparse' if is_sparse else ''}Apply{rule}"


for _rule in RULES.values():
    for _is_sparse in (False, True):
        for _is_ref in (False, True):
            define(
                update_op(_rule.name, is_ref=_is_ref, is_sparse=_is_sparse),
                _infer(_rule, _is_sparse, _is_ref),
                _reference(_rule, _is_sparse, _is_ref),
                cost=_cost(_rule, _is_sparse),
                traits=Trait.STATEFUL,
                ref_inputs=tuple(range(1 + len(_rule.slots))) if _is_ref else (),
            )


def apply_update(
    rule: str,
    variables: Sequence[Any],
    gradient: TensorLike,
    scalars: dict[str, TensorLike],
    *,
    indices: TensorLike | None = None,
    flags: dict[str, bool] | None = None,
    name: str | None = None,
) -> Node:
    """Add the op that updates a variable by a rule.

    Args:
        rule: a key of `RULES`.
        variables: the variable and its slots, in the rule's order.
        gradient: a dense gradient of the variable's shape, or the rows of a sparse one.
        scalars: the rule's scalars by name. Numbers become Consts of the variable's type.
        indices: the row numbers of a sparse gradient, a vector.
        flags: attributes that differ from the rule's defaults.
        name: name of the node. None means that of the op.
    """
    found = RULES[rule]
    held = [as_ref_or_handle(v) for v in variables]
    dtype, _ = type_and_dims(held[0])
    is_ref = held[0].dtype is not resource
    op = update_op(rule, is_ref=is_ref, is_sparse=indices is not None)
    with held[0].graph.op_scope(name or op) as scope:
        given = {n: convert(v, dtype, name=n) for n, v in scalars.items()}
        given[found.gradient] = convert(gradient, dtype, name=found.gradient)
        if indices is not None:
            given["indices"] = convert(indices, name="indices")
        rest = [given[n] for n in _layout(found, indices is not None)[len(held) :]]
    return make(op, [*held, *rest], {**found.flags, **(flags or {})}, scope)
