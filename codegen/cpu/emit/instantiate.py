"""Makes the source texts of hand-written kernels from a file of functions and the types of their arguments.

A file such as `kernels/contraction_source.py` is the head of its kernels' texts. Its functions take flat arrays, integers, and tuples of
integers, then the range of work that a call does. They are compiled and kept like all other kernels (`jit`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from ....graph.core import philox

Signature: TypeAlias = "tuple[str, tuple[int, ...]]"
"""(a letter per argument, the lengths of the tuples that follow): r is an array that is read, w one that is written, n one of int64
that is read, c one of int64 with which threads count, p one of int32 that is written, i an integer."""

_CPU = Path(__file__).parent.parent
_IMPORT = re.compile(r"^from (?:dovetail\.codegen\.cpu|\.)\.?([\w.]+) import (\w*)", re.MULTILINE)


@cache
def versions() -> str:
    """What a kernel depends on besides its text, as a text: the functions that it calls, and Numba's version."""
    from importlib import metadata  # loads the mail package

    functions = sorted((_CPU.parent / "vecmath").glob("*.py"))
    files = (*functions, _CPU.parent / "target.py", _CPU / "emit" / "philox.py", Path(philox.__file__))
    called = b"".join(path.read_bytes() for path in files)
    return f"functions {hashlib.sha256(called).hexdigest()[:16]}, numba {metadata.version('numba')}"


def text_of(file: str, functions: Mapping[str, Signature], dtype: str) -> str:
    """The source text of functions of one file for arrays of one type. `kernel` is the function, or a tuple of several."""
    return text_with(file, tuple([_compiled(name, signature, dtype) for name, signature in functions.items()]))


@cache
def text_with(file: str, compiled: tuple[str, ...]) -> str:
    """The source text of a file, with these expressions for its compiled functions as `kernel`."""
    called = hashlib.sha256(b"".join(p.read_bytes() for p in _called(_CPU / f"{file}.py"))).hexdigest()[:16]
    text, kernel = (_CPU / f"{file}.py").read_text(encoding="utf-8"), ", ".join(compiled)
    kernel = kernel if len(compiled) == 1 else f"({kernel})"
    return f"{text}\n\n# for functions {called}, {versions()}\nkernel = {kernel}\n"


def _called(path: Path) -> list[Path]:
    """The modules of this package that a file imports, directly or not: they decide what its functions do, too."""
    found: dict[Path, None] = {}
    todo = [path]
    while todo:
        here = todo.pop()
        for name, of in _IMPORT.findall(here.read_text(encoding="utf-8")):
            place = _CPU.joinpath(*name.split("."))
            places = place.with_suffix(".py"), place / f"{of}.py", here.with_name(f"{name}.py")
            other = next(filter(Path.exists, places), here)
            if other is not here and other not in found:
                found[other] = None
                todo.append(other)
    return sorted(found)


def _compiled(name: str, signature: Signature, dtype: str) -> str:
    arguments, tuples = signature
    read = ", readonly=True"
    kinds = {"r": (dtype, read), "w": (dtype, ""), "c": ("int64", ""), "p": ("int32", ""), "n": ("int64", read)}
    arrays = {letter: f"types.Array(types.{kind}, 1, 'C'{how})" for letter, (kind, how) in kinds.items()}
    types = [arrays.get(a, "types.intp") for a in arguments]
    types += [f"types.UniTuple(types.intp, {n})" for n in tuples] + ["types.intp"] * 2
    return f"njit(types.void({', '.join(types)}), nogil=True, no_cfunc_wrapper=True, error_model='numpy', cache=True)({name})"
