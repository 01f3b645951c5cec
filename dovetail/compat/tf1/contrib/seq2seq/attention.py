"""Attention: how much each step of a memory says to a query, and a cell that takes it along.

The scores are Luong's (2015), products of query and keys, or Bahdanau's (2014), a small network of their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .....graph.core.build import convert
from .....graph.core.default_graph import name_scope
from .....graph.core.dtypes import DType, as_dtype, float32, int32
from .....graph.core.graph import Tensor
from .....graph.core.nest import flatten, map_structure, pack
from .....graph.core.shape import TensorShape
from .....graph.ops.array.concat_stack import concat
from .....graph.ops.array.creation import ones_like, zeros
from .....graph.ops.array.sequences import sequence_mask
from .....graph.ops.array.shapes import expand_dims, reshape, shape, squeeze
from .....graph.ops.control.tensor_array import TensorArray
from .....graph.ops.linalg.linalg import matmul
from .....graph.ops.math.arithmetic import rsqrt, square
from .....graph.ops.math.compare import where
from .....graph.ops.math.elementwise import tanh
from .....graph.ops.math.reduce import reduce_sum
from .....graph.ops.nn.softmax import softmax
from .....graph.variables.initializers import constant_initializer, zeros_initializer
from .....graph.variables.scope import get_variable, variable_scope
from ...layers import Dense
from ...rnn.cells import RNNCell, batch_of

Function = Callable[..., Any]


class AttentionMechanism:
    """Gives, for queries `[batch, units]`, alignments `[batch, steps]` to the steps of a memory: shares that add up to 1.

    Attributes:
        values: the memory, 0 behind the end of each sequence. keys: what queries are compared with. memory_layer, query_layer: layers that
            make keys and queries alike; None: none.
    """

    def __init__(
        self,
        memory: Any,
        memory_sequence_length: Any,
        query_layer: Any,
        memory_layer: Any,
        probability_fn: Function | None,
        score_mask_value: float | None,
    ) -> None:
        values = convert(memory, name="memory")
        if values.shape.rank is None or values.shape.rank < 3 or values.shape.as_list()[-1] is None:
            raise ValueError(f"memory must be [batch, steps, units] with known units, not {values!r}")
        self._lengths = None
        if memory_sequence_length is not None:
            self._lengths = convert(memory_sequence_length, name="memory_sequence_length")
            inside = sequence_mask(self._lengths, shape(values)[1], dtype=values.dtype.base)
            values = values * reshape(inside, [*_sizes(inside), *[1] * (values.shape.rank - 2)])
        self.values, self.query_layer, self.memory_layer = values, query_layer, memory_layer
        self.keys = values if memory_layer is None else memory_layer(values)
        self.batch_size = batch_of(self.keys, 0)
        self.alignments_size = batch_of(self.keys, 1)
        self._probabilities = probability_fn or softmax
        self._outside = -math.inf if score_mask_value is None else score_mask_value

    @property
    def state_size(self) -> Any:
        """Of the state: the alignments."""
        return self.alignments_size

    def initial_alignments(self, batch_size: Any, dtype: Any) -> Tensor:
        """Zeros, `[batch, steps]`."""
        found: Tensor = zeros([batch_size, self.alignments_size], as_dtype(dtype))
        found.set_shape([None, self.keys.shape.as_list()[1]])
        return found

    def initial_state(self, batch_size: Any, dtype: Any) -> Tensor:
        """The alignments with which it begins."""
        return self.initial_alignments(batch_size, dtype)

    def __call__(self, query: Any, state: Any) -> tuple[Tensor, Tensor]:
        """The alignments for queries, and the next state: the same."""
        with variable_scope(None, self._scope, [query]):
            score = self._score(query if self.query_layer is None else self.query_layer(query))
        if self._lengths is not None:
            inside = sequence_mask(self._lengths, shape(score)[1])
            score = where(inside, score, self._outside * ones_like(score))
        alignments = self._probabilities(score)
        return alignments, alignments

    _scope: str

    def _score(self, query: Tensor) -> Tensor:
        raise NotImplementedError


class LuongAttention(AttentionMechanism):
    """`score = query . W memory`; the cell's output must have `num_units`.

    Args:
        num_units: depth of the queries, and of the keys that the memory layer makes.
        memory: `[batch, steps, depth]`, the outputs of an encoder. memory_sequence_length: `[batch]`; None: all steps count.
        scale: whether the scores are multiplied by a variable, `attention_g`.
        probability_fn: of the scores; None: softmax. score_mask_value: score of steps behind an end; None: minus infinity.
        dtype: of the memory layer.
    """

    _scope = "luong_attention"

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        scale: bool = False,
        probability_fn: Function | None = None,
        score_mask_value: float | None = None,
        dtype: Any = None,
        name: str = "LuongAttention",
    ) -> None:
        with name_scope(f"{name}MechanismInit"):
            layer = Dense(num_units, use_bias=False, name="memory_layer", dtype=dtype or float32)
            super().__init__(memory, memory_sequence_length, None, layer, probability_fn, score_mask_value)
        self._num_units, self._scale = num_units, scale

    def _score(self, query: Tensor) -> Tensor:
        depth, wanted = query.shape.as_list()[-1], self.keys.shape.as_list()[-1]
        if depth != wanted:
            raise ValueError(
                "Incompatible or unknown inner dimensions between query and keys. "
                f"Query ({query.name}) has units: {depth}. Keys ({self.keys.name}) have units: {wanted}. Perhaps you need to set num_units "
                f"to the keys' dimension ({depth})?"
            )
        score = squeeze(matmul(expand_dims(query, 1), self.keys, transpose_b=True), [1])
        if self._scale:
            score = get_variable("attention_g", [], query.dtype.base, constant_initializer(1.0)) * score
        return score


class BahdanauAttention(AttentionMechanism):
    """`score = v . tanh(W query + U memory)`.

    Args:
        num_units: depth of the network.
        normalize: whether `v` is scaled to a length that is learned, and a bias is added (Salimans, Kingma).
        memory, memory_sequence_length, probability_fn, score_mask_value, dtype: as of `LuongAttention`.
    """

    _scope = "bahdanau_attention"

    def __init__(
        self,
        num_units: int,
        memory: Any,
        memory_sequence_length: Any = None,
        normalize: bool = False,
        probability_fn: Function | None = None,
        score_mask_value: float | None = None,
        dtype: Any = None,
        name: str = "BahdanauAttention",
    ) -> None:
        dtype = dtype or float32
        with name_scope(f"{name}MechanismInit"):
            query_layer = Dense(num_units, use_bias=False, name="query_layer", dtype=dtype)
            layer = Dense(num_units, use_bias=False, name="memory_layer", dtype=dtype)
            super().__init__(memory, memory_sequence_length, query_layer, layer, probability_fn, score_mask_value)
        self._num_units, self._normalize = num_units, normalize

    def _score(self, query: Tensor) -> Tensor:
        dtype = query.dtype.base
        v = get_variable("attention_v", [self._num_units], dtype)
        both = self.keys + expand_dims(query, 1)
        if self._normalize:
            g = get_variable("attention_g", [], dtype, constant_initializer(math.sqrt(1.0 / self._num_units)))
            both = both + get_variable("attention_b", [self._num_units], dtype, zeros_initializer())
            v = g * v * rsqrt(reduce_sum(square(v)))
        found: Tensor = reduce_sum(v * tanh(both), [2])
        return found


class AttentionWrapperState(NamedTuple):
    """State of an `AttentionWrapper`. With several mechanisms the last three are tuples."""

    cell_state: Any
    attention: Any
    time: Any
    alignments: Any
    alignment_history: Any
    attention_state: Any

    def clone(self, **kwargs: Any) -> AttentionWrapperState:
        """With other fields, of the same shapes: `wrapper.zero_state(batch, tf.float32).clone(cell_state=encoder_state)`."""

        def shaped(new: Any, old: Any) -> Any:
            if isinstance(new, Tensor) and isinstance(old, Tensor):
                new.set_shape(old.shape)
            return new

        found = self._replace(**kwargs)
        return self._replace(
            **{
                k: map_structure(shaped, getattr(found, k), getattr(self, k)) if k != "alignment_history" else v
                for k, v in kwargs.items()
            }
        )


class AttentionWrapper(RNNCell):
    """A cell that attends to a memory: with its inputs it gets what it attended to, and what goes out is what it attends to now.

    Args:
        cell: the cell. attention_mechanism: one, or a list.
        attention_layer_size: depth of a layer over the cell's output and the context, or one for each mechanism; None: the attention is
            the context.
        alignment_history: whether the state keeps the alignments of all steps, in a TensorArray.
        cell_input_fn: of the inputs and the attention; None: one behind the other.
        output_attention: whether the attention goes out (Luong's way), or the cell's output (Bahdanau's).
        initial_cell_state: of `zero_state`. attention_layer: a layer, or one for each mechanism, in the place of `attention_layer_size`.

    Raises:
        TypeError: a mechanism is none. ValueError: not one layer for each mechanism.

    >>> attention = seq2seq.LuongAttention(128, encoder_outputs, memory_sequence_length=lengths)
    >>> cell = seq2seq.AttentionWrapper(dt.nn.rnn_cell.LSTMCell(128), attention, attention_layer_size=128)
    >>> state = cell.zero_state(batch_size, dt.float32).clone(cell_state=encoder_state)
    """

    def __init__(
        self,
        cell: RNNCell,
        attention_mechanism: Any,
        attention_layer_size: Any = None,
        alignment_history: bool = False,
        cell_input_fn: Function | None = None,
        output_attention: bool = True,
        initial_cell_state: Any = None,
        name: str | None = None,
        attention_layer: Any = None,
    ) -> None:
        super().__init__(name=name)
        self._several = isinstance(attention_mechanism, (list, tuple))
        self._mechanisms = list(attention_mechanism) if self._several else [attention_mechanism]
        for m in self._mechanisms:
            if not isinstance(m, AttentionMechanism):
                raise TypeError(f"attention_mechanism must be an AttentionMechanism, saw type: {type(m).__name__}")
        if attention_layer_size is not None and attention_layer is not None:
            raise ValueError("Only one of attention_layer_size and attention_layer should be set")
        self._layers: list[Any] | None = None
        if attention_layer_size is not None:
            sizes = _listed(attention_layer_size)
            self._layers = [
                Dense(s, use_bias=False, name="attention_layer", dtype=m.keys.dtype.base)
                for s, m in zip(sizes, self._mechanisms, strict=False)
            ]
            self._sizes = sizes
        elif attention_layer is not None:
            self._layers = _listed(attention_layer)
            self._sizes = [layer.units for layer in self._layers]
        else:
            self._sizes = [m.values.shape.as_list()[-1] for m in self._mechanisms]
        if len(self._sizes) != len(self._mechanisms):
            raise ValueError(
                f"If provided, there must be one layer per attention_mechanism, saw: {len(self._sizes)} vs {len(self._mechanisms)}"
            )
        self._cell, self._history, self._output_attention = cell, alignment_history, output_attention
        self._input_fn = cell_input_fn or (lambda inputs, attention: concat([inputs, attention], -1))
        self._initial_cell_state = initial_cell_state

    @property
    def output_size(self) -> Any:
        """See `RNNCell`."""
        return sum(self._sizes) if self._output_attention else self._cell.output_size

    @property
    def state_size(self) -> Any:
        """See `RNNCell`."""
        each = self._item([m.alignments_size for m in self._mechanisms])
        history = self._item([m.alignments_size if self._history else () for m in self._mechanisms])
        return AttentionWrapperState(self._cell.state_size, sum(self._sizes), TensorShape([]), each, history, each)

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The state with which it begins; the batch size must be that of the memories."""
        kind: DType = as_dtype(dtype)
        with name_scope(f"{type(self).__name__}ZeroState"):
            given = self._initial_cell_state
            inside = self._cell.zero_state(batch_size, kind) if given is None else given
            attention: Tensor = zeros([batch_size, sum(self._sizes)], kind)
            attention.set_shape([batch_size if isinstance(batch_size, int) else None, sum(self._sizes)])
            history = [
                TensorArray(kind, 0, dynamic_size=True, element_shape=[None, m.keys.shape.as_list()[1]])
                if self._history
                else ()
                for m in self._mechanisms
            ]
            return AttentionWrapperState(
                inside, attention, zeros([], int32),
                self._item([m.initial_alignments(batch_size, kind) for m in self._mechanisms]), self._item(history),
                self._item([m.initial_state(batch_size, kind) for m in self._mechanisms]),
            )  # fmt: skip

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """See `RNNCell`."""
        if not isinstance(state, AttentionWrapperState):
            raise TypeError(
                f"Expected state to be instance of AttentionWrapperState. Received type {type(state).__name__} instead."
            )
        out, inside = self._cell(self._input_fn(inputs, state.attention), state.cell_state)
        inside = pack(state.cell_state, flatten(inside))
        before, past = _listed(state.attention_state, self._several), _listed(state.alignment_history, self._several)
        attentions, alignments, states, history = [], [], [], []
        for i, mechanism in enumerate(self._mechanisms):
            shares, after = mechanism(out, before[i])
            context = squeeze(matmul(expand_dims(shares, 1), mechanism.values), [1])
            attentions.append(context if self._layers is None else self._layers[i](concat([out, context], 1)))
            alignments.append(shares)
            states.append(after)
            history.append(past[i].write(state.time, shares) if self._history else ())
        attention = concat(attentions, 1) if self._several else attentions[0]
        following = AttentionWrapperState(
            inside, attention, state.time + 1, self._item(alignments), self._item(history), self._item(states)
        )
        return (attention if self._output_attention else out), following

    def _item(self, found: Sequence[Any]) -> Any:
        return tuple(found) if self._several else found[0]


def _listed(given: Any, several: bool = True) -> list[Any]:
    return list(given) if several and isinstance(given, (list, tuple)) else [given]


def _sizes(x: Tensor) -> list[Any]:
    return [batch_of(x, 0), batch_of(x, 1)]


__all__ = [
    "AttentionMechanism",
    "AttentionWrapper",
    "AttentionWrapperState",
    "BahdanauAttention",
    "LuongAttention",
]
