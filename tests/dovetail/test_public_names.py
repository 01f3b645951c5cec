"""Every public name that a module promises is there, once."""

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import dovetail


def spaces() -> list[str]:
    folder = [str(Path(dovetail.__file__).parent)]  # not its __path__: a checkout has the whole tree on it
    return ["dovetail", *(m.name for m in pkgutil.iter_modules(folder, "dovetail.") if m.name != "dovetail.__main__")]


@pytest.mark.parametrize("name", spaces())
def test_names_that_are_promised_are_there(name: str) -> None:
    module: ModuleType = importlib.import_module(name)
    promised = list(getattr(module, "__all__", ()))
    assert [n for n in promised if not hasattr(module, n)] == []
    assert len(promised) == len(set(promised))
