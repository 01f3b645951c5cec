"""Beam search: the likeliest sequences, of which the best few are kept at each step.

Beams are an axis behind the batch. The cell sees `[batch * beams, ...]`; scores, words and the state are `[batch, beams, ...]`. A step
chooses the best of all continuations of all beams, so a beam's past is found by the numbers of its parents, at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .....graph.control_flow.cond_while import cond
from .....graph.control_flow.functional import scan
from .....graph.core.build import convert
from .....graph.core.default_graph import name_scope
from .....graph.core.dtypes import bool_, int32, int64
from .....graph.core.graph import Tensor
from .....graph.core.nest import flatten, map_structure
from .....graph.core.shape import TensorShape
from .....graph.ops.array.concat_stack import concat, stack
from .....graph.ops.array.creation import fill, ones_like, zeros, zeros_like
from .....graph.ops.array.embedding import embedding_lookup
from .....graph.ops.array.gather import gather_nd, one_hot, reverse
from .....graph.ops.array.padding import tile
from .....graph.ops.array.ranges import range as numbers
from .....graph.ops.array.shapes import expand_dims, reshape, shape, size
from .....graph.ops.array.sorting import top_k
from .....graph.ops.control.tensor_array import TensorArray
from .....graph.ops.math.arithmetic import floordiv, floormod, minimum
from .....graph.ops.math.cast import cast
from .....graph.ops.math.compare import equal, greater, less, logical_and, logical_not, logical_or, where
from .....graph.ops.math.elementwise import log
from .....graph.ops.math.reduce import reduce_all, reduce_max, reduce_mean, reduce_sum
from .....graph.ops.math.scan import cumsum
from .....graph.ops.nn.softmax import log_softmax
from ...rnn.cells import batch_of
from .attention import AttentionWrapperState
from .decoding import Decoder


class BeamSearchDecoderState(NamedTuple):
    """State of a `BeamSearchDecoder`; everything `[batch, beams, ...]`."""

    cell_state: Any
    log_probs: Any
    finished: Any
    lengths: Any
    accumulated_attention_probs: Any = ()


class BeamSearchDecoderOutput(NamedTuple):
    """What goes out of a step, `[batch, beams]` each."""

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class FinalBeamSearchDecoderOutput(NamedTuple):
    """What comes out of it all: `predicted_ids` `[batch, steps, beams]`, the best sequence first."""

    predicted_ids: Any
    beam_search_decoder_output: Any


def tile_batch(t: Any, multiplier: int, name: str | None = None) -> Any:
    """Each row of tensors, or of a structure of them, `multiplier` times: what a beam search begins with."""

    def tiled(x: Any) -> Tensor:
        given = convert(x, name="t")
        if given.shape.rank is None or given.shape.rank < 1:
            raise ValueError("t must have statically known rank of at least 1")
        rest = given.shape.as_list()[1:]
        many = tile(expand_dims(given, 1), [1, multiplier, *[1] * len(rest)])
        found: Tensor = reshape(many, concat([[-1], shape(given)[1:]], 0))
        batch = given.shape.as_list()[0]
        found.set_shape([None if batch is None else batch * multiplier, *rest])
        return found

    with name_scope(name or "tile_batch"):
        return map_structure(tiled, t)


def gather_tree(
    step_ids: Any, parent_ids: Any, max_sequence_lengths: Any, end_token: Any, name: str | None = None
) -> Tensor:
    """The sequences of beams, from each step's words and parents.

    Args:
        step_ids, parent_ids: `[steps, batch, beams]`, int32.
        max_sequence_lengths: `[batch]`: the step from which each batch is followed back.
        end_token: what stands behind the first `end_token` of a sequence.

    Returns:
        `[steps, batch, beams]`.
    """
    with name_scope(name or "GatherTree"):
        ids, parents = convert(step_ids), convert(parent_ids)
        lengths, end = convert(max_sequence_lengths), cast(convert(end_token), ids.dtype.base)
        steps, batch, beams = (shape(ids)[i] for i in range(3))
        own = tile(expand_dims(numbers(beams), 0), [batch, 1])

        def back(before: Any, here: Any) -> Any:
            beam, _ = before
            words, from_where, time = here
            inside = tile(expand_dims(less(time, lengths), 1), [1, beams])
            return where(inside, _picked(from_where, beam), beam), where(
                inside, _picked(words, beam), fill(shape(words), end)
            )

        elements = (reverse(ids, [0]), reverse(parents, [0]), reverse(numbers(steps), [0]))
        found = reverse(scan(back, elements, (own, fill(shape(own), end)))[1], [0])
        ended = greater(cumsum(cast(equal(found, end), int32), axis=0, exclusive=True), 0)
        result: Tensor = where(ended, fill(shape(found), end), found)
        result.set_shape(ids.shape)
        return result


class BeamSearchDecoder(Decoder):
    """Decodes the likeliest sequences.

    Args:
        cell: a cell, or an `AttentionWrapper` over a memory that `tile_batch` has tiled.
        embedding: a table, or a function of ids. start_tokens: `[batch]`, int32. end_token: an int32 scalar.
        initial_state: of the cell, tiled by `tile_batch`. beam_width: how many sequences are kept.
        output_layer: for what the cell puts out, such as `dt.layers.Dense(words)`; None: none.
        length_penalty_weight: scores are divided by `((5 + length) / 6) ** weight` (Wu and others, 2016);
            0: they are sums of log probabilities.
        coverage_penalty_weight: scores of ended sequences get `weight * sum(log(min(attention, 1)))` added, where `attention` is what
            each place of the memory got in all steps (the same paper); 0: nothing. The cell must be an `AttentionWrapper`.
        reorder_tensor_arrays: accepted: a TensorArray in the state, as of `alignment_history`, is refused.

    Raises:
        ValueError: a TensorArray in the state; `start_tokens` is no vector, or `end_token` no scalar; a coverage penalty without attention.

    >>> decoder = seq2seq.BeamSearchDecoder(cell, table, start_tokens, END, seq2seq.tile_batch(state, 5), beam_width=5)
    >>> outputs, state, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=50)
    >>> best = outputs.predicted_ids[:, :, 0]
    """

    def __init__(
        self,
        cell: Any,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        initial_state: Any,
        beam_width: int,
        output_layer: Any = None,
        length_penalty_weight: float = 0.0,
        coverage_penalty_weight: float = 0.0,
        reorder_tensor_arrays: bool = True,
    ) -> None:
        self._cell, self._output_layer, self._beams = cell, output_layer, beam_width
        self._penalty, self._coverage = length_penalty_weight, coverage_penalty_weight
        self._embed = embedding if callable(embedding) else lambda ids: embedding_lookup(embedding, ids)
        start = convert(start_tokens, int32, name="start_tokens")
        self._end = convert(end_token, int32, name="end_token")
        if start.shape.rank != 1:
            raise ValueError("start_tokens must be a vector")
        if self._end.shape.rank != 0:
            raise ValueError("end_token must be a scalar")
        if _holds_array(initial_state):
            raise ValueError(
                "A beam search keeps no TensorArray in its state: make the AttentionWrapper without alignment_history"
            )
        self._batch = start.shape.as_list()[0] if start.shape.as_list()[0] is not None else size(start)
        self._start_inputs = self._embed(tile(expand_dims(start, 1), [1, beam_width]))
        self._initial = map_structure(self._split, initial_state)

    @property
    def batch_size(self) -> Any:
        """See `Decoder`."""
        return self._batch

    @property
    def output_size(self) -> Any:
        """See `Decoder`."""
        return BeamSearchDecoderOutput(*[TensorShape([self._beams])] * 3)

    @property
    def output_dtype(self) -> Any:
        """See `Decoder`."""
        return BeamSearchDecoderOutput(flatten(self._initial)[0].dtype.base, int32, int32)

    @property
    def tracks_own_finished(self) -> bool:
        """True: beams change places."""
        return True

    def initialize(self, name: str | None = None) -> tuple[Any, Any, Any]:
        """See `Decoder`. All beams begin alike, so all but the first count as impossible."""
        kind = flatten(self._initial)[0].dtype.base
        only = zeros([self._batch], int32)
        finished = one_hot(only, self._beams, False, True, dtype=bool_)
        log_probs = one_hot(only, self._beams, convert(0.0, kind), convert(-np.inf, kind), dtype=kind)
        lengths = zeros([self._batch, self._beams], int64)
        state = BeamSearchDecoderState(self._initial, log_probs, finished, lengths, self._attention(self._initial))
        return finished, self._start_inputs, state

    def step(self, time: Any, inputs: Any, state: Any, name: str | None = None) -> tuple[Any, Any, Any, Any]:
        """See `Decoder`."""
        with name_scope(name or "BeamSearchDecoderStep"):
            found, inside = self._cell(map_structure(self._merge, inputs), map_structure(self._merge, state.cell_state))
            if self._output_layer is not None:
                found = self._output_layer(found)
            out, after = self._best(self._split(found), map_structure(self._split, inside), state)
            following = cond(
                reduce_all(after.finished), lambda: self._start_inputs, lambda: self._embed(out.predicted_ids)
            )
            return out, after, following, after.finished

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """See `Decoder`."""
        longest = cast(reduce_max(final_state.lengths, 1), int32)
        ids = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end)
        return FinalBeamSearchDecoderOutput(ids, outputs), final_state

    def _best(self, logits: Tensor, inside: Any, state: BeamSearchDecoderState) -> tuple[Any, Any]:
        """The best continuations of all beams."""
        words = batch_of(logits, 2)
        log_probs = log_softmax(logits)
        kind = log_probs.dtype.base
        # What has ended goes on with the end at no cost, and with nothing else.
        stays = one_hot(self._end, words, convert(0.0, kind), convert(kind.min, kind), dtype=kind)
        over = expand_dims(state.finished, 2)
        spread = logical_and(over, fill(shape(log_probs), True))
        log_probs = where(spread, stays + zeros_like(log_probs), log_probs)
        total = expand_dims(state.log_probs, 2) + log_probs
        longer = cast(logical_and(logical_not(over), one_hot(self._end, words, False, True, dtype=bool_)), int64)
        scores = self._scores(total, expand_dims(state.lengths, 2) + longer)
        attended = self._attention(inside)
        if isinstance(attended, Tensor):
            attended = state.accumulated_attention_probs + attended * cast(logical_not(over), attended.dtype.base)
            scores += self._coverage_penalty(attended, state.finished)
        best, at = top_k(reshape(scores, [self._batch, -1]), self._beams)
        best.set_shape([_known(self._batch), self._beams])
        word, beam = floormod(at, words), floordiv(at, words)
        chosen = _picked(reshape(total, [self._batch, -1]), at)
        before = _picked(state.finished, beam)
        lengths = _picked(state.lengths, beam) + cast(logical_not(before), int64)
        moved = map_structure(lambda x: _picked(x, beam) if x.shape.rank else x, inside)
        ended = logical_or(before, equal(word, self._end))
        attended = map_structure(lambda x: _picked(x, beam), attended)
        after = BeamSearchDecoderState(moved, chosen, ended, lengths, attended)
        return BeamSearchDecoderOutput(best, word, beam), after

    def _scores(self, log_probs: Tensor, lengths: Tensor) -> Tensor:
        if not self._penalty:
            return log_probs
        penalty = ((5.0 + cast(lengths, log_probs.dtype.base)) / 6.0) ** self._penalty
        found: Tensor = log_probs / penalty
        return found

    def _attention(self, state: Any) -> Any:
        """What a step attended to, `[batch, beams, time]`, the mean of all mechanisms; without a coverage penalty ()."""
        if isinstance(self._coverage, (int, float)) and self._coverage == 0:
            return ()
        wrapped = [state] if isinstance(state, AttentionWrapperState) else state
        found = [s.alignments for s in wrapped if isinstance(s, AttentionWrapperState)]
        if not found:
            raise ValueError("coverage_penalty_weight must be 0.0 if no cell is attentional.")
        return reduce_mean(stack([reduce_mean(stack(a), 0) if isinstance(a, tuple) else a for a in found]), 0)

    def _coverage_penalty(self, attended: Tensor, finished: Tensor) -> Tensor:
        """What ended sequences `[batch, beams, 1]` lose for places of the memory that they did not attend to."""
        inside = where(equal(attended, 0.0), ones_like(attended), attended)  # 0: behind the end of the memory
        missed = reduce_sum(log(minimum(inside, 1.0)), 2, keepdims=True)
        found: Tensor = missed * expand_dims(cast(finished, missed.dtype.base), 2) * self._coverage
        return found

    def _split(self, x: Any) -> Any:
        """`[batch * beams, ...]` as `[batch, beams, ...]`; a scalar as it is."""
        given = convert(x)
        if not given.shape.rank:
            return given
        rest = given.shape.as_list()[1:]
        found = reshape(given, concat([stack([self._batch, self._beams]), shape(given)[1:]], 0))
        found.set_shape([_known(self._batch), self._beams, *rest])
        return found

    def _merge(self, x: Tensor) -> Tensor:
        if not x.shape.rank:
            return x
        rest, batch = x.shape.as_list()[2:], _known(self._batch)
        found: Tensor = reshape(x, concat([[-1], shape(x)[2:]], 0))
        found.set_shape([None if batch is None else batch * self._beams, *rest])
        return found


def _picked(x: Tensor, beam: Tensor) -> Tensor:
    """Row by row of the batch, what beams `[batch, n]` have in `[batch, beams, ...]`."""
    rows = tile(expand_dims(numbers(shape(beam)[0]), 1), [1, shape(beam)[1]])
    found: Tensor = gather_nd(x, stack([rows, beam], 2))
    found.set_shape([*beam.shape.as_list(), *x.shape.as_list()[2:]])
    return found


def _known(batch: Any) -> int | None:
    return batch if isinstance(batch, int) else None


def _holds_array(structure: Any) -> bool:
    if isinstance(structure, TensorArray):
        return True
    return isinstance(structure, (list, tuple)) and any(map(_holds_array, structure))


__all__ = [
    "BeamSearchDecoder",
    "BeamSearchDecoderOutput",
    "BeamSearchDecoderState",
    "FinalBeamSearchDecoderOutput",
    "gather_tree",
    "tile_batch",
]
