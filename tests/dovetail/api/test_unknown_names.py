"""Names that there are not: the error says what to use."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.api.unknown_names import FOREIGN, OF_TENSORS

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("dt.relu", "use dt.nn.relu"),
        ("dt.tensor", "use dt.constant"),
        ("dt.Sesion", "did you mean dt.Session?"),
        ("dt.global_variables_initialiser", "did you mean dt.global_variables_initializer?"),
        ("dt.nn.Linear", "use dt.layers.dense"),
        ("dt.nn.rellu", "did you mean dt.nn.relu?"),
        ("dt.losses.mse", "use dt.losses.mean_squared_error"),
        ("dt.random.norml", "did you mean dt.random.normal?"),
        ("dt.train.Adam", "use dt.train.AdamOptimizer"),
        ("dt.data.Datset", "did you mean dt.data.Dataset?"),
        ("dt.train.Checkpoint", "dt.train.Saver"),
        ("dt.tril", "use dt.linalg.band_part(x, -1, 0)"),
        ("dt.jnp", "use NumPy for arrays"),
        ("dt.Module", "use a function with dt.variable_scope"),
        ("dt.random.PRNGKey", "use dt.random.set_random_seed"),
        ("dt.layers.embedding", "use dt.nn.embedding_lookup("),
        ("dt.layers.linear", "use dt.layers.dense(x, units)"),
        ("dt.nn.multi_head_attention", "use dt.nn.softmax(dt.matmul("),
        ("dt.constant([1.0]).requires_grad_", "use dt.gradients"),
        ("dt.constant([1.0]).add_", "use a new tensor"),
        (
            "dt.constant([1.0]).flatten(1)",
            "dt.layers.flatten(tensor), which keeps the first axis, or tensor.reshape([-1])",
        ),
        ("dt.constant([1.0]).cpu()", "session.run, return NumPy arrays"),
        ("dt.no_grad", "use nothing in its place"),
        ("dt.nn.Flatten", "use dt.layers.flatten(x)"),
        ("dt.train.AdamW", "use dt.train.AdamWOptimizer(rate, weight_decay=...)"),
        ("dt.optim.AdamW", "dt.train.AdamWOptimizer"),
        ("dt.compile(abs).to", "use dt.device in the function"),
        ("dt.compile(abs).explain", r"use plan(...).explain(node)"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_to_use(expression: str, said: str):
    with pytest.raises(AttributeError) as e:
        eval(expression)
    assert said in str(e.value) and "has no attribute" in str(e.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: dt.train.AdamOptimizer(lr=0.1), r"AdamOptimizer\(\) has no argument 'lr': use learning_rate"),
        (lambda x: dt.train.AdamOptimizer(0.1, betas=(0.9, 0.99)), "use beta1 and beta2"),
        (lambda x: dt.train.MomentumOptimizer(0.1, momentun=0.9), "did you mean momentum"),
        (lambda x: x.sum(dim=1), r"sum\(\) has no argument 'dim': use axis"),
        (lambda x: x.mean(axis=1, keepdim=True), "use keepdims"),
        (lambda x: dt.reduce_max(x, dim=1), "use axis"),
        (lambda x: dt.concat([x, x], dim=1), "use axis"),
        (lambda x: dt.sum(x, quux=1), "its arguments are input_tensor, axis, "),
        (lambda x: dt.sum(), "input_tensor"),  # Python's own error stays
        (lambda x: dt.nn.conv2d(x, x, stride=2), "use strides"),
        (lambda x: dt.one_hot([1], num_classes=3), "use depth"),
        (lambda x: dt.random_normal([2], std=1.0), "use stddev"),
        (lambda x: dt.layers.dense(x, 3, activaton=None), "did you mean activation"),
        (lambda x: dt.losses.mean_squared_error(label=x, predictions=x), "did you mean labels"),
        (
            lambda x: dt.metrics.accuracy(label=x, predictions=x),
            r"^accuracy\(\) has no argument 'label': did you mean labels",
        ),
        (lambda x: dt.metrics.auc(x, x, curves="PR"), "did you mean curve"),
        (lambda x: dt.keras.layers.Dropout(p=0.5), r"^Dropout\(\) has no argument 'p': use rate"),
        (lambda x: dt.keras.layers.Dense(10, bias=False), r"^Dense\(\) has no argument 'bias': use use_bias"),
        (lambda x: dt.keras.layers.LSTM(4, input_shap=(2, 3)), "did you mean input_shape"),  # passed on to the base
        (lambda x: dt.keras.optimizers.Adam(eps=1.0), r"^Adam\(\) has no argument 'eps': use epsilon"),
        (lambda x: dt.keras.Sequential().fit(x, x, epoch=2), "did you mean epochs"),
        (lambda x: dt.data.Dataset.range(5).shuffle(size=2), "did you mean buffer_size"),
        (lambda x: dt.get_variable("w", shp=[2]), "did you mean shape"),
        (lambda x: dt.sparse.retain(x, to_retin=x), "did you mean to_retain"),
        (lambda x: dt.image.central_crop(x, fraction=0.5), "did you mean central_fraction"),
        (lambda x: dt.place(x, clust=1), "did you mean cluster"),
        (lambda x: dt.Session(conf=1), r"^Session\(\) has no argument 'conf': did you mean config"),
        (lambda x: dt.ConfigProto(soft_placement=True), "did you mean allow_soft_placement"),
        (lambda x: dt.LocalCluster({"ps": 1}, timeout=1), "did you mean start_timeout_s"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_one_to_use(call: Any, said: str):
    with pytest.raises(TypeError, match=said):
        call(dt.constant(X))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("relu", r"use dt\.nn\.relu\(tensor\)"),
        ("mse_loss", r"use dt\.losses\.mean_squared_error\(labels, predictions\)"),
        ("unsqueeze", r"use dt\.expand_dims"),
        ("view", r"use tensor\.reshape"),
        ("astipe", r"did you mean astype\?"),
        ("numpy", "no value before the graph runs"),
        ("_private", "has no attribute '_private'$"),
    ],
)
def test_an_unknown_attribute_of_a_tensor_is_answered_with_the_one_to_use(name: str, said: str):
    for x in (dt.constant(X), dt.Variable(X)):
        with pytest.raises(AttributeError, match=said):
            getattr(x, name)


def test_a_public_module_lists_its_own_names_without_what_it_imports():
    for module in (dt.layers, dt.losses, dt.math, dt.train):
        names = dir(module)
        assert names == sorted(module.__all__) and not {"Any", "sys", "annotations"} & set(names)


def test_names_that_are_like_no_other_are_said_to_be_missing():
    for module in (dt, dt.nn, dt.math, dt.losses):
        assert not hasattr(module, "quuxification") and not hasattr(module, "__quux__")


@pytest.mark.parametrize("instead", sorted({*FOREIGN.values(), *OF_TENSORS.values()}))
def test_what_is_named_instead_exists(instead: str):
    for path in re.findall(r"dt(?:\.\w+)+", instead):
        eval(path)


def test_tensors_and_variables_have_the_commonest_methods_of_arrays():
    v = dt.Variable(X)
    x: Any
    for x in (dt.constant(X), v):
        found = [
            x.sum(), x.mean(0), x.max(axis=1, keepdims=True), x.min([0, 1]), x.T, x.reshape(3, 2), x.reshape([-1]), x.astype(dt.int32),
            np.sum(x, axis=1), np.mean(x), np.max(x, axis=0), x.sum(dtype=dt.float64), dt.sum(x), dt.mean(x, 1), dt.arange(3) + 1,
        ]  # fmt: skip
        expected = [
            X.sum(), X.mean(0), X.max(axis=1, keepdims=True), X.min(), X.T, X.reshape(3, 2), X.reshape(-1), X.astype(np.int32),
            X.sum(1), X.mean(), X.max(0), X.sum(dtype=np.float64), X.sum(), X.mean(1), np.arange(3, dtype=np.int32) + 1,
        ]  # fmt: skip
        assert x.ndim == np.ndim(x) == 2
        with dt.Session() as session:
            session.run(dt.global_variables_initializer())
            for a, b in zip(session.run(found), expected, strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype
        with pytest.raises(AttributeError, match="session.run"):
            _ = x.numpy()
        with pytest.raises(AttributeError, match=r"dt\.gradients"):
            x.backward()
        with pytest.raises(TypeError, match="out"):
            np.sum(x, out=np.zeros(()))
    with pytest.raises(ValueError, match="number of axes"):
        _ = dt.placeholder(dt.float32).ndim


def test_a_layer_of_the_user_may_take_what_it_likes():
    class Mine(dt.keras.layers.Layer):
        def __init__(self, **kwargs: Any) -> None:
            self.extra = kwargs.pop("extra", 0)
            super().__init__(**kwargs)

    assert Mine(extra=3, input_shape=(2,)).batch_input_shape == (None, 2)
    with pytest.raises(TypeError, match=r"Mine\(\) has no argument 'unknown'"):
        Mine(unknown=1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: dt.get_variable("a", 8, 8), r"one list: dt\.get_variable\('a', \[8, 8\]\)"),
        (lambda: dt.compile(abs, cluster="2 workers"), "'2 workers' is no cluster; write worker=2"),
        (lambda: dt.place(dt.constant(1.0), "1 ps, 2 workers"), "write ps=1,worker=2"),
        (lambda: dt.layers.dense(dt.zeros([4, 8]), 8, 16), r"the size of its output alone.*dense\(x, 16\)"),
        (
            lambda: dt.train.AdamOptimizer([dt.Variable(1.0)]),
            r"learning_rate must be a number.*minimize\(loss, var_list",
        ),
        (lambda: dt.concat(1, [dt.zeros([2]), dt.zeros([2])]), r"axis must be a number.*one list"),
        (lambda: dt.place(dt.constant(1.0), {"ps": 1}).explain("/job:ps"), r"is a device.*plan\.why_not"),
        (
            lambda: dt.losses.sparse_softmax_cross_entropy(np.eye(3, dtype=np.int32), dt.zeros([3, 3])),
            r"takes class numbers: pass dt\.argmax\(labels, axis=-1\), or use dt\.losses\.softmax_cross_entropy",
        ),
        (
            lambda: dt.nn.sparse_softmax_cross_entropy_with_logits(
                labels=np.eye(3, dtype=np.float32), logits=dt.zeros([3, 3])
            ),
            "For one probability per class use softmax_cross_entropy_with_logits",
        ),
        (
            lambda: dt.losses.softmax_cross_entropy([0, 1], dt.zeros([2, 3])),
            "For the numbers of the true classes use sparse_",
        ),
    ],
)
def test_arguments_in_the_form_of_another_library_are_answered_with_the_right_form(call: Any, said: str):
    with dt.Graph().as_default(), pytest.raises((TypeError, ValueError), match=said):
        call()
