"""Recurrent layers: LSTM, GRU, and the plain RNN.

The inputs of all steps are multiplied by their weights in one product, and the loop multiplies only the state. A short sequence of known
length is unrolled, because unrolled steps can be fused, and iterations of a loop cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.control_flow.cond_while import while_loop
from ....graph.core.build import constant
from ....graph.core.dtypes import int32
from ....graph.core.graph import Tensor
from ....graph.core.shape import TensorShape
from ....graph.ops.array.concat_stack import concat, split, stack, unstack
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.array.gather import reverse
from ....graph.ops.array.sequences import reverse_sequence
from ....graph.ops.array.shapes import expand_dims, reshape, shape, transpose
from ....graph.ops.control.tensor_array import TensorArray
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.arithmetic import add, maximum, minimum, multiply, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import greater, where_v2
from ....graph.ops.math.elementwise import sigmoid, tanh
from ....graph.ops.nn.activations import leaky_relu, relu, softplus, softsign
from ..registry import Call, UnsupportedError, imports
from .elementwise import elu, hard_sigmoid, thresholded_relu

MAX_UNROLLED = 32
"""The largest number of steps that is unrolled. A longer sequence becomes a loop, whose graph has the size of one step."""

Function = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]

# Name -> (function of x and its parameters, the defaults of the parameters alpha and beta)
_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "relu": (relu, ()),
    "tanh": (tanh, ()),
    "sigmoid": (sigmoid, ()),
    "affine": (lambda x, a, b: add(multiply(x, a), b), (1.0, 0.0)),
    "leakyrelu": (leaky_relu, (0.01,)),
    "thresholdedrelu": (thresholded_relu, (1.0,)),
    "scaledtanh": (lambda x, a, b: multiply(tanh(multiply(x, b)), a), (1.0, 1.0)),
    "hardsigmoid": (hard_sigmoid, (0.2, 0.5)),
    "elu": (elu, (1.0,)),
    "softsign": (softsign, ()),
    "softplus": (softplus, ()),
}


def _with_parameters(function: Callable[..., Tensor], parameters: Sequence[float]) -> Function:
    return lambda x: function(x, *parameters)


def _activations(call: Call, defaults: Sequence[str], directions: int) -> list[list[Function]]:
    """Returns the activation functions of each direction."""
    names = call.attr("activations") or list(defaults) * directions
    given = [list(call.attr(name) or ()) for name in ("activation_alpha", "activation_beta")]
    found: list[Function] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise UnsupportedError(f"the activation {name}")
        function, defaults_of = _ACTIVATIONS[name.lower()]
        own = [left.pop(0) if left else default for left, default in zip(given, defaults_of, strict=False)]
        found.append(_with_parameters(function, own))
    each = len(found) // directions
    return [found[i * each : (i + 1) * each] for i in range(directions)]


def _run_layer(
    call: Call,
    x: Tensor,
    lengths: Tensor | None,
    first: Sequence[Tensor | None],
    make: Callable[[int], tuple[Any, Step]],
) -> list[Tensor]:
    """Runs a cell over a sequence, in one or both directions.

    Args:
        call: the model's node.
        x: the sequence.
        lengths: the length of each example's sequence, or None.
        first: the first states of all directions.
        make: function of a direction that returns two functions: one prepares the inputs of all steps, and the other one is the step.
    """
    batch_first = bool(call.attr("layout", 0))
    way = call.choice("direction", "forward", "reverse", "bidirectional")
    hidden = call.attr("hidden_size")
    x = transpose(x, [1, 0, 2]) if batch_first else x
    starts = [None if s is None else transpose(s, [1, 0, 2]) if batch_first else s for s in first]
    outputs, ends = [], []
    for d, backwards in enumerate({"forward": [False], "reverse": [True], "bidirectional": [False, True]}[way]):
        prepared, step = make(d)
        taken = prepared(_turned(x, lengths) if backwards else x)
        zero = zeros_like(taken[0, :, :1]) + constant([0.0] * hidden, x.dtype.base)
        states = [zero if s is None else s[d] for s in starts]
        made, last = _run_steps(taken, lengths, states, step)
        outputs.append(_turned(made, lengths) if backwards else made)
        ends.append(last)
    y = stack(outputs, 1)
    states = [stack([last[i] for last in ends], 0) for i in range(len(first))]
    if batch_first:
        y, states = transpose(y, [2, 0, 1, 3]), [transpose(s, [1, 0, 2]) for s in states]
    return [y, *states]


def _turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    return reverse(x, [0]) if lengths is None else reverse_sequence(x, lengths, seq_axis=0, batch_axis=1)


def _run_steps(
    taken: Tensor, lengths: Tensor | None, states: Sequence[Tensor], step: Step
) -> tuple[Tensor, Sequence[Tensor]]:
    """Runs all steps of one direction. Returns the outputs and the last states."""

    def masked(i: Any, taken: Tensor, old: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Runs one step. After the end of an example, the states do not change, and the output is 0."""
        new = list(step(taken, old))
        shown = new[0]
        if lengths is not None:
            inside = expand_dims(greater(cast(lengths, int32), i), 1)
            new = [where_v2(inside, n, o) for n, o in zip(new, old, strict=True)]
            shown = where_v2(inside, shown, zeros_like(shown))
        for n, o in zip(new, old, strict=True):
            n.set_shape(o.dims)
        return new, shown

    count = taken.dims[0] if taken.dims is not None else None
    if count is not None and 0 < count <= MAX_UNROLLED:
        every = []
        for i, one in enumerate(unstack(taken)):
            states, shown = masked(i, one, states)
            every.append(shown)
        return stack(every), states
    length = shape(taken)[0]
    inputs = TensorArray(taken.dtype.base, length).unstack(taken)
    outputs = TensorArray(taken.dtype.base, length)

    def body(i: Tensor, old: Sequence[Tensor], out: TensorArray) -> tuple[Any, ...]:
        new, shown = masked(i, inputs.read(i), old)
        return i + 1, new, out.write(i, shown)

    start = (constant(0), list(states), outputs)
    shapes = (TensorShape(()), [TensorShape(s.dims) for s in states], TensorShape(None))
    _, last, out = while_loop(lambda i, *_: i < length, body, start, shape_invariants=shapes)
    y = out.stack()
    if taken.dims is not None and states[0].dims is not None:
        y.set_shape([taken.dims[0], taken.dims[1], states[0].dims[1]])
    return y, last


