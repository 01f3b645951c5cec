"""Unrolled decoders, and the losses of unrolled sequences, that TensorFlow 1 had in `tf.contrib.legacy_seq2seq`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.build import convert
from ....graph.core.default_graph import name_scope
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.embedding import embedding_lookup
from ....graph.ops.array.identity_and_placeholders import stop_gradient
from ....graph.ops.array.shapes import reshape, shape
from ....graph.ops.math.arithmetic import add_n
from ....graph.ops.math.cast import cast
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.math.scan import argmax
from ....graph.ops.nn.softmax import sparse_softmax_cross_entropy_with_logits
from ....graph.variables.scope import get_variable, variable_scope
from ..ops.nn_functions import xw_plus_b
from ..rnn import static_rnn

_NO_DIVISION_BY_ZERO = 1e-12  # TensorFlow's


def rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    loop_function: Callable[[Tensor, int], Any] | None = None,
    scope: Any = None,
) -> tuple[list[Tensor], Any]:
    """A cell over inputs, step by step.

    Args:
        decoder_inputs: per step `[batch, features]`. initial_state: of the cell.
        loop_function: of a step's output and the next step's number; the next input. None: the inputs as given.
        scope: name of the variable scope; None: `rnn_decoder`.

    Returns:
        What goes out at each step, and the last state.
    """
    with variable_scope(scope or "rnn_decoder") as within:
        state, outputs = initial_state, list[Tensor]()
        for i, x in enumerate(decoder_inputs):
            if i:
                within.reuse_variables()
                if loop_function is not None:
                    with variable_scope("loop_function", reuse=True):
                        x = loop_function(outputs[-1], i)
            out, state = cell(x, state)
            outputs.append(out)
        return outputs, state


def basic_rnn_seq2seq(
    encoder_inputs: Sequence[Any], decoder_inputs: Sequence[Any], cell: Any, dtype: Any = float32, scope: Any = None
) -> tuple[list[Tensor], Any]:
    """An encoder whose last state is the first one of a decoder; both have cells like `cell`, each with its own weights.

    Returns:
        As of `rnn_decoder`.
    """
    with variable_scope(scope or "basic_rnn_seq2seq"):
        _, state = static_rnn(copy.deepcopy(cell), encoder_inputs, dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)


def embedding_rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    num_symbols: int,
    embedding_size: int,
    output_projection: tuple[Any, Any] | None = None,
    feed_previous: bool = False,
    update_embedding_for_previous: bool = True,
    scope: Any = None,
) -> tuple[list[Tensor], Any]:
    """`rnn_decoder` over words, whose embeddings are a variable.

    Args:
        decoder_inputs: per step words, `[batch]`. num_symbols, embedding_size: how many words, and the embeddings' depth.
        output_projection: weights and biases that make logits of an output; None: it is logits.
        feed_previous: whether each word but the first is the likeliest one of the step before.
        update_embedding_for_previous: whether gradients reach the embeddings of such words.
        scope: name of the variable scope; None: `embedding_rnn_decoder`.

    Returns:
        As of `rnn_decoder`.
    """
    with variable_scope(scope or "embedding_rnn_decoder"):
        embedding = get_variable("embedding", [num_symbols, embedding_size])

        def likeliest(out: Tensor, _: int) -> Tensor:
            logits = out if output_projection is None else xw_plus_b(out, *output_projection)
            found: Tensor = embedding_lookup(embedding, argmax(logits, 1))
            return found if update_embedding_for_previous else stop_gradient(found)

        embedded = [embedding_lookup(embedding, x) for x in decoder_inputs]
        return rnn_decoder(embedded, initial_state, cell, likeliest if feed_previous else None)


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """Weighted cross entropy of each sequence.

    Args:
        logits: per step `[batch, classes]`. targets: per step classes, `[batch]`. weights: per step `[batch]`.
        average_across_timesteps: whether each sequence's sum is over the sum of its weights.

    Returns:
        `[batch]`.

    Raises:
        ValueError: the lists differ in length.
    """
    if not len(logits) == len(targets) == len(weights):
        raise ValueError(
            f"logits, targets and weights must have one length: {len(logits)}, {len(targets)}, {len(weights)}"
        )
    with name_scope(name or "sequence_loss_by_example"):
        loss = softmax_loss_function or sparse_softmax_cross_entropy_with_logits
        factors = [convert(w) for w in weights]
        steps = [
            loss(labels=reshape(t, [-1]), logits=convert(x)) * w
            for x, t, w in zip(logits, targets, factors, strict=True)
        ]
        total = add_n(steps)
        return total / (add_n(factors) + _NO_DIVISION_BY_ZERO) if average_across_timesteps else total


def sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The sum of `sequence_loss_by_example`, over the size of the batch unless told otherwise: a scalar."""
    with name_scope(name or "sequence_loss"):
        per_row = sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        cost = reduce_sum(per_row)
        return cost / cast(shape(convert(targets[0]))[0], cost.dtype.base) if average_across_batch else cost


__all__ = ["basic_rnn_seq2seq", "embedding_rnn_decoder", "rnn_decoder", "sequence_loss", "sequence_loss_by_example"]
