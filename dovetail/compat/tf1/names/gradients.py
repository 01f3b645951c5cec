"""Gradient rules by name, gradients that pass unchanged or compute again, second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.control_flow.cond_while import while_loop
from ....graph.core.build import convert
from ....graph.core.default_graph import get_default_graph
from ....graph.core.graph import Node, Tensor
from ....graph.core.nest import flatten
from ....graph.core.opdef import named_gradients
from ....graph.gradients.custom import custom_gradient, listed
from ....graph.gradients.reverse import gradients
from ....graph.ops.array.concat_stack import concat
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.shapes import reshape, shape as shape_of, size
from ....graph.ops.control.tensor_array import TensorArray


class RegisterGradient:
    """A decorator that gives a gradient rule a name, for `Graph.gradient_override_map`.

    Args:
        op_type: the name. ValueError when it is used for the second time.

    The function is called as `rule(op, *grads)` with the node, whose `inputs` and `outputs` it may use, and one gradient per
    output (None where there is none); it returns one gradient per input, or None.

    >>> @dt.RegisterGradient("Through")
    ... def through(op, grad):
    ...     return grad
    >>> with dt.get_default_graph().gradient_override_map({"Sign": "Through"}):
    ...     y = dt.sign(x)

    TensorFlow: `tf.RegisterGradient`.
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):
            raise TypeError(f"RegisterGradient needs a name, not {op_type!r}")
        self._name = op_type

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Register a rule, and return it."""
        _register(self._name, f)
        return f


def no_gradient(op_type: str) -> None:
    """Register a name as not differentiable. TensorFlow: `tf.NoGradient`, `tf.NotDifferentiable`."""
    _register(op_type, None)


NotDifferentiable = NoGradient = no_gradient


def _register(name: str, rule: Callable[..., Any] | None) -> None:
    if name in named_gradients:
        raise ValueError(f"A gradient is registered already under the name '{name}'")
    named_gradients[name] = _rule(rule)


def _rule(function: Callable[..., Any] | None) -> Callable[..., Sequence[Any]] | None:
    """A rule in the form of ops' rules, which returns a list."""
    if function is None:
        return None

    def rule(node: Node, *grads: Any) -> Sequence[Any]:
        return listed(function(node, *grads))

    return rule


def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for a function that gradients pass unchanged, as if it were the identity.

    TensorFlow: `tf.grad_pass_through`.
    """

    @custom_gradient
    def passing(*args: Any, **kwargs: Any) -> Any:
        def grad(*dys: Any, variables: Any = ()) -> Any:
            return (dys, [None] * len(variables)) if variables else dys

        return f(*args, **kwargs), grad

    return passing


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for rematerialization: the gradient runs the function again, so that its intermediate values need not be kept.

    TensorFlow: `tf.recompute_grad`.
    """

    @custom_gradient
    def forgetting(*args: Any, **kwargs: Any) -> Any:
        def grad(*dys: Any, variables: Any = ()) -> Any:
            with get_default_graph().control_dependencies([dy.op for dy in dys]):
                again = [identity(a) for a in args]
                result = flatten(f(*again, **kwargs))
            found = gradients(result, [*again, *variables], grad_ys=list(dys))
            return (found[: len(args)], found[len(args) :]) if variables else found

        return f(*args, **kwargs), grad

    return forgetting


def hessians(ys: Any, xs: Any, name: str = "hessians") -> list[Tensor]:
    """The second derivatives of the sum of ys with respect to each of xs.

    Args:
        ys: tensor or list of tensors. xs: tensor or variable, or a list of those.

    Returns:
        one per x, of shape `x.shape + x.shape`.

    Raises:
        ValueError: ys do not depend on an x.

    >>> x = dt.constant([1.0, 2.0])
    >>> (h,) = dt.hessians(dt.reduce_sum(x ** 3), x)   # evaluates to [[6, 0], [0, 12]]

    TensorFlow: `tf.hessians`.
    """
    found = []
    with get_default_graph().name_scope(name):
        for x in xs if isinstance(xs, (list, tuple)) else [xs]:
            (first,) = gradients(ys, [x])
            if first is None:
                raise ValueError(f"ys do not depend on {x!r}, so there are no second derivatives")
            flat, value = reshape(convert(first), [-1]), convert(x)
            count = size(value)
            rows = TensorArray(value.dtype.base, count, element_shape=value.shape)

            def row(i: Tensor, rows: TensorArray, flat: Tensor = flat, x: Any = x) -> tuple[Tensor, TensorArray]:
                (second,) = gradients(flat[i], [x], unconnected_gradients="zero")
                return i + 1, rows.write(i, second)

            _, rows = while_loop(lambda i, _, n=count: i < n, row, [convert(0), rows])
            dims = shape_of(value)
            found.append(reshape(rows.stack(), concat([dims, dims], 0)))
            if value.shape.is_fully_defined():
                found[-1].set_shape(value.shape.as_list() * 2)
    return found
