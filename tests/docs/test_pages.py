"""The documentation tells the truth: examples print what it says, links lead somewhere, commands exist."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer

import dovetail
from dovetail.tools.cli import app

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "docs")]  # pytest's importlib mode leaves the path alone
import performance_page  # noqa: E402
import protocol_page  # noqa: E402
from examples import ROOT, Example, commands, examples, links, matches, reason_not_to_run, run, shell_lines  # noqa: E402
from tables import MARK, command_line, onnx_tables, ops_table, settings_table  # noqa: E402

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]


def _needs(text: str) -> Any:
    """A mark for a page whose examples need a package that may not be installed."""
    missing = any("dt.onnx." in e.code for e in examples(text)) and importlib.util.find_spec("onnx") is None
    return pytest.mark.skipif(missing, reason="the package onnx is not installed")


def text_of(path: Path) -> str:
    """A page's text; of a notebook, its Markdown cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")


def pages(only_with_examples: bool = False) -> list[Any]:
    """A parameter per page."""
    texts = {path: text_of(path) for path in PAGES}
    return [
        pytest.param(text, path, id=str(path.relative_to(ROOT)), marks=_needs(text) if only_with_examples else ())
        for path, text in texts.items()
        if not only_with_examples or any(runs(e) for e in examples(text))
    ]


def runs(example: Example) -> bool:
    """Whether an example has something to run."""
    return example.language == "python" or (
        example.language == "sh" and not all(map(reason_not_to_run, commands(example.code)))
    )


@pytest.mark.slow
@pytest.mark.parametrize(("page", "path"), pages(only_with_examples=True))
def test_examples_print_what_the_page_says(page: str, path: Path) -> None:
    found = examples(page)
    for example, printed in zip(found, run(found), strict=True):
        where = f"{path.name}:{example.line}\n{example.code}"
        assert matches(example, printed), f"{where}\nit says:\n{example.shown}\nit prints:\n{printed}"


@pytest.mark.parametrize(("page", "path"), pages())
def test_files_that_a_page_names_exist(page: str, path: Path) -> None:
    """Such as `placer/rules/place.py` or `codegen/passes/rules/`."""
    if path.name != "CHANGELOG.md":  # it speaks of the past
        for name in re.findall(r"`((?:graph|placer|codegen|runtime|dovetail|tests|bench|docs)/[\w./*]+)`", page):
            assert any(ROOT.glob(name.rstrip("/"))), f"there is no {name}"


