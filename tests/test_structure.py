"""The structure of the source tree: no import circles, no module that is too large; every package says what it is for and what is in it."""

import ast
import sys
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"dovetail": "dovetail"} | {f: f"dovetail.{f}" for f in ("graph", "placer", "codegen", "runtime")}
MOST_LINES = 600


def module_name(path: Path) -> str:
    folder, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(part for part in rest if part != "__init__")])


FILES = {module_name(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}


def imports(name: str) -> set[str]:
    """All modules of ours that a module imports: when it is loaded, inside functions, and for type checkers."""
    path, found = FILES[name], set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in FILES else base for a in node.names}
    return {f for f in found if f in FILES and f != name}


def test_no_import_circles() -> None:
    """Of any kind. A type that two modules need lives below both."""
    graph = networkx.DiGraph((name, other) for name in FILES for other in imports(name))
    circles = [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles, "\n".join(", ".join(c) for c in circles)


def test_the_check_sees_imports_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "if TYPE_CHECKING:\n    from . import plan\ndef f():\n    from .cluster.spec import Link\nimport dovetail.graph.core.shape\n"
    (tmp_path / "new.py").write_text(text)
    monkeypatch.setitem(FILES, "dovetail.placer.new", tmp_path / "new.py")
    assert imports("dovetail.placer.new") == {
        "dovetail.placer.plan",
        "dovetail.placer.cluster.spec",
        "dovetail.graph.core.shape",
    }


def test_imports_inside_functions_say_why() -> None:
    """A large library names itself. Of our own modules and the standard library's, a comment names what need not be loaded."""
    silent = []
    for path in FILES.values():
        if "compat" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        lines, tree = ["", *text.splitlines()], ast.parse(text)
        inside = {
            node.lineno: node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        ends = {node.end_lineno for node in inside.values()}
        for number, node in inside.items():
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            ours = isinstance(node, ast.ImportFrom) and node.level > 0
            first = number - 1 not in ends  # of several that follow each other
            commented = any("#" in line for line in lines[number - 1 : (node.end_lineno or number) + 1])
            if first and not commented and (ours or any(m.split(".")[0] in sys.stdlib_module_names for m in modules)):
                silent.append(f"{path.relative_to(ROOT)}:{number}: {lines[number].strip()}")
    assert not silent, "\n".join(silent)


def test_no_module_is_too_large() -> None:
    """Nor a file of tests or a benchmark."""
    paths = [*FILES.values(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in paths}
    assert not {name: n for name, n in lines.items() if n > MOST_LINES}


LEAST_LINES = 60

SMALL = {
    "a public module with TensorFlow's name": (
        "dovetail/api/errors", "dovetail/api/ops/initializers", "dovetail/api/ops/linalg", "dovetail/api/ops/random",
        "dovetail/api/ops/sparse", "dovetail/api/ops/strings", "dovetail/distribute/experimental",
        "dovetail/interop/tensorflow/saved_model/constants",
        "dovetail/interop/tensorflow/saved_model/main_op", "dovetail/interop/tensorflow/saved_model/signature_constants",
        "dovetail/interop/tensorflow/saved_model/tag_constants", "dovetail/interop/tensorflow/saved_model/utils", "dovetail/io/gfile",
        "dovetail/train/experimental",
    ),
    "a command": ("dovetail/tools/cli/calibrate", "runtime/server/process"),
    "a pass, or a table of rules": (
        "codegen/lower/chunked_saves", "codegen/lower/sends", "codegen/passes/rules/algebra", "placer/partition/control_edges",
        "placer/partition/control_flow_placement",
    ),
    "an interface, or what a whole package stands on": (
        "graph/core/rows",
        "codegen/backend", "codegen/ir/nodes", "codegen/reference", "graph/core/hooks", "graph/ops/all", "placer/search/types",
    ),
    "source text of a kernel": ("codegen/cpu/kernels/topk_source", "codegen/cpu/native/moves_source"),
    "a file format or a device of Python's that knows nothing of the others": (
        "graph/core/interpreter_state", "graph/core/reference_counts", "graph/core/repeated_field", "graph/formats/crc32c",
        "graph/formats/png", "graph/formats/text_lines",
    ),
    "it joins two packages that do not know each other": (
        "dovetail/given_cluster", "dovetail/interop/onnx/correspondences", "runtime/session/functions",
    ),
}  # fmt: skip
"""Reason -> modules of less than `LEAST_LINES` lines. Another one joins a neighbour, or gets a reason here."""


def test_no_module_is_small_without_a_reason() -> None:
    """But for `compat`, which is frozen."""
    known = {f"{name}.py" for names in SMALL.values() for name in names}
    small = {
        str(path.relative_to(ROOT))
        for path in FILES.values()
        if "compat" not in path.parts
        and path.name not in ("__init__.py", "__main__.py")
        and path.read_text(encoding="utf-8").count("\n") < LEAST_LINES
    }
    assert small - known == set()
    assert {name for name in known if not (ROOT / name).is_file()} == set()


def test_every_package_says_what_it_is_for() -> None:
    """Its docstring: the idea, each of its modules, and who may import it."""
    wrong = []
    for name, path in FILES.items():
        if path.name == "__init__.py" and name != "dovetail":
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            inside = {other.rpartition(".")[2] for other in FILES if other.rpartition(".")[0] == name}
            wrong += [f"{name}: the docstring does not name {module}" for module in inside if module not in text]
            if "import" not in text.lower():
                wrong.append(f"{name}: the docstring does not say who may import it")
    assert not wrong, "\n".join(wrong)


def test_references_are_counted_at_their_place() -> None:
    """What a local variable adds to a count depends on Python's version: `reference_counts.py` has what the others compare with."""
    wrong, counted = [], 0
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getrefcount")
            counted += is_call
            if isinstance(node, ast.Call) and is_call:
                is_wrong = not isinstance(node.args[0], ast.Subscript | ast.Attribute)
            elif isinstance(node, ast.Compare) and ast.unparse(node.left).startswith(
                ("getrefcount", "sys.getrefcount")
            ):
                is_wrong = ast.unparse(node.comparators[0]) not in ("ONLY_ITEM", "ONLY_ATTRIBUTE")
            else:
                continue
            if is_wrong:
                wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong and counted, "\n".join(wrong)


TESTED_ELSEWHERE = {
    "graph/ops/control": "graph/control_flow",
    "graph/ops/io": "dovetail/io",
    "graph/ops/random": "graph/core/test_philox.py",
    "dovetail/compat/tf1/importing/startup": "dovetail/compat/tf1/importing",
    "dovetail/compat/tf1/keras/layers": "dovetail/compat/tf1/keras",
    "dovetail/compat/tf1/names/config": "dovetail/compat/tf1/names",
    "dovetail/interop/onnx/exporters": "dovetail/interop/onnx/test_save.py",
    "dovetail/interop/onnx/importers": "dovetail/interop/onnx/test_load.py",
}
"""Package without a folder of tests -> what tests it, under `tests/`: the rows of ops in `graph/ops`, and these."""

TESTS_OF_SEVERAL = {"runtime/gpu"}
"""Folders of tests of no one package: sessions, workers and compiled kernels together, on GPUs."""


def test_the_tests_mirror_the_tree() -> None:
    """A package with modules has a folder of tests under `tests/`, and a folder with tests there has its package."""
    tests = ROOT / "tests"
    packages = {
        str(path.parent.relative_to(ROOT))
        for path in FILES.values()
        if path.name == "__init__.py" and len(list(path.parent.glob("*.py"))) > 1
    }
    folders = {str(f.relative_to(tests)) for f in tests.rglob("*") if f.is_dir() and any(f.rglob("test_*.py"))}
    untested = packages - folders
    assert untested == set(TESTED_ELSEWHERE), f"without tests, or no longer: {untested ^ set(TESTED_ELSEWHERE)}"
    assert all((tests / path).exists() for path in TESTED_ELSEWHERE.values())
    alone = {f for f in folders if f.split("/")[0] in FOLDERS and not (ROOT / f / "__init__.py").is_file()}
    assert alone == TESTS_OF_SEVERAL
