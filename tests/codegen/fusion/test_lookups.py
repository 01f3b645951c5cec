"""Rows that kernels look up in tables, against NumPy."""

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.graph.core.dtypes import float32, int32

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

RNG = np.random.default_rng(0)


def session() -> dt.Session:
    return dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2))


def kernels(fetches: Any) -> list[list[str]]:
    """The types of the nodes in each kernel."""
    return [[n.type for n in k.group.nodes] for k in dt.place(dt.get_default_graph(), fetches=fetches).kernels("cpu:0")]


def numbers(shape: tuple[int, ...], dtype: str) -> Any:
    if dtype.startswith("float"):
        return RNG.standard_normal(shape).astype(dtype)
    return RNG.integers(-50, 50, shape).astype(dtype)


def test_the_text_of_a_lookup() -> None:
    build = LoopNestBuilder([False, False, False])
    row = build.load(0, int32, [0])
    build.store(build.apply("neg", build.gather(1, float32, row, [1, 2])), [0, 1, 2])
    loops, parts = build.finish()
    assert parts == ((0,), (1, 2))
    assert str(loops).splitlines()[2] == "  v1: float32[d0, d1] = gather in1[v0, d1]"
    assert [v.op for v in loops.loads] == ["load", "gather"]


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "float16", "uint8"])
def test_rows_and_what_is_done_with_them_are_one_kernel(dtype: str, index: str) -> None:
    for table_shape, rows_shape in [
        ((9, 6), (None,)),
        ((9,), (None, 4)),
        ((9, 2, 3), (None, 4)),
        ((9, 1, 3), (None, 1)),
    ]:
        with dt.Graph().as_default():
            table, rows = dt.placeholder(dtype, [None, *table_shape[1:]]), dt.placeholder(index, rows_shape)
            y = dt.gather(table, rows) * 2 + 1
            assert kernels(y) == [["GatherV2", "Mul", "AddV2"]]
            with session() as s:
                for count in (0, 1, 7):
                    t, i = numbers(table_shape, dtype), RNG.integers(0, 9, (count, *rows_shape[1:])).astype(index)
                    found = s.run(y, {table: t, rows: i})
                    wanted = t[i] * t.dtype.type(2) + t.dtype.type(1)
                    assert found.dtype == wanted.dtype
                    np.testing.assert_allclose(found, wanted, rtol=1e-2 if dtype == "float16" else 0)


@pytest.mark.parametrize("kind", ["reference", "resource", "fed"])
def test_a_row_that_is_not_there_is_refused(kind: str) -> None:
    with dt.Graph().as_default():
        start = numbers((5, 3), "float32")
        fed = dt.placeholder(dt.float32, [None, 3])
        table = fed if kind == "fed" else dt.get_variable("table", initializer=start, use_resource=kind == "resource")
        rows = dt.placeholder(dt.int64, [None])
        y = dt.nn.embedding_lookup(table, rows) * 2.0
        assert len(kernels(y)) == 1
        more = {fed: start} if kind == "fed" else {}
        with session() as s:
            s.run(dt.global_variables_initializer())
            np.testing.assert_array_equal(s.run(y, {rows: [4, 0, 4], **more}), 2 * start[[4, 0, 4]])
            for wrong in (-1, 5, 2**62, -(2**62)):
                with pytest.raises(dt.errors.InvalidArgumentError, match=rf"indices\[1\] = {wrong} is not in \[0, 5\)"):
                    s.run(y, {rows: [0, wrong, 1], **more})
            assert s.run(y, {rows: [], **more}).shape == (0, 3)
            if kind == "fed":
                with pytest.raises(dt.errors.InvalidArgumentError, match=r"indices\[0\] = 0 is not in \[0, 0\)"):
                    s.run(y, {rows: [0], fed: np.zeros((0, 3))})


@pytest.mark.parametrize("resource", [False, True])
def test_an_embedding_with_a_layer_norm_is_one_kernel(resource: bool) -> None:
    with dt.Graph().as_default() as graph:
        start, places = numbers((200, 16), "float32"), numbers((8, 16), "float32")
        table = dt.get_variable("table", initializer=start, use_resource=resource)
        ids = dt.placeholder(dt.int32, [None, 8])
        x = dt.nn.embedding_lookup(table, ids) * 4.0 + places
        mean = dt.reduce_mean(x, -1, keepdims=True)
        variance = dt.reduce_mean(dt.square(x - mean), -1, keepdims=True)
        y = (x - mean) * dt.rsqrt(variance + 1e-5)
        (kernel,) = dt.place(graph, fetches=y).kernels("cpu:0")
        assert ("ResourceGather" if resource else "GatherV2") in [n.type for n in kernel.group.nodes]
        rows = 8 * 16 * 4  # a size that is not known counts as 1
        assert kernel.bytes_read == 8 * 4 + rows + 8 * 16 * 4
        assert kernel.bytes_written == rows
        with session() as s:
            s.run(dt.global_variables_initializer())
            i = RNG.integers(0, 200, (5, 8))
            z = start[i].astype(np.float64) * 4 + places
            wanted = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)
            np.testing.assert_allclose(s.run(y, {ids: i}), wanted, rtol=1e-3, atol=1e-4)


