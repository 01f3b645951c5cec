"""Public module paths that differ from the source tree: `import dovetail.keras` imports `dovetail.compat.tf1.keras`.

Programs import `dovetail.math` or `dovetail.keras.layers`, because TensorFlow 1 names its modules so. In the source tree, modules that
only old programs need are in `compat/tf1`, re-exporting modules in `api` and other formats in `interop`. A finder at the front of
`sys.meta_path` returns the same module object under both names, so `dovetail.keras is dovetail.compat.tf1.keras`.

Single names that only old programs use, such as `dovetail.train.Supervisor`, are looked up when they are used: modules call `old_name`.
`dovetail/__init__` registers the function behind it, so that no module outside `compat` imports `compat`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

_ROOT = __name__.rpartition(".")[0]

HOMES = {
    "app": "compat.tf1.programs.app",
    "bitwise": "compat.tf1.names.bitwise",
    "compat.v1": "compat.tf1.names.v1",
    "config": "compat.tf1.names.config",
    "contrib": "compat.tf1.contrib",
    "debugging": "api.ops.debugging",
    "distribute.cluster_resolver": "distribute.resolvers.cluster_resolver",
    "dtypes": "compat.tf1.names.dtypes",
    "errors": "api.errors",
    "estimator": "compat.tf1.estimator",
    "feature_column": "compat.tf1.feature_column",
    "flags": "compat.tf1.programs.flags",
    "gfile": "io.files",
    "graph_util": "interop.tensorflow.graph_util",
    "image": "compat.tf1.image",
    "initializers": "api.ops.initializers",
    "keras": "compat.tf1.keras",
    "layers": "compat.tf1.layers",
    "linalg": "api.ops.linalg",
    "logging": "compat.tf1.programs.logging",
    "lookup": "api.ops.lookup",
    "losses": "compat.tf1.losses",
    "manip": "compat.tf1.names.manip",
    "math": "api.ops.math",
    "metrics": "compat.tf1.metrics",
    "nest": "api.nest",
    "nn": "api.ops.nn",
    "onnx": "interop.onnx",
    "python_io": "io.records",
    "queue": "graph.ops.state.queue_api",
    "random": "api.ops.random",
    "rnn": "compat.tf1.rnn",
    "saved_model": "interop.tensorflow.saved_model",
    "sets": "compat.tf1.ops.sets",
    "sparse": "api.ops.sparse",
    "strings": "api.ops.strings",
    "summary": "interop.tensorboard",
    "test": "compat.tf1.programs.test",
    "tf1": "compat.tf1.importing",
    "timeline": "runtime.observability.timeline",
}
"""Public path below `dovetail` -> path in the source tree. Submodules of a path are mapped with it."""


def home_of(name: str) -> str | None:
    """The full name of the module behind a public name such as `dovetail.keras.layers`, or None if both are the same."""
    root, _, path = name.partition(".")
    if root != _ROOT:
        return None
    for end in (path, path.partition(".")[0], ".".join(path.split(".")[:2])):
        if end in HOMES:
            return f"{_ROOT}.{HOMES[end]}{path[len(end) :]}"
    return None


class _Loader:
    """Puts the module of one name into `sys.modules` under another name."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates an empty module and writes its import attributes there; `exec_module` replaces it."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = found = import_module(self._home)
        explain_unknown_names(found, module.__name__)
        for name, inner in list(
            vars(found).items()
        ):  # submodules, such as `dovetail.keras.layers`, are used without an import
            if isinstance(inner, ModuleType) and inner.__name__ == f"{found.__name__}.{name}":
                explain_unknown_names(inner, f"{module.__name__}.{name}")

    def get_code(self, name: str) -> CodeType | None:
        """The code of the module, for `python -m dovetail.tf1`."""
        spec = util.find_spec(self._home)
        return spec.loader.get_code(self._home) if spec is not None else None  # type: ignore[union-attr]


class _Finder:
    """The entry of `sys.meta_path`."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        home = home_of(name)
        found = home and util.find_spec(home)
        if not home or not found:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, _Loader(home), origin=found.origin, is_package=is_package)  # type: ignore[arg-type]


def install() -> None:
    """Let Python find the public paths. Further calls have no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


_find_old_name: Callable[[str, str], Any] | None = None


def register_old_names(find: Callable[[str, str], Any]) -> None:
    """Set the function that `old_name` calls."""
    global _find_old_name
    _find_old_name = find


def old_name(module: str, name: str) -> Any:
    """A name of a public module that only TensorFlow 1 programs use. AttributeError: there is no such name."""
    if _find_old_name is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _find_old_name(module, name)


def exported(names: Mapping[str, Any], *more: str) -> list[str]:
    """`__all__` of a module that gathers public names: all that it imports and defines, but for modules and names that begin with `_`.

    Args:
        names: the module's `globals()`.
        more: names of modules that it exports, and names that it loads when they are used.

    >>> __all__ = exported(globals(), "experimental")
    """
    found = (name for name, value in names.items() if name[0] != "_" and not isinstance(value, ModuleType))
    return sorted({*found, *more})


def explain_unknown_names(module: ModuleType, public: str) -> None:
    """Make AttributeErrors of a module say what to use instead of the unknown name, unless the module has its own `__getattr__`.

    If the module has `__all__`, `dir` lists only these names.

    Args:
        module: the module.
        public: its public name, for the errors.
    """
    vars(module).setdefault("__getattr__", partial(old_name, public))
    if hasattr(module, "__all__"):
        vars(module).setdefault("__dir__", lambda: list(module.__all__))
