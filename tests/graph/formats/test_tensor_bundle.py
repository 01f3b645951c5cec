"""TensorFlow's checkpoints: recorded ones are read, ours are read back, and damage is told."""

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dovetail as tf
from dovetail.graph.formats.sstable import TableError, is_table, read_table, read_varint, varint, write_table

pytest.importorskip("google.protobuf")

from dovetail.graph.formats.tensor_bundle import _signed, write_bundle

RECORDED = Path(__file__).parents[1] / "tensorflow" / "recorded" / "partitioned"
PREFIX = str(RECORDED / "model.ckpt-7")


def test_a_checkpoint_of_tensorflow_is_read() -> None:
    told = np.load(RECORDED / "values.npz")
    assert tf.train.list_variables(PREFIX) == [("a", [3, 4]), ("b", []), ("h", [2]), ("p/parts", [200, 5]), ("s", [3])]
    reader = tf.train.load_checkpoint(PREFIX)
    np.testing.assert_array_equal(reader.get_tensor("p/parts"), told["parts"])
    np.testing.assert_array_equal(reader.get_tensor("a"), told["a"])
    assert reader.get_tensor("s").tolist() == [b"x", b"yy" * 200, b""] and reader.get_tensor("b") == 0
    assert reader.get_variable_to_dtype_map()["h"] is tf.bfloat16 and reader.get_tensor("h").astype(float).tolist() == [
        1.5,
        2.0,
    ]


def test_its_variables_in_parts_go_into_other_parts() -> None:
    told = np.load(RECORDED / "values.npz")
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2)):
            parts = tf.get_variable("parts", [200, 5])
        a = tf.get_variable("a", [3, 4])
        report = tf.train.Saver().restore(session, PREFIX)
        assert set(report.restored) == {"a", "p/parts"} and set(report.unused) == {"b", "h", "s"}
        np.testing.assert_array_equal(session.run(tf.convert_to_tensor(parts)), told["parts"])
        np.testing.assert_array_equal(session.run(a), told["a"])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    texts = np.array([b"", b"a" * 300, "ä".encode()], object)
    values = {
        "x/y": np.arange(6.0).reshape(2, 3),
        "empty": np.zeros((0, 2), np.int64),
        "texts": texts,
        "one": np.array(True),
    }
    write_bundle(str(tmp_path / "m"), values.items())
    reader = tf.train.load_checkpoint(str(tmp_path / "m"))
    assert set(reader.get_variable_to_shape_map()) == set(values)
    for name, value in values.items():
        assert reader.get_tensor(name).tolist() == value.tolist() and reader.get_tensor(name).shape == value.shape


def test_damage_is_told(tmp_path: Path) -> None:
    for file in RECORDED.iterdir():
        shutil.copy(file, tmp_path)
    data = tmp_path / "model.ckpt-7.data-00000-of-00001"
    index = tmp_path / "model.ckpt-7.index"
    whole, told = data.read_bytes(), index.read_bytes()
    data.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(tf.errors.DataLossError, match="the checksum differs"):
        tf.train.load_checkpoint(str(tmp_path / "model.ckpt-7")).get_tensor("a")
    data.unlink()
    with pytest.raises(tf.errors.DataLossError, match=r"data-00000-of-00001.*cannot be read"):
        tf.train.load_checkpoint(str(tmp_path / "model.ckpt-7")).get_tensor("a")
    index.write_bytes(told[:9] + bytes([told[9] ^ 1]) + told[10:])
    with pytest.raises(tf.errors.DataLossError, match="checksum differs"):
        tf.train.load_checkpoint(str(tmp_path / "model.ckpt-7"))


@given(st.dictionaries(st.binary(max_size=40), st.binary(max_size=3000), max_size=80))
def test_tables_come_back_as_they_were(entries: dict[bytes, bytes]) -> None:
    table = write_table(sorted(entries.items()))
    assert is_table(table) and dict(read_table(table)) == entries


@given(st.dictionaries(st.binary(min_size=1, max_size=8), st.binary(max_size=30), min_size=1, max_size=20), st.data())
def test_a_table_with_a_changed_byte_is_refused_or_reads_the_same(
    entries: dict[bytes, bytes], data: st.DataObject
) -> None:
    table = bytearray(write_table(sorted(entries.items())))
    at = data.draw(st.integers(0, len(table) - 1))
    table[at] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(TableError):
        assert dict(read_table(bytes(table))) == entries  # a byte that nobody reads


@given(st.integers(0, 2**63 - 1))
def test_numbers_of_any_length(number: int) -> None:
    assert read_varint(varint(number) + b"rest", 0) == (number, len(varint(number)))


def test_numbers_in_keys_are_ordered_as_bytes() -> None:
    numbers = [0, 1, 63, 64, 67, 134, 8191, 8192, 1 << 20, 1 << 40]
    assert sorted(map(_signed, numbers)) == [_signed(n) for n in numbers]
    assert _signed(0) == b"\x80" and _signed(63) == b"\xbf" and _signed(64) == b"\xc0\x40" and _signed(-1) == b"\x7f"
