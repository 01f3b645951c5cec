"""Public names: those that a module promises are there, once, and those that were ever public still are."""

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


def recorded() -> dict[str, list[tuple[str, str]]]:
    """Public module -> the kind and name of each name that it had when `public_names.txt` was recorded."""
    found: dict[str, list[tuple[str, str]]] = {}
    module = kind = ""
    for line in (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            found.setdefault(module, []).extend((kind, name) for name in line.split())
        elif not line.startswith("#"):
            module, kind = line.split()
    return found


def kind_of(value: object) -> str:
    if isinstance(value, ModuleType):
        return "module"
    return "class" if isinstance(value, type) else "function" if callable(value) else "value"


def by_attributes(path: str) -> ModuleType:
    """The module that a program reaches as `dovetail.a.b`, after `import dovetail` alone; `dovetail.tf1` has to be imported."""
    if path == "dovetail.tf1":
        return importlib.import_module(path)
    value: ModuleType = dovetail
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("path", recorded())
def test_every_name_that_was_public_still_is(path: str) -> None:
    module = by_attributes(path)
    assert [(kind, name) for kind, name in recorded()[path] if kind_of(getattr(module, name, None)) != kind] == []


def test_v1_has_every_name_of_the_front_door() -> None:
    v1 = by_attributes("dovetail.compat.v1")
    missing = [name for _, name in recorded()["dovetail"] if not hasattr(v1, name)]
    assert missing == []


def test_the_core_face_is_small_and_is_what_a_star_gives() -> None:
    assert dir(dovetail) == sorted(dovetail.__all__)
    assert 100 <= len(dir(dovetail)) <= 125
    given: dict[str, object] = {}
    exec("from dovetail import *", given)
    assert set(given) - {"__builtins__"} == set(dovetail.__all__)
