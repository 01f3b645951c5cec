"""Importing this registers every op. Whoever receives graphs from elsewhere needs all of them, also those it never builds itself."""

import importlib
import pkgutil

from .. import build
from . import __name__ as _package, __path__ as _folder

FAMILIES = ("build", *sorted(m.name for m in pkgutil.iter_modules(_folder) if m.name != "all"))

for _family in FAMILIES[1:]:
    importlib.import_module(f"{_package}.{_family}")

__all__ = ["FAMILIES", "build"]
