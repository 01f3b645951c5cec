"""Recurrent networks beside what `test_recorded_rnn.py` compares: loops of one's own, states that are kept, cells' variables."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import dovetail as tf

X = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)  # [batch, steps, features]
LENGTHS = [2, 4, 3]


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        tf.set_random_seed(1)
        yield g


def run(*fetches: Any) -> list[Any]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(list(fetches))


@pytest.mark.parametrize("emit", ["outputs", "doubles"])
def test_a_raw_loop_gives_what_dynamic_rnn_gives(emit: str) -> None:
    cell = tf.nn.rnn_cell.GRUCell(5)
    inputs = tf.TensorArray(tf.float32, 5).unstack(tf.concat([tf.transpose(X, [1, 0, 2]), tf.zeros([1, 3, 2])], 0))

    def step(time: Any, out: Any, state: Any, calls: Any) -> Any:
        finished = time >= LENGTHS
        x = inputs.read(time)
        if out is None:
            first = None if emit == "outputs" else {"sum": tf.zeros([]), "twice": tf.zeros([5])}
            return finished, x, cell.zero_state(3, tf.float32), first, tf.constant(0)
        emitted = out if emit == "outputs" else {"sum": tf.reduce_sum(out, 1), "twice": out * 2.0}
        return finished, x, state, emitted, calls + 1

    rows, last, calls = tf.nn.raw_rnn(cell, step)
    wanted, wanted_last = tf.nn.dynamic_rnn(cell, X, LENGTHS, dtype=tf.float32, scope="again")
    found = rows if emit == "outputs" else rows["twice"]
    theirs, state, mine, mine_last, count = run(
        wanted, wanted_last, tf.transpose(found.stack(), [1, 0, 2]), last, calls
    )
    np.testing.assert_allclose(mine, theirs if emit == "outputs" else theirs * 2.0, rtol=1e-5)
    np.testing.assert_allclose(mine_last, state, rtol=1e-5)
    assert count == 4
    if emit == "doubles":
        assert rows["sum"].element_shape.as_list() == [3]
    with pytest.raises(TypeError, match="loop_fn must be a callable"):
        tf.nn.raw_rnn(cell, 3)


class Keeper:
    """States in variables."""

    def __init__(self, **sizes: int) -> None:
        self.kept = {name: tf.Variable(tf.zeros([3, size]), trainable=False) for name, size in sizes.items()}

    def state(self, name: str) -> Any:
        return self.kept[name].read_value()

    def save_state(self, name: str, value: Any) -> Any:
        return tf.assign(self.kept[name], value)


def test_a_state_that_is_kept_goes_on_in_the_next_step() -> None:
    cell, keeper = tf.nn.rnn_cell.BasicLSTMCell(5), Keeper(c=5, h=5)
    steps = tf.unstack(tf.constant(X), axis=1)
    halves = tf.placeholder(tf.float32, [2, 3, 2])
    outputs, _ = tf.nn.static_state_saving_rnn(cell, tf.unstack(halves), keeper, ("c", "h"))
    whole, _ = tf.nn.static_rnn(cell, steps, dtype=tf.float32, scope="again")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        by_time = X.transpose(1, 0, 2)
        found = [*session.run(outputs, {halves: by_time[:2]}), *session.run(outputs, {halves: by_time[2:]})]
        np.testing.assert_allclose(found, session.run(whole), rtol=1e-5)
    with pytest.raises(ValueError, match="state_name should be of the structure"):
        tf.nn.static_state_saving_rnn(cell, steps, keeper, "c")


def test_outputs_have_the_type_that_is_asked_for() -> None:
    class Counting(tf.nn.rnn_cell.RNNCell):
        """Counts the steps, a number for all sequences."""

        state_size = tf.TensorShape([])
        output_size = 2

        def zero_state(self, batch_size: Any, dtype: Any) -> Any:
            return tf.constant(0)

        def call(self, x: Any, n: Any) -> Any:
            return x, n + 1

    outputs, count = run(*tf.nn.dynamic_rnn(Counting(), X, LENGTHS, dtype=tf.float32))
    assert count == 4
    np.testing.assert_array_equal(outputs[1], X[1])
    assert not outputs[0, 2:].any()


def test_cells_tell_their_variables() -> None:
    def fixed(getter: Any, *args: Any, **kwargs: Any) -> Any:
        return getter(*args, **{**kwargs, "trainable": False})

    cells = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.GRUCell(2) for _ in range(2)])
    sharded = tf.nn.rnn_cell.LSTMCell(4, num_proj=3, num_unit_shards=2, num_proj_shards=3)
    tf.nn.dynamic_rnn(cells, X, dtype=tf.float32)
    with tf.variable_scope("fixed", custom_getter=fixed):
        y, _ = tf.nn.dynamic_rnn(sharded, X, dtype=tf.float32)
    assert len(cells.weights) == len(cells.trainable_weights) == 8
    assert [v.op.name.removeprefix("fixed/rnn/lstm_cell/") for v in sharded.weights] == [
        "kernel/part_0", "kernel/part_1", "bias", *(f"projection/kernel/part_{i}" for i in range(3))
    ]  # fmt: skip
    assert sharded.trainable_variables == []
    assert run(y)[0].shape == (3, 4, 3)


def test_wrong_arguments() -> None:
    cell = tf.nn.rnn_cell.BasicRNNCell(2)
    with pytest.raises(ValueError, match="must be a vector of length batch_size"):
        tf.nn.dynamic_rnn(cell, X, [[2, 4, 3]], dtype=tf.float32)
    with pytest.raises(ValueError, match="only supports floating point inputs, but saw dtype: int32"):
        tf.nn.dynamic_rnn(cell, tf.ones([3, 4, 2], tf.int32), dtype=tf.int32)
    with pytest.raises(ValueError, match="Expected state to be a tuple of length 2"):
        tf.nn.rnn_cell.MultiRNNCell([cell, cell])(tf.ones([3, 2]), tf.ones([3, 4]))
    inputs = tf.placeholder(tf.float32, [3, 2])
    with pytest.raises(ValueError, match="batch size from input tensor is different"):
        cell.get_initial_state(inputs, tf.constant(4))
    with pytest.raises(ValueError, match="dtype from input tensor is different"):
        cell.get_initial_state(inputs, 3, tf.float64)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_outputs_of_both_directions_keep_their_structure(lengths: Any) -> None:
    class Sums(tf.nn.rnn_cell.RNNCell):
        """Gives out two sums of what came so far."""

        state_size = output_size = (2, 1)

        def call(self, inputs: Any, state: Any) -> Any:
            new = tuple(s + x for s, x in zip(state, inputs, strict=True))
            return new, new

    steps = [(x, x[:, :1]) for x in tf.unstack(tf.constant(X), axis=1)]
    both, _, _ = tf.nn.static_bidirectional_rnn(Sums(), Sums(), steps, dtype=tf.float32, sequence_length=lengths)
    rows, columns = run(*(tf.stack(leaf, 1) for leaf in zip(*both, strict=True)))
    ends = [4, 4, 4] if lengths is None else lengths
    for i, n in enumerate(ends):
        forwards, backwards = np.cumsum(X[i, :n], 0), np.cumsum(X[i, :n][::-1], 0)[::-1]
        np.testing.assert_allclose(rows[i, :n], np.hstack([forwards, backwards]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(columns[i, :n], np.hstack([forwards[:, :1], backwards[:, :1]]), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_loops_of_many_sessions_at_once_give_what_one_gives() -> None:
    """Each run builds a graph, gradients and a session of its own, while other threads do the same."""

    def once() -> list[Any]:
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            x, lengths = tf.placeholder(tf.float32, [None, None, 2]), tf.placeholder(tf.int32, [None])
            y, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(128), x, lengths, dtype=tf.float32)
            loss = tf.reduce_sum(tf.square(y))
            train = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                return [session.run([y, loss, train], {x: X[:n], lengths: LENGTHS[:n]})[:2] for n in (3, 1, 2)]

    wanted = once()
    with ThreadPoolExecutor(4) as pool:
        for found in [f.result() for f in [pool.submit(once) for _ in range(30)]]:
            for (y, loss), (other, total) in zip(found, wanted, strict=True):
                np.testing.assert_allclose(y, other, rtol=1e-4, atol=1e-6)
                np.testing.assert_allclose(loss, total, rtol=1e-4)
