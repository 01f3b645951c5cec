"""Optimizers and learning rates against paths that TensorFlow and PyTorch took, recorded as data; averages and loss scaling."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

DATA = Path(__file__).parent / "data"
TENSORFLOW = json.loads((DATA / "tensorflow_optimizers.json").read_text())
PYTORCH = json.loads((DATA / "pytorch_optimizers.json").read_text())
START, SCALE = np.array(TENSORFLOW["start"]), np.array(TENSORFLOW["scale"])


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def path_of(optimizer: Any, steps: int, sparse: bool, dtype: str, use_resource: bool = False) -> list[Any]:
    w = tf.Variable(START.astype(dtype), use_resource=use_resource)
    if sparse:
        rows = tf.constant(np.array([[1, 2], [3, -4], [0.5, 0.5]], dtype))
        op = optimizer.apply_gradients([(tf.IndexedSlices(rows, tf.constant([2, 0, 2]), tf.constant([3, 2])), w)])
    else:
        op = optimizer.minimize(tf.reduce_sum(tf.square(w) * SCALE.astype(dtype)))
    found = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(op)
            found.append(session.run(w.read_value()))
    return found


def _id(case: dict[str, Any]) -> str:
    return f"{case['optimizer']}-{len(case['settings'])}{'-sparse' if case.get('sparse') else ''}"


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("case", TENSORFLOW["trajectories"], ids=_id)
def test_paths_are_tensorflows(case, use_resource):
    optimizer = getattr(tf.train, case["optimizer"])(**case["settings"])
    found = path_of(optimizer, len(case["path"]), case["sparse"], "float32", use_resource)
    np.testing.assert_allclose(found, case["path"], rtol=3e-5, atol=1e-6)
    if case["sparse"] and case["optimizer"] != "AdamOptimizer":
        assert all((w[1] == START[1].astype("f4")).all() for w in found)


AS_OURS = {
    "SGD": lambda lr, momentum=0.0: tf.train.MomentumOptimizer(lr, momentum),
    "Adam": lambda lr, betas, eps: tf.train.AdamOptimizer(lr, *betas, eps),
    "AdamW": lambda lr, betas, eps, weight_decay: tf.train.AdamWOptimizer(lr, *betas, eps, weight_decay),
    "Adadelta": lambda lr, rho, eps: tf.train.AdadeltaOptimizer(lr, rho, eps),
    "Adagrad": lambda lr, initial_accumulator_value, eps: tf.train.AdagradOptimizer(lr, initial_accumulator_value),
}


@pytest.mark.parametrize("case", PYTORCH["trajectories"], ids=_id)
def test_paths_are_pytorchs(case):
    optimizer = AS_OURS[case["optimizer"]](**case["settings"])
    found = path_of(optimizer, len(case["path"]), False, "float64")
    np.testing.assert_allclose(found, case["path"], rtol=1e-6, atol=1e-7)


def test_lars_follows_its_formula():
    found = path_of(tf.train.LARSOptimizer(0.5, 0.9, weight_decay=0.1, eeta=0.2), 5, False, "float64")
    w, velocity = START.copy(), np.zeros_like(START)
    for value in found:
        g = 2 * SCALE * w
        trust = 0.2 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.1 * np.linalg.norm(w))
        velocity = 0.9 * velocity + g + 0.1 * w
        w = w - 0.5 * trust * velocity
        np.testing.assert_allclose(value, w, rtol=1e-6)
    skipped = path_of(tf.train.LARSOptimizer(0.05, 0.9, skip_list=["Variable"]), 3, False, "float64")
    np.testing.assert_allclose(skipped, path_of(tf.train.MomentumOptimizer(0.05, 0.9), 3, False, "float64"))


@pytest.mark.parametrize("sparse", [False, True])
def test_lamb_follows_its_formula(sparse):
    optimizer = tf.train.LAMBOptimizer(0.1, 0.8, 0.9, 1e-4, weight_decay=0.3)
    found = path_of(optimizer, 5, sparse, "float64")
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t, value in enumerate(found, 1):
        g = np.array([[3, -4], [0, 0], [1.5, 2.5]]) if sparse else 2 * SCALE * w
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        step = m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-4) + 0.3 * w
        w = w - 0.1 * np.linalg.norm(w) / np.linalg.norm(step) * step
        np.testing.assert_allclose(value, w, rtol=1e-6)


def test_a_weight_of_zero_is_moved_by_the_optimizers_of_norms():
    for optimizer in (tf.train.LARSOptimizer(0.1, 0.0), tf.train.LAMBOptimizer(0.1)):
        w = tf.Variable(np.zeros(2, "f4"))
        op = optimizer.apply_gradients([(tf.constant([1.0, 2.0]), w)])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(op)
            assert (session.run(w) < 0).all()


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("sparse", [False, True])
def test_ftrl_with_shrinkage_and_another_power_follows_its_formula(sparse, use_resource):
    lr, power, l1, l2, shrink = 0.3, -0.7, 0.2, 0.1, 0.05
    optimizer = tf.train.FtrlOptimizer(
        lr, power, 0.2, l1, l2, accum_name="sums", l2_shrinkage_regularization_strength=shrink
    )
    found = path_of(optimizer, 4, sparse, "float32", use_resource)
    assert [v.op.name for v in optimizer.variables()] == ["Variable/Ftrl", "Variable/sums"]
    w, n, z = START.copy(), np.full_like(START, 0.2), np.zeros_like(START)
    rows = np.array([True, not sparse, True])
    for value in found:
        g = np.array([[3, -4], [0, 0], [1.5, 2.5]]) if sparse else 2 * SCALE * w
        new = n + g * g
        z = np.where(rows[:, None], z + g + 2 * shrink * w - (new**-power - n**-power) / lr * w, z)
        n = new
        moved = np.where(np.abs(z) > l1, (np.sign(z) * l1 - z) / (n**-power / lr + 2 * l2), 0)
        w = np.where(rows[:, None], moved, w)
        np.testing.assert_allclose(value, w, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("sparse", [False, True])
def test_dual_averaging_follows_its_formula(sparse, use_resource):
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    optimizer = tf.train.AdagradDAOptimizer(0.5, step, 0.1, 0.3, 0.02)
    w = tf.Variable(START.astype("f4"), use_resource=use_resource)
    gradient: Any = tf.constant(np.array([[1, 2], [3, -4], [0.5, 0.5]], "f4"))
    dense = np.array([[1, 2], [3, -4], [0.5, 0.5]])
    if sparse:
        gradient = tf.IndexedSlices(gradient, tf.constant([2, 0, 2]), tf.constant([3, 2]))
        dense = np.array([[3, -4], [0, 0], [1.5, 2.5]])
    op = optimizer.apply_gradients([(gradient, w)], global_step=step)
    assert optimizer.get_slot_names() == ["gradient_accumulator", "gradient_squared_accumulator"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for t in range(1, 5):
            session.run(op)
            sums, squares = t * dense, 0.1 + t * dense**2
            expected = (
                -0.5 * np.sign(sums) * np.maximum(np.abs(sums) - 0.3 * t, 0) / (0.02 * t * 0.5 + np.sqrt(squares))
            )
            expected[1] = START[1] if sparse else expected[1]
            np.testing.assert_allclose(session.run(w), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="must be positive"):
        tf.train.AdagradDAOptimizer(0.1, step, 0.0)


def test_piecewise_constant_takes_no_mixed_types():
    with pytest.raises(ValueError, match="same dtype as x"):
        tf.train.piecewise_constant(tf.constant(0), [-1.0, 1.5], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="all with the same dtype"):
        tf.train.piecewise_constant(tf.constant(0.0), [-1.0, 1.0], [1.0, 2, 3])


def test_ftrl_makes_weights_exactly_zero_and_refuses_what_it_has_not():
    found = path_of(tf.train.FtrlOptimizer(0.5, l1_regularization_strength=50.0), 2, False, "float32")
    assert (found[-1] == 0).all()
    with pytest.raises(ValueError, match="needs to be negative or zero"):
        tf.train.FtrlOptimizer(0.1, learning_rate_power=0.3)
    with pytest.raises(ValueError, match="greater than or equal to zero"):
        tf.train.ProximalGradientDescentOptimizer(0.1, l1_regularization_strength=-1.0)


# --- learning rates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TENSORFLOW["schedules"], ids=lambda c: f"{c['schedule']}-{len(c['settings'])}")
def test_learning_rates_are_tensorflows(case):
    step = tf.placeholder(tf.int64, [])
    make = getattr(tf.train, case["schedule"])
    settings = case["settings"]
    rate = make(step, **settings) if case["schedule"] == "piecewise_constant" else make(global_step=step, **settings)
    assert rate.dtype is tf.float32 and rate.shape.as_list() == []
    with tf.Session() as session:
        found = [session.run(rate, {step: s}) for s in TENSORFLOW["steps"]]
    np.testing.assert_allclose(found, case["values"], rtol=2e-5, atol=1e-8)


def test_a_rate_warms_up_and_then_follows_another_schedule():
    step = tf.train.get_or_create_global_step()
    rate = tf.train.linear_warmup(tf.train.cosine_decay(0.4, step, 20), step, 4)
    advance = tf.assign_add(step, 1)
    found = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(21):
            found.append(session.run(rate))
            session.run(advance)
    wanted = [0.2 * (1 + math.cos(math.pi * s / 20)) * min(1, s / 4) for s in range(21)]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_noise_is_round_the_line():
    step = tf.placeholder(tf.int64, [])
    noisy = tf.train.noisy_linear_cosine_decay(1.0, step, 100, initial_variance=1e-8)
    plain = tf.train.linear_cosine_decay(1.0, step, 100)
    with tf.Session() as session:
        a, b = session.run([noisy, plain], {step: 30})
    assert 0 < abs(a - b) < 1e-3


def test_what_a_rate_needs():
    with pytest.raises(ValueError, match="global_step is required"):
        tf.train.exponential_decay(0.1, None, 10, 0.5)
    with pytest.raises(ValueError, match="1 less"):
        tf.train.piecewise_constant(tf.constant(1), [1, 2], [0.1, 0.2])


def test_an_optimizer_takes_a_schedule():
    step = tf.train.get_or_create_global_step()
    w = tf.Variable(0.0)
    rate = tf.train.piecewise_constant(step, [1], [1.0, 10.0])
    op = tf.train.GradientDescentOptimizer(rate).apply_gradients([(tf.constant(1.0), w)], global_step=step)
    seen = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            session.run(op)
            seen.append(float(session.run(w)))
    assert seen == [-1, -2, -12, -22]


# --- averages, loss scaling -------------------------------------------------------------------------------------------


def test_averages_follow_their_variables(tmp_path: Path):
    v = tf.get_variable("v", initializer=[1.0, 2.0])
    other = tf.get_variable("other", initializer=5.0, trainable=False)
    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.device("/cpu:0"):
        op = average.apply()
    shadow = average.average(v)
    assert shadow.op.name == average.average_name(v) == "v/ExponentialMovingAverage"
    assert average.average(other) is None
    assert tf.moving_average_variables() == [v]
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected = np.array([1.0, 2.0])
        for value in ([3.0, 0.0], [5.0, 5.0]):
            v.load(value, session)
            session.run(op)
            expected = 0.9 * expected + 0.1 * np.array(value)
            np.testing.assert_allclose(session.run(shadow), expected, rtol=1e-6)
        path = saver.save(session, str(tmp_path / "m"))
        restored = average.variables_to_restore()
        assert restored == {"v/ExponentialMovingAverage": v, "other": other}
        tf.train.Saver(restored).restore(session, path)
        np.testing.assert_allclose(session.run(v), expected, rtol=1e-6)
    with pytest.raises(TypeError, match="Only variables"):
        average.apply([tf.constant(1)])


def test_averages_move_faster_at_the_start_when_updates_are_counted():
    v, count = tf.Variable(10.0), tf.placeholder(tf.int64, [])
    average = tf.train.ExponentialMovingAverage(0.9, num_updates=count)
    op = average.apply([v])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        v.load(20.0, session)
        session.run(op, {count: 0})
        assert session.run(average.average(v)) == pytest.approx(0.1 * 10 + 0.9 * 20)
        session.run(op, {count: 10_000})
        assert session.run(average.average(v)) == pytest.approx(0.9 * 19 + 0.1 * 20)


@pytest.mark.parametrize(
    "optimizer", [lambda: tf.train.MomentumOptimizer(0.1, 0.9), lambda: tf.train.AdamOptimizer(0.1)]
)
def test_a_scaled_loss_gives_the_same_steps(optimizer):
    plain = path_of(optimizer(), 4, False, "float32")
    for scale in (1024.0, "dynamic"):
        found = path_of(tf.train.LossScaleOptimizer(optimizer(), scale), 4, False, "float32")
        np.testing.assert_allclose(found, plain, rtol=1e-6)


def test_gradients_of_half_floats_do_not_vanish_and_bad_steps_are_left_out():
    w = tf.Variable(np.float32(1.0))
    x = tf.placeholder(tf.float16, [])
    loss = tf.cast(w, tf.float16) * x * np.float16(1e-4) * np.float16(1e-4)
    scale = tf.train.DynamicLossScale(2.0**10, increment_period=2)
    step = tf.train.get_or_create_global_step()
    op = tf.train.LossScaleOptimizer(tf.train.GradientDescentOptimizer(1e6), scale).minimize(loss, step)
    lost = tf.train.GradientDescentOptimizer(1e6).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(lost, {x: 1.0})
        assert session.run(w) == 1.0  # 1e-8 is zero in half precision
        scales = []
        for value in (1.0, 1.0, np.inf, 1.0, np.nan, 1.0):
            before = session.run([w, step])
            session.run(op, {x: value})
            after = session.run([w, step])
            scales.append(float(session.run(scale())))
            if np.isfinite(value):
                assert after[0] - before[0] == pytest.approx(-0.01, rel=0.05)
                assert after[1] == before[1] + 1
            else:
                assert after == before
        assert scales == [1024, 2048, 1024, 1024, 512, 512]
    with pytest.raises(ValueError, match="at least 1"):
        tf.train.FixedLossScale(0.5)
    with pytest.raises(ValueError, match="loss_scale must be"):
        tf.train.LossScaleOptimizer(tf.train.GradientDescentOptimizer(1.0), "large")


@pytest.mark.parametrize("zero_debias", [False, True])
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_tensors_have_averages_too(zero_debias, use_resource):
    fed = tf.placeholder(tf.float32, [2])
    v = tf.Variable([1.0, 2.0], name="v", use_resource=use_resource)
    x = tf.multiply(v, fed, name="x")
    average = tf.train.ExponentialMovingAverage(0.9, zero_debias=zero_debias, name="mean")
    with tf.variable_scope("outer"):
        assert average.average_name(x) == "outer/x/mean"
    assert average.average_name(x) == "x/mean"
    move = average.apply([v, x])
    shadows = {"x/mean", "x/mean/biased", "x/mean/local_step"} if zero_debias else {"x/mean"}
    assert set(average.variables_to_restore()) == {"v/mean", *shadows}
    assert tf.moving_average_variables() == [v]
    assert average.average(x) not in tf.trainable_variables()
    kept = np.zeros(2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for n in range(1, 4):
            session.run(move, {fed: [n, 10.0]})
            kept = 0.9 * kept + 0.1 * np.array([n, 20.0])
            expected = kept / (1 - 0.9**n) if zero_debias else kept
            np.testing.assert_allclose(session.run(average.average(x)), expected, rtol=1e-5)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_a_variable_is_moved_towards_a_value(use_resource):
    from dovetail.compat.tf1.training.moving_averages import assign_moving_average

    plain, debiased = (
        tf.get_variable(n, [], initializer=tf.zeros_initializer(), use_resource=use_resource) for n in ("a", "b")
    )
    moves = [assign_moving_average(plain, 8.0, 0.75, zero_debias=False), assign_moving_average(debiased, 8.0, 0.75)]
    assign_moving_average(debiased, 8.0, 0.75)
    assert {"b/biased", "b/local_step", "b/biased_1", "b/local_step_1"} <= {v.op.name for v in tf.global_variables()}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(moves) == [2.0, 8.0]
        assert session.run(moves) == [3.5, 8.0]