def test_the_map_of_the_packages_is_complete() -> None:
    """CONTRIBUTING.md names each package and module at the top of the five folders, and functions that are where it says."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"\*\*`(\w+)/`: ", text.partition("## Where things are")[2].partition("\n## ")[0])
    for folder, part in zip(parts[::2], parts[1::2], strict=True):
        names = set(
            re.findall(r"`([\w/]+(?:/|\.py))`", "\n".join(r.split("|")[1] for r in part.splitlines() if r[:1] == "|"))
        )
        tops = {p.parent.name + "/" for p in (ROOT / folder).glob("*/__init__.py") if not p.parent.is_symlink()}
        tops |= {p.name for p in (ROOT / folder).glob("*.py")} - {"__init__.py", "__main__.py"}
        assert {n for n in names if not (ROOT / folder / n).exists()} == set()
        assert {n for n in tops if not any(name == n or name.startswith(n) for name in names)} == set(), folder
    for path, functions in re.findall(r"`((?:graph|placer|codegen|runtime|dovetail)/[\w./]+\.py)` \(([^)|]*)\)", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert [f for f in re.findall(r"`(\w+)`", functions) if not re.search(rf"\b{f}\b", source)] == [], path


PUBLIC_WITHOUT_A_PLACE = frozenset(
    {
        "DeviceSpec", "FIFOQueue", "GraphDef", "GraphKeys", "GraphOptions", "Print", "SparseTensorValue", "Timeline",
        "clip_by_global_norm", "create_partitioned_variables", "fixed_size_partitioner", "foldl", "foldr", "get_collection",
        "merge_device", "min_max_variable_partitioner", "py_func", "recompute_grad", "report_uninitialized_variables", "segment_sum",
        "sparse_add", "string_join", "unique", "variable_axis_size_partitioner", "PartitionedVariable",
    }
)  # fmt: skip
"""Names that pages use, and that are neither on the core face nor in a module with a page in the reference."""


@pytest.mark.parametrize(("page", "path"), pages())
def test_pages_use_the_core_face(page: str, path: Path) -> None:
    """And modules that have a page in the reference: `dt.math.add`."""
    text = path.read_text(encoding="utf-8")
    known = {*dir(dovetail), *(p.stem for p in (ROOT / "docs/reference/api").glob("*.md")), "dtypes", "logging"}
    used = set(re.findall(r"\bdt\.([A-Za-z_]\w*)", text))
    assert used - known - PUBLIC_WITHOUT_A_PLACE == set()


@pytest.mark.parametrize(("page", "path"), pages())
def test_links_lead_to_files_that_exist(page: str, path: Path) -> None:
    for link in links(page):
        if not re.match(r"[a-z]+:", link):
            target = path if link.startswith("#") else path.parent / link.partition("#")[0]
            assert target.exists(), f"{path.name} links to {link}"
            anchor = link.partition("#")[2]
            assert not anchor or anchor in anchors(target), f"{path.name} links to {link}"


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("folder", ["graph", "placer", "codegen", "runtime", "dovetail", "bench", "tests"])
def test_pages_that_the_source_names_exist(folder: str) -> None:
    """In docstrings, comments and error messages, such as `docs/guides/plans.md`."""
    for source in (ROOT / folder).rglob("*.py"):
        for name in re.findall(r"(?<![\w/])docs/[\w./-]+\.(?:md|py)\b", source.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{source.relative_to(ROOT)} names {name}"


def test_messages_in_the_index_of_placement_errors_are_on_the_page() -> None:
    index, _, rest = (
        (ROOT / "docs/guides/when-placement-fails.md").read_text(encoding="utf-8").partition("\n\nA message has")
    )
    shown = " ".join(rest.split())
    rows = re.findall(r"^\| (`.+?) \|", index, re.MULTILINE)
    assert len(rows) > 10
    for part in [p for row in rows for text in re.findall("`(.+?)`", row) for p in text.split("...")]:
        assert part.strip() in shown, part


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = set(re.findall(r"[\w./-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert named == there | {f"tutorial/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}


def shell_commands() -> list[Any]:
    """A parameter per command of all pages; those that are not run are skipped, with the reason."""
    found = []
    for path in PAGES:
        for line in shell_lines(text_of(path)):
            reason = reason_not_to_run(line)
            marks = pytest.mark.skip(reason=reason) if reason else ()
            found.append(pytest.param(line, id=f"{path.relative_to(ROOT)}: {line[:60]}", marks=marks))
    return found


@pytest.mark.parametrize("command", [p for p in shell_commands() if p.marks])
def test_commands_that_are_not_run(command: str) -> None:
    raise AssertionError("is skipped")


@pytest.mark.parametrize("command", sorted({p.values[0] for p in shell_commands()}))
def test_commands_and_their_options_exist(command: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    words = [w for w in shlex.split(command, comments=True) if not re.match(r"\w+=|&$", w)]
    if words[0] == "make":
        assert set(words[1:]) <= targets
    if words[0] == "dovetail":
        try:
            _parse(typer.main.get_command(app), [w for w in words[1:] if w != ">"])
        except click.NoSuchOption as e:
            pytest.fail(e.format_message())
        except click.UsageError as e:  # a file that is not here, say
            assert "No such command" not in e.format_message()


def _parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parse the arguments of a command and of the commands below it, and run none."""
    with command.make_context(command.name, arguments, parent) as context:
        if isinstance(command, click.Group) and context._protected_args:
            _, below, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert below is not None
            _parse(below, rest, context)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [("1\n", "1\n", True), ("1\n", "2\n", False), ("", "1\n", False), ("a ... z\n", "a b z\n", True)],
)
def test_a_page_that_is_wrong_is_found(shown: str, printed: str, same: bool) -> None:
    for language in ("python", "sh"):
        (example,) = examples(f"# Page\n\n```{language}\nimport x\n```\n\n```text\n{shown}```\n")
        assert example.shown == shown and example.line == 4
        assert matches(example, printed) is same


@pytest.mark.slow
def test_shell_blocks_run_in_one_folder_and_what_fails_is_found() -> None:
    page = """
```python
# build_it.py
import dovetail as dt


def build():
    return dt.constant(1.0, name="c")
```

```sh
echo one > file && cat file                # a comment
dovetail plan build_it.py:build --save a.plan > plan.txt
FOO=bar bash -c 'echo $FOO; ls a* b* f*'
kubectl apply
dovetail explain build_it.py:build d
echo never
```

```text
...
```

```sh
false
```

```sh
echo (exit status) > /dev/null
```
"""
    blocks = examples(page)
    printed = run(blocks)
    assert printed[0] == "" and printed[1].split("\n")[:5] == ["one", "bar", "a.plan", "build_it.py", "file"]
    assert printed[1].endswith("(exit status 2)\n") and "'d'" in printed[1] and "never" not in printed[1]
    assert [matches(b, p) for b, p in zip(blocks, printed, strict=True)] == [True, True, False, False]


