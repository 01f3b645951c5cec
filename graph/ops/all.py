"""Importing this module registers every op but those that only old programs use, which `opdef` finds (`core/hooks.py`).

Code that receives graphs needs all ops, not only those it builds itself. It also makes the errors of all public functions name the
keyword argument to use (`core/argument_names.py`)."""

import importlib
import pkgutil

from ..core.argument_names import explain_members
from . import __name__ as _package, __path__ as _folder

HELPERS = {"common", "conv_geometry", "random_common", "static_operands"}
"""Modules whose functions only other modules of this package call."""
_modules = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(_folder, f"{_package}.")
    if found.name != __name__
]
for _module in _modules:  # when all are imported: what they import from each other stays as it is
    if _module.__name__.rpartition(".")[2] not in HELPERS:
        explain_members(_module, helpers=False)
