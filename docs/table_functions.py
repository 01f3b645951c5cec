"""An extension of Griffe, which reads the sources for the reference: functions that rows of tables make are functions there, too."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import stubs  # noqa: E402


class TableFunctions(griffe.Extension):
    """Puts a function in the place of an assignment such as `exp = define_unary("Exp", ...)`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for part in ("graph.ops", "api.ops"):
            self._replace(pkg[part])

    def _replace(self, module: griffe.Module) -> None:
        for name, member in list(module.members.items()):
            if member.is_alias:
                continue
            if member.is_module:
                self._replace(member)
            elif member.is_attribute and isinstance(member.value, griffe.ExprCall) and name[0] != "_":
                value = getattr(importlib.import_module(module.path), name, None)
                if stubs.is_row(value):
                    made = griffe.visit(module.name, module.filepath, stubs.definition(value, value.__name__))
                    module.set_member(name, made.members[value.__name__])
