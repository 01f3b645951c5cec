"""Where the old names are: `find` gives a name of a public module that only programs of TensorFlow 1 use.

`dovetail` and its modules ask here, through `dovetail.public_paths`, for a name that they lack. So these names cost
nothing until a program uses one, and neither `dir()` nor the reference shows them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ....api.unknown_names import message
from ....public_paths import HOMES
from .inner_modules import substitute

_HOLDERS = {
    "dovetail": f"{__package__}.top_level",
    "dovetail.train": f"{__package__}.train",
    "dovetail.io": f"{__package__}.io",
    "dovetail.nn": f"{__package__}.nn",
    "dovetail.random": f"{__package__}.random",
}
"""Public module -> the module that imports its old names."""

_MODULES = {"compat", *(path for path in HOMES if "." not in path and path not in ("rnn", "tf1"))}
"""Modules that `import dovetail as tf` gives, among them those that the core face shows."""

_ABSENT = {
    "dovetail.train.Checkpoint": "dt.train.Saver saves and restores variables by name",
}
"""Names of TensorFlow 1 that there are not, and what to use instead."""


def find(module: str, name: str) -> Any:
    """The value of an old name of a public module.

    Raises:
        AttributeError: there is no such name. The text says what to use instead, where that is known.
    """
    if module == "dovetail" and name in _MODULES:
        return import_module(f"dovetail.{name}")
    if name in old_names(module):
        return getattr(import_module(_HOLDERS[module]), name)
    path = f"{module}.{name}"
    instead = _ABSENT.get(path) or substitute(path.partition(".")[2])
    if instead:
        text = f"module {module!r} has no attribute {name!r}: {instead}"
    else:
        text = message(module, name, () if name.startswith("_") else old_names(module))
    raise AttributeError(text, name=name)  # with a name, but no object, Python adds no suggestion of its own


def old_names(module: str) -> list[str]:
    """The old names of a public module, sorted, with the modules that `dovetail` gives."""
    if module not in _HOLDERS:
        return []
    holder = import_module(_HOLDERS[module])
    names = {name for name in getattr(holder, "__all__", None) or dir(holder) if not name.startswith("_")}
    return sorted(names | _MODULES if module == "dovetail" else names)
