"""Files that are replaced whole, and large ones that are written without the operating system's cache."""

import os
from pathlib import Path

import numpy as np
import pytest

from dovetail.graph.formats import atomic_files
from dovetail.graph.formats.atomic_files import locked, open_sink

BUFFER = atomic_files._BUFFER_BYTES


@pytest.mark.parametrize("size", [1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER + 4097])
@pytest.mark.parametrize("piece", [1000, 1 << 16, BUFFER, 5 * BUFFER])
def test_a_large_file_is_written_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, piece: int
) -> None:
    monkeypatch.setattr(atomic_files, "_UNCACHED_BYTES", 1)
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).data
    with open_sink(tmp_path / "file", size) as file:
        for at in range(0, size, piece):
            file.write(content[at : at + piece])
    assert (tmp_path / "file").read_bytes() == content.tobytes()


def test_a_file_system_without_uncached_writes_gets_cached_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, *mode)

    monkeypatch.setattr(atomic_files, "_UNCACHED_BYTES", 1)
    monkeypatch.setattr(os, "open", refuse)
    with open_sink(tmp_path / "file", 3) as file:
        file.write(b"abc")
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_a_small_file_is_written_through_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    with open_sink(tmp_path / "file", 3) as file:
        file.write(b"abc")
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_a_lock_that_is_not_freed_in_time_is_left_to_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with locked(path, wait_s=0.05):
            pass
        assert path.exists()
    with locked(path, wait_s=0.05):
        assert path.exists()
    assert not path.exists()
