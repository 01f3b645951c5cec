"""Activations, softmax and losses, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special
from op_table import FLOATS, NUMBERS, OpCase, ScriptCase, index, interpreted, op_of, real
from reference_interpreter import Interpreter
from scipy import stats

from dovetail import nn
from dovetail.graph.core.build import constant, make, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.nn import activations, softmax

X = real(3, 4, low=-3, high=8)  # beyond the kinks at 0 and 6
G = real(3, 4, seed=1)
NORMAL_CDF = stats.norm.cdf
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772


def _sigmoid(x: Any) -> Any:
    return scipy.special.expit(x)


ACTIVATIONS = [
    OpCase("Relu", nn.relu, [X], lambda x: x * (x > 0), NUMBERS[:7], grad=True),
    OpCase("ReluGrad", op_of("ReluGrad"), [G, X], lambda g, x: g * (x > 0), FLOATS, grad=(0,)),
    OpCase("Relu6", nn.relu6, [X], lambda x: np.clip(x, 0, 6), FLOATS, grad=True),
    OpCase("Relu6Grad", op_of("Relu6Grad"), [G, X], lambda g, x: g * ((x > 0) & (x < 6)), FLOATS, grad=(0,)),
    OpCase(
        "LeakyRelu",
        lambda x: nn.leaky_relu(x, 0.3),
        [X],
        lambda x: np.maximum(x, 0) + 0.3 * np.minimum(x, 0),
        FLOATS,
        grad=True,
    ),
    OpCase(
        "LeakyReluGrad",
        op_of("LeakyReluGrad", alpha=0.3),
        [G, X],
        lambda g, x: g * ((x > 0) + 0.3 * (x <= 0)),
        FLOATS,
        grad=(0,),
    ),
    OpCase("Elu", nn.elu, [X], lambda x: np.where(x > 0, x, np.exp(x) - 1), FLOATS, grad=True, rtol=1e-4),
    OpCase("EluGrad", op_of("EluGrad"), [G, X], lambda g, y: g * np.where(y < 0, y + 1, 1), FLOATS, grad=True),
    OpCase(
        "Selu",
        nn.selu,
        [X],
        lambda x: SCALE * np.where(x > 0, x, ALPHA * (np.exp(x) - 1)),
        FLOATS,
        grad=True,
        rtol=1e-4,
    ),
    OpCase(
        "SeluGrad",
        op_of("SeluGrad"),
        [G, X],
        lambda g, y: g * np.where(y < 0, y + SCALE * ALPHA, SCALE),
        FLOATS,
        grad=True,
    ),
    OpCase("Softplus", nn.softplus, [X], lambda x: np.logaddexp(0, x), FLOATS, grad=True),
    OpCase(
        "Softplus",
        nn.softplus,
        [np.array([-1000.0, -50.0, 50.0, 1000.0])],
        lambda x: np.logaddexp(0, x),
        ("float32", "float64"),
        label="far out",
    ),
    OpCase("SoftplusGrad", op_of("SoftplusGrad"), [G, X], lambda g, x: g * _sigmoid(x), FLOATS, grad=True),
    OpCase("Softsign", nn.softsign, [X], lambda x: x / (1 + np.abs(x)), FLOATS, grad=True),
    OpCase("SoftsignGrad", op_of("SoftsignGrad"), [G, X], lambda g, x: g / (1 + np.abs(x)) ** 2, FLOATS, grad=True),
    OpCase("Erf", nn.gelu, [X], lambda x: x * NORMAL_CDF(x), FLOATS, grad=True, label="gelu"),
    OpCase(
        "Tanh",
        lambda x: nn.gelu(x, approximate=True),
        [X],
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ("float32", "float64"),
        grad=True,
        label="gelu approximate",
    ),
    OpCase("Sigmoid", nn.swish, [X], lambda x: x * _sigmoid(x), FLOATS, grad=True, label="swish", rtol=1e-4),
    OpCase(
        "Sigmoid",
        lambda x: nn.swish(x, beta=1.5),
        [X],
        lambda x: x * _sigmoid(1.5 * x),
        grad=True,
        label="swish beta",
    ),
    OpCase(
        "Softplus",
        nn.log_sigmoid,
        [real(4, low=-90, high=90)],
        lambda x: scipy.special.log_expit(x),
        ("float32", "float64"),
        grad=True,
        label="log sigmoid",
    ),
    OpCase(
        "Relu",
        nn.crelu,
        [real(2, 3)],
        lambda x: np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], -1),
        grad=True,
        label="crelu",
        unknown=("dims",),
    ),
]


def _activation_details() -> None:
    x = np.array([np.nan, -np.inf, 0.0, np.inf], np.float32)
    nan_stays = [f(x) for f in (nn.relu, nn.relu6, nn.elu, nn.selu, nn.softplus, nn.softsign)]
    for value in interpreted(nan_stays):
        assert np.isnan(value[0])
        assert value.dtype == np.float32
    names = [nn.relu(x, name="r"), nn.gelu(x), nn.swish(x), nn.leaky_relu(x), nn.log_sigmoid(x)]
    assert [t.op.name for t in names] == ["r", "Gelu", "swish", "LeakyRelu", "LogSigmoid"]
    assert nn.leaky_relu(constant([1, -1])).dtype.name == "float32"
    assert activations.silu is activations.swish
    with pytest.raises(TypeError, match="float"):
        nn.gelu(constant([1, 2]))
    with pytest.raises(TypeError, match="attr alpha must be a float"):
        get_default_graph().create("LeakyRelu", (constant(1.0),), {"alpha": "0.2"})


# --- softmax and losses -------------------------------------------------------------------------------------

LOGITS = real(4, 5)
PROBABILITIES = scipy.special.softmax(real(4, 5, seed=3), -1)
LABELS = index(1, 0, 4, 1)


def _cross_entropy(logits: Any, labels: Any, axis: int = -1) -> Any:
    return -np.sum(labels * scipy.special.log_softmax(logits, axis), axis)


def _backprop(logits: Any, labels: Any) -> Any:
    return scipy.special.softmax(logits, -1) * np.sum(labels, -1, keepdims=True) - labels


def _one_hot(labels: Any, classes: int) -> Any:
    return np.eye(classes)[labels]


def _logistic(x: Any, z: Any, weight: float = 1.0) -> Any:
    return -weight * z * np.log(_sigmoid(x)) - (1 - z) * np.log(_sigmoid(-x))


def _both(op: str) -> Any:
    return lambda logits, labels: make(op, (logits, labels)).outputs


SOFTMAX = [
    OpCase("Softmax", nn.softmax, [LOGITS], lambda x: scipy.special.softmax(x, -1), FLOATS, grad=True),
    OpCase("Softmax", nn.softmax, [real(2, 3, 4)], lambda x: scipy.special.softmax(x, -1), label="rank 3"),
    OpCase("Softmax", nn.softmax, [real(5)], lambda x: scipy.special.softmax(x), grad=True, label="vector"),
    *(
        OpCase(
            op,
            lambda x, f=f, axis=axis: f(x, axis=axis),
            [real(2, 3, 4)],
            lambda x, g=g, axis=axis: g(x, axis),
            grad=True,
            unknown=("dims",),
            label=f"axis {axis}",
        )
        for axis in (0, 1, -2, 2)
        for op, f, g in (
            ("Softmax", nn.softmax, scipy.special.softmax),
            ("LogSoftmax", nn.log_softmax, scipy.special.log_softmax),
        )
    ),
    OpCase(
        "Softmax",
        nn.softmax,
        [np.array([[1e4, 0.0, -np.inf], [-3e4, -3e4, -3e4]])],
        lambda x: scipy.special.softmax(x, -1),
        FLOATS,
        label="far out",
    ),
    OpCase("LogSoftmax", nn.log_softmax, [LOGITS], lambda x: scipy.special.log_softmax(x, -1), FLOATS, grad=True),
    OpCase(
        "SoftmaxCrossEntropyWithLogits",
        _both("SoftmaxCrossEntropyWithLogits"),
        [LOGITS, PROBABILITIES],
        lambda x, y: [_cross_entropy(x, y), _backprop(x, y)],
        FLOATS,
        grad=True,
    ),
    OpCase(
        "SoftmaxCrossEntropyWithLogits",
        _both("SoftmaxCrossEntropyWithLogits"),
        [real(2, 3, 4), np.abs(real(2, 3, 4, seed=5))],
        lambda x, y: [_cross_entropy(x, y), _backprop(x, y)],
        grad=True,
        label="labels that do not sum to 1",
        rtol=1e-4,
    ),
    OpCase(
        "SoftmaxCrossEntropyWithLogits",
        lambda x, y: nn.softmax_cross_entropy_with_logits_v2(y, x, axis=0),
        [real(3, 2, 4), scipy.special.softmax(real(3, 2, 4, seed=5), 0)],
        lambda x, y: _cross_entropy(x, y, 0),
        grad=True,
        unknown=("dims",),
        label="axis 0",
    ),
    OpCase(
        "SparseSoftmaxCrossEntropyWithLogits",
        _both("SparseSoftmaxCrossEntropyWithLogits"),
        [LOGITS, LABELS],
        lambda x, y: [_cross_entropy(x, _one_hot(y, 5)), _backprop(x, _one_hot(y, 5))],
        FLOATS,
        grad=True,
    ),
    OpCase(
        "SparseSoftmaxCrossEntropyWithLogits",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x),
        [real(2, 3, 4), np.array([[0, 1, 3], [3, 2, 2]], np.int64)],
        lambda x, y: _cross_entropy(x, _one_hot(y, 4)),
        grad=True,
        label="rank 3",
    ),
    OpCase(
        "SparseSoftmaxCrossEntropyWithLogits",
        lambda x, y: nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x),
        [real(4), np.array(2, np.int32)],
        lambda x, y: _cross_entropy(x, _one_hot(y, 4)),
        grad=True,
        label="one row",
    ),
    OpCase(
        "Log1p",
        lambda x, z: nn.sigmoid_cross_entropy_with_logits(labels=z, logits=x),
        [real(4, 5), real(4, 5, low=0.1, high=0.9)],
        _logistic,
        FLOATS,
        grad=True,
        label="sigmoid cross entropy",
        rtol=1e-4,
    ),
    OpCase(
        "Log1p",
        lambda x, z: nn.weighted_cross_entropy_with_logits(z, x, 2.5),
        [real(4, 5), real(4, 5, low=0.1, high=0.9)],
        lambda x, z: _logistic(x, z, 2.5),
        ("float32", "float64"),
        grad=True,
        label="weighted cross entropy",
    ),
]


def _losses_far_out() -> None:
    x = np.array([[1000.0, -1000.0, -np.inf], [0.0, 0.0, 0.0]], np.float32)
    y = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    dense = nn.softmax_cross_entropy_with_logits_v2(y, x)
    sparse = nn.sparse_softmax_cross_entropy_with_logits(labels=[1, 0], logits=x)
    values = interpreted([dense, sparse, nn.sigmoid_cross_entropy_with_logits(labels=y[:, :2], logits=x[:, :2])])
    np.testing.assert_array_equal(values[0], [0, 0])
    np.testing.assert_allclose(values[1], [2000, np.log(3)], rtol=1e-6)
    np.testing.assert_allclose(values[2], [[0, 0], [np.log(2)] * 2], rtol=1e-6)
    # At a logit of exactly 0 the slope is that of the smooth function.
    zero = constant([0.0])
    loss = nn.sigmoid_cross_entropy_with_logits(labels=[0.25], logits=zero)
    np.testing.assert_allclose(interpreted(gradients(loss, zero)[0]), [0.25])


def _labels_of_another_form() -> None:
    """Labels of TensorFlow 1's programs: `float64` one-hot vectors of NumPy, whole numbers, an axis too many."""
    x = np.array([[1.0, 2.0], [3.0, 1.0]], np.float32)
    y = np.array([[0.0, 1.0], [1.0, 0.0]])
    for labels in (y, y.astype(np.int32), [y], constant(y, "float64"), constant(y, "float64")[None]):
        both = [nn.softmax_cross_entropy_with_logits_v2(labels, x)]
        both.append(nn.softmax_cross_entropy_with_logits(labels=labels, logits=x))
        for value in interpreted(both):
            np.testing.assert_allclose(value, [0.31326166, 0.12692805], rtol=1e-6)


