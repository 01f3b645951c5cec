"""The wheel holds all of Dovetail and nothing else, under one top-level name."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import dovetail

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
PAGE = "placer/render/page_assets"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE_DIR = PYPROJECT["tool"]["setuptools"]["package-dir"]
FOLDERS = {folder: package.replace(".", "/") for package, folder in PACKAGE_DIR.items()}
BUILD_FILES = ["MANIFEST.in", "pyproject.toml", "setup.py", "LICENSE", "README.md"]


def pip(*args: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the sources, so that no leftover in build/ gets in or stays behind."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILD_FILES:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", target, source)
    [built] = target.glob("*.whl")
    return built


def test_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, package in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyi") and not any(parent.is_symlink() for parent in path.parents)
    } | {"dovetail/py.typed", "dovetail/graph/tensorflow/signatures.jsonl"}
    expected |= {f"dovetail/{PAGE}/{path.name}" for path in (ROOT / PAGE).iterdir()}
    info = f"dovetail-{dovetail.__version__}.dist-info"
    assert {name for name in names if not name.startswith(f"{info}/")} == expected
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/{PAGE}/dagre.LICENSE.txt"} <= names


def test_the_citation_names_this_version() -> None:
    assert f"\nversion: {dovetail.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_types_of_the_installed_package(wheel: Path, tmp_path: Path) -> None:
    """`py.typed` and the stubs are installed: names have types, and one that there is not is an error."""
    pytest.importorskip("mypy")
    pip("install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    (tmp_path / "program.py").write_text(
        "import dovetail as dt\nfrom dovetail.keras import layers\n\nreveal_type(dt.train.AdamOptimizer(0.1))\ndt.matmull\n"
        "reveal_type(layers.Dense(3))\nlayers.Dens\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--cache-dir", str(tmp_path / "cache"), "program.py"]
    environment = {"MYPYPATH": str(tmp_path / "site"), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert 'type is "dovetail.train.optimizers.adam.AdamOptimizer"' in done.stdout
    assert 'program.py:5: error: Module has no attribute "matmull"' in done.stdout
    assert 'type is "dovetail.compat.tf1.keras.layers.core.Dense"' in done.stdout
    assert 'program.py:7: error: Module has no attribute "Dens"' in done.stdout


def test_wheel_imports_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--no-index", "--target", site, wheel)
    parts = ", ".join(PACKAGE_DIR)
    # -P: nothing but `site` and the dependencies on the path; the loop says where each part came from.
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        f"import {parts}\n"
        "for name, module in sys.modules.items():\n"
        "    if name.partition('.')[0] == 'dovetail': print(module.__file__)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stdout.splitlines()]
    assert len(files) >= len(FOLDERS)
    assert all(file.is_relative_to(site) for file in files)