def _product(x: Tensor, w: Tensor) -> Tensor:
    """Multiplies the inputs of all steps, `[time, batch, in]`, by the weights, `[out, in]`."""
    sizes = shape(x)
    flat = matmul(reshape(x, stack([-1, sizes[2]])), w, transpose_b=True)
    made = reshape(flat, stack([sizes[0], sizes[1], shape(w)[0]]))
    if x.dims is not None and w.dims is not None:
        made.set_shape([*x.dims[:2], w.dims[0]])
    return made


def _clip_function(call: Call) -> Function:
    """Returns the function that clips sums before an activation."""
    limit = call.attr("clip")
    return (lambda x: x) if limit is None else lambda x: maximum(minimum(x, limit), -limit)


@imports("RNN")
def rnn(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Imports a plain recurrent layer: h = f(x W + h R + b)."""
    directions = _directions(call)
    functions, clip = _activations(call, ["Tanh"], directions), _clip_function(call)

    def make(d: int) -> tuple[Any, Step]:
        (f,) = functions[d]
        return (
            lambda xs: _with_bias(_product(xs, w[d]), b, d),
            lambda taken, states: [f(clip(add(taken, matmul(states[0], r[d], transpose_b=True))))],
        )

    return _run_layer(call, x, lengths, [h], make)


@imports("LSTM")
def lstm(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, peepholes: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Imports an LSTM. The standard orders the gates as input, output, forget, cell."""
    functions, clip = _activations(call, ["Sigmoid", "Tanh", "Tanh"], _directions(call)), _clip_function(call)
    coupled = bool(call.attr("input_forget", 0))

    def make(d: int) -> tuple[Any, Step]:
        f, g, out = functions[d]
        looks = [None] * 3 if peepholes is None else split(peepholes[d], 3, 0)

        def step(taken: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
            before, cell = states
            i, o, forget, new = split(add(taken, matmul(before, r[d], transpose_b=True)), 4, 1)
            i = f(clip(_with_peephole(i, looks[0], cell)))
            forget = subtract(1.0, i) if coupled else f(clip(_with_peephole(forget, looks[2], cell)))
            cell = add(multiply(forget, cell), multiply(i, g(clip(new))))
            return [multiply(f(clip(_with_peephole(o, looks[1], cell))), out(cell)), cell]

        return (lambda xs: _with_bias(_product(xs, w[d]), b, d)), step

    return _run_layer(call, x, lengths, [h, c], make)


def _with_peephole(gate: Tensor, weights: Tensor | None, cell: Tensor) -> Tensor:
    return gate if weights is None else add(gate, multiply(weights, cell))


@imports("GRU")
def gru(
    call: Call, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Imports a GRU. The standard orders the gates as update, reset, hidden."""
    functions, clip = _activations(call, ["Sigmoid", "Tanh"], _directions(call)), _clip_function(call)
    late = bool(call.attr("linear_before_reset", 0))

    def make(d: int) -> tuple[Any, Step]:
        f, g = functions[d]
        sizes = call.attr("hidden_size")
        own = None if b is None else split(b[d], 6, 0)

        def prepared(xs: Tensor) -> Tensor:
            made = _product(xs, w[d])
            if own is None:
                return made
            both = [add(own[0], own[3]), add(own[1], own[4]), own[2] if late else add(own[2], own[5])]
            return add(made, concat(both, 0))

        def step(taken: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
            (before,) = states
            z, reset, new = split(taken, 3, 1)
            gates = matmul(before, r[d][: 2 * sizes], transpose_b=True)
            z, reset = f(clip(add(z, gates[:, :sizes]))), f(clip(add(reset, gates[:, sizes:])))
            inner = r[d][2 * sizes :]
            if late:
                moved = matmul(before, inner, transpose_b=True)
                new = add(new, multiply(reset, moved if own is None else add(moved, own[5])))
            else:
                new = add(new, matmul(multiply(reset, before), inner, transpose_b=True))
            return [add(multiply(subtract(1.0, z), g(clip(new))), multiply(z, before))]

        return prepared, step

    return _run_layer(call, x, lengths, [h], make)


def _directions(call: Call) -> int:
    return 2 if call.attr("direction") == "bidirectional" else 1


def _with_bias(made: Tensor, b: Tensor | None, d: int) -> Tensor:
    """Returns the sum of the input bias and the state bias, which the standard stores separately."""
    if b is None:
        return made
    own, state = split(b[d], 2, 0)
    return add(made, add(own, state))
