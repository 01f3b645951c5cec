"""Checkpoints on disk: what is written comes back, in any cut, and damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file

from dovetail.graph.checkpoints import (
    CheckpointReader,
    Region,
    checkpoint_exists,
    remove_checkpoint_files,
    remove_leftovers,
    write_manifest,
    write_shard,
)
from dovetail.graph.dtypes import as_dtype
from dovetail.graph.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from dovetail.graph.partitioned import SaveSliceInfo, slices


def write(prefix, *shards):
    described = [
        write_shard(
            str(prefix), i, len(shards), [(n, s, as_dtype(np.asarray(v).dtype), np.asarray(v)) for n, s, v in shard]
        )
        for i, shard in enumerate(shards)
    ]
    write_manifest(str(prefix), described)
    return described


VALUES = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "scalar": np.array(7, np.int64),
    "bfloat16": np.linspace(0, 1, 5).astype(ml_dtypes.bfloat16),
    "texts": np.array([[b"a", b""], [b"\xff\0", b"long" * 50]], object),
    "complex": np.array([1 + 2j, 3]),
    "empty": np.zeros((0, 3), np.float16),
    "flags": np.array([True, False]),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


def test_values_of_every_type_come_back(tmp_path):
    write(tmp_path / "m", [(n, "", v) for n, v in VALUES.items()])
    reader = CheckpointReader(str(tmp_path / "m"))
    for name, value in VALUES.items():
        found = reader.get_tensor(name)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(found, value)
    assert reader.get_variable_to_shape_map()["turned"] == [3, 2]
    assert reader.get_variable_to_dtype_map()["bfloat16"].name == "bfloat16"
    assert b"flags (DT_BOOL) [2]" in reader.debug_string()
    assert reader.has_tensor("empty") and not reader.has_tensor("other")


def test_a_shard_is_an_ordinary_safetensors_file(tmp_path):
    (shard,) = write(tmp_path / "m", [("v", "", VALUES["float32"])])
    np.testing.assert_array_equal(load_file(tmp_path / shard["file"])["v"], VALUES["float32"])


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1))
def test_any_cut_can_be_read_in_any_other(tmp_path_factory, rows, columns, saved, wanted, axis):
    full = [rows, columns]
    whole = np.random.default_rng(rows).standard_normal(full).astype(np.float32)

    def cut(count):
        counts = [1, 1]
        counts[axis] = min(count, full[axis])
        for offset, shape in slices(full, counts):
            box = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            yield SaveSliceInfo("v", full, list(offset), list(shape)).spec, whole[box]

    prefix = tmp_path_factory.mktemp("cut") / "m"
    write(prefix, *[[("v", spec, value)] for spec, value in cut(saved)])
    reader = CheckpointReader(str(prefix))
    np.testing.assert_array_equal(reader.get_tensor("v"), whole)
    for spec, value in cut(wanted):
        np.testing.assert_array_equal(reader.region("v", spec), value)


@pytest.mark.parametrize("spec", ["10", "10 4 0,4", "10 0,4:1,2", "10 a,b", "10 8,4", "10 -1,4"])
def test_malformed_slices_are_refused(tmp_path, spec):
    write(tmp_path / "m", [("v", "", np.zeros(10))])
    with pytest.raises(InvalidArgumentError):
        CheckpointReader(str(tmp_path / "m")).region("v", spec)
    with pytest.raises(ValueError):
        Region.parse(spec, (10,))


def test_what_is_not_there_is_an_error_that_says_what_is(tmp_path):
    with pytest.raises(NotFoundError, match="There is no checkpoint"):
        CheckpointReader(str(tmp_path / "m"))
    write(tmp_path / "m", [("weights", "", np.zeros(10))])
    reader = CheckpointReader(str(tmp_path / "m"))
    with pytest.raises(NotFoundError, match="Key weight not found in checkpoint .*; it has weights"):
        reader.get_tensor("weight")
    with pytest.raises(InvalidArgumentError, match=r"has shape \(10,\) in checkpoint .*, not \(11,\)"):
        reader.region("weights", "11 0,11")


def test_every_damage_is_noticed(tmp_path):
    value = np.arange(100, dtype=np.float32)
    (shard,) = write(tmp_path / "m", [("v", "", value)])
    path = tmp_path / shard["file"]
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        try:
            found = CheckpointReader(str(tmp_path / "m")).get_tensor("v")
        except DataLossError as e:
            assert path.name in str(e)
        else:  # a bit that means nothing, such as a blank in the header
            np.testing.assert_array_equal(found, value)
            assert at < len(good) - 400
    path.write_bytes(good[:-1])
    with pytest.raises(DataLossError, match="has 487 bytes|bytes, not"):
        CheckpointReader(str(tmp_path / "m")).get_tensor("v")
    path.unlink()
    with pytest.raises(DataLossError, match="cannot be read"):
        CheckpointReader(str(tmp_path / "m")).get_tensor("v")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(format="other"),
        lambda m: m.pop("tensors"),
        lambda m: m["shards"][0].update(file="../elsewhere"),
        lambda m: m["tensors"]["v"].update(dtype="nothing"),
        lambda m: m.update(tensors=[]),
    ],
)
def test_a_damaged_manifest_is_noticed(tmp_path, change):
    write(tmp_path / "m", [("v", "", np.zeros(3))])
    index = tmp_path / "m.index"
    manifest = json.loads(index.read_text())
    change(manifest)
    index.write_text(json.dumps(manifest))
    with pytest.raises(DataLossError, match="manifest .* is damaged"):
        CheckpointReader(str(tmp_path / "m"))
    index.write_text(index.read_text()[:-2])
    with pytest.raises(DataLossError, match="manifest .* is damaged"):
        CheckpointReader(str(tmp_path / "m"))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_saving_again_replaces_and_removing_leaves_nothing(tmp_path):
    write(tmp_path / "m-1", [("v", "", np.zeros(3))], [("w", "", np.zeros(3))])
    write(tmp_path / "m-10", [("v", "", np.zeros(3))])
    write(tmp_path / "m-1", [("v", "", np.ones(3))])
    assert len(names(tmp_path)) == 4
    np.testing.assert_array_equal(CheckpointReader(str(tmp_path / "m-1")).get_tensor("v"), np.ones(3))
    remove_checkpoint_files(str(tmp_path / "m-1"))
    assert not checkpoint_exists(str(tmp_path / "m-1")) and checkpoint_exists(str(tmp_path / "m-10"))
    assert len(names(tmp_path)) == 2


def test_shards_without_a_manifest_are_removed_and_nothing_else(tmp_path):
    write(tmp_path / "m-1", [("v", "", np.zeros(3))])
    write(tmp_path / "other-1", [("v", "", np.zeros(3))])
    (tmp_path / "other-1.index").unlink()
    (tmp_path / "m-notes.txt").write_text("mine")
    before = names(tmp_path)
    write(tmp_path / "m-2", [("v", "", np.zeros(3))])
    (tmp_path / "m-2.index").unlink()
    (tmp_path / "m-3.data-00000-of-00001.0a.safetensors.1f.partial").touch()
    remove_leftovers(str(tmp_path / "m"))
    assert names(tmp_path) == before


def test_a_shard_that_is_not_there_makes_no_checkpoint(tmp_path):
    write(tmp_path / "m", [("v", "", np.zeros(3))])
    described = write_shard(str(tmp_path / "m"), 0, 1, [("v", "", as_dtype("float32"), np.ones(3, np.float32))])
    (tmp_path / described["file"]).unlink()
    with pytest.raises(FailedPreconditionError, match="all tasks must share the folder"):
        write_manifest(str(tmp_path / "m"), [described])
    np.testing.assert_array_equal(CheckpointReader(str(tmp_path / "m")).get_tensor("v"), np.zeros(3))


def test_slices_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="Slices of 'v' differ"):
        write(tmp_path / "m", [("v", "4 0,2", np.zeros(2))], [("v", "5 2,3", np.zeros(3))])
    assert not checkpoint_exists(str(tmp_path / "m"))
