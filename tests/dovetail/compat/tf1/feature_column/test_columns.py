"""Feature columns, against NumPy that works example by example; hashes, against what TensorFlow gave for them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail import feature_column as fc
from dovetail.compat.tf1.ops.hashing import cross_hashed, vocabulary_index
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.farmhash import fingerprint
from dovetail.graph.ops.strings.strings import string_to_hash_bucket_fast

AGES = np.array([5.0, 18.0, 29.5, 30.0, 99.0], np.float32)
CITIES = np.array([["rome", "oslo"], ["oslo", ""], ["", ""], ["lima", "rome"], ["rome", "rome"]], object)
VOCABULARY = ["oslo", "rome"]


def features(**more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "age": AGES,
        "city": CITIES,
        "id": np.array([[0, 2], [1, -1], [3, 3], [9, 0], [2, -1]]),
    } | more
    return {name: v if isinstance(v, dt.SparseTensor) else dt.constant(v) for name, v in given.items()}


def run(*what: Any) -> Any:
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        found = session.run(list(what))
    return found[0] if len(what) == 1 else found


@pytest.fixture(autouse=True)
def graph() -> Any:
    with dt.Graph().as_default() as fresh:
        yield fresh


# Hashes


def test_fingerprints_are_those_of_tensorflow() -> None:
    rng = random.Random(0)
    sizes = [*range(140), 200, 256, 300, 1000]
    texts = [bytes(rng.randrange(256) for _ in range(n)) for n in sizes]
    found = 0
    for text in texts:  # each length takes another way: one number for all of them
        found = (found * 31 + fingerprint(text)) % (1 << 64)
    assert found == CHECKSUM
    assert fingerprint(b"hello") == 0xB48BE5A931380CE8


CHECKSUM = 0x1632144488C43B64  # of the fingerprints that TensorFlow 2.21 gives (tf.fingerprint, farmhash64)


def test_crosses_are_those_of_tensorflow() -> None:
    x = [dt.constant([[1, 2], [3, 4]], dt.int64), dt.constant([["a"], ["bc"]])]
    first, other = run(cross_hashed(x, 1000), cross_hashed(x, 1000, 77))
    assert first.tolist() == [[445, 593], [108, 731]] and other.tolist() == [[884, 152], [967, 361]]
    gaps = [dt.constant([[-1, 2]], dt.int64), dt.constant([["a", ""]])]
    assert (run(cross_hashed(gaps, 1000)) == -1).tolist() == [[True, True, False, True]]


def test_vocabularies_and_buckets() -> None:
    assert run(vocabulary_index(["b", "c", b"a"], ["a", "b"])).tolist() == [1, -1, 0]
    assert run(vocabulary_index([[7, 5]], [5, 6], default_value=1)).tolist() == [[1, 0]]
    (found,) = run(vocabulary_index(["zz"], ["a"], num_oov_buckets=10))
    assert found == 1 + fingerprint(b"zz") % 10
    assert run(vocabulary_index([12], [0], num_oov_buckets=10)).tolist() == [1 + fingerprint(b"12") % 10]
    assert run(string_to_hash_bucket_fast(["zz"], 7)).tolist() == [fingerprint(b"zz") % 7]


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: vocabulary_index(["a"], []), "needs a vocabulary"),
        (lambda: vocabulary_index(["a"], ["b", "b"]), "twice"),
        (lambda: vocabulary_index(["a"], [1]), "in no vocabulary"),
        (lambda: vocabulary_index([1.5], [1]), "in no vocabulary"),
        (lambda: cross_hashed([dt.constant([[1]])], 3), "at least two"),
        (lambda: cross_hashed([dt.constant([[1.0]])] * 2, 3), "cannot be combined"),
        (lambda: cross_hashed([dt.constant([1])] * 2, 3), "examples, values"),
        (lambda: cross_hashed([dt.constant([[1]])] * 2, 3, -1), "hash_key"),
    ],
)
def test_what_ops_refuse(build: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError, InvalidArgumentError), match=says):
        build()


# Columns


def test_numbers() -> None:
    pair = fc.numeric_column("pair", shape=(2,), normalizer_fn=lambda x: x * 2.0)
    x = features(pair=np.arange(10, dtype=np.int32).reshape(5, 2).astype(np.float64))
    age, both = run(fc.input_layer(x, [fc.numeric_column("age")]), fc.input_layer(x, [pair, fc.numeric_column("age")]))
    np.testing.assert_array_equal(age, AGES[:, None])
    np.testing.assert_array_equal(both, np.concatenate([AGES[:, None], 2.0 * np.arange(10).reshape(5, 2)], 1))


def test_buckets() -> None:
    column = fc.bucketized_column(fc.numeric_column("age"), [18, 30, 65])
    rows = run(fc.input_layer(features(), column))
    np.testing.assert_array_equal(rows, np.eye(4)[[0, 1, 1, 2, 3]])
    pair = fc.bucketized_column(fc.numeric_column("pair", (2,)), [0.0])
    x = features(pair=np.array([[-1.0, 1.0]] * 5))
    np.testing.assert_array_equal(run(fc.input_layer(x, pair)), [[1, 0, 0, 1]] * 5)
    assert run(pair.ids(x)).tolist() == [[0, 3]] * 5  # each number has buckets of its own


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (fc.categorical_column_with_identity("id", 4), [[0, 2], [1, -1], [3, 3], [-1, 0], [2, -1]]),
        (fc.categorical_column_with_identity("id", 4, default_value=1), [[0, 2], [1, -1], [3, 3], [1, 0], [2, -1]]),
        (fc.categorical_column_with_vocabulary_list("city", VOCABULARY), [[1, 0], [0, -1], [-1, -1], [-1, 1], [1, 1]]),
        (
            fc.categorical_column_with_vocabulary_list("city", VOCABULARY, num_oov_buckets=1),
            [[1, 0], [0, -1], [-1, -1], [2, 1], [1, 1]],
        ),
        (
            fc.categorical_column_with_vocabulary_list("city", VOCABULARY, default_value=0),
            [[1, 0], [0, -1], [-1, -1], [0, 1], [1, 1]],
        ),
        (fc.categorical_column_with_vocabulary_list("id", [3, 0]), [[1, -1], [-1, -1], [0, 0], [-1, 1], [-1, -1]]),
        (
            fc.categorical_column_with_hash_bucket("city", 9),
            [[fingerprint(c.encode()) % 9 if c else -1 for c in row] for row in CITIES],
        ),
        (
            fc.categorical_column_with_hash_bucket("id", 9, dtype=dt.int64),
            [[fingerprint(str(i).encode()) % 9 if i >= 0 else -1 for i in row] for row in [[0, 2], [1, -1], [3, 3], [9, 0], [2, -1]]],
        ),
    ],
)  # fmt: skip
def test_ids_indicators_and_embeddings(column: Any, ids: list[list[int]]) -> None:
    count = column.num_buckets
    assert run(column.ids(features())).tolist() == ids
    table = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    start = dt.constant_initializer(table)
    layers = [fc.input_layer(features(), fc.indicator_column(column))]
    for combiner in ("mean", "sum", "sqrtn"):
        layers.append(fc.input_layer(features(), fc.embedding_column(column, 3, combiner, initializer=start)))
    layers.append(fc.input_layer(features(), fc.embedding_column(column, 3, "sum", start, max_norm=0.5)))
    once, mean, total, sqrtn, cut = run(*layers)
    short = table * np.minimum(1.0, 0.5 / np.linalg.norm(table, axis=1, keepdims=True))
    for i, row in enumerate(ids):
        there = [j for j in row if j >= 0]
        np.testing.assert_array_equal(once[i], np.bincount(there, minlength=count) if there else np.zeros(count))
        summed = table[there].sum(0)
        np.testing.assert_allclose(total[i], summed, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mean[i], summed / max(1, len(there)), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sqrtn[i], summed / max(1, len(there)) ** 0.5, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(cut[i], short[there].sum(0), rtol=1e-5, atol=1e-6)


def test_a_vocabulary_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cities"
    file.write_text("oslo\nrome\nlima\n")
    column = fc.categorical_column_with_vocabulary_file("city", str(file), vocabulary_size=2)
    assert run(column.ids(features())).tolist() == [[1, 0], [0, -1], [-1, -1], [-1, 1], [1, 1]]
    file.write_bytes("oslo\x0b\nrome\r\nlima\u2028\n".encode())
    column = fc.categorical_column_with_vocabulary_file("city", str(file))
    assert run(column.ids(features())).tolist() == [[1, -1], [-1, -1], [-1, -1], [-1, 1], [1, 1]]
    with pytest.raises(ValueError, match="has 3"):
        fc.categorical_column_with_vocabulary_file("city", str(file), vocabulary_size=5)


def test_sparse_features_are_like_dense_ones_with_gaps() -> None:
    sparse = dt.SparseTensor([[0, 0], [0, 1], [3, 0]], ["oslo", "lima", "rome"], [5, 2])
    column = fc.categorical_column_with_vocabulary_list("city", VOCABULARY)
    assert run(column.ids(features(city=sparse))).tolist() == [[0, -1], [-1, -1], [-1, -1], [1, -1], [-1, -1]]
    with pytest.raises(ValueError, match="dense"):
        fc.input_layer(features(age=sparse), fc.numeric_column("age"))


def test_crosses() -> None:
    buckets = fc.bucketized_column(fc.numeric_column("age"), [18, 30])
    column = fc.crossed_column([buckets, "city"], 50)
    values = dt.constant([[0], [1], [1], [2], [2]], dt.int64), dt.constant(CITIES)
    direct = cross_hashed(values, 50, present=[np.full(v.dims, True) for v in values])
    found, expected = run(column.ids(features()), direct)
    np.testing.assert_array_equal(found, expected)
    assert column.name == "age_bucketized_X_city"
    turned = run(fc.crossed_column(["city", buckets], 50).ids(features()))  # TensorFlow takes dense features last
    np.testing.assert_array_equal(turned, expected)
    nested = fc.crossed_column([column, "id"], 50)
    assert nested.name == "age_bucketized_X_city_X_id" and run(nested.ids(features())).shape == (5, 4)


def test_crosses_take_all_values_of_a_feature() -> None:
    """Also '' and negative numbers, as in TensorFlow 2.21, whose buckets these are."""
    dense = {
        "s": dt.constant([["x", "y"], ["q", ""]]),
        "t": dt.constant([["a"], [""]]),
        "n": dt.constant([[1], [-1]], dt.int64),
    }
    sparse = dense | {"s": dt.SparseTensor([[0, 0], [1, 0], [1, 1]], ["x", "", "y"], [2, 2])}
    for given, texts, numbers in (
        (dense, [[37, 461], [373, 50]], [[727, 326], [969, 638]]),
        (sparse, [[37, -1], [515, 373]], [[727, -1], [306, 969]]),
    ):
        columns = [fc.crossed_column(["s", other], 1000) for other in "tn"]
        found = run(*[c.ids(given) for c in columns])
        assert [sorted(row) for row in found[0].tolist()] == [sorted(row) for row in texts]
        assert [sorted(row) for row in found[1].tolist()] == [sorted(row) for row in numbers]


def test_a_linear_model() -> None:
    city = fc.categorical_column_with_vocabulary_list("city", VOCABULARY)
    names: dict[Any, list[Any]] = {}
    out = fc.linear_model(features(), [fc.numeric_column("age"), city], units=2, cols_to_vars=names)
    assert [v.op.name for v in dt.trainable_variables()] == [
        "linear_model/age/weights", "linear_model/city/weights", "linear_model/bias_weights",
    ]  # fmt: skip
    assert {getattr(k, "name", k): len(v) for k, v in names.items()} == {"age": 1, "city": 1, "bias": 1}
    values = [np.array([[0.5, -1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 20.0])]
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        np.testing.assert_array_equal(session.run(out), np.zeros((5, 2)))
        for v, value in zip(dt.trainable_variables(), values, strict=True):
            v.load(value.astype(np.float32), session)
        found = session.run(out)
    for i, row in enumerate([[1, 0], [0], [], [1], [1, 1]]):
        np.testing.assert_allclose(found[i], AGES[i] * values[0][0] + values[1][row].sum(0) + values[2], rtol=1e-6)


def test_a_linear_model_notes_each_columns_variables_in_parts() -> None:
    city = fc.embedding_column(fc.categorical_column_with_vocabulary_list("city", VOCABULARY), 2)
    noted: dict[Any, list[Any]] = {}
    with dt.variable_scope("", partitioner=dt.fixed_size_partitioner(2)):
        fc.linear_model(features(), [city], 2, trainable=False, cols_to_vars=noted)
    assert [v.op.name for v in noted[city]] == [
        "linear_model/city_embedding/weights/part_0", "linear_model/city_embedding/weights/part_1",
        "linear_model/city_embedding/embedding_weights/part_0", "linear_model/city_embedding/embedding_weights/part_1",
    ]  # fmt: skip
    assert [v.op.name for v in noted["bias"]] == [
        "linear_model/bias_weights/part_0",
        "linear_model/bias_weights/part_1",
    ]
    assert not dt.trainable_variables()


def test_an_embedding_learns_by_the_rows_that_were_looked_up() -> None:
    column = fc.embedding_column(fc.categorical_column_with_identity("id", 10), 2, combiner="sum")
    net = fc.input_layer(features(), column)
    (table,) = dt.trainable_variables()
    assert table.op.name == "input_layer/id_embedding/embedding_weights"
    gradient = dt.gradients(dt.reduce_sum(net), table)[0]
    assert isinstance(gradient, dt.IndexedSlices)
    found = run(dt.convert_to_tensor(gradient))
    np.testing.assert_array_equal(found[:, 0], [2, 1, 2, 2, 0, 0, 0, 0, 0, 1])


def test_tables_may_be_in_parts() -> None:
    table = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)

    def start(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        first = 0 if partition_info is None else partition_info.var_offset[0]
        return dt.constant(table[first : first + shape[0]])

    column = fc.embedding_column(fc.categorical_column_with_identity("id", 10), 2, "sum", initializer=start)
    whole = fc.input_layer(features(), column)
    with dt.variable_scope("cut", partitioner=dt.fixed_size_partitioner(3)):
        in_parts = fc.input_layer(features(), column)
    assert len(dt.trainable_variables()) == 4
    a, b = run(whole, in_parts)
    np.testing.assert_array_equal(a, b)


def test_records_are_read_as_columns_need_it() -> None:
    age, city = (
        fc.numeric_column("age", default_value=1.0),
        fc.categorical_column_with_vocabulary_list("city", VOCABULARY),
    )
    columns = [fc.bucketized_column(age, [18.0]), fc.indicator_column(city), fc.crossed_column([city, "tag"], 10)]
    spec = fc.make_parse_example_spec(columns)
    assert spec == {
        "age": dt.FixedLenFeature((1,), dt.float32, 1.0),
        "city": dt.VarLenFeature(dt.string),
        "tag": dt.VarLenFeature(dt.string),
    }
    with pytest.raises(ValueError, match="different parse_spec"):
        fc.make_parse_example_spec([age, fc.numeric_column("age")])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: fc.numeric_column("x", shape=0), "greater than 0"),
        (lambda: fc.numeric_column("x", dtype=dt.string), "convertible to float"),
        (lambda: fc.numeric_column("x", normalizer_fn=3), "callable"),
        (lambda: fc.numeric_column(3), "must be a string"),
        (lambda: fc.bucketized_column(fc.numeric_column("x"), [2, 1]), "sorted"),
        (lambda: fc.bucketized_column("x", [1]), "numeric_column"),
        (lambda: fc.bucketized_column(fc.numeric_column("x", (2, 2)), [1]), "one-dimensional"),
        (lambda: fc.categorical_column_with_identity("x", 0), "num_buckets"),
        (lambda: fc.categorical_column_with_identity("x", 3, 3), "not in range"),
        (lambda: fc.categorical_column_with_hash_bucket("x", 3, dt.float32), "string or integer"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", []), "non-empty"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", ["a", "a"]), "Duplicate"),
        (lambda: fc.categorical_column_with_vocabulary_list("x", ["a"], None, 0, 1), "both"),
        (lambda: fc.crossed_column(["a"], 3), "length > 1"),
        (lambda: fc.crossed_column(["a", fc.numeric_column("b")], 3), "Unsupported key"),
        (lambda: fc.embedding_column(fc.categorical_column_with_identity("x", 3), 0), "dimension"),
        (lambda: fc.embedding_column(fc.categorical_column_with_identity("x", 3), 2, "max"), "combiner"),
        (lambda: fc.embedding_column(fc.numeric_column("x"), 2), "categorical"),
        (lambda: fc.input_layer(features(), []), "empty"),
        (lambda: fc.input_layer(features(), ["age"]), "FeatureColumn"),
        (lambda: fc.input_layer(features(), [fc.numeric_column("age")] * 2), "Duplicate"),
        (lambda: fc.input_layer(features(), fc.categorical_column_with_identity("id", 3)), "embedding_column"),
        (lambda: fc.input_layer(features(), fc.numeric_column("size")), "Feature size is not in"),
        (lambda: fc.input_layer({"age": dt.constant(1.0)}, fc.numeric_column("age")), "rank 0"),
        (lambda: fc.categorical_column_with_hash_bucket("id", 3).ids(features()), "values of type string"),
        (lambda: fc.categorical_column_with_identity("age", 3).ids(features()), "text or integers"),
    ],
)
def test_what_columns_refuse(build: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        build()
