"""Writes the type stubs of what a type checker cannot follow: `python docs/stubs.py`.

`import dovetail` loads large parts and old names late, in `__getattr__`. Each of these modules has a stub beside it that imports every
name from the module that defines it, so an unknown name is an error and the others have their types.

A function that a row of a table makes (`exp = define_unary("Exp", ...)`) has no definition that an editor could show. The stub of
`dovetail.math` defines it, and the others take it from there.

A public path such as `dovetail.keras.layers` has no file, because its module lies elsewhere (`dovetail/public_paths.py`). A stub stands at
each such path and gives the names of that module. A test sees that all stubs are up to date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout needs no install

from dovetail.compat.tf1.names import table  # noqa: E402
from dovetail.public_paths import HOMES  # noqa: E402

STUBS = {
    "dovetail/__init__.pyi": ("dovetail", "dovetail", "dovetail.compat.tf1.names.top_level"),
    "dovetail/train/__init__.pyi": ("dovetail.train", "dovetail.train", "dovetail.compat.tf1.names.train"),
    "dovetail/api/ops/nn.pyi": ("dovetail.nn", "dovetail.api.ops", "dovetail.compat.tf1.names.nn"),
    "dovetail/io/__init__.pyi": ("dovetail.io", "dovetail.io", "dovetail.compat.tf1.names.io"),
    "dovetail/api/ops/random.pyi": ("dovetail.random", "dovetail.api.ops", "dovetail.compat.tf1.names.random"),
    **{
        f"dovetail/api/ops/{name}.pyi": (f"dovetail.{name}", "dovetail.api.ops", "")
        for name in ("initializers", "linalg", "math", "sparse", "strings")
    },
    "dovetail/api/errors.pyi": ("dovetail.errors", "dovetail.api", ""),
    "dovetail/data/__init__.pyi": ("dovetail.data", "dovetail.data", ""),
    "dovetail/distribute/__init__.pyi": ("dovetail.distribute", "dovetail.distribute", ""),
    "dovetail/interop/tensorflow/saved_model/__init__.pyi": (
        "dovetail.saved_model",
        "dovetail.interop.tensorflow.saved_model",
        "",
    ),
}
"""Stub -> the public module, the package that its relative imports start from, and the module of its old names, or "".

