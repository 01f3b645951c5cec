"""Gradients that a program defines for its functions.

A graph stores such a rule for a node (`Graph.own_gradients`), where it overrides the op's rule. A rule is a Python function. A saved or
sent graph contains the nodes that it built, but not the rule.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..core.build import convert
from ..core.default_graph import GraphKeys, get_default_graph
from ..core.graph import Graph, Node
from ..core.nest import flatten, pack
from ..ops.array.creation import zeros_like
from ..ops.array.identity_and_placeholders import identity, identity_n


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for a function that defines its gradient.

    Args:
        f: function of tensors that returns `(result, grad)`. `result` is a tensor or a structure of tensors. `grad` is a function of a
            gradient per tensor of the result, and returns a gradient per argument. If `f` reads trainable variables, `grad` must take
            them as a list `variables`, and return `(gradients of the arguments, gradients of the variables)`.

    Returns:
        A function of tensors that returns `result`.

    Raises:
        TypeError: `f` reads variables, and `grad` has no argument `variables`.
        ValueError: `grad` returns a wrong number of gradients.

    >>> @dt.custom_gradient
    ... def log1pexp(x):
    ...     e = dt.exp(x)
    ...     return dt.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))

    TensorFlow: `tf.custom_gradient`.
    """

    @functools.wraps(f)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        taken = [identity(convert(a)) for a in args]
        graph = taken[0].graph if taken else get_default_graph()
        first = len(graph)
        result, grad = f(*taken, **kwargs)
        results = [convert(r) for r in flatten(result)]
        variables = _variables_read(graph.nodes[first:], graph)
        takes_variables = "variables" in inspect.signature(grad).parameters
        if variables and not takes_variables:
            raise TypeError(
                f"{f.__name__} reads the variables {[v.op.name for v in variables]}, so its gradient must take an argument 'variables' "
                "and return their gradients, too"
            )
        inputs = [*taken, *(convert(v) for v in variables)]
        outputs = identity_n([*results, *inputs])

        def rule(node: Node, *grads: Any) -> Sequence[Any]:
            pairs = zip(grads[: len(results)], node.outputs, strict=False)
            dys = [zeros_like(t) if g is None else g for g, t in pairs]
            if variables:
                of_arguments, of_variables = grad(*dys, variables=variables)
            else:
                of_arguments, of_variables = grad(*dys), []
            found = [*listed(of_arguments), *listed(of_variables)]
            if len(found) != len(inputs):
                raise ValueError(
                    f"The gradient of {f.__name__} has {len(found)} results for {len(taken)} arguments and {len(variables)} variables"
                )
            return [None] * len(results) + found

        graph.own_gradients[outputs[0].op] = rule
        return pack(result, outputs[: len(results)])

    return decorated


def listed(found: Any) -> list[Any]:
    """The items of a list or tuple, or a list of one other object."""
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _variables_read(nodes: Sequence[Node], graph: Graph) -> list[Any]:
    """The trainable variables whose reference, handle or value is an input of these nodes."""
    sources = {t.op for n in nodes for t in n.inputs}
    return [
        v
        for v in dict.fromkeys(graph.get_collection(GraphKeys.TRAINABLE_VARIABLES))
        if v.op in sources or any(t.op is v.op for s in sources for t in s.inputs if s.type == "Identity")
    ]