def test_the_table_of_settings_is_the_one_made_from_the_settings() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert settings_table() in page, f"docs/reference/settings.md must hold\n{settings_table()}"


def test_the_page_of_the_protocol_is_the_one_made_from_its_table() -> None:
    assert protocol_page.PAGE.read_text(encoding="utf-8") == protocol_page.page(), "run `python docs/protocol_page.py`"


@pytest.mark.parametrize(
    "step", [("client", "worker", "register"), ("worker", "client", "run"), ("worker", "x", "run")]
)
def test_a_sequence_that_contradicts_the_table_is_found(step: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match="goes from"):
        protocol_page.diagram([step])


def test_the_reference_of_commands_is_the_one_made_from_them() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert command_line() in page, (
        "docs/reference/command-line.md must hold what `python docs/tables.py command-line` prints"
    )


def test_the_tables_of_onnx_are_those_made_from_what_is_registered() -> None:
    page = (ROOT / "docs" / "guides" / "onnx.md").read_text(encoding="utf-8")
    assert onnx_tables() in page, f"docs/guides/onnx.md must hold\n{onnx_tables()}"


def test_the_page_of_figures_says_what_was_recorded() -> None:
    remedy = "run `python docs/performance_page.py`"
    assert performance_page.PAGE.read_text(encoding="utf-8") == performance_page.page(), remedy
    assert performance_page.PICTURE.read_text(encoding="utf-8") == performance_page.picture(), remedy


def test_the_readme_says_what_was_recorded() -> None:
    def rows(benchmark: str, start: str) -> list[dict[str, Any]]:
        found = json.loads((performance_page.RESULTS / f"{benchmark}.json").read_text(encoding="utf-8"))["rows"]
        return [row for row in found if row["name"] == start or row["name"].startswith(f"{start}, 64 x")]

    ((empty,), (trained,)) = rows("runtime", "empty step"), rows("training", "asynchronous training")
    of_peer = {row["peer_name"].split()[0]: row["ratio"] for row in rows("cpu", "MLP training step")}
    sent, read = (
        next(row["ratio"] for row in rows("runtime", f"transfer 64 MiB{how}") if row["peer_name"] == empty["peer_name"])
        for how in (", over tcp", "")
    )
    said = (
        f"an empty step over a cluster takes {empty['dovetail']:.0f} µs (TensorFlow: {empty['peer']:.0f} µs), and asynchronous training is "
        f"{trained['ratio']:.1f} times as fast as TensorFlow's. Over TCP, as between machines, 64 MiB arrive {sent:.1f} times as fast, not "
        f"{read:.0f} times. TensorFlow is version {empty['peer_name'].split()[1]} in graph mode, with gRPC over loopback. In one process, "
        f"an MLP's training step takes {of_peer['JAX']:.2f} of JAX's time and {of_peer['PyTorch']:.2f} of PyTorch's."
    )
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_every_op_is_in_the_table_of_ops() -> None:
    table = ops_table()
    for name in ("MatMul", "AddV2", "VariableV2"):
        assert f"\n| `{name}` |" in table
    assert "| `Exp` | `exp` | floats | yes | 10 |" in table
    assert "| `ScatterAdd` | `scatter_add` |" in table
    assert MARK in (ROOT / "docs" / "reference" / "ops.md").read_text(encoding="utf-8")


def test_names_that_are_said_to_be_there_are_there_and_the_others_are_not() -> None:
    page = (ROOT / "docs" / "guides" / "tensorflow.md").read_text(encoding="utf-8")
    there, missing = (page.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in TITLES)
    assert len(names_in(there)) > 50 and len(names_in(missing)) > 5
    assert [n for n in names_in(there) if not has(n)] == []
    assert [n for n in names_in(missing) if has(n)] == []
    listed = re.findall(r"^\| `tf(\S*)` \| (.+) \|$", page.partition("## Every missing name")[2], re.MULTILINE)
    every = [f"{module}.{name}".lstrip(".") for module, names in listed for name in names.split(", ")]
    assert len(every) > 500
    assert [n for n in every if has(n)] == []


TITLES = ("Names that are there", "Names that are not there yet")


def names_in(text: str) -> list[str]:
    """The names `tf.x.y` in a text, as `x.y`."""
    return re.findall(r"`tf\.([\w.]+)`", text)


def has(name: str) -> bool:
    """Whether `dovetail` has the name."""
    found: Any = dovetail
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None
