"""Rows for reductions, running sums, positions of extremes, and what is made of them."""

from __future__ import annotations

import functools
import itertools
import math
import operator

import numpy as np
from op_table import FLOATS, INTEGERS, NUMBERS, OpCase, index, real, whole

from dovetail.graph.core.build import make
from dovetail.graph.ops.math import clip, reduce as r, scan as s, statistics as t

BOOLS = np.array([[True, False, True], [False, False, False]])


def fold(f, x, axes, keep=False):
    """A reduction by a Python loop over plain numbers: nothing of NumPy's own reductions."""
    x = np.asarray(x)
    axes = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in np.atleast_1d(axes))
    rest = [range(1) if i in axes else range(d) for i, d in enumerate(x.shape)]
    out = np.empty([len(q) for q in rest], object)
    for at in itertools.product(*rest):
        picked = tuple(slice(None) if i in axes else at[i] for i in range(x.ndim))
        out[at] = f(np.asarray(x[picked]).reshape(-1).tolist())
    values = np.array(out.tolist()).reshape(out.shape)
    return values if keep else values.reshape([len(q) for i, q in enumerate(rest) if i not in axes])


def _product(values):
    return functools.reduce(operator.mul, values, 1)


def _mean(values):
    return sum(values) / len(values)


def _rows(op, build, f, dtypes, grad=True, x=None):
    x = real(2, 3, 2) if x is None else x
    return [
        OpCase(op, build, [x], lambda v: fold(f, v, None), dtypes, grad, label="all"),
        OpCase(op, lambda v: build(v, 1), [x], lambda v: fold(f, v, 1), grad=grad, label="axis"),
        OpCase(
            op,
            lambda v: build(v, -1, keepdims=True),
            [x],
            lambda v: fold(f, v, 2, True),
            grad=grad,
            label="last-kept",
        ),
        # A rank that nobody knows leaves the gradient of a product without its permutation.
        OpCase(op, lambda v: build(v, [0, -1]), [x], lambda v: fold(f, v, (0, 2)), grad=grad, label="axes"),
        OpCase(op, lambda v: build(v, []), [x], lambda v: v * 1.0, grad=grad, label="no-axes"),
        OpCase(
            op,
            lambda v: build(v, reduction_indices=[1], keep_dims=True),
            [x],
            lambda v: fold(f, v, 1, True),
            label="old-names",
        ),
        OpCase(
            op,
            build,
            [x, index([0, 2])],
            lambda v, _: fold(f, v, (0, 2)),
            grad=grad,
            dynamic=True,
            label="axes-at-run-time",
        ),
        OpCase(op, build, [x[0, 0, 0]], lambda v: v * 1.0, grad=grad, label="scalar"),
    ]


def _product_rows():
    needs_rank = {
        "all": ("dims",),
        "axis": ("dims",),
        "last-kept": ("dims",),
        "axes": ("dims",),
        "no-axes": ("dims",),
        "scalar": (),
    }
    for row in _rows("Prod", r.reduce_prod, _product, NUMBERS, x=_DIGITS):
        grad = row.label not in ("axes-at-run-time",) and bool(row.grad)
        unknown = needs_rank.get(row.label, row.unknown) if grad else row.unknown
        yield OpCase(row.op, row.build, row.inputs, row.oracle, row.dtypes, grad, unknown, row.dynamic, label=row.label)


_DIGITS = np.array([1.0, 2, 3, 1, 2, 0, 1, 1, 2, 1, 3, 2]).reshape(2, 3, 2)


def _running(f, x, axis, exclusive=False, reverse=False, neutral=0):
    def line(values):
        values = list(values)[::-1] if reverse else list(values)
        out = list(itertools.accumulate(values, f))
        out = [neutral, *out[:-1]] if exclusive else out
        return np.array(out[::-1] if reverse else out)

    return np.apply_along_axis(line, axis, x)