def _loss_names() -> None:
    x, y, k = constant([[1.0, 2.0]], name="x"), constant([[0.0, 1.0]], name="y"), constant([1], name="k")
    a = nn.softmax_cross_entropy_with_logits(labels=y, logits=x)
    b = nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=x)
    c = nn.sparse_softmax_cross_entropy_with_logits(labels=k, logits=x)
    d = nn.sparse_softmax_cross_entropy_with_logits(labels=k, logits=x, name="xent")
    e = nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x)
    assert [t.op.name for t in (a, b, c, d, e)] == [
        "softmax_cross_entropy_with_logits_sg",
        "softmax_cross_entropy_with_logits",
        "SparseSoftmaxCrossEntropyWithLogits/SparseSoftmaxCrossEntropyWithLogits",
        "xent/xent",
        "logistic_loss",
    ]
    assert gradients(a, [y]) == [None]
    assert gradients(b, [y])[0] is not None


def _loss_errors() -> None:
    x, k = placeholder("float32", [None, 3]), placeholder("int64", [None])
    loss = nn.sparse_softmax_cross_entropy_with_logits(labels=k, logits=x)
    rows = np.zeros((2, 3))
    for bad in (3, -1):
        with pytest.raises(InvalidArgumentError, match=rf"label value of {bad} .* valid range of \[0, 3\)"):
            interpreted(loss, {x: rows, k: [0, bad]})
    with pytest.raises(InvalidArgumentError, match="without its last dimension"):
        interpreted(loss, {x: rows, k: [0]})
    with pytest.raises(ValueError, match="named arguments"):
        nn.sparse_softmax_cross_entropy_with_logits(x, k)
    with pytest.raises(ValueError, match="Both labels and logits"):
        nn.sigmoid_cross_entropy_with_logits(logits=x)
    with pytest.raises(ValueError, match="one dimension less than logits"):
        nn.sparse_softmax_cross_entropy_with_logits(labels=constant([[1, 2, 0]]), logits=x)
    with pytest.raises(TypeError, match="labels must be int32 or int64, not float32"):
        nn.sparse_softmax_cross_entropy_with_logits(labels=constant([1.0]), logits=x)
    with pytest.raises(ValueError, match="not compatible"):
        nn.softmax_cross_entropy_with_logits_v2(labels=constant([[1.0, 0.0]]), logits=x)
    with pytest.raises(ValueError, match="must have the same shape"):
        nn.sigmoid_cross_entropy_with_logits(labels=constant([[1.0, 0.0]]), logits=x)
    with pytest.raises(ValueError, match="axis 2 does not exist"):
        nn.softmax(x, axis=2)
    with pytest.raises(ValueError, match="rank of .* must be known"):
        softmax.softmax(placeholder("float32"), axis=0)
    with pytest.raises(ValueError, match="at least rank 1"):
        nn.softmax(constant(1.0))


