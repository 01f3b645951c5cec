"""Decoders, attention and beam search, beside plain NumPy that goes through the same steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf

seq2seq = tf.contrib.seq2seq
BATCH, STEPS, DEPTH, WORDS, END = 2, 4, 3, 5, 1
RNG = np.random.RandomState(0)
TABLE = RNG.randn(WORDS, DEPTH).astype(np.float32)
MEMORY = RNG.randn(BATCH, STEPS, DEPTH).astype(np.float32)
LENGTHS = np.array([4, 2], np.int32)


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        yield


def run(*tensors: Any) -> list[Any]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(list(tensors))


def weights(session: tf.Session) -> dict[str, Any]:
    return {v.op.name: session.run(v) for v in tf.global_variables()}


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_training_goes_through_the_true_words() -> None:
    cell = tf.nn.rnn_cell.BasicRNNCell(6)
    helper = seq2seq.TrainingHelper(MEMORY, LENGTHS)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(BATCH, tf.float32), tf.layers.Dense(WORDS))
    outputs, state, lengths = seq2seq.dynamic_decode(decoder, impute_finished=True)
    assert outputs.rnn_output.shape.as_list() == [BATCH, None, WORDS] or outputs.rnn_output.shape.as_list()[2] == WORDS
    names = [v.op.name for v in tf.trainable_variables()]
    assert names == [
        f"decoder/{n}" for n in ("basic_rnn_cell/kernel", "basic_rnn_cell/bias", "dense/kernel", "dense/bias")
    ]
    gradients = tf.gradients(outputs.rnn_output, tf.trainable_variables())
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, last, ends, slopes = session.run([outputs, state, lengths, gradients])
        w = weights(session)
    h, rows = np.zeros((BATCH, 6)), []
    for t in range(STEPS):
        new = np.tanh(
            np.concatenate([MEMORY[:, t], h], 1) @ w["decoder/basic_rnn_cell/kernel"] + w["decoder/basic_rnn_cell/bias"]
        )
        goes_on = (t < LENGTHS)[:, None]
        h = np.where(goes_on, new, h)
        rows.append(np.where(goes_on, new @ w["decoder/dense/kernel"] + w["decoder/dense/bias"], 0))
    wanted = np.stack(rows, 1)
    np.testing.assert_allclose(found.rnn_output, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.sample_id, wanted.argmax(-1))
    np.testing.assert_allclose(last, h, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ends, LENGTHS)
    np.testing.assert_allclose(slopes[3], [LENGTHS.sum()] * WORDS, rtol=1e-5)


def table_cell() -> Any:
    """A cell without a memory: the next word's logits are a row of a table, found by the embedding."""

    class Cell(tf.nn.rnn_cell.RNNCell):
        state_size = output_size = WORDS

        def call(self, inputs: Any, state: Any) -> Any:
            out = tf.matmul(inputs, tf.constant(NEXT))
            return out, state + 1

    return Cell()


NEXT = RNG.randn(WORDS, WORDS).astype(np.float32) * 2
NEXT[0, END] = NEXT[2, END] = -9.0


def test_greedy_words_are_the_likeliest_until_the_end() -> None:
    helper = seq2seq.GreedyEmbeddingHelper(np.eye(WORDS, dtype=np.float32), [0, 2], END)
    cell = table_cell()
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(BATCH, tf.float32))
    outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=6)
    ids, ends = run(outputs.sample_id, lengths)
    for row, start, length in zip(ids, (0, 2), ends, strict=True):
        word = start
        for t in range(length):
            word = int(NEXT[word].argmax())
            assert row[t] == word
        assert word == END or length == 6


def test_drawn_words_and_scheduled_ones() -> None:
    one_hot = np.eye(WORDS, dtype=np.float32)
    cell = table_cell()
    drawing = seq2seq.SampleEmbeddingHelper(one_hot, [0, 2], END, softmax_temperature=1e-4, seed=3)
    greedy = seq2seq.GreedyEmbeddingHelper(one_hot, [0, 2], END)
    made = [
        seq2seq.dynamic_decode(seq2seq.BasicDecoder(cell, h, cell.zero_state(2, tf.float32)), maximum_iterations=5)[0]
        for h in (drawing, greedy)
    ]
    inputs = np.tile(one_hot[[0, 2]][:, None], (1, 4, 1))
    never, always = (
        seq2seq.dynamic_decode(
            seq2seq.BasicDecoder(
                cell,
                seq2seq.ScheduledEmbeddingTrainingHelper(inputs, [4, 4], one_hot, p, seed=1, scheduling_seed=2),
                cell.zero_state(2, tf.float32),
            )
        )[0]
        for p in (0.0, 1.0)
    )
    drawn, likeliest, forced, free = run(made[0].sample_id, made[1].sample_id, never, always)
    np.testing.assert_array_equal(drawn, likeliest)  # cold enough to be sure
    np.testing.assert_array_equal(forced.sample_id, -1)
    np.testing.assert_allclose(forced.rnn_output, np.tile(NEXT[[0, 2]][:, None], (1, 4, 1)), rtol=1e-6)
    assert (free.sample_id >= 0).all()
    for row in range(2):
        np.testing.assert_allclose(free.rnn_output[row, 1:], NEXT[free.sample_id[row, :-1]], rtol=1e-6)


