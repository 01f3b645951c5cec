"""Importing this module registers every op. Code that receives graphs needs all ops, not only those it builds itself."""

import importlib
import pkgutil

from . import __name__ as _package, __path__ as _folder

for _module in pkgutil.walk_packages(_folder, f"{_package}."):
    importlib.import_module(_module.name)
