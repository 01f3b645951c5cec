"""Copies into kept memory: against NumPy, for tensors large and small, in order and along strides."""

import numpy as np
import pytest
from region_calls import kernel_of

import dovetail as dt
from dovetail.codegen.cpu.backend import NumbaBackend


def copy_of(result: dt.Tensor, threads: int = 2):
    return kernel_of(NumbaBackend(threads=threads), result.op)


@pytest.mark.parametrize("shape", [(3, 4, 5), (40, 50, 60), (1, 1, 70000), (0, 4, 5)])
def test_reshape_of_what_lies_in_another_order(shape):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with dt.Graph().as_default():
        kernel = copy_of(dt.reshape(dt.placeholder(dt.float32, shape[::-1]), [-1] if x.size else [0]))
    given = x.transpose()
    target = np.array([-1] if x.size else [0], np.int32)
    np.testing.assert_array_equal(kernel(given, target), list(given.flat))
    np.testing.assert_array_equal(given, x.transpose())
    with pytest.raises(dt.errors.InvalidArgumentError, match="reshape"):
        kernel(given, np.array([7, 11]))


def test_reshape_of_what_is_in_order_is_a_view():
    x = np.zeros((400, 500), np.float32)
    with dt.Graph().as_default():
        kernel = copy_of(dt.reshape(dt.placeholder(dt.float32, x.shape), [-1]))
    assert np.shares_memory(kernel(x, np.array([-1])), x)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(3, 4), (300, 400)])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_pack(dtype, shape, axis):
    parts = [np.random.default_rng(i).integers(0, 2, shape).astype(dtype) for i in range(3)]
    with dt.Graph().as_default():
        kernel = copy_of(dt.stack([dt.placeholder(dtype, shape) for _ in parts], axis))
    made = kernel(*parts)
    assert made.dtype == dtype
    for i, x in enumerate(parts):
        np.testing.assert_array_equal(np.take(made, i, axis), x)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("long", [7, 700])
def test_concat(axis, long):
    shapes = [(n, long) if axis == 0 else (long, n) for n in (5, 0, 90)]
    parts = [np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]
    with dt.Graph().as_default():
        kernel = copy_of(dt.concat([dt.placeholder(dt.float32, s) for s in shapes], axis))
    made = kernel(*parts, np.int32(axis))
    at = 0
    for x in parts:
        n = x.shape[axis]
        np.testing.assert_array_equal(np.take(made, range(at, at + n), axis), x)
        at += n
    assert made.shape[axis] == at
    with pytest.raises(dt.errors.InvalidArgumentError, match="Cannot concatenate"):
        kernel(np.zeros((200, 300), np.float32), parts[1], np.zeros((201, 301), np.float32), np.int32(axis))


def test_strings_are_the_references():
    x = np.array([["a" * 100] * 300] * 300, object)
    with dt.Graph().as_default():
        kernel = copy_of(dt.reshape(dt.placeholder(dt.string, x.shape), [-1]))
    assert kernel(x.transpose(), np.array([-1])).shape == (90000,)