def test_helpers_made_of_functions() -> None:
    cell = table_cell()
    one_hot = tf.constant(np.eye(WORDS, dtype=np.float32))
    inference = seq2seq.InferenceHelper(
        lambda out: out, [WORDS], tf.float32, np.eye(WORDS, dtype=np.float32)[[0, 2]],
        lambda out: tf.reduce_max(out, 1) < -1e9, lambda out: tf.one_hot(tf.argmax(out, 1), WORDS),
    )  # fmt: skip
    custom = seq2seq.CustomHelper(
        initialize_fn=lambda: (tf.constant([False, False]), tf.gather(one_hot, [0, 2])),
        sample_fn=lambda time, outputs, state: tf.cast(tf.argmax(outputs, 1), tf.int32),
        next_inputs_fn=lambda time, outputs, state, sample_ids: (
            time + 1 >= [3, 3],
            tf.gather(one_hot, sample_ids),
            state,
        ),
    )
    made = [
        seq2seq.dynamic_decode(seq2seq.BasicDecoder(cell, h, cell.zero_state(2, tf.float32)), maximum_iterations=3)[0]
        for h in (inference, custom)
    ]
    by_function, by_parts = run(*made)
    np.testing.assert_allclose(by_function.rnn_output, by_parts.rnn_output, rtol=1e-6)
    np.testing.assert_array_equal(by_function.sample_id.argmax(-1), by_parts.sample_id)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("Luong", {}), ("Luong", {"scale": True}), ("Bahdanau", {}), ("Bahdanau", {"normalize": True})],
)
def test_attention(kind: str, options: dict[str, bool]) -> None:
    mechanism = getattr(seq2seq, f"{kind}Attention")(6, MEMORY, LENGTHS, **options)
    inside = tf.nn.rnn_cell.BasicRNNCell(6)
    cell = seq2seq.AttentionWrapper(inside, mechanism, attention_layer_size=7, alignment_history=True)
    assert cell.output_size == 7
    state = cell.zero_state(BATCH, tf.float32).clone(cell_state=tf.ones([BATCH, 6]) * 0.1)
    helper = seq2seq.TrainingHelper(MEMORY, [STEPS] * BATCH)
    outputs, last, _ = seq2seq.dynamic_decode(seq2seq.BasicDecoder(cell, helper, state))
    history = last.alignment_history.stack()
    gradients = tf.gradients(outputs.rnn_output, tf.trainable_variables())
    assert all(g is not None for g in gradients)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, shares, time, _ = session.run([outputs.rnn_output, history, last.time, gradients])
        w = weights(session)
    here = f"decoder/attention_wrapper/{kind.lower()}_attention"
    wanted_names = {"memory_layer/kernel", "decoder/attention_wrapper/attention_layer/kernel"}
    if kind == "Bahdanau":
        wanted_names |= {f"{here}/query_layer/kernel", f"{here}/attention_v"}
    assert wanted_names <= set(w)
    inside_mask = np.arange(STEPS) < LENGTHS[:, None]
    values = MEMORY * inside_mask[..., None]
    keys = values @ w["memory_layer/kernel"]
    h, attention = np.full((BATCH, 6), 0.1), np.zeros((BATCH, 7))
    cells = {n.rpartition("/")[2]: v for n, v in w.items() if "basic_rnn_cell" in n}
    for t in range(STEPS):
        h = np.tanh(np.concatenate([MEMORY[:, t], attention, h], 1) @ cells["kernel"] + cells["bias"])
        if kind == "Luong":
            score = np.einsum("bu,bsu->bs", h, keys) * w.get(f"{here}/attention_g", 1.0)
        else:
            v, b = w[f"{here}/attention_v"], w.get(f"{here}/attention_b", 0.0)
            if options:
                v = w[f"{here}/attention_g"] * v / np.linalg.norm(v)
            score = (v * np.tanh(keys + (h @ w[f"{here}/query_layer/kernel"])[:, None] + b)).sum(-1)
        share = softmax(np.where(inside_mask, score, -np.inf))
        context = np.einsum("bs,bsu->bu", share, values)
        attention = np.concatenate([h, context], 1) @ w["decoder/attention_wrapper/attention_layer/kernel"]
        np.testing.assert_allclose(shares[t], share, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found[:, t], attention, rtol=1e-4, atol=1e-5)
    assert time == STEPS


