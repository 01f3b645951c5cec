"""When kernels are compiled, or loaded from the disk: by what they have cost so far."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail.codegen.cpu import jit
from dovetail.codegen.cpu.jit import TieredKernel


class Asked:
    """What stands for the cache: which sources are kept on disk, and which somebody wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
        self.wanted: list[str] = []
        self.looked = 0
        self.kept = kept
        monkeypatch.setattr(jit, "is_kept", self._look)
        monkeypatch.setattr(jit, "compile_soon", self._want)

    def _look(self, text: str) -> bool:
        self.looked += 1
        return self.kept

    def _want(self, text: str, done: Callable[[Any], None]) -> None:
        self.wanted.append(text)


def spend(kernel: TieredKernel, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a kernel on NumPy for so long."""
    times = iter((0.0, seconds))
    monkeypatch.setattr(jit.time, "perf_counter", lambda: next(times))
    kernel._on_numpy(())


def test_what_is_kept_is_loaded_sooner_than_others_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for kept in (True, False):
        asked = Asked(monkeypatch, kept)
        kernel = TieredKernel("text", lambda: None)
        spend(kernel, jit.LOAD_AFTER_S / 2, monkeypatch)
        assert not asked.wanted and not asked.looked
        spend(kernel, jit.LOAD_AFTER_S, monkeypatch)
        assert asked.wanted == (["text"] if kept else [])
        spend(kernel, jit.LOAD_AFTER_S, monkeypatch)
        assert asked.looked == 1  # once is enough
        spend(kernel, jit.COMPILE_AFTER_S, monkeypatch)
        assert asked.wanted == ["text"]


def test_a_source_is_kept_once_it_has_been_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))  # nobody has compiled it there
    text = "import numba\n\n\n@numba.njit('int64(int64)', cache=True)\ndef kernel(x):\n    return x + 41_999\n"
    assert not jit.is_kept(text)
    assert jit.compile_now(text)(1) == 42_000
    assert jit.is_kept(text)
    monkeypatch.setattr(jit, "_functions", {})  # as in another process
    assert jit.is_kept(text)
    assert not jit.is_kept(text + "\n")


STAND_IN = """
__version__ = "0.4.6"

def init():
    print("sys.stdout is replaced")

class Styles:
    def __getattr__(self, name):
        return ""

reinit = deinit = init
Fore = Style = Styles()
"""
ILL_TYPED = """
from dovetail.codegen.cpu import jit

try:
    jit.compile_now("import numba\\n@numba.njit('int64(int64)')\\ndef kernel(x):\\n    return x.nothing\\n")
except Exception as e:
    print(type(e).__name__)
"""


def test_compiling_leaves_stdout_alone(tmp_path: Path) -> None:
    """Another thread may print meanwhile."""
    (tmp_path / "colorama.py").write_text(STAND_IN)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "DOVETAIL_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", ILL_TYPED], env=env, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "TypingError\n", ran.stderr
