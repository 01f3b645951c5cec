"""Cells and networks beside what TensorFlow 2.21's compatibility layer gave for the same programs: names, values, gradients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

cells = tf.nn.rnn_cell
RECORDS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "recorded.json").read_text())
LENGTHS = np.array([5, 2, 3], np.int32)
INPUTS = np.random.RandomState(0).randn(3, 5, 4).astype(np.float32)

CELLS: dict[str, Callable[[], Any]] = {
    "basic": lambda: cells.BasicRNNCell(6),
    "gru": lambda: cells.GRUCell(6),
    "basic_lstm": lambda: cells.BasicLSTMCell(6),
    "basic_lstm_in_one": lambda: cells.BasicLSTMCell(6, state_is_tuple=False),
    "lstm": lambda: cells.LSTMCell(6, use_peepholes=True, num_proj=3, cell_clip=0.5, proj_clip=0.4),
    "multi": lambda: cells.MultiRNNCell([cells.BasicLSTMCell(6), cells.GRUCell(5)]),
    "residual": lambda: cells.MultiRNNCell([cells.ResidualWrapper(cells.GRUCell(4)) for _ in range(2)]),
}


def waves(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
    """An initializer that gives the same numbers everywhere."""
    n = int(np.prod(shape))
    return tf.constant((np.sin(np.arange(n) * 1.7 + n) * 0.5).reshape(shape).astype(np.float32))


def network(kind: str, cell: Callable[[], Any], x: Any, lengths: Any) -> tuple[Any, Any]:
    if kind == "static":
        steps, state = tf.nn.static_rnn(cell(), tf.unstack(x, axis=1), dtype=tf.float32, sequence_length=lengths)
        return tf.stack(steps, 1), state
    if kind == "bidirectional":
        both, state = tf.nn.bidirectional_dynamic_rnn(cell(), cell(), x, sequence_length=lengths, dtype=tf.float32)
        return tf.concat(both, 2), state
    return tf.nn.dynamic_rnn(cell(), x, sequence_length=lengths, dtype=tf.float32)


def leaves(state: Any) -> list[Any]:
    return [leaf for part in state for leaf in leaves(part)] if isinstance(state, tuple) else [state]


def record(kind: str, cell: Callable[[], Any], ragged: bool) -> dict[str, Any]:
    """Everything worth comparing: variables by name, what goes out, last states, gradients."""
    with tf.Graph().as_default(), tf.variable_scope("model", initializer=waves):
        x = tf.placeholder(tf.float32, [None, 5, 4])
        outputs, state = network(kind, cell, x, tf.constant(LENGTHS) if ragged else None)
        variables, states = tf.trainable_variables(), leaves(state)
        loss = tf.reduce_sum(tf.square(outputs)) + tf.add_n([tf.reduce_sum(s) for s in states])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            values = session.run([outputs, *states, *tf.gradients(loss, variables)], {x: INPUTS})
    return {
        "variables": [[v.name, v.shape.as_list()] for v in variables],
        "sums": [float(np.abs(v).sum(dtype=np.float64)) for v in values],
        "firsts": [np.asarray(v, np.float64).ravel()[:6].tolist() for v in values],
    }


CASES = [("dynamic", name) for name in CELLS] + [("static", "basic_lstm"), ("bidirectional", "gru")]


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_networks_give_what_tensorflow_gives(kind: str, name: str, ragged: bool) -> None:
    expected = RECORDS[f"{kind} {name} {'ragged' if ragged else 'full'}"]
    found = record(kind, CELLS[name], ragged)
    assert found["variables"] == expected["variables"]
    np.testing.assert_allclose(found["sums"], expected["sums"], rtol=1e-4)
    for mine, theirs in zip(found["firsts"], expected["firsts"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
