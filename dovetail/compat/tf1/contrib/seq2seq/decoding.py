"""Decoders: what goes step by step through a sequence that is being made, and the loop that drives them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .....graph.control_flow.cond_while import while_loop
from .....graph.core.build import convert
from .....graph.core.default_graph import name_scope
from .....graph.core.dtypes import int32
from .....graph.core.graph import Tensor
from .....graph.core.nest import flatten, map_structure, pack, same_structure
from .....graph.core.shape import TensorShape
from .....graph.ops.array.creation import fill, zeros, zeros_like
from .....graph.ops.array.shapes import shape, transpose
from .....graph.ops.control.tensor_array import TensorArray
from .....graph.ops.math.cast import cast
from .....graph.ops.math.compare import greater_equal, logical_not, logical_or, where
from .....graph.ops.math.reduce import reduce_all
from .....graph.variables.scope import variable_scope
from ...rnn.cells import dims_of_size
from .helpers import Helper


class Decoder:
    """One step of decoding; see `dynamic_decode`. Subclass it for a decoder of your own."""

    @property
    def batch_size(self) -> Any:
        """How many sequences there are."""
        raise NotImplementedError

    @property
    def output_size(self) -> Any:
        """Shapes of what goes out for one sequence, without the batch, in its structure."""
        raise NotImplementedError

    @property
    def output_dtype(self) -> Any:
        """Element types of it, in the same structure."""
        raise NotImplementedError

    @property
    def tracks_own_finished(self) -> bool:
        """Whether what `step` calls finished is the whole truth, since sequences change places."""
        return False

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """Which sequences have ended already, the first inputs, the first state."""
        raise NotImplementedError

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """What goes out, the next state, the next inputs, and which sequences end with this step."""
        raise NotImplementedError

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """What becomes of all that went out, `[steps, batch, ...]`, and of the last state."""
        return outputs, final_state


class BasicDecoderOutput(NamedTuple):
    """What goes out of a step."""

    rnn_output: Any
    sample_id: Any


class BasicDecoder(Decoder):
    """A cell whose next inputs a helper chooses.

    Args:
        cell: one of `dt.nn.rnn_cell`, or an `AttentionWrapper`. helper: see `TrainingHelper`, `GreedyEmbeddingHelper` and the others.
        initial_state: of the cell. output_layer: a layer, such as `dt.layers.Dense(words)`, for what the cell puts out; None: none.

    Raises:
        TypeError: `helper` is none.

    >>> helper = seq2seq.TrainingHelper(embedded, lengths)
    >>> decoder = seq2seq.BasicDecoder(cell, helper, encoder_state, output_layer=dt.layers.Dense(words))
    >>> outputs, state, lengths = seq2seq.dynamic_decode(decoder)
    >>> logits = outputs.rnn_output
    """

    def __init__(self, cell: Any, helper: Helper, initial_state: Any, output_layer: Any = None) -> None:
        if not isinstance(helper, Helper):
            raise TypeError(f"helper must be a Helper, received: {type(helper).__name__}")
        self._cell, self._helper, self._initial_state, self._output_layer = cell, helper, initial_state, output_layer

    @property
    def batch_size(self) -> Any:
        """See `Decoder`."""
        return self._helper.batch_size

    @property
    def output_size(self) -> Any:
        """See `Decoder`."""
        return BasicDecoderOutput(size_behind(self._cell, self._output_layer), self._helper.sample_ids_shape)

    @property
    def output_dtype(self) -> Any:
        """See `Decoder`."""
        dtype = flatten(self._initial_state)[0].dtype.base
        kinds = pack(self._cell.output_size, [dtype] * len(flatten(self._cell.output_size)))
        return BasicDecoderOutput(kinds, self._helper.sample_ids_dtype)

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """See `Decoder`."""
        return *self._helper.initialize(), self._initial_state

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """See `Decoder`."""
        with name_scope(name or "BasicDecoderStep"):
            found, after = self._cell(inputs, state)
            if self._output_layer is not None:
                found = self._output_layer(found)
            ids = self._helper.sample(time=time, outputs=found, state=after)
            finished, following, after = self._helper.next_inputs(time=time, outputs=found, state=after, sample_ids=ids)
            return BasicDecoderOutput(found, ids), after, following, finished


def size_behind(cell: Any, output_layer: Any) -> Any:
    """Shape of what a cell puts out for one sequence, behind the layer that follows it."""
    sizes = cell.output_size
    if output_layer is None:
        return sizes
    if hasattr(output_layer, "compute_output_shape"):
        return TensorShape(TensorShape(output_layer.compute_output_shape([None, *dims_of_size(sizes)])).as_list()[1:])
    return TensorShape([output_layer.units])


def dynamic_decode(
    decoder: Decoder,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: Any = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
) -> tuple[Any, Any, Any]:
    """Decode until all sequences have ended, as a loop in the graph.

    Args:
        decoder: a `Decoder`.
        output_time_major: whether the steps are the first axis of what is given back.
        impute_finished: behind the end of a sequence 0 goes out, and its state stays.
        maximum_iterations: an int32 scalar, how many steps are made at most; None: no limit.
        parallel_iterations, swap_memory: as of `dt.while_loop`.
        scope: name of the variable scope; None: `decoder`.

    Returns:
        All that went out, `[batch, steps, ...]`, in the decoder's structure; the last state; the sequences' lengths.

    Raises:
        TypeError: `decoder` is none. ValueError: `maximum_iterations` is no scalar.
    """
    if not isinstance(decoder, Decoder):
        raise TypeError(f"Expected decoder to be type Decoder, but saw: {type(decoder).__name__}")
    with variable_scope(scope, "decoder"):
        limit = None if maximum_iterations is None else convert(maximum_iterations, int32, name="maximum_iterations")
        if limit is not None and limit.shape.rank != 0:
            raise ValueError("maximum_iterations must be a scalar")
        ended, inputs, state = decoder.initialize()
        ended = convert(ended)
        if limit is not None:
            ended = logical_or(ended, greater_equal(0, limit))
        sizes, kinds = decoder.output_size, decoder.output_dtype
        tails = [_tail(s) for s in flatten(sizes)]
        nothing = [zeros([decoder.batch_size, *t], k) for t, k in zip(tails, flatten(kinds), strict=True)]
        arrays = [
            TensorArray(k, 0, dynamic_size=True, element_shape=[_known(decoder.batch_size), *t])
            for t, k in zip(tails, flatten(kinds), strict=True)
        ]
        state, inputs = (pack(s, [_value(x) for x in flatten(s)]) for s in (state, inputs))

        def body(time: Any, outs: Any, before: Any, given: Any, over: Any, lengths: Any) -> Any:
            out, after, following, now_over = decoder.step(time, given, before)
            if not decoder.tracks_own_finished:
                now_over = logical_or(now_over, over)
            if limit is not None:
                now_over = logical_or(now_over, greater_equal(time + 1, limit))
            lengths = where(logical_not(over), fill(shape(lengths), time + 1), lengths)
            lengths = cast(getattr(after, "lengths", lengths), int32)  # of a decoder whose sequences change places
            same_structure(before, after, ("the state", "the next state"))
            same_structure(given, following, ("the inputs", "the next inputs"))
            emitted = flatten(out)
            if impute_finished:
                emitted = [where(over, z, o) for z, o in zip(nothing, emitted, strict=True)]
                after = map_structure(lambda new, old: _stays(over, old, new), after, before)
            else:
                after = map_structure(_alike, after, before)
            following = map_structure(_alike, following, given)
            outs = [a.write(time, o) for a, o in zip(outs, emitted, strict=True)]
            return time + 1, outs, after, following, now_over, lengths

        first = (convert(0), arrays, state, inputs, ended, zeros_like(ended, dtype=int32))
        _, arrays, state, _, _, lengths = while_loop(
            lambda time, outs, before, given, over, lengths: logical_not(reduce_all(over)), body, first,
            parallel_iterations=parallel_iterations, swap_memory=swap_memory,
        )  # fmt: skip
        outputs = pack(kinds, [a.stack() for a in arrays])
        outputs, state = decoder.finalize(outputs, state, lengths)
        if not output_time_major:
            outputs = map_structure(_batch_first, outputs)
        return outputs, state, lengths


def _value(x: Any) -> Any:
    return x if isinstance(x, TensorArray) else convert(x)


def _tail(size: Any) -> list[Any]:
    return (
        size.as_list()
        if isinstance(size, TensorShape)
        else list(size)
        if isinstance(size, (list, tuple))
        else [int(size)]
    )


def _known(batch_size: Any) -> int | None:
    return batch_size if isinstance(batch_size, int) else None


def _alike(new: Any, old: Any) -> Any:
    """The new value, known to have the old one's shape: a loop's variables keep theirs."""
    if isinstance(new, Tensor) and isinstance(old, Tensor):
        new.set_shape(old.shape)
    return new


def _stays(over: Tensor, old: Any, new: Any) -> Any:
    """The old value where a sequence has ended. What has no batch, such as a time or a TensorArray, is new."""
    if not isinstance(new, Tensor) or not new.shape.rank or new.op.opdef.name.startswith("TensorArray"):
        return new
    return _alike(where(over, old, new), old)


def _batch_first(x: Tensor) -> Tensor:
    return (
        x
        if not isinstance(x, Tensor) or x.shape.rank is None or x.shape.rank < 2
        else transpose(x, [1, 0, *range(2, x.shape.rank)])
    )


__all__ = ["BasicDecoder", "BasicDecoderOutput", "Decoder", "dynamic_decode"]
