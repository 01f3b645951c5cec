"""The tables of the documentation that are made from the code: the settings, and the ops.

`docs/reference/settings.md` and `docs/guides/onnx.md` hold their tables, and tests see that they are those made here. The table of ops
is long and grows with every op, so `docs/hooks.py` puts it into `docs/reference/ops.md` when the site is built.

    python docs/tables.py settings|ops|onnx|command-line

The tables of `bench/results/auto_real.json`, `placement_quality.json`, `placement_steps.json` and `auto_large.json` are put into
`docs/guides/automatic-placement.md`, after those were recorded, by

    python docs/tables.py auto_real|placement_quality|placement_steps|auto_large
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout needs no install

import typer  # noqa: E402
from protocol_page import wrapped  # noqa: E402

import dovetail as dt  # noqa: E402
from dovetail.compat.tf1.names.table import old_names  # noqa: E402
from dovetail.graph.core.build import apply, placeholder  # noqa: E402
from dovetail.graph.core.dtypes import DType  # noqa: E402
from dovetail.graph.core.opdef import OpDef, Trait, registered  # noqa: E402
from dovetail.graph.core.settings import SETTINGS  # noqa: E402
from dovetail.graph.ops import all as _all_ops  # noqa: E402, F401  (defines every op)
from dovetail.interop.onnx.registry import IMPORTERS  # noqa: E402
from dovetail.interop.onnx.writing import EXPORTERS  # noqa: E402
from dovetail.tools.cli import app  # noqa: E402
from dovetail.tools.cli.programs import Placing  # noqa: E402

MARK = "<!-- the table of ops -->"
OLD_NAMES_MARK = "<!-- the table of old names -->"
FLOATS = (dt.float16, dt.bfloat16, dt.float32, dt.float64)
INTEGERS = (dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.uint32, dt.uint64)
COMPLEX = (dt.complex64, dt.complex128)
CLASSES = {
    "floats": FLOATS,
    "integers": INTEGERS,
    "bool": (dt.bool,),
    "complex": COMPLEX,
    "string": (dt.string,),
}
NAMESPACES = ("", "nn", "math", "linalg", "random", "bitwise")
PLACING = {f.name for f in fields(Placing)}
SAMPLE = 1000  # elements of the tensors on which an op's cost is asked


def settings_table() -> str:
    """One row per setting."""
    rows = [f"| `{s.name}` | {f'`{s.default}`' if s.default != '' else ''} | {s.meaning} |" for s in SETTINGS.values()]
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])


def command_line() -> str:
    """A section for each command: how it is called, what it does, its arguments and options."""
    commands = typer.main.get_command(app)
    shared = [p for p in commands.commands["plan"].params if p.name in PLACING]
    about = "Commands that plan programs share these options. `diff` applies them to each of its two that is a program."
    head = ["## Placement options", "", about, "", "| option | meaning |", "| --- | --- |"]
    return "\n\n".join([*_commands(commands, "dovetail"), "\n".join([*head, *map(_row, shared)])])


def _commands(group: Any, path: str) -> Iterator[str]:
    """The sections of a group's commands."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
            continue
        rows, call = [], " ".join([path, name, *command.collect_usage_pieces(command.context_class(command))])
        for p in command.params:
            if not {p.name for p in command.params} >= PLACING or p.name not in PLACING:
                rows.append(_row(p))
        if len(rows) < len(command.params):
            rows.append("| | and the [placement options](#placement-options) |")
        about = "\n".join(map(wrapped, inspect.cleandoc(command.help or "").split("\n")))
        head = ["", "| argument or option | meaning |", "| --- | --- |"] if rows else []
        yield "\n".join([f"## {path} {name}", "", "```text", call, "```", "", about, *head, *rows])


def _row(p: Any) -> str:
    """The row of an argument or option."""
    names = [p.name.upper()] if p.param_type_name == "argument" else [*p.opts, *p.secondary_opts]
    default = "" if p.default in (None, "", False, True) or callable(p.default) else f" Default: `{p.default}`."
    return f"| `{', '.join(names)}` | {p.help or ''}{default} |"


def onnx_tables() -> str:
    """The ops that models are imported with, and those that graphs are exported with, by families."""
    found = ["| family | ops of ONNX that are imported |", "| --- | --- |"]
    found += _families("dovetail.interop.onnx.importers", IMPORTERS)
    found += ["", "| family | ops of a graph that are exported |", "| --- | --- |"]
    return "\n".join(found + _families("dovetail.interop.onnx.exporters", EXPORTERS))


def _families(package: str, registered_by: dict[str, Any]) -> list[str]:
    """A row for each module that registers functions for ops."""
    of: dict[str, list[str]] = {}
    for op, function in registered_by.items():
        of.setdefault(_home(op, function, package), []).append(op)
    rows = []
    for name, ops in sorted(of.items()):
        about = (sys.modules[name].__doc__ or "").partition("\n")[0].partition(":")[0].rstrip(".")
        rows.append(f"| {about} | {', '.join(f'`{op}`' for op in sorted(ops))} |")
    return rows