def test_averages_of_rows_and_softmaxes_of_single_numbers() -> None:
    with dt.Graph().as_default():
        table, bias = dt.placeholder(dt.float32, [None, 6]), dt.placeholder(dt.float32, [None])
        ids = dt.placeholder(dt.int64, [None, 10])
        fetches = [dt.reduce_mean(dt.gather(table, ids), 1), dt.nn.softmax(dt.gather(bias, ids))]
        assert sorted(kernels(fetches)) == [["GatherV2", "Mean"], ["GatherV2", "Softmax"]]
        t, b, i = numbers((30, 6), "float32"), numbers((30,), "float32"), RNG.integers(0, 30, (4, 10))
        with session() as s:
            mean, softmax = s.run(fetches, {table: t, bias: b, ids: i})
        np.testing.assert_allclose(mean, t[i].mean(1), rtol=1e-4, atol=1e-6)
        e = np.exp(b[i])
        np.testing.assert_allclose(softmax, e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_a_table_that_is_read_in_its_place_too() -> None:
    with dt.Graph().as_default():
        x, i = dt.placeholder(dt.float32, [6, 4]), dt.placeholder(dt.int32, [6])
        y = dt.gather(x, i) * x + dt.gather(x, i + 0)
        value, rows = numbers((6, 4), "float32"), np.array([5, 0, 0, 3, 1, 2])
        with session() as s:
            np.testing.assert_allclose(s.run(y, {x: value, i: rows}), value[rows] * value + value[rows], rtol=1e-5)
        made = x * 3.0 + 1.0  # of a kernel of its own, which must be done before
        assert kernels(dt.gather(made, i) * made) == [["Mul", "AddV2"], ["GatherV2", "Mul"]]


def test_what_is_looked_up_is_what_was_there_at_that_time() -> None:
    with dt.Graph().as_default():
        start = numbers((50, 4), "float32")
        table = dt.get_variable("table", initializer=start, use_resource=True)
        ids = dt.placeholder(dt.int32, [None])
        before = dt.nn.embedding_lookup(table, ids)
        with dt.control_dependencies([before]):
            changed = dt.assign_add(table, np.ones((50, 4), np.float32))
        with dt.control_dependencies([changed]):
            after = dt.nn.embedding_lookup(table, ids) * 1.5
            late = before * 1.5
        with session() as s:
            s.run(dt.global_variables_initializer())
            one, other = s.run([late, after], {ids: [3, 3, 49]})
        np.testing.assert_array_equal(one, start[[3, 3, 49]] * np.float32(1.5))
        np.testing.assert_array_equal(other, (start[[3, 3, 49]] + 1) * np.float32(1.5))


def test_a_variable_without_a_value_is_named() -> None:
    with dt.Graph().as_default():
        table = dt.get_variable("table", [5, 3], use_resource=True)
        y = dt.nn.embedding_lookup(table, dt.placeholder_with_default([0, 1], [None])) * 2.0
        with session() as s, pytest.raises(dt.errors.FailedPreconditionError, match="uninitialized value table"):
            s.run(y)


def test_rows_by_themselves_stay_with_numpy() -> None:
    with dt.Graph().as_default():
        table, ids = dt.placeholder(dt.float32, [900, 128]), dt.placeholder(dt.int32, [4096])
        assert kernels(dt.identity(dt.gather(table, ids))) == []
        assert kernels(dt.gather(table, ids, axis=1) * 2.0) == [["Mul"]]
        assert kernels(dt.gather(table, 3) * 2.0 + 1.0) == [["Mul", "AddV2"]]


def test_a_resized_image_is_one_kernel_that_looks_up_four_pixels() -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 32, 32, 16])
        y = dt.nn.relu(dt.image.resize_bilinear(x, [64, 48]))
        kernels = dt.place(graph, fetches=y, shapes={x: [2, 32, 32, 16]}).kernels("cpu:0")
    assert sum(len(k.step.lookups) == 4 for k in kernels) == 1, str(kernels)
