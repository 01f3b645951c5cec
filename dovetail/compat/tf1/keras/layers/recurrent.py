"""Recurrent layers: `SimpleRNN`, `LSTM` (Hochreiter and Schmidhuber, 1997), `GRU` (Cho et al., 2014), and `Bidirectional`.

Gates and their order are Keras': an LSTM's kernel holds input, forget, candidate and output gate; a GRU's update, reset and candidate.
What the inputs give to the gates does not depend on the steps before, so it is one product for all steps, outside of the loop. The
loop is a `while_loop`, or, with `unroll`, nodes for each step.

A masked step changes no state; its output is that of the step before, or zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....graph.control_flow.cond_while import while_loop
from .....graph.core.build import constant
from .....graph.core.dtypes import int32
from .....graph.core.graph import Tensor
from .....graph.ops.array.concat_stack import concat, split, stack, unstack
from .....graph.ops.array.creation import ones, zeros, zeros_like
from .....graph.ops.array.gather import reverse
from .....graph.ops.array.shapes import expand_dims, reshape, shape, transpose
from .....graph.ops.control.tensor_array import TensorArray
from .....graph.ops.linalg.einsum import tensordot
from .....graph.ops.linalg.linalg import matmul
from .....graph.ops.math.arithmetic import multiply
from .....graph.ops.math.compare import where_v2
from .....graph.ops.nn.dense import dropout
from .. import activations, constraints, initializers, regularizers
from ..registry import LAYERS
from .base import Layer, Shape
from .core import known, weighted_config

States = list[Tensor]


class RNN(Layer):
    """What recurrent layers share: [batch, steps, features] -> [batch, units], or with `return_sequences` [batch, steps, units].

    Initializers, regularizers and constraints are as of `Dense`.

    Args:
        units: size of the state and of the output.
        activation: of the candidate; the gates of `LSTM` and `GRU` have `recurrent_activation`.
        use_bias: whether biases are added.
        return_sequences: whether the outputs of all steps come out.
        return_state: whether the last states come out beside.
        go_backwards: from the last step to the first; the outputs come in that order, too.
        stateful: not supported: an error that says so.
        unroll: nodes for each step instead of a loop: more to compile, for few steps.
        dropout: share of the inputs' (the states') numbers that are dropped in training, the same ones in all steps.
        recurrent_dropout: see `dropout`.
        zero_output_for_mask: whether a masked step's output is zeros, not that of the step before.

    Raises:
        ValueError: `stateful`; or `unroll` with an unknown number of steps.
    """

    _gates = 1
    _state_count = 1
    supports_masking = True

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        recurrent_constraint: Any = None,
        bias_constraint: Any = None,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        seed: int | None = None,
        zero_output_for_mask: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if stateful:
            raise ValueError(
                "stateful=True is not supported: pass `initial_state`, and take the states with return_state=True"
            )
        self.units = int(units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.recurrent_regularizer = regularizers.get(recurrent_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.recurrent_constraint = constraints.get(recurrent_constraint)
        self.bias_constraint = constraints.get(bias_constraint)
        self.dropout, self.recurrent_dropout, self.seed = dropout, recurrent_dropout, seed
        self.return_sequences, self.return_state = return_sequences, return_state
        self.go_backwards, self.unroll = go_backwards, unroll
        self.zero_output_for_mask = zero_output_for_mask

    # --- what subclasses say ------------------------------------------------------------------------------------------

    def _bias_shape(self) -> list[int]:
        return [self._gates * self.units]

    def _bias_start(self) -> Any:
        return self.bias_initializer

    def _input_bias(self) -> Any:
        """What is added to the product with the inputs."""
        return self.bias.value()

    def _step(self, x: Tensor, states: States, held: dict[str, Any]) -> States:
        """The states after a step; the first is the output. `x`: what its inputs give to the gates."""
        raise NotImplementedError

    # --- building and calling -----------------------------------------------------------------------------------------

    def build(self, input_shape: Any) -> None:
        """See `Layer.build`."""
        found: Shape = input_shape[0] if isinstance(input_shape, list) else input_shape
        size = known(self, found, -1)
        wide = self._gates * self.units
        self.kernel = self.add_weight(
            "kernel",
            [size, wide],
            None,
            self.kernel_initializer,
            self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.recurrent_kernel = self.add_weight(
            "recurrent_kernel", [self.units, wide], None, self.recurrent_initializer, self.recurrent_regularizer,
            constraint=self.recurrent_constraint,
        )  # fmt: skip
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                self._bias_shape(),
                None,
                self._bias_start(),
                self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs: Any, mask: Any = None, training: Any = None, initial_state: Any = None) -> Any:
        """See `Layer.call`. `initial_state`: states to begin with, a tensor or a list of them."""
        if isinstance(inputs, (list, tuple)):
            inputs, *initial_state = inputs
            mask = mask[0] if isinstance(mask, (list, tuple)) else mask
        batch = shape(inputs)[0]
        x = inputs
        if training is True and self.dropout:
            x = multiply(x, expand_dims(self._noise([batch, inputs.shape.as_list()[-1]], self.dropout), 1))
        gates = tensordot(x, self.kernel, [[2], [0]])
        if self.use_bias:
            gates = gates + self._input_bias()
        if initial_state is None or initial_state == []:
            first = zeros(stack([batch, self.units]), self.dtype)
            first.set_shape([inputs.shape.as_list()[0], self.units])
            states = [first] * self._state_count
        else:
            states = list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
            if len(states) != self._state_count:
                raise ValueError(f"'{self.name}' has {self._state_count} states, not {len(states)}")
        held: dict[str, Any] = {"kernel": self.recurrent_kernel.value()}
        if training is True and self.recurrent_dropout:
            held["noise"] = self._noise([batch, self.units], self.recurrent_dropout)
        by_step = transpose(gates, [1, 0, 2])
        masks = None if mask is None else transpose(mask, [1, 0])
        if self.go_backwards:
            by_step = reverse(by_step, [0])
            masks = None if masks is None else reverse(masks, [0])
        outputs, states = (self._unrolled if self.unroll else self._looped)(by_step, masks, states, held)
        result = outputs if outputs is not None else states[0]
        if self.zero_output_for_mask and masks is not None:
            kept = masks if outputs is not None else masks[-1]
            result = where_v2(expand_dims(kept, -1), result, zeros_like(result))
        result = transpose(result, [1, 0, 2]) if outputs is not None else result
        return [result, *states] if self.return_state else result

    def _noise(self, sizes: Sequence[Any], rate: float) -> Tensor:
        return dropout(ones(stack(sizes), self.dtype), rate=rate, seed=self.seed)

    def _one(self, x: Tensor, mask: Tensor | None, states: States, held: dict[str, Any]) -> States:
        """A step; where it is masked the states stay."""
        new = self._step(x, states, held)
        if mask is None:
            return new
        kept = expand_dims(mask, 1)
        return [where_v2(kept, after, before) for after, before in zip(new, states, strict=True)]

    def _unrolled(self, by_step: Tensor, masks: Any, states: States, held: dict[str, Any]) -> tuple[Any, States]:
        steps = by_step.shape.as_list()[0]
        if steps is None:
            raise ValueError(f"'{self.name}' has unroll=True, and the number of steps is unknown")
        kept = [None] * steps if masks is None else unstack(masks, steps)
        outputs = []
        for x, mask in zip(unstack(by_step, steps), kept, strict=True):
            states = self._one(x, mask, states, held)
            outputs.append(states[0])
        return (stack(outputs) if self.return_sequences else None), states

    def _looped(self, by_step: Tensor, masks: Any, states: States, held: dict[str, Any]) -> tuple[Any, States]:
        steps: Any = by_step.shape.as_list()[0]
        count = steps if steps is not None else shape(by_step)[0]
        xs = TensorArray(by_step.dtype.base, count).unstack(by_step)
        ms = None if masks is None else TensorArray(masks.dtype.base, count).unstack(masks)
        made = TensorArray(by_step.dtype.base, count) if self.return_sequences else None

        def body(i: Tensor, *given: Any) -> Any:
            old, outputs = (list(given[:-1]), given[-1]) if made is not None else (list(given), None)
            new = self._one(xs.read(i), None if ms is None else ms.read(i), old, held)
            for after, before in zip(new, old, strict=True):
                after.set_shape(before.shape)
            return (i + 1, *new) if outputs is None else (i + 1, *new, outputs.write(i, new[0]))

        start = (constant(0, int32), *states) if made is None else (constant(0, int32), *states, made)
        _, *found = while_loop(lambda i, *_: i < count, body, start)
        if made is None:
            return None, list(found)
        outputs = found[-1].stack()
        outputs.set_shape([steps, states[0].shape.as_list()[0], self.units])
        return outputs, list(found[:-1])

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """See `Layer.compute_mask`."""
        first = mask[0] if isinstance(mask, (list, tuple)) else mask
        return first if self.return_sequences else None

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "dropout": self.dropout,
            "recurrent_dropout": self.recurrent_dropout,
            "return_sequences": self.return_sequences,
            "return_state": self.return_state,
            "go_backwards": self.go_backwards,
            "unroll": self.unroll,
            "zero_output_for_mask": self.zero_output_for_mask,
            "seed": self.seed,
            **weighted_config(self, "kernel", "recurrent", "bias"),
        }


def _recurrent(states: States, held: dict[str, Any]) -> Tensor:
    """The last output, as far as it is not dropped."""
    return multiply(states[0], held["noise"]) if "noise" in held else states[0]


class SimpleRNN(RNN):
    """h = activation(x W + h U + b)."""

    def _step(self, x: Tensor, states: States, held: dict[str, Any]) -> States:
        return [self.activation(x + matmul(_recurrent(states, held), held["kernel"]))]


class LSTM(RNN):
    """Long short-term memory: i, f, o = gates(x W + h U + b); c = f c + i activation(...); h = o activation(c).

    Other arguments are as of `RNN`.

    Args:
        unit_forget_bias: whether the forget gate's bias starts at 1 (Jozefowicz et al., 2015).
    """

    _gates = 4
    _state_count = 2

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        unit_forget_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, activation, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.unit_forget_bias = unit_forget_bias

    def _bias_start(self) -> Any:
        if not self.unit_forget_bias:
            return self.bias_initializer
        start = self.bias_initializer

        def with_ones(sizes: Any, dtype: Any = None) -> Tensor:
            n = self.units
            return concat([start([n], dtype=dtype), ones([n], dtype), start([2 * n], dtype=dtype)], 0)

        return with_ones

    def _step(self, x: Tensor, states: States, held: dict[str, Any]) -> States:
        z = x + matmul(_recurrent(states, held), held["kernel"])
        i, f, candidate, o = split(z, 4, 1)
        gate = self.recurrent_activation
        c = gate(f) * states[1] + gate(i) * self.activation(candidate)
        return [gate(o) * self.activation(c), c]

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        written = activations.serialize(self.recurrent_activation)
        return {**super().get_config(), "recurrent_activation": written, "unit_forget_bias": self.unit_forget_bias}


class GRU(RNN):
    """Gated recurrent unit: z, r = gates(...); h = z h + (1 - z) activation(candidate).

    Other arguments are as of `RNN`.

    Args:
        reset_after: whether the reset gate acts after the product with the recurrent kernel (and there is a bias of its own there), or
            before it (Cho et al., 2014).
    """

    _gates = 3

    def __init__(
        self,
        units: int,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
        reset_after: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, activation, **kwargs)
        self.recurrent_activation = activations.get(recurrent_activation)
        self.reset_after = reset_after

    def _bias_shape(self) -> list[int]:
        return [2, 3 * self.units] if self.reset_after else [3 * self.units]

    def _input_bias(self) -> Any:
        return self.bias.value()[0] if self.reset_after else self.bias.value()

    def call(self, inputs: Any, mask: Any = None, training: Any = None, initial_state: Any = None) -> Any:
        """See `RNN.call`."""
        return super().call(inputs, mask, training, initial_state)

    def _step(self, x: Tensor, states: States, held: dict[str, Any]) -> States:
        (h,), gate, n = states, self.recurrent_activation, self.units
        last = _recurrent(states, held)
        of_z, of_r, of_candidate = split(x, 3, 1)
        if self.reset_after:
            inner = matmul(last, held["kernel"])
            if self.use_bias:
                inner = inner + self.bias.value()[1]
            by_z, by_r, by_candidate = split(inner, 3, 1)
            z, r = gate(of_z + by_z), gate(of_r + by_r)
            candidate = self.activation(of_candidate + r * by_candidate)
        else:
            kernel = held["kernel"]
            by_z, by_r = split(matmul(last, kernel[:, : 2 * n]), 2, 1)
            z, r = gate(of_z + by_z), gate(of_r + by_r)
            candidate = self.activation(of_candidate + matmul(r * last, kernel[:, 2 * n :]))
        return [z * h + (1.0 - z) * candidate]

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        written = activations.serialize(self.recurrent_activation)
        return {**super().get_config(), "recurrent_activation": written, "reset_after": self.reset_after}


class Bidirectional(Layer):
    """A recurrent layer forwards, and another one backwards, put together.

    Args:
        layer: the recurrent layer; the other one is made from its config.
        merge_mode: "concat", "sum", "mul", "ave", or None for a list of both. In a sequence, outputs of masked steps are zeros.
        backward_layer: the other one, made by yourself.
    """

    supports_masking = True

    def __init__(
        self, layer: Any, merge_mode: str | None = "concat", backward_layer: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if merge_mode not in ("concat", "sum", "mul", "ave", None):
            raise ValueError(f"merge_mode must be 'concat', 'sum', 'mul', 'ave' or None, not {merge_mode!r}")
        self.forward_layer = LAYERS.deserialize(layer) if isinstance(layer, dict) else layer
        if isinstance(backward_layer, dict):
            backward_layer = LAYERS.deserialize(backward_layer)
        if backward_layer is None:
            config = self.forward_layer.get_config()
            config.update(name=f"backward_{config['name']}", go_backwards=not config["go_backwards"])
            backward_layer = type(self.forward_layer).from_config(config)
        self.backward_layer, self.merge_mode = backward_layer, merge_mode
        for part in (self.forward_layer, self.backward_layer):
            # Else one would repeat the step before a masked one, and the other one the step after it.
            part.zero_output_for_mask = part.return_sequences

    def call(self, inputs: Tensor, mask: Any = None, training: Any = None) -> Any:
        """See `Layer.call`."""
        there = self.forward_layer(inputs, mask=mask, training=training)
        back = self.backward_layer(inputs, mask=mask, training=training)
        states = []
        if self.forward_layer.return_state:
            (there, *some), (back, *others) = there, back
            states = [*some, *others]
        if self.forward_layer.return_sequences:
            back = reverse(back, [1])
        merged: Any = [there, back]
        if self.merge_mode == "concat":
            merged = concat([there, back], -1)
        elif self.merge_mode == "mul":
            merged = there * back
        elif self.merge_mode is not None:
            merged = there + back if self.merge_mode == "sum" else (there + back) / 2.0
        return [merged, *states] if states else merged

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """See `Layer.compute_mask`."""
        return mask if self.forward_layer.return_sequences else None

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "layer": LAYERS.serialize(self.forward_layer),
            "backward_layer": LAYERS.serialize(self.backward_layer),
            "merge_mode": self.merge_mode,
        }


class Wrapper(Layer):
    """What layers around another layer have in common.

    Args:
        layer: the layer inside, or its config; `self.layer`.
    """

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer = LAYERS.deserialize(layer) if isinstance(layer, dict) else layer

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "layer": LAYERS.serialize(self.layer)}


class TimeDistributed(Wrapper):
    """A layer for each step: [batch, steps, ...]."""

    supports_masking = True

    def call(self, inputs: Tensor, training: Any = None) -> Any:
        """See `Layer.call`."""
        sizes = inputs.shape.as_list()
        flat = reshape(
            inputs, stack([-1, *[d if d is not None else shape(inputs)[i] for i, d in enumerate(sizes) if i > 1]])
        )
        flat.set_shape([None, *sizes[2:]])
        y = self.layer(flat)
        rest = y.shape.as_list()[1:]
        found = reshape(y, stack([shape(inputs)[0], sizes[1] if sizes[1] is not None else shape(inputs)[1], *rest]))
        found.set_shape([sizes[0], sizes[1], *rest])
        return found


__all__ = ["GRU", "LSTM", "RNN", "Bidirectional", "SimpleRNN", "TimeDistributed", "Wrapper"]
