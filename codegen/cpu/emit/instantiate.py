"""Makes the source texts of hand-written kernels from a file of functions and the types of their arguments.

A file such as `kernels/contraction_source.py` is the head of its kernels' texts. Its functions take flat arrays, integers, and tuples of
integers, then the range of work that a call does. In the text they read these arguments from a launch table (`vecmath.launched`). They are
compiled and kept like all other kernels (`jit`).
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
"""(a letter per argument, the lengths of the tuples that follow): a is an array, c one of int64, p one of int32, i an integer."""

_CPU = Path(__file__).parent.parent
_IMPORT = re.compile(r"^from (?:dovetail\.codegen\.cpu|\.)\.?([\w.]+) import ([\w, ]*)", re.MULTILINE)


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
    return text_with(file, tuple(functions), tuple([_arguments(*x, dtype) for x in functions.values()]))


@cache
def text_with(file: str, names: tuple[str, ...], arguments: tuple[tuple[str, ...], ...] = ()) -> str:
    """The source text of a file, with the functions of these names as `kernel`, which find their arguments so."""
    called = hashlib.sha256(b"".join(p.read_bytes() for p in _called(_CPU / f"{file}.py"))).hexdigest()[:16]
    text = (_CPU / f"{file}.py").read_text(encoding="utf-8")
    for name, values in zip(names, arguments, strict=False):
        begin, parameters, rest = re.split(rf"^def {name}\(([^)]*)\):.*$", text, maxsplit=1, flags=re.MULTILINE)
        *own, lo, hi = re.findall(r"\w+", parameters)
        lines = "".join(f"\n    {x} = {value}" for x, value in zip(own, values, strict=True))
        text = f"{begin}@m.launched\ndef {name}(words, {lo}, {hi}):{lines}{rest}"
    return f"{text}\n\n# for functions {called}, {versions()}\nkernel = {', '.join(names)}\n"


def _called(path: Path) -> list[Path]:
    """The modules of this package that a file imports, directly or not: they decide what its functions do, too."""
    found: dict[Path, None] = {}
    todo = [path]
    while todo:
        here = todo.pop()
        for name, of in _IMPORT.findall(here.read_text(encoding="utf-8")):
            place = _CPU.joinpath(*name.split("."))
            parts = [place / f"{part.split()[0]}.py" for part in of.split(",") if part.strip()]
            places = place.with_suffix(".py"), *parts, here.with_name(f"{name}.py")
            others = [other for other in places if other.exists() and other != here and other not in found]
            found.update(dict.fromkeys(others))
            todo += others
    return sorted(found)


def _arguments(letters: str, tuples: tuple[int, ...], dtype: str) -> tuple[str, ...]:
    kinds, out, at = {"a": dtype, "c": "int64", "p": "int32"}, [], 0
    for letter in letters:
        out.append(f"m.vector(words, {at}, np.{kinds[letter]})" if letter in kinds else f"m.word(words, {at})")
        at += 2 if letter in kinds else 1
    for length in tuples:
        out.append(f"m.some_words(words, {at}, {length})")
        at += length
    return tuple(out)
