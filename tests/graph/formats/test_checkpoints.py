"""Checkpoints on disk: what is written comes back, in any cut, and damage is noticed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from safetensors.numpy import load_file

from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
)
from dovetail.graph.formats.atomic_files import locked, write_durably
from dovetail.graph.formats.checkpoints import (
    CheckpointReader,
    Region,
    checkpoint_exists,
    remove_checkpoint_files,
    remove_leftovers,
    save_turn,
    write_manifest,
    write_shard,
)
from dovetail.graph.variables.partitioned import SaveSliceInfo, slices


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
    told = reader.debug_string().decode().splitlines()
    assert {"flags (DT_BOOL) [2]", "float32 (DT_FLOAT) [2,3]", "empty (DT_HALF) [0,3]", "scalar (DT_INT64) []"} <= set(
        told
    )
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


def _places(value, path=()):
    """Where anything stands in a JSON value: keys and indices."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*path, key))


def test_whatever_is_wrong_in_a_manifest_is_data_loss(tmp_path):
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    write(tmp_path / "m", [("v", "2 3 0,1:0,3", value[:1])], [("v", "2 3 1,1:0,3", value[1:])])
    index = tmp_path / "m.index"
    good = index.read_text()
    noticed = 0
    for *way, last in _places(json.loads(good)):
        for junk in ("gone", None, -1, 10**15, 0.5, "x", "..", "a\0", [], {}, [10**15, 10**15], True):
            manifest = json.loads(good)
            found = manifest
            for key in way:
                found = found[key]
            if junk == "gone":
                found.pop(last)
            else:
                found[last] = junk
            index.write_text(json.dumps(manifest))
            try:
                reader = CheckpointReader(str(tmp_path / "m"))
                if reader.has_tensor("v"):
                    np.testing.assert_array_equal(reader.get_tensor("v"), value)
                assert reader.debug_string() is not None
            except DataLossError:
                noticed += 1
    assert noticed > 400
    for text in ("[" * 100_000, "[]", '"x"', "\xff"):
        index.write_text(text, encoding="latin-1")
        with pytest.raises(DataLossError, match="manifest .* is damaged"):
            CheckpointReader(str(tmp_path / "m"))


def test_a_shard_is_opened_once_however_many_tensors_it_holds(tmp_path, monkeypatch):
    import safetensors

    write(tmp_path / "m", [(f"v{i}", "", np.full(2, i)) for i in range(20)], [("w", "", np.ones(3))])
    opened = []
    original = safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", lambda path, **more: opened.append(path) or original(path, **more))
    reader = CheckpointReader(str(tmp_path / "m"))
    for i in range(20):
        np.testing.assert_array_equal(reader.get_tensor(f"v{i}"), [i, i])
    assert len(opened) == 1
    reader.get_tensor("w")
    assert len(opened) == 2


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
    for name in ("m-1.data-00000-of-00001.0a.safetensors", "m-1.index", "m-1.meta", "m.meta", "checkpoint"):
        (tmp_path / f"{name}.0123abcd.partial").touch()
    remove_leftovers(str(tmp_path / "m"))
    assert names(tmp_path) == before


def test_a_manifest_is_whole_however_many_save_at_once(tmp_path):
    """Also without turns: a save may lose its shard to another and fail, but what a manifest names is there."""
    prefix = str(tmp_path / "m")
    ended, lost = [], []

    def save(number):
        for _ in range(10):
            try:
                write(prefix, [("v", "", np.full(3, number))])
            except (FailedPreconditionError, FileNotFoundError):
                lost.append(number)
        ended.append(number)

    write(prefix, [("v", "", np.full(3, 0))])
    threads = [threading.Thread(target=save, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        reader = CheckpointReader(prefix)
        with contextlib.suppress(DataLossError):  # its shard was removed: a newer manifest stands there
            assert set(reader.get_tensor("v")) <= {0, 1, 2, 3}
    for thread in threads:
        thread.join()
    assert len(ended) == 4
    assert set(CheckpointReader(prefix).get_tensor("v")) <= {0, 1, 2, 3}
    assert len(names(tmp_path)) == 2


def _save_in_turns(prefix: str, number: int) -> None:
    for _ in range(15):
        with save_turn(prefix):
            write(prefix, [("v", "", np.full(3, number))], [("w", "", np.full(3, number))])


@pytest.mark.slow
def test_saves_take_turns_across_processes(tmp_path):
    prefix = str(tmp_path / "m")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_save_in_turns, args=(prefix, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0, 0, 0]
    assert len(names(tmp_path)) == 3
    CheckpointReader(prefix).get_tensor("v")


def test_a_lock_is_free_when_its_process_is_killed(tmp_path):
    code = (
        "import os, signal, pathlib; from dovetail.graph.formats.atomic_files import locked\n"
        f"with locked(pathlib.Path({str(tmp_path / 'lock')!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
        timeout=60,
    )
    assert found.returncode == -signal.SIGKILL and (tmp_path / "lock").exists()
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()
    assert not (tmp_path / "lock").exists()


def test_a_full_disk_is_an_error_that_names_path_and_bytes(tmp_path):
    def write_much(partial: Path) -> None:
        partial.write_bytes(b"0" * 1000)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(
        ResourceExhaustedError, match=r"/shard cannot be written: No space left.*4000 bytes are needed, \d+ are"
    ):
        write_durably(tmp_path / "shard", write_much, 4000)
    with pytest.raises(ResourceExhaustedError, match="it was full after 1000 bytes"):
        write_durably(tmp_path / "shard", write_much)
    assert names(tmp_path) == []


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


@pytest.mark.parametrize(("steps", "count"), [(int, 0), (itertools.count().__next__, 48)])
def test_a_save_rests_after_each_chunk_while_steps_run_beside_it(tmp_path, monkeypatch, steps, count):
    rests = []
    clock = SimpleNamespace(sleep=rests.append, monotonic=time.monotonic, thread_time=time.thread_time)
    monkeypatch.setattr("dovetail.graph.formats.checkpoints.time", clock)
    value = np.arange(3 << 18, dtype=np.float32)  # 48 chunks
    write_manifest(
        str(tmp_path / "m"), [write_shard(str(tmp_path / "m"), 0, 1, [("v", "", as_dtype("float32"), value)], steps)]
    )
    assert len(rests) == count and min(rests, default=0.0) >= 0.0
    np.testing.assert_array_equal(CheckpointReader(str(tmp_path / "m")).get_tensor("v"), value)