These modules only gather names, and compute `__all__`.
"""

_HEAD = '''"""Types of `{}`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
'''


def stub(path: str) -> str:
    """The text of a stub."""
    public, package, holder = STUBS[path]
    module = importlib.import_module(public)
    source = (ROOT / path).with_suffix(".py").read_text(encoding="utf-8")
    found = dict(_imported(source, package))
    old_names = table.old_names(public)
    if holder:
        holder_file = Path(str(importlib.import_module(holder).__file__))
        holder_package = holder if holder_file.name == "__init__.py" else holder.rpartition(".")[0]
        old = dict(_imported(holder_file.read_text(encoding="utf-8"), holder_package))
        found.update({name: old[name] for name in old_names if name in old})
    for name, where in getattr(module, "_LOADED_WHEN_USED", {}).items():
        found[name] = (public + where, name)
    if public == "dovetail":
        found["compat"] = ("dovetail", "compat")
        for name, home in HOMES.items():
            if name in old_names:
                found[name] = (f"dovetail.{home}".rpartition(".")[0], home.rpartition(".")[2])
    names = {*module.__all__, *old_names, *(n for n, (_, own) in found.items() if n == own and not n.startswith("_"))}
    values = {name: _type_of(getattr(module, name)) for name in (*module.__all__, *old_names) if name not in found}
    values.update(dict.fromkeys(getattr(module, "_MESSAGES", ()), "Any"))
    rows = {name: value for name in found if is_row(value := getattr(module, name, None))}
    defined: dict[str, FunctionType] = {}
    if public == "dovetail.math":
        defined = rows
    elif public == "dovetail.errors":  # it has functions of its own
        defined = {name: f for name in values if isinstance(f := getattr(module, name), FunctionType)}
    else:
        math = importlib.import_module("dovetail.math")
        homes = {id(getattr(math, name)): name for name in reversed(math.__all__)}
        found.update({n: ("dovetail.api.ops.math", homes[id(f)]) for n, f in rows.items() if id(f) in homes})
    found = {name: where for name, where in found.items() if name not in defined}
    values = {name: kind for name, kind in values.items() if name not in defined}
    if public == "dovetail":
        values["__version__"] = "str"
    return _text(public, {n: found[n] for n in names if n in found}, values, module.__all__, defined)


def is_row(value: object) -> bool:
    """Whether a value is a function that a row of a table makes."""
    function = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    return isinstance(function, FunctionType) and function.__code__.co_name not in ("<lambda>", function.__name__)


def definition(function: FunctionType, name: str) -> str:
    """The definition of a function, without its body."""
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    signature = re.sub(r"\bdovetail\.[\w.]*\.", "", signature)
    text = (inspect.getdoc(function) or "").replace("\n", "\n    ").replace("\n    \n", "\n\n")
    return f'def {name}{signature}:\n    """{text}"""\n'


def public_path_stubs() -> dict[str, str]:
    """The stubs at public paths that have no file: path -> text."""
    found: dict[str, str] = {}
    for name, home in HOMES.items():
        _alias(f"dovetail.{name}", f"dovetail.{home}", found)
    return found


def _alias(public: str, home: str, found: dict[str, str]) -> None:
    """Add the stub of a public path, and those of the modules that a package promises."""
    module = importlib.import_module(home)
    inner = [n for n in getattr(module, "__all__", ()) if isinstance(getattr(module, n), ModuleType)]
    inner = [n for n in inner if hasattr(module, "__path__") and getattr(module, n).__name__ == f"{home}.{n}"]
    for name in inner:
        _alias(f"{public}.{name}", f"{home}.{name}", found)
    lines = [_HEAD.format(public).rstrip().rpartition("\n")[0], f"from {home} import *"]
    source = next((path for path, (name, _, holder) in STUBS.items() if name == public and holder), None)
    if public == "dovetail.compat.v1":
        source, home = "dovetail/__init__.pyi", "dovetail"
    if source:  # its old names, which are not in `__all__`
        tree = ast.parse((ROOT / source).read_text(encoding="utf-8"))
        names = [a.asname for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names if a.asname]
        assigned = [
            t for n in tree.body for t in (n.targets if isinstance(n, ast.Assign) else [getattr(n, "target", None)])
        ]
        names = [n for n in (*names, *(t.id for t in assigned if isinstance(t, ast.Name))) if not n.startswith("_")]
        lines += [f"from {home} import (", _filled(", ".join(f"{n} as {n}" for n in sorted(names))), ")"]
    path = public.replace(".", "/") + ("/__init__.pyi" if inner else ".pyi")
    found[path] = "\n".join(lines) + "\n"


def _imported(source: str, package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that a module imports from Dovetail, each with the module that defines it and its name there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            parents = package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                hidden = node.module in ("graph.tensorflow.protos", "public_paths") or alias.name == "public_paths"
                if not hidden:
                    yield alias.asname or alias.name, (base, alias.name)


def _type_of(value: object) -> str:
    return "None" if value is None else type(value).__name__ if isinstance(value, (str, int)) else "Any"


def _text(
    public: str,
    found: dict[str, tuple[str, str]],
    values: dict[str, str],
    exported: list[str],
    defined: dict[str, FunctionType],
) -> str:
    by_module: dict[str, list[str]] = {}
    renamed = [name for name, (_, own) in sorted(found.items()) if name != own and name not in exported]
    for name, (module, own) in sorted(found.items()):  # a stub gives no name that an import has changed
        by_module.setdefault(module, []).append(f"{own} as {'_' * (name in renamed)}{name}")
    lines = [_HEAD.format(public).rstrip()]
    for module, names in sorted(by_module.items()):
        line = f"from {module} import {', '.join(names)}"
        lines += [line] if len(line) <= 136 else [f"from {module} import (", _filled(", ".join(names)), ")"]
    if any("TensorLike" in definition(f, name) for name, f in defined.items()):
        lines += ["from dovetail.graph.core.build import TensorLike", "from dovetail.graph.core.graph import Tensor"]
    lines += [definition(f, name) for name, f in sorted(defined.items())]
    lines += [f"{name} = _{name}" for name in renamed]
    lines += [f"{name}: {kind}" for name, kind in sorted(values.items())]
    lines += ["__all__ = [", _filled(", ".join(f'"{name}"' for name in exported)), "]"]
    return "\n".join(lines) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text + ",", 136, initial_indent="    ", subsequent_indent="    ", break_long_words=False)


if __name__ == "__main__":
    for path in STUBS:
        (ROOT / path).write_text(stub(path), encoding="utf-8")
    for path, text in public_path_stubs().items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
