"""Record files: those that TensorFlow has written (data/), what is written here, damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.formats.crc32c import crc32c

DATA = Path(__file__).parent / "data"
RECORDS = [b"", b"a", bytes(range(256)) * 300]
OPTIONS = [None, "", "ZLIB", "GZIP", tf.io.TFRecordOptions(tf.io.TFRecordCompressionType.GZIP, compression_level=1)]


@pytest.mark.parametrize(("kind", "compression"), [("plain", ""), ("gzip", "GZIP"), ("zlib", "ZLIB")])
def test_tensorflows_files_are_read(kind, compression):
    records = list(tf.io.tf_record_iterator(str(DATA / f"{kind}.tfrecord"), compression))
    numbers = [tf.train.Example.FromString(r).features.feature["number"].int64_list.value[0] for r in records]
    assert numbers == [0, 1, 2, 3]


def test_what_is_written_is_what_tensorflow_writes(tmp_path):
    records = list(tf.io.tf_record_iterator(str(DATA / "plain.tfrecord")))
    with tf.io.TFRecordWriter(tmp_path / "f") as writer:
        for r in records:
            writer.write(r)
    assert (tmp_path / "f").read_bytes() == (DATA / "plain.tfrecord").read_bytes()


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_written_is_read(tmp_path, options):
    path = str(tmp_path / "f")
    with tf.python_io.TFRecordWriter(path, options) as writer:
        for record in RECORDS:
            writer.write(record)
        writer.flush()
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"")
    assert list(tf.python_io.tf_record_iterator(path, options)) == RECORDS


def test_a_damaged_file_is_noticed(tmp_path):
    whole = (DATA / "plain.tfrecord").read_bytes()
    path = tmp_path / "f"
    size = len(whole)
    for at in (0, 9, 14, size - 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(tf.errors.DataLossError, match=r"f: corrupted record at \d+"):
            list(tf.io.tf_record_iterator(path))
    for left in (5, 13, size - 1):
        path.write_bytes(whole[:left])
        with pytest.raises(tf.errors.DataLossError, match=r"f: truncated record at \d+"):
            list(tf.io.tf_record_iterator(path))
    with pytest.raises(tf.errors.DataLossError, match="corrupted"):
        list(tf.io.tf_record_iterator(DATA / "plain.tfrecord", "GZIP"))
    with pytest.raises(tf.errors.DataLossError, match="compressed"):
        list(tf.io.tf_record_iterator(DATA / "gzip.tfrecord"))
    with pytest.raises(tf.errors.NotFoundError):
        next(tf.io.tf_record_iterator(tmp_path / "none"))
    with pytest.raises(ValueError, match="compression_type"):
        tf.io.TFRecordOptions("RAR")


def test_checksums():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's CRC
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"") == 0


def test_data_sets_of_records(tmp_path):
    files = [str(DATA / "plain.tfrecord")] * 2
    whole = list(tf.data.TFRecordDataset(files))
    assert len(whole) == 8
    assert list(tf.data.TFRecordDataset(files).skip(5)) == whole[5:]
    assert list(tf.data.TFRecordDataset(str(DATA / "zlib.tfrecord"), "ZLIB")) == whole[:4]
    with pytest.raises(tf.errors.NotFoundError):
        list(tf.data.TFRecordDataset(str(tmp_path / "none")))
    (tmp_path / "fixed").write_bytes(b"HEADaabbccdd.")
    fixed = tf.data.FixedLengthRecordDataset([str(tmp_path / "fixed")] * 2, 2, header_bytes=4, footer_bytes=1)
    records = [bytes(np.asarray(r).item()) for r in fixed]
    assert records == [b"aa", b"bb", b"cc", b"dd"] * 2
    assert [np.asarray(r).item() for r in fixed.skip(5)] == records[5:]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a multiple"):
        list(tf.data.FixedLengthRecordDataset(str(tmp_path / "fixed"), 5))


def test_a_zlib_file_that_ends_early_is_damaged_and_joined_ones_are_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with tf.io.TFRecordWriter(str(path), "ZLIB") as writer:
        for record in (b"one", b"two"):
            writer.write(record)
            writer.flush()  # what follows is no part of a record: the end of the stream
    whole = path.read_bytes()
    for end in (1, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(tf.errors.DataLossError, match="compressed data is truncated"):
            list(tf.io.tf_record_iterator(str(path), "ZLIB"))
    path.write_bytes(whole * 2)
    assert list(tf.io.tf_record_iterator(str(path), "ZLIB")) == [b"one", b"two"] * 2
