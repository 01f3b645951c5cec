"""`Print`: a tensor passed on, whose step shows values."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert
from ....graph.core.dtypes import Array
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define_on_host
from ....graph.ops.array.identity_and_placeholders import shown
from ....graph.ops.math.static_operands import op_scope
from ....graph.resources.resource_manager import Context


def _print_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("Print needs a tensor to pass on")
    return [(inputs[0].dtype.base, inputs[0].dims)]


def _print(context: Context, x: Array, *data: Array, message: str, first_n: int, summarize: int | None) -> Array:
    if first_n < 0 or context.run_number() < first_n:
        print(message + "".join(shown(d, summarize) for d in data), file=sys.stderr, flush=True)
    return x


define_on_host("Print", _print_rule, _print, gradient=lambda node, grad: [grad, *[None] * (len(node.inputs) - 1)])


def Print(
    input_: TensorLike,
    data: Sequence[TensorLike],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`input_` unchanged; when it is computed, the values of `data` are printed to the standard error of the
    task that runs it.

    Args:
        message: printed in front.
        first_n: print only in the first `first_n` steps; None: always.
        summarize: elements shown of each tensor; None: 3, -1: all.
    """
    with op_scope(name, "Print", input_, data) as scope:
        x = convert(input_, name="input")
        shown_tensors = [convert(d, name=f"data_{i}") for i, d in enumerate(data)]
        attrs = {
            "message": message or "",
            "first_n": -1 if first_n is None else int(first_n),
            "summarize": summarize,
        }
        return apply("Print", (x, *shown_tensors), attrs, scope)


explain_members(sys.modules[__name__])