def test_several_mechanisms() -> None:
    both = [seq2seq.LuongAttention(6, MEMORY), seq2seq.BahdanauAttention(6, MEMORY, LENGTHS)]
    cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(6), both, [4, 5], output_attention=False)
    state = cell.zero_state(BATCH, tf.float32)
    out, after = cell(tf.ones([BATCH, 2]), state)
    assert (out.shape.as_list(), after.attention.shape.as_list()) == ([BATCH, 6], [BATCH, 9])
    found = run(*after.alignments)
    np.testing.assert_allclose([f.sum(-1) for f in found], np.ones((2, BATCH)), rtol=1e-6)
    with pytest.raises(ValueError, match="one layer per attention_mechanism, saw: 1 vs 2"):
        seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(6), both, 4)
    with pytest.raises(TypeError, match="must be an AttentionMechanism, saw type: int"):
        seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(6), 3)
    with pytest.raises(ValueError, match="Perhaps you need to set num_units"):
        small = seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(5), both[0])
        small(tf.ones([BATCH, 2]), small.zero_state(BATCH, tf.float32))


def every_sequence(start: int, steps: int, weight: float) -> list[tuple[float, tuple[int, ...]]]:
    """Score of each sequence of words that ends by itself or after so many steps, the best first."""
    logs = np.log(softmax(NEXT.astype(np.float64)))
    found = {}
    for words in itertools.product(range(WORDS), repeat=steps):
        cut = words[: words.index(END) + 1] if END in words else words
        total = sum(logs[a, b] for a, b in zip((start, *cut), cut, strict=False))
        # As in TensorFlow, an end counts from the step after it on.
        length = len(cut) - (cut[-1] == END and len(cut) == steps)
        found[cut] = total / ((5 + length) / 6) ** weight
    return sorted(((s, w) for w, s in found.items()), reverse=True)


@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_a_wide_beam_finds_the_likeliest_sequences(weight: float) -> None:
    cell, beams, steps = table_cell(), 100, 3  # more than there are sequences
    decoder = seq2seq.BeamSearchDecoder(
        cell, np.eye(WORDS, dtype=np.float32), [0, 2], END, seq2seq.tile_batch(cell.zero_state(2, tf.float32), beams), beams,
        length_penalty_weight=weight,
    )  # fmt: skip
    outputs, state, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=steps)
    ids, scores, logs, ends = run(
        outputs.predicted_ids, outputs.beam_search_decoder_output.scores, state.log_probs, lengths
    )
    assert ids.shape == (2, steps, beams)
    for row, start in enumerate((0, 2)):
        wanted = every_sequence(start, steps, weight)[:10]
        for beam, (score, words) in enumerate(wanted):
            assert tuple(ids[row, : len(words), beam]) == words
            assert (ids[row, len(words) :, beam] == END).all() and ends[row, beam] == len(words)
            np.testing.assert_allclose(scores[row, -1, beam], score, rtol=1e-4)
            length = len(words) - (words[-1] == END and len(words) == steps)
            np.testing.assert_allclose(logs[row, beam], score * ((5 + length) / 6) ** weight, rtol=1e-4)


def test_a_beam_with_attention() -> None:
    beams = 3
    lengths = seq2seq.tile_batch(tf.constant(LENGTHS), beams)
    mechanism = seq2seq.LuongAttention(6, seq2seq.tile_batch(tf.constant(MEMORY), beams), lengths)
    cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.BasicLSTMCell(6), mechanism, attention_layer_size=6)
    state = cell.zero_state(BATCH * beams, tf.float32)
    decoder = seq2seq.BeamSearchDecoder(cell, TABLE, [0, 0], END, state, beams, tf.layers.Dense(WORDS))
    outputs, last, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=5)
    ids, logs = run(outputs.predicted_ids, last.log_probs)
    assert ids.shape[0] == BATCH and ids.shape[2] == beams and ids.shape[1] <= 5
    assert (np.diff(logs, axis=1) <= 0).all()
    kept = seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(6), mechanism, alignment_history=True)
    with pytest.raises(ValueError, match="without alignment_history"):
        seq2seq.BeamSearchDecoder(cell, TABLE, [0, 0], END, kept.zero_state(BATCH * beams, tf.float32), beams)


