"""The finder: gives Dovetail's modules under TensorFlow's names."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import dovetail

from ....graph.formats import protos
from ..names import v1
from ..names.inner_modules import FILES, MODULES, OTHER_NAMES, PUBLIC, SAME_MODULES, substitute
from . import inner as _inner  # noqa: F401  (the table names it)

ROOT = "tensorflow"


def walk(path: str) -> Any:
    """What a dotted path below `dovetail` names; "" is `dovetail`. AttributeError: nothing."""
    found: Any = dovetail
    for part in path.split(".") if path else ():
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    return found


def _get(home: str, name: str) -> Any:
    """The name in one of the places of the table. AttributeError, KeyError: it is not there."""
    if home != "messages":
        return walk(f"{home}.{name}" if home else name)
    if name not in protos.MESSAGES:
        raise AttributeError(name)
    return protos.message(name)


class InnerModule(ModuleType):
    """A module of TensorFlow's inside, such as `tensorflow.python.ops.math_ops`: the public names, looked up when they are used."""

    def __init__(self, path: str, homes: tuple[str, ...]) -> None:
        super().__init__(f"{ROOT}.{path}", f"Dovetail's names for TensorFlow's module {ROOT}.{path}.")
        self.__path__: list[str] = []
        self._inner_path, self._homes = path, homes

    @property
    def __all__(self) -> list[str]:
        places = [walk(home) for home in self._homes if home != "messages"]
        names = {n for place in places for n in getattr(place, "__all__", dir(place)) if not n.startswith("_")}
        return sorted(names | {n.rpartition(".")[2] for n in OTHER_NAMES if n.rpartition(".")[0] == self._inner_path})

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            full = f"{self._inner_path}.{name}"
            if full in OTHER_NAMES:
                return walk(OTHER_NAMES[full])
            for home in self._homes:
                try:
                    return _get(home, name)
                except (AttributeError, KeyError):
                    continue
            if full in MODULES or full in SAME_MODULES:
                return importlib.import_module(f"{ROOT}.{full}")
        raise AttributeError(_missing(f"{self._inner_path}.{name}"))


def _missing(path: str) -> str:
    """Why a name is not there, and what to use."""
    name = path.rpartition(".")[2]
    said = substitute(path)
    if not said:
        public = [f"tf.{home}.{name}" if home else f"tf.{name}" for home in PUBLIC if name in walk(home).__all__]
        said = (
            f"{' and '.join(public)} is public"
            if public
            else "no public name is like it; docs/guides/tensorflow.md lists what is there"
        )
    return f"Dovetail has no {ROOT}.{path}: {said}"


class _Loader:
    """Puts a module that is there into `sys.modules` under another name."""

    def __init__(self, find: Callable[[], ModuleType]) -> None:
        self._find = find

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module, which `exec_module` replaces: Python writes its own notes into that one."""

    def exec_module(self, module: ModuleType) -> None:
        found = self._find()
        if not hasattr(found, "__path__"):
            found.__path__ = []  # Python asks a module for it before it asks us for a module below
        sys.modules[module.__name__] = found


class Finder:
    """The entry of `sys.meta_path`."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where `tensorflow` and all below it comes from.

        Raises:
            ModuleNotFoundError: Dovetail has nothing of that name; it says what to use.
        """
        root, _, rest = name.partition(".")
        if root == ROOT:
            files = next((f for f in FILES if f"{rest}.".startswith(f"{f}.")), "")
            if files:
                return _from_files(name, files)
            found = _module(rest)
        elif (
            root == "dovetail"
            and substitute(rest := rest.removeprefix("compat.tf1."))
            and not PathFinder.find_spec(name, sys.modules[name.rpartition(".")[0]].__path__)
        ):
            found = None  # `from tensorflow.contrib import learn` asks for dovetail.compat.tf1.contrib.learn
        else:
            return None
        if found is None:  # the error has no `name`: Python would replace it by one that says less
            raise ModuleNotFoundError(_missing(rest))
        return ModuleSpec(name, _Loader(found), is_package=True)  # type: ignore[arg-type]


def _module(path: str) -> Callable[[], ModuleType] | None:
    """How to get the module of a path below `tensorflow`. None: there is none."""
    if not path:
        return _root
    if path in MODULES:
        return lambda: InnerModule(path, MODULES[path])
    public = _public(path)
    if public is not None:
        return lambda: public
    parts = path.split(".")
    # Such as `contrib.layers.python.layers.initializers`.
    home = ".".join(parts[:2])
    known_here = parts[0] == "contrib" and substitute(path) in ("", substitute(home))
    if known_here and "python" in parts[2:] and _public(home) is not None:
        inner = _public(f"{home}.{parts[-1]}")
        return (lambda: inner) if inner is not None else (lambda: InnerModule(path, (home,)))
    if any(known.startswith(f"{path}.") for table in (MODULES, SAME_MODULES) for known in table):
        return lambda: InnerModule(path, ())
    return None


def _public(path: str) -> ModuleType | None:
    """The module of Dovetail's that a path below `tensorflow` names: `keras.layers`, `python.keras.layers`, `compat.v1.train`."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        at = ".".join(parts[:end])
        if at in SAME_MODULES:
            path = ".".join([SAME_MODULES[at], *parts[end:]])
            break
    if path.partition(".")[0] not in dir(v1):
        return None
    try:
        found = walk(path)
    except (AttributeError, KeyError):
        return None
    return found if isinstance(found, ModuleType) else None


def _root() -> ModuleType:
    """`dovetail`, which says from now on which version of TensorFlow its names are: programs ask for it."""
    real = PathFinder.find_spec(ROOT)
    if real is not None and real.origin is not None:
        logging.getLogger("dovetail").debug("`import tensorflow` gives Dovetail, not the TensorFlow of %s", real.origin)
    found: ModuleType = dovetail
    vars(found).setdefault("__git_version__", f"dovetail-{dovetail.__version__}")
    found.__dict__["__version__"] = dovetail.VERSION
    return found


def _from_files(name: str, files: str) -> ModuleSpec:
    """A module of a folder that the path has, such as `tensorflow/examples`.

    Raises:
        ModuleNotFoundError: it does not.
    """
    parent = name.rpartition(".")[0]
    above = (ROOT, *files.split(".")[:-1])
    beside = (
        [str(Path(p, *above)) for p in sys.path] if parent == ".".join(above) else list(sys.modules[parent].__path__)
    )
    found = PathFinder.find_spec(name, beside)
    if found is None:
        folder = f"{ROOT}/{files.replace('.', '/')}"
        said = substitute(files) or "it is no part of the library but programs of TensorFlow's repository"
        raise ModuleNotFoundError(
            f"No module {name}: {said}. To use a copy of TensorFlow's folder {folder}, put it on PYTHONPATH, as DIR/{folder} with DIR there"
        )
    return found


@cache
def install() -> Finder:
    """Let `import tensorflow` and `import tensorflow.x.y` give Dovetail in this process; a second call changes nothing.

    Raises:
        ImportError: TensorFlow itself is loaded already.
    """
    if sys.modules.get(ROOT, dovetail) is not dovetail:
        raise ImportError(
            "TensorFlow is loaded already: call dovetail.tf1.install() before the first `import tensorflow`"
        )
    finder = Finder()
    sys.meta_path.insert(0, finder)
    return finder