def _scans(op, build, f, neutral, x):
    return [
        OpCase(op, lambda v: build(v, 1), [x], lambda v: _running(f, v, 1), NUMBERS, True, label="axis"),
        OpCase(op, build, [x], lambda v: _running(f, v, 0), grad=True, label="default"),
        OpCase(
            op,
            lambda v: build(v, -1, exclusive=True),
            [x],
            lambda v: _running(f, v, 1, True, False, neutral),
            grad=True,
            label="exclusive",
        ),
        OpCase(
            op,
            lambda v: build(v, 1, reverse=True),
            [x],
            lambda v: _running(f, v, 1, False, True, neutral),
            grad=True,
            label="reverse",
        ),
        OpCase(
            op,
            lambda v: build(v, 1, True, True),
            [x],
            lambda v: _running(f, v, 1, True, True, neutral),
            grad=True,
            label="both",
        ),
        OpCase(
            op,
            build,
            [x, np.array(1, np.int32)],
            lambda v, _: _running(f, v, 1),
            grad=True,
            label="axis-at-run-time",
        ),
    ]


def _position(best, x, axis):
    return np.apply_along_axis(lambda line: list(line).index(best(line)), axis, x)


def _norm(p, values):
    return sum(abs(v) ** p for v in values) ** (1 / p)


def _logsumexp(values):
    return math.log(math.fsum(math.exp(v) for v in values))


def _variance(values):
    mean = _mean(values)
    return _mean([(v - mean) ** 2 for v in values])


def _length(*arrays):
    return math.sqrt(math.fsum(float(e) ** 2 for a in arrays for e in a.ravel()))


def _clip_both(v, w):
    clipped, norm = clip.clip_by_global_norm([v, None, w], 1.5)
    assert clipped[1] is None
    return [clipped[0], clipped[2], norm]


def _clipped_both(v, w):
    norm = _length(v, w)
    return [v * 1.5 / norm, w * 1.5 / norm, norm]


X = real(2, 3, 2)
M = real(3, 4)