# --- dropout ------------------------------------------------------------------------------------------------


def _dropout() -> None:
    x = np.arange(1, 10_001, dtype=np.float32).reshape(100, 100)
    forms = [
        nn.dropout(x, 0.75, seed=1),
        nn.dropout(x, rate=0.25, seed=2),
        nn.dropout(x, rate=constant(0.25), seed=3),
        nn.dropout(x, keep_prob=constant(0.75), seed=4),
        nn.dropout(constant(x, "float64"), rate=0.25, seed=5),
    ]
    run = Interpreter(get_default_graph(), check=True).run
    for value in run(forms):
        kept = value != 0
        np.testing.assert_allclose(value[kept], (x / 0.75)[kept], rtol=1e-6)
        assert stats.binomtest(int(kept.sum()), 10_000, 0.75).pvalue > 1e-3
    assert (run(forms[0]) != run(forms[0])).any()
    for dtype in ("float16", "bfloat16"):
        small = nn.dropout(constant(np.ones(100_000), dtype), rate=0.001, seed=6)
        assert small.dtype.name == dtype
        assert stats.binomtest(int((run(small) == 0).sum()), 100_000, 0.001).pvalue > 1e-3


def _dropout_noise_shape() -> None:
    x = placeholder("float32", [None, 4])
    feeds = {x: np.ones((500, 4))}
    run = Interpreter(get_default_graph(), check=True).run
    rows = run(nn.dropout(x, rate=0.5, noise_shape=[None, 1], seed=1), feeds)
    assert (rows == rows[:, :1]).all()
    assert 200 < (rows[:, 0] > 0).sum() < 300
    columns = run(nn.dropout(x, rate=0.5, noise_shape=[1, None], seed=3), feeds)
    assert (columns == columns[:1]).all()
    shaped = run(nn.dropout(x, rate=0.5, noise_shape=constant([500, 1]), seed=1), feeds)
    assert (shaped == shaped[:, :1]).all()
    for shorter in ([4], [1]):  # broadcast as any shape is
        found = run(nn.dropout(x, rate=0.5, noise_shape=shorter, seed=5), feeds)
        assert (found == found[:1]).all()
    assert (found == found[0, 0]).all()
    with pytest.raises(ValueError, match="one size for each of the 2 dimensions"):
        nn.dropout(x, rate=0.5, noise_shape=[None])
    for larger in ([7], [2, 500, 4]):
        with pytest.raises(ValueError, match="broadcast|compatible"):
            nn.dropout(x, rate=0.5, noise_shape=larger)
    for rate in ([0.1, 0.2], placeholder("float32", [2])):
        with pytest.raises(ValueError, match="one number"):
            nn.dropout(x, rate=rate)
        with pytest.raises(ValueError, match="one number"):
            nn.dropout(x, keep_prob=rate)