def test_sequences_that_left_out_places_of_the_memory_lose_by_the_coverage_penalty() -> None:
    beams, steps, weight = 20, 4, 0.3
    lengths = seq2seq.tile_batch(tf.constant(LENGTHS), beams)
    mechanism = seq2seq.LuongAttention(6, seq2seq.tile_batch(tf.constant(MEMORY), beams), lengths)
    cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.BasicLSTMCell(6), mechanism)
    state = cell.zero_state(BATCH * beams, tf.float32)
    decoder = seq2seq.BeamSearchDecoder(
        cell, TABLE, [0, 0], END, state, beams, tf.layers.Dense(WORDS), coverage_penalty_weight=weight
    )
    outputs, last, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=steps)
    scores, logs, attended, ends = run(
        outputs.beam_search_decoder_output.scores, last.log_probs, last.accumulated_attention_probs, last.lengths
    )
    np.testing.assert_allclose(attended.sum(-1), ends, rtol=1e-5)  # the attention of each step is 1 in all
    assert (attended[1, :, LENGTHS[1] :] == 0).all()
    inside = np.arange(STEPS) < LENGTHS[:, None, None]
    lost = np.log(np.minimum(np.where(inside, attended, 1), 1)).sum(-1) * (ends < steps)
    assert (lost < 0).any() and (lost == 0).any()
    np.testing.assert_allclose(scores[:, -1], logs + weight * lost, rtol=1e-4)
    plain = tf.nn.rnn_cell.BasicRNNCell(6)
    with pytest.raises(ValueError, match="must be 0.0 if no cell is attentional"):
        start = seq2seq.tile_batch(plain.zero_state(2, tf.float32), 2)
        seq2seq.BeamSearchDecoder(plain, TABLE, [0, 0], END, start, 2, coverage_penalty_weight=weight).initialize()


def test_a_beam_whose_words_are_partly_impossible_goes_on_after_its_end() -> None:
    cell = tf.nn.rnn_cell.BasicRNNCell(WORDS)
    masked = np.array([0, 0, -np.inf, -np.inf, -np.inf], np.float32)
    state = seq2seq.tile_batch(cell.zero_state(1, tf.float32), 2)
    decoder = seq2seq.BeamSearchDecoder(cell, TABLE, [0], END, state, 2, lambda x: x + masked)
    outputs, last, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=3)
    ids, logs = run(outputs.predicted_ids, last.log_probs)
    assert np.isfinite(logs).all() and set(ids.ravel()) == {0, END}


def test_beams_are_followed_back_to_their_parents() -> None:
    ids = np.array([[[2, 3, 4]], [[5, 6, 7]], [[8, 9, 1]]], np.int32)
    parents = np.array([[[0, 0, 0]], [[0, 1, 1]], [[2, 1, 2]]], np.int32)
    (found,) = run(seq2seq.gather_tree(ids, parents, [3], END))
    np.testing.assert_array_equal(found[:, 0].T, [[3, 7, 8], [3, 6, 9], [3, 7, 1]])
    (short,) = run(seq2seq.gather_tree(ids, parents, [2], END))
    np.testing.assert_array_equal(short[:, 0].T, [[2, 5, 1], [3, 6, 1], [3, 7, 1]])


def test_refusals() -> None:
    cell = table_cell()
    with pytest.raises(TypeError, match="helper must be a Helper, received: int"):
        seq2seq.BasicDecoder(cell, 3, cell.zero_state(2, tf.float32))
    with pytest.raises(TypeError, match="Expected decoder to be type Decoder, but saw: int"):
        seq2seq.dynamic_decode(3)
    with pytest.raises(ValueError, match="Expected sequence_length to be a vector"):
        seq2seq.TrainingHelper(MEMORY, 3)
    with pytest.raises(ValueError, match="start_tokens must be a vector"):
        seq2seq.GreedyEmbeddingHelper(TABLE, 0, END)
    with pytest.raises(ValueError, match="end_token must be a scalar"):
        seq2seq.GreedyEmbeddingHelper(TABLE, [0], [END])