def _home(op: str, function: Any, package: str) -> str:
    """The module of a family: where the function is, or for one that was made for a table of names, where those stand."""
    return function.__module__ if function.__module__.startswith(package) else f"{package}.elementwise"


def auto_real_table() -> str:
    """One row per way of placing the steps of bench/auto_real.py; it is put into its page, too."""
    rows = ["| step | placed by | predicted | measured |", "| --- | --- | ---: | ---: |"]
    for row in _recorded("auto_real"):
        step, _, way = row["name"].partition(": ")
        if way == "auto, predicted":
            rows.append(f"| {step} | **auto** | {row['dovetail']:.0f} | {row['peer']:.0f} |")
        elif row["peer_name"] == "its prediction":
            rows.append(f"| {step} | {way} | {row['peer']:.0f} | {row['dovetail']:.0f} |")
    return _put(rows)


def placement_quality_table() -> str:
    """One row per workload of bench/placement_quality.py; it is put into its page, too."""
    rows = [
        "| workload | nodes | found | contiguous | known | ratio | at 8 s | step | single pass | s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    recorded = _recorded("placement_quality")
    unhurried = {row["workload"]: row["ratio"] for row in _recorded("placement_quality_8s")}
    steps = {row["workload"]: row for row in recorded if row["objective"] == "makespan"}
    for row in recorded:
        if row["objective"] == "makespan":
            continue
        name = row["workload"].removesuffix(".json").removeprefix("throughput-inputs/").replace("_", " ")
        name = name.replace("LayerGraphs", "layers").replace("OperatorGraphs", "operators")
        best, step = (
            " | ".join(f"{row[key]:.2f}" for key in ("value", "best_contiguous", "best_known")),
            steps[row["workload"]],
        )
        rows.append(
            f"| {name} | {row['nodes']} | {best} | {row['ratio']:.3f} | {unhurried[row['workload']]:.3f} | {step['ratio']:.3f} | "
            f"{step['single_pass'] / step['best_known']:.3f} | {row['total_s']:.1f} |"
        )
    return _put(rows)


def placement_steps_table() -> str:
    """One row per workload of bench/step_workloads.py; it is put into its page, too."""
    rows = [
        "| step | nodes | found | best seed | known | ratio | single pass |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in _recorded("placement_steps"):
        name = row["workload"].removesuffix(".json").removeprefix("step_").replace("_", " ")
        found = " | ".join(f"{row[key]:.4g}" for key in ("value", "best", "best_known"))
        rows.append(
            f"| {name} | {row['nodes']} | {found} | {row['ratio']:.3f} | {row['single_pass'] / row['best_known']:.3f} |"
        )
    return _put(rows)


def auto_large_table() -> str:
    """One row per shape of bench/auto_large.py; it is put into its page, too."""
    rows = ["| shape | auto | best single pass | gain | search |", "| --- | ---: | ---: | ---: | ---: |"]
    found: dict[str, dict[str, Any]] = {}
    for row in _recorded("auto_large"):
        shape, _, what = row["name"].partition(", ")
        found.setdefault(shape, {})[what.rpartition("nodes, ")[2]] = row
    for shape, of in found.items():
        step = of["step"]
        by = step["peer_name"].partition(": ")[2]
        rows.append(
            f"| {shape} | {step['dovetail']:.5f} | {step['peer']:.5f} ({by}) | {1 - step['ratio']:.1e} | "
            f"{of['search by auto']['dovetail']:.1f} |"
        )
    return _put(rows)


def _recorded(name: str) -> list[dict[str, Any]]:
    recorded: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = recorded["rows"]
    return rows


def _put(rows: list[str]) -> str:
    """Put a table in the place of the one with the same head."""
    page = ROOT / "docs" / "guides" / "automatic-placement.md"
    text = page.read_text(encoding="utf-8")
    begin = text.index(rows[0])
    page.write_text(text[:begin] + "\n".join(rows) + text[text.index("\n\n", begin) :], encoding="utf-8")
    return "\n".join(rows)


def ops_table() -> str:
    """One row per op, in alphabetical order."""
    makers = public_functions()
    rows = []
    for name, op in sorted(registered().items()):
        functions = ", ".join(f"`{f}`" for f in makers.get(name, ())) or "-"
        types, cost = elementwise_facts(op)
        gradient = "yes" if op.gradient is not None else "-"
        devices = ", ".join(op.device_types)
        rows.append(f"| `{name}` | {functions} | {types} | {gradient} | {cost} | {traits(op)} | {devices} |")
    head = ["op", "made by", "element types", "gradient", "flops per element", "traits", "devices"]
    return "\n".join([f"| {' | '.join(head)} |", "| --- " * len(head) + "|", *rows])


def traits(op: OpDef) -> str:
    """The op's traits, in words."""
    return ", ".join(t.name.lower().replace("_", " ") for t in Trait if t in op.traits and t.name) or "-"


def elementwise_facts(op: OpDef) -> tuple[str, str]:
    """What the op says of itself when asked with every element type: the types, and the flops of one element.

    Only ops with a scalar body are asked: their inputs are all alike.
    """
    if op.scalar is None:
        return "-", "own rule" if op.cost is not None else "1"
    positional = [p for p in inspect.signature(op.scalar).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(op.scalar).parameters.values())
    arity = 2 if variadic else len(positional) - 1  # the first is the math namespace
    accepted = [t for types in CLASSES.values() for t in types if _node(op, arity, t) is not None]
    if not accepted:
        return "-", "own rule" if op.cost is not None else "1"
    node = _node(op, arity, accepted[-1] if accepted[0] not in FLOATS else accepted[0])
    flops = op.cost_of(node).flops / SAMPLE
    return _in_words(accepted), f"{flops:g}"


def _node(op: OpDef, arity: int, dtype: DType) -> Any:
    """A node of that op on tensors of that type; None where it refuses them."""
    with dt.Graph().as_default() as graph:
        try:
            apply(op.name, [placeholder(dtype, [SAMPLE]) for _ in range(arity)], None, None)
        except (TypeError, ValueError, KeyError):
            return None
        return graph.nodes[-1]


def _in_words(types: list[DType]) -> str:
    words = []
    for word, members in CLASSES.items():
        inside = [t for t in members if t in types]
        words += [word] if len(inside) == len(members) else [t.name for t in inside]
    return ", ".join(words)


def public_functions() -> dict[str, list[str]]:
    """Op -> the public functions in whose own code it is named, by their shortest names."""
    names: dict[int, str] = {}
    functions: dict[int, Any] = {}
    for space in NAMESPACES:
        module = importlib.import_module(f"dovetail.{space}" if space else "dovetail")
        for name in (*module.__all__, *old_names(module.__name__)):
            value = getattr(module, name)
            if isinstance(value, FunctionType) and id(value) not in names:
                names[id(value)], functions[id(value)] = f"{space}.{name}" if space else name, value
    found: dict[str, list[str]] = {}
    for key, function in functions.items():
        public = {f.__name__ for f in functions.values() if f.__module__ == function.__module__}
        for op in _ops_named_in(function, public):
            found.setdefault(op, []).append(names[key])
    return {op: sorted(makers) for op, makers in found.items()}


def _ops_named_in(function: FunctionType, public: set[str]) -> set[str]:
    """The ops that a function names, itself or through functions of its module that are not public.

    Where such a function puts a word before the name (`f"Scatter{kind}"`), the longer names count.
    """
    module = sys.modules[function.__module__]
    tree, ops = _functions_of(module), registered()
    named: set[str] = set()
    prefixes: set[str] = set()
    seen: set[str] = set()
    todo = [function.__name__]
    while todo:
        name = todo.pop()
        if name in seen or name not in tree:
            continue
        seen.add(name)
        for node in _walk(tree[name]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                prefixes |= {p.value for p in node.values[:1] if isinstance(p, ast.Constant)}
            elif isinstance(node, ast.Name) and node.id not in public:
                todo.append(node.id)
    longer = {p + n for p in prefixes for n in named if p + n in ops}
    return longer or {n for n in named if n in ops}


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a syntax tree, without comparisons: an op that is compared with is not made."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Compare):
            yield from _walk(child)


_TREES: dict[str, dict[str, ast.AST]] = {}


def _functions_of(module: ModuleType) -> dict[str, ast.AST]:
    """The functions of a module, and the rows of tables that make some: `exp = define_unary("Exp", ...)`."""
    if module.__name__ not in _TREES:
        found = _TREES[module.__name__] = {}
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update({t.id: node.value for t in targets if isinstance(t, ast.Name)})
    return _TREES[module.__name__]


def old_names_table() -> str:
    """One row per name of TensorFlow 1 that is not in the core face."""
    rows = ["| name | what it is |", "| --- | --- |"]
    for path in ("dovetail", *(f"dovetail.{part}" for part in ("train", "io", "nn", "random"))):
        module = importlib.import_module(path)
        for name in old_names(path):
            value = getattr(module, name)
            about = "" if isinstance(value, str) else (inspect.getdoc(value) or "").partition("\n\n")[0]
            about = about.replace("\n", " ").replace("|", "/")
            rows.append(f"| `{path}.{name}` | {about} |")
    return "\n".join(rows)


if __name__ == "__main__":
    made = {
        "settings": settings_table, "command-line": command_line, "ops": ops_table, "onnx": onnx_tables, "auto_real": auto_real_table,
        "placement_quality": placement_quality_table,
        "placement_steps": placement_steps_table, "auto_large": auto_large_table,
    }  # fmt: skip
    if sys.argv[1:] and sys.argv[1] in made:
        print(made[sys.argv[1]]())
    else:
        raise SystemExit(__doc__)