def _dropout_gradient() -> None:
    x = constant(np.full((50, 50), 2.0))
    y = nn.dropout(x, rate=0.5, seed=1)
    value, grad = interpreted([y, gradients(y, [x])[0]])
    np.testing.assert_array_equal(grad, value / 2)
    assert set(np.unique(grad)) == {0.0, 2.0}
    # A dropped element is gone whatever it was.
    wild = nn.dropout(constant(np.full(100, np.inf)), rate=0.5, seed=1)
    assert not np.isnan(interpreted(wild)).any()


def _dropout_errors() -> None:
    x = constant([1.0])
    assert nn.dropout(x, 1.0) is x
    assert nn.dropout(x, rate=0) is x
    assert nn.dropout(x, rate=0.5).op.name == "dropout_2"
    with pytest.raises(ValueError, match="Cannot specify both 'rate' and 'keep_prob'"):
        nn.dropout(x, 0.5, rate=0.5)
    with pytest.raises(ValueError, match="must provide a rate"):
        nn.dropout(x)
    with pytest.raises(ValueError, match=r"keep_prob must be .* in the range \(0, 1\], got 0"):
        nn.dropout(x, 0)
    with pytest.raises(ValueError, match=r"rate must be .* in the range \[0, 1\), got 1.0"):
        nn.dropout(x, rate=1.0)
    with pytest.raises(ValueError, match="Got a int32 tensor instead"):
        nn.dropout(constant([1]), 0.5)


def _costs() -> None:
    with Graph().as_default():
        x = placeholder("float32", [10, 20])
        loss = nn.softmax_cross_entropy_with_logits_v2(x, x)
        assert loss.op.opdef.cost_of(loss.op).flops >= 200 * 10  # an exponential per logit
        assert loss.op.opdef.cost_of(loss.op).bytes == 4 * (200 + 200 + 10 + 200)
        summed = nn.l2_loss(x)
        assert summed.op.opdef.cost_of(summed.op).flops == 400


CASES = [
    *ACTIVATIONS,
    *SOFTMAX,
    *(
        ScriptCase((), script, script.__name__.strip("_").replace("_", " "))
        for script in (
            _activation_details,
            _losses_far_out,
            _labels_of_another_form,
            _loss_names,
            _loss_errors,
            _dropout,
            _dropout_noise_shape,
            _dropout_gradient,
            _dropout_errors,
            _costs,
        )
    ),
]
