"""Metrics over several batches against the same formulas in NumPy; weights, strategies, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


rng = np.random.default_rng(3)
TRUTH = rng.integers(0, 2, (4, 10)).astype(np.int64)
SCORES = rng.random((4, 10)).astype(np.float32)
SAID = (SCORES > 0.4).astype(np.int64)
WEIGHTS = rng.random((4, 10)).astype(np.float32)
CLASSES, TAKEN = rng.integers(0, 3, (4, 10)), rng.integers(0, 3, (4, 10))


def over_batches(metric: Callable[..., Any], first: Any, second: Any, *rest: Any, weighted: bool = False) -> Any:
    """The metric after all four batches; each update gives what came so far."""
    a, b = tf.placeholder(first.dtype, [None]), tf.placeholder(second.dtype, [None])
    w = tf.placeholder(tf.float32, [None])
    value, update = metric(a, b, *rest, **({"weights": w} if weighted else {}))
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        for i in range(4):
            updated = session.run(update, {a: first[i], b: second[i], w: WEIGHTS[i]})
            np.testing.assert_allclose(session.run(value), updated)
    return updated


def counts(truth: Any, said: Any, weights: Any) -> tuple[Any, ...]:
    cases = (truth & said, truth & ~said, ~truth & ~said, ~truth & said)
    return tuple((case * weights).sum() for case in cases)


def roc(truth: Any, scores: Any, thresholds: Any, weights: Any) -> tuple[Any, ...]:
    return tuple(np.array(x) for x in zip(*[counts(truth, scores > t, weights) for t in thresholds], strict=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (tf.metrics.accuracy, lambda t, p, w: np.average(t == (p > 0.4), weights=w)),
        (tf.metrics.true_positives, lambda t, p, w: counts(t == 1, p > 0.4, w)[0]),
        (tf.metrics.false_negatives, lambda t, p, w: counts(t == 1, p > 0.4, w)[1]),
        (tf.metrics.true_negatives, lambda t, p, w: counts(t == 1, p > 0.4, w)[2]),
        (tf.metrics.false_positives, lambda t, p, w: counts(t == 1, p > 0.4, w)[3]),
        (tf.metrics.precision, lambda t, p, w: (t * (p > 0.4) * w).sum() / ((p > 0.4) * w).sum()),
        (tf.metrics.recall, lambda t, p, w: (t * (p > 0.4) * w).sum() / (t * w).sum()),
    ],
)
def test_of_classes(metric, expected, weighted):
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    found = over_batches(metric, TRUTH, SAID, weighted=weighted)
    np.testing.assert_allclose(found, expected(TRUTH, SCORES, weights), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (tf.metrics.mean_absolute_error, lambda t, p, w: np.average(abs(p - t), weights=w)),
        (tf.metrics.mean_squared_error, lambda t, p, w: np.average((p - t) ** 2, weights=w)),
        (tf.metrics.root_mean_squared_error, lambda t, p, w: np.average((p - t) ** 2, weights=w) ** 0.5),
    ],
)
def test_of_errors(metric, expected, weighted):
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    found = over_batches(metric, TRUTH, SCORES, weighted=weighted)
    np.testing.assert_allclose(found, expected(TRUTH, SCORES, weights), rtol=1e-5)


def test_areas_under_curves_come_near_to_those_of_all_thresholds():
    found = over_batches(tf.metrics.auc, TRUTH, SCORES)
    positive, negative = SCORES[TRUTH == 1], SCORES[TRUTH == 0]
    assert found == pytest.approx((positive[:, None] > negative[None]).mean(), abs=0.01)
    careful = over_batches(
        lambda t, p: tf.metrics.auc(t, p, curve="PR", summation_method="careful_interpolation"), TRUTH, SCORES
    )
    tp, fn, _, fp = roc(TRUTH == 1, SCORES, np.unique(SCORES) - 1e-6, 1)
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    assert careful == pytest.approx(-np.trapezoid(precision, recall), abs=0.03)
    bounds = [
        over_batches(lambda t, p, m=m: tf.metrics.auc(t, p, curve="PR", summation_method=m), TRUTH, SCORES)
        for m in ("minoring", "trapezoidal", "majoring")
    ]
    assert bounds == sorted(bounds)


def test_at_thresholds():
    limits = [0.2, 0.5, 0.9]
    tp, fn, tn, fp = roc(TRUTH == 1, SCORES, limits, 1)
    for metric, expected in (
        (tf.metrics.precision_at_thresholds, tp / (tp + fp)),
        (tf.metrics.recall_at_thresholds, tp / (tp + fn)),
        (tf.metrics.true_negatives_at_thresholds, tn),
    ):
        np.testing.assert_allclose(over_batches(metric, TRUTH, SCORES, limits), expected, rtol=1e-5)
    found = over_batches(tf.metrics.sensitivity_at_specificity, TRUTH, SCORES, 0.7)
    even = [(i + 1) / 199 for i in range(198)]
    tp, fn, tn, fp = roc(TRUTH == 1, SCORES, even, 1)
    assert found in (tp / (tp + fn))[np.isclose(tn / (tn + fp), 0.7, atol=0.06)].astype(np.float32)
    found = over_batches(tf.metrics.specificity_at_sensitivity, TRUTH, SCORES, 0.7)
    assert found in (tn / (tn + fp))[np.isclose(tp / (tp + fn), 0.7, atol=0.06)].astype(np.float32)


def test_specificity_is_that_of_the_highest_threshold_of_the_nearest():
    """A perfect predictor: every threshold below 1 gives a recall of 1, and only the high ones no wrong alarms."""
    truth = np.array([0, 1, 0, 1])
    for scores, expected in (
        (truth, 1.0),
        (np.array([0.3, 0.8, 0.4, 1.0]), 1.0),
        (np.array([0.3, 0.8, 0.9, 1.0]), 0.5),
    ):
        with tf.Graph().as_default(), tf.Session() as session:
            value, update = tf.metrics.specificity_at_sensitivity(truth, tf.constant(scores, tf.float32), 0.9)
            session.run(tf.local_variables_initializer())
            assert session.run(update) == pytest.approx(expected)
            assert session.run(value) == pytest.approx(expected)


def several(metric: Any, *arguments: Any) -> Any:
    """What updates give, and then the value."""
    value, update = metric(*arguments)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        return session.run(update), session.run(value)


def test_several_classes():
    table = np.zeros((3, 3))
    np.add.at(table, (CLASSES.ravel(), TAKEN.ravel()), 1)
    right = table.diagonal()
    updated, value = several(tf.metrics.mean_per_class_accuracy, CLASSES, TAKEN, 3)
    np.testing.assert_allclose(updated, right / table.sum(1), rtol=1e-6)
    assert value == pytest.approx((right / table.sum(1)).mean())
    updated, value = several(tf.metrics.mean_iou, CLASSES, TAKEN, 3)
    np.testing.assert_array_equal(updated, table)
    assert value == pytest.approx((right / (table.sum(0) + table.sum(1) - right)).mean())


@pytest.mark.parametrize("known", [True, False])
def test_weights_and_labels_of_another_rank(known):
    truth, said, weights = np.array([[1], [0], [0]]), np.array([1, 1, 1]), np.array([[100.0], [1.0], [1.0]])
    fed = [tf.placeholder(x.dtype, x.shape if known else None) for x in (truth, said, weights)]
    _, update = tf.metrics.accuracy(*fed)
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update, dict(zip(fed, (truth, said, weights), strict=True))) == pytest.approx(100 / 102)


def test_accuracy_takes_predictions_for_what_labels_are():
    assert several(tf.metrics.accuracy, np.array([0, 1]), np.array([0.7, 1.0]))[0] == 1


RANKED = np.array([[0.1, 0.3, 0.2, 0.4], [0.5, 0.2, 0.3, 0.4], [0.0, 0.1, 0.6, 0.3]])
SEVERAL = [{3, 0}, {1}, {2, 3}]
AS_SPARSE = tf.SparseTensorValue([[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]], np.array([3, 0, 1, 2, 3]), [3, 2])


@pytest.mark.parametrize("labels", [AS_SPARSE, np.array([[3, 0], [1, 1], [2, 3]])], ids=["sparse", "dense"])
@pytest.mark.parametrize("class_id", [None, 3, 0])
@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 0.5])])
def test_of_the_best_classes(labels, class_id, weights):
    k, best = 2, [set(np.argsort(-row)[:2].tolist()) for row in RANKED]
    only = set(range(4)) if class_id is None else {class_id}
    w = np.ones(3) if weights is None else weights
    hit = sum(v * len(b & s & only) for b, s, v in zip(best, SEVERAL, w, strict=True))
    said = sum(v * len(b & only) for b, v in zip(best, w, strict=True))
    right = sum(v * len(s & only) for s, v in zip(SEVERAL, w, strict=True))
    for metric, whole in ((tf.metrics.precision_at_k, said), (tf.metrics.recall_at_k, right)):
        found = several(metric, labels, RANKED, k, class_id, weights)
        np.testing.assert_allclose(found, [hit / whole if whole else np.nan] * 2)


def test_average_precision_of_the_best_classes():
    found = several(tf.metrics.average_precision_at_k, AS_SPARSE, RANKED, 3)
    each = [(1 / 1 + 0 + 0) / 2, 0.0, (1 / 1 + 2 / 2) / 2]  # 3, 1, 2 of {3, 0}; 0, 3, 2 of {1}; 2, 3, 1 of {2, 3}
    np.testing.assert_allclose(found, [np.mean(each)] * 2)
    assert [v.op.name for v in tf.local_variables()] == ["average_precision_at_3/max", "average_precision_at_3/total"]


@pytest.mark.parametrize(
    ("labels", "relevant"),
    [  # TensorFlow 2.21's numbers
        (np.array([[3, 3, 0], [2, 2, 2], [2, 9, -1]]), [3, 3, 1]),
        (tf.SparseTensorValue(np.argwhere(np.ones((3, 3))), np.array([3, 3, 0, 2, 2, 2, 2, 9, -1]), [3, 3]), [2, 1, 3]),
    ],
    ids=["dense", "sparse"],
)
def test_average_precision_of_labels_that_stand_twice_or_are_no_class(labels, relevant):
    found = several(tf.metrics.average_precision_at_k, labels, RANKED, 3)
    sums = np.array([1 / 1, 1 / 3, 1 / 1])  # 3, 1, 2 of {3, 0}; 0, 3, 2 of {2}; 2, 3, 1 of {2}
    np.testing.assert_allclose(found, [np.mean(sums / relevant)] * 2)


def test_means_and_their_kin():
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = tf.placeholder(tf.float32, [3])
    found = {
        "mean": tf.metrics.mean(x),
        "weighted": tf.metrics.mean(x, weights=[1.0, 0.0, 3.0]),
        "each": tf.metrics.mean_tensor(x),
        "below": tf.metrics.percentage_below(x, 2.0),
        "relative": tf.metrics.mean_relative_error(x, x + 1.0, [1.0, 2.0, 0.0]),
        "cosine": tf.metrics.mean_cosine_distance(tf.reshape([0.6, 0.8], [1, 2]), tf.reshape([1.0, 0.0], [1, 2]), 1),
    }
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run([value for value, _ in found.values()])[0] == 0
        for row in values:
            session.run([update for _, update in found.values()], {x: row})
        now = session.run({name: value for name, (value, _) in found.items()})
    assert now["mean"] == 2.5
    assert now["weighted"] == pytest.approx((0 + 2 * 3 + 3 + 5 * 3) / 8)
    assert now["each"].tolist() == [1.5, 2.5, 3.5]
    assert now["below"] == pytest.approx(2 / 6)
    assert now["relative"] == pytest.approx(0.5)
    assert now["cosine"] == pytest.approx(0.4)


def test_names_collections_and_local_variables():
    value, update = tf.metrics.mean([1.0], metrics_collections=["m"], updates_collections="u")
    assert (value.name, update.name) == ("mean/value:0", "mean/update_op:0")
    assert tf.get_collection("m") == [value]
    assert tf.get_collection("u") == [update]
    names = [v.name for v in tf.local_variables()]
    assert names == ["mean/total:0", "mean/count:0"]
    assert tf.get_collection(tf.GraphKeys.METRIC_VARIABLES) == tf.local_variables()
    assert not tf.global_variables()
    again, _ = tf.metrics.mean([1.0])
    assert again.name == "mean_1/value:0"
    tf.metrics.precision([1], [1])
    assert [v.op.name for v in tf.local_variables()[-2:]] == [
        "precision/true_positives/count",
        "precision/false_positives/count",
    ]


def test_a_last_axis_of_size_one_goes():
    _, update = tf.metrics.accuracy(tf.constant([[1], [0]]), tf.constant([1, 1]))
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        assert session.run(update) == 0.5


def test_what_a_metric_counts_stays_with_its_client():
    cluster = {"ps": ["localhost:1"], "worker": ["localhost:2"]}
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0")):
        tf.metrics.mean([1.0])
    assert {v.device for v in tf.local_variables()} == {"/job:worker/task:0"}


def test_replicas_count_together():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        x = tf.placeholder(tf.float32, [4])

        def step(part):
            value, update = tf.metrics.mean(part)
            return value, update

        value, update = strategy.run(step, (strategy.split_batch(x),))
        updates = strategy.group(update)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(tf.local_variables_initializer())
        session.run(updates, {x: [1, 2, 3, 4]})
        session.run(updates, {x: [5, 6, 7, 9]})
        assert session.run(strategy.unwrap(value)[0]) == pytest.approx(37 / 8)


def test_what_is_refused():
    with pytest.raises(ValueError, match="must be the same"):
        tf.metrics.accuracy(tf.constant([1, 2, 3]), tf.constant([1, 2]))
    with pytest.raises(ValueError, match="can not be broadcast"):
        tf.metrics.mean(tf.constant([1.0, 2.0, 3.0]), weights=[1.0, 2.0])
    with pytest.raises(ValueError, match="curve"):
        tf.metrics.auc([True], [0.5], curve="roc")
    with pytest.raises(ValueError, match="summation_method"):
        tf.metrics.auc([True], [0.5], summation_method="simpson")