CASES = [
    *_rows("Sum", r.reduce_sum, sum, FLOATS),
    *_rows("Mean", r.reduce_mean, _mean, FLOATS),
    *_rows("Max", r.reduce_max, max, FLOATS),
    *_rows("Min", r.reduce_min, min, FLOATS),
    *_product_rows(),
    OpCase("Sum", r.reduce_sum, [whole(3, 4, low=0)], lambda v: fold(sum, v, None), INTEGERS, label="integers"),
    OpCase("Max", r.reduce_max, [whole(3, 4, low=0)], lambda v: fold(max, v, None), INTEGERS, label="integers"),
    OpCase("Min", r.reduce_min, [whole(3, 4, low=0)], lambda v: fold(min, v, None), INTEGERS, label="integers"),
    OpCase(
        "Mean",
        r.reduce_mean,
        [np.array([-3.0, -2, 0])],
        lambda v: np.array(-1),
        ("int8", "int32", "int64"),
        label="integers-towards-0",
    ),
    OpCase("Mean", r.reduce_mean, [np.full(400, 100.0)], lambda v: np.array(100), INTEGERS, label="integers-wide"),
    OpCase(
        "Mean",
        lambda v: r.reduce_mean(v, 1),
        [np.array([[-128.0, -128, -127], [-3, 0, 127]])],
        lambda v: np.array([-127, 41]),
        ("int8", "int16", "int32", "int64"),
        label="integers-lowest",
    ),
    OpCase("Sum", r.reduce_sum, [np.full(4096, 0.1)], lambda v: v[0] * 4096.0, FLOATS, label="long", rtol=1e-5),
    OpCase(
        "Mean",
        r.reduce_mean,
        [np.full(70000, 2.0)],
        lambda v: np.array(2.0),
        ("float16", "bfloat16"),
        label="long",
    ),
    OpCase(
        "Sum",
        lambda v: r.reduce_sum(v, 1),
        [np.zeros((2, 0))],
        lambda v: np.zeros(2),
        grad=True,
        label="empty",
    ),
    OpCase("Mean", lambda v: r.reduce_mean(v, 1), [np.zeros((2, 0))], lambda v: np.full(2, np.nan), label="empty"),
    OpCase("Max", lambda v: r.reduce_max(v, 1), [np.zeros((2, 0))], lambda v: np.full(2, -np.inf), label="empty"),
    OpCase(
        "Min",
        lambda v: r.reduce_min(v, 1, keepdims=True),
        [np.zeros((2, 0))],
        lambda v: np.full((2, 1), np.inf),
        label="empty",
    ),
    OpCase(
        "Max",
        lambda v: r.reduce_max(v, 1),
        [np.zeros((2, 0))],
        lambda v: np.full(2, -(2**31)),
        ("int32",),
        label="empty-integers",
    ),
    OpCase(
        "Prod",
        lambda v: r.reduce_prod(v, 1),
        [np.array([[2.0, 0, 3], [0, 5, 0]])],
        lambda v: np.zeros(2),
        grad=True,
        unknown=("dims",),
        label="zeros",
    ),
    OpCase("Any", r.reduce_any, [BOOLS], lambda v: fold(any, v, None)),
    OpCase(
        "Any",
        lambda v: r.reduce_any(v, 1, keepdims=True),
        [BOOLS],
        lambda v: fold(any, v, 1, True),
        label="kept",
    ),
    OpCase("All", r.reduce_all, [BOOLS], lambda v: fold(all, v, None)),
    OpCase("All", lambda v: r.reduce_all(v, [0]), [BOOLS], lambda v: fold(all, v, 0), label="axis"),
    *_scans("Cumsum", s.cumsum, operator.add, 0, whole(3, 4, low=0, high=4)),
    *_scans("Cumprod", s.cumprod, operator.mul, 1, whole(3, 4, low=1, high=4)),
    OpCase("Cumsum", s.cumsum, [np.zeros((0, 2))], lambda v: v, label="empty"),
    OpCase("ArgMax", s.argmax, [whole(4, 3, low=0)], lambda v: _position(max, v, 0), NUMBERS),
    OpCase(
        "ArgMax",
        lambda v: s.argmax(v, -1, output_type="int32"),
        [real(4, 3)],
        lambda v: _position(max, v, 1),
        label="last",
    ),
    OpCase("ArgMax", lambda v: s.argmax(v, dimension=1), [BOOLS], lambda v: np.array([0, 0]), label="bool"),
    OpCase(
        "ArgMax",
        s.argmax,
        [real(4, 3), np.array(1, np.int64)],
        lambda v, _: _position(max, v, 1),
        dynamic=True,
        label="axis-at-run-time",
    ),
    OpCase("ArgMin", s.argmin, [whole(4, 3, low=0)], lambda v: _position(min, v, 0), NUMBERS),
    # --- what is made of them
    OpCase("Sum", t.reduce_logsumexp, [X], lambda v: fold(_logsumexp, v, None), FLOATS, True, label="logsumexp"),
    OpCase(
        "Sum",
        lambda v: t.reduce_logsumexp(v, 1, keepdims=True),
        [X],
        lambda v: fold(_logsumexp, v, 1, True),
        grad=True,
        label="logsumexp-kept",
    ),
    OpCase(
        "Sum",
        lambda v: t.reduce_logsumexp(v, [0, 2]),
        [X],
        lambda v: fold(_logsumexp, v, (0, 2)),
        grad=True,
        label="logsumexp-axes",
    ),
    OpCase(
        "Sum",
        t.reduce_logsumexp,
        [np.array([1000.0, 1000])],
        lambda v: v[0] + math.log(2),
        label="logsumexp-large",
    ),
    OpCase(
        "Sum",
        t.reduce_logsumexp,
        [np.array([-np.inf, -np.inf])],
        lambda v: v[0],
        label="logsumexp-of-nothing",
    ),
    OpCase("Mean", t.reduce_variance, [X], lambda v: fold(_variance, v, None), grad=True, label="variance"),
    OpCase(
        "Mean",
        lambda v: t.reduce_variance(v, 0, True),
        [X],
        lambda v: fold(_variance, v, 0, True),
        grad=True,
        label="variance-kept",
    ),
    OpCase(
        "Mean",
        lambda v: t.reduce_std(v, 1),
        [X],
        lambda v: fold(_variance, v, 1) ** 0.5,
        grad=True,
        label="std",
    ),
    OpCase(
        "Sum",
        lambda v: t.reduce_euclidean_norm(v, 1),
        [X],
        lambda v: fold(functools.partial(_norm, 2), v, 1),
        grad=True,
        label="euclidean",
    ),
    OpCase(
        "Sum",
        lambda v: t.count_nonzero(v, 1),
        [np.array([[0.0, 1, 2], [0, 0, 3]])],
        lambda v: np.array([2, 1]),
        NUMBERS,
        label="count",
    ),
    OpCase("Sum", t.count_nonzero, [BOOLS], lambda v: np.array(2), label="count-bool"),
    OpCase("Sum", t.count_nonzero, [np.array([b"", b"a"], object)], lambda v: np.array(1), label="count-strings"),
    *[
        OpCase(
            "Sum",
            lambda v, order=order: t.norm(v, order, axis=1),
            [M],
            lambda v, p=p: fold(functools.partial(_norm, p), v, 1),
            grad=True,
            label=f"norm-{order}",
        )
        for order, p in [("euclidean", 2), (1, 1), (2, 2), (3, 3)]
    ],
    OpCase(
        "Max",
        lambda v: t.norm(v, np.inf),
        [M],
        lambda v: fold(lambda w: max(map(abs, w)), v, None),
        grad=True,
        label="norm-inf",
    ),
    OpCase(
        "Sum",
        lambda v: t.norm(v, axis=(0, 1)),
        [M],
        lambda v: fold(functools.partial(_norm, 2), v, None),
        grad=True,
        label="frobenius",
    ),
    OpCase(
        "Max",
        lambda v: t.norm(v, 1, axis=[0, 1]),
        [M],
        lambda v: fold(max, fold(sum, abs(v), 0), None),
        grad=True,
        label="matrix-norm-1",
    ),
    OpCase(
        "Max",
        lambda v: t.norm(v, np.inf, axis=[0, 1], keepdims=True),
        [M],
        lambda v: fold(max, fold(sum, abs(v), 1), None).reshape(1, 1),
        grad=True,
        label="matrix-norm-inf",
    ),
    # --- clipping
    OpCase(
        "Minimum",
        lambda v: clip.clip_by_value(v, -1.0, 0.5),
        [M],
        lambda v: np.array([[min(max(e, -1.0), 0.5) for e in q] for q in v]),
        grad=True,
        label="clip",
    ),
    OpCase(
        "Maximum",
        clip.clip_by_value,
        [M, real(4) - 2, real(4) + 2],
        lambda v, lo, hi: np.where(v < lo, lo, np.where(v > hi, hi, v)),
        grad=True,
        label="clip-tensors",
    ),
    OpCase(
        "Sum",
        lambda v: clip.clip_by_norm(v, 1.0),
        [M],
        lambda v: v / fold(functools.partial(_norm, 2), v, None),
        grad=True,
        label="clip-by-norm",
    ),
    OpCase("Sum", lambda v: clip.clip_by_norm(v, 100.0), [M], lambda v: v, grad=True, label="clip-by-larger-norm"),
    OpCase(
        "Sum",
        lambda v: clip.clip_by_norm(v, 1.0, axes=1),
        [M],
        lambda v: v / np.maximum(1, fold(functools.partial(_norm, 2), v, 1, True)),
        grad=True,
        label="clip-by-norm-axis",
    ),
    OpCase("Sum", lambda v: clip.clip_by_norm(v, 2.0), [np.zeros(3)], lambda v: v, label="clip-by-norm-of-0"),
    OpCase("AddN", _clip_both, [M, real(3)], _clipped_both, grad=True, label="clip-by-global-norm"),
    OpCase(
        "AddN",
        lambda v, w: clip.global_norm([v, None, w]),
        [M, real(3)],
        lambda v, w: _length(v, w),
        grad=True,
        label="global-norm",
    ),
    # --- gradients of broadcasting at run time
    OpCase(
        "BroadcastGradientArgs",
        lambda a, b: list(make("BroadcastGradientArgs", (a, b)).outputs),
        [index([2, 1, 3]), index([4, 1])],
        lambda a, b: [[1], [0, 2]],
        dynamic=True,
    ),
    OpCase(
        "BroadcastGradientArgs",
        lambda a, b: list(make("BroadcastGradientArgs", (a, b)).outputs),
        [index(np.zeros(0)), index([4, 1])],
        lambda a, b: [[0, 1], [1]],
        dynamic=True,
        label="scalar",
    ),
]
