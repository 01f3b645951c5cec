"""What MkDocs calls while it builds the site: tables made from the code, notebooks as pages, plans as their interactive pages.

A page may hold these marks, each on a line of its own:

    <!-- the table of ops -->           a table of docs/tables.py
    <!-- the page of plan: training --> the page of a plan of tests/placer/page_plans.py, in a frame. It replaces an image just above
                                        the mark, which stands there for those who read the file itself

The notebooks run once in each build, so that plans in them are their interactive pages. The files in `notebooks/` keep still pictures.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("docs", "tests/notebooks", "tests/placer"))]

import page_plans  # noqa: E402
import tables  # noqa: E402

import notebooks  # noqa: E402
from dovetail.public_paths import HOMES  # noqa: E402

TABLES = {tables.MARK: tables.ops_table, tables.OLD_NAMES_MARK: tables.old_names_table}
PLAN_MARK = re.compile(r"(?:!\[[^\]]*\]\([^)\s]*\)\n\n)?<!-- the page of plan: (\w+) -->")
NOTEBOOK_FOLDER = "tutorial"  # where the site has the notebooks


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the notebooks as pages, and the pages of plans that are shown in frames."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = notebooks.read(path)
        outputs = notebooks.run(notebook, pages=True)
        files.append(File.generated(config, f"{NOTEBOOK_FOLDER}/{path.stem}.md", content=_as_page(notebook, outputs)))
    texts = [Path(f.abs_src_path).read_text(encoding="utf-8") for f in files.documentation_pages() if f.abs_src_path]
    for name in sorted({found for text in texts for found in PLAN_MARK.findall(text)}):
        files.append(File.generated(config, f"plans/{name}.html", content=_page_of_plan(name)))
    return files


def _page_of_plan(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.html")
        getattr(page_plans, name)().to_html(path)
        return path.read_text(encoding="utf-8")


def _as_page(notebook: dict[str, Any], outputs: list[list[dict[str, Any]]]) -> str:
    """A notebook as Markdown: texts, code, and what the cells give."""
    left = iter(outputs)
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\(([^)\s]+)\)", lambda m: f"]({_link(m[1])})", source))
        else:
            parts.append(f"```python\n{source}\n```")
            parts += map(_shown, next(left))
    return "\n\n".join(parts) + "\n"


def _link(target: str) -> str:
    """A notebook's link, from where the site has the notebook."""
    if target.startswith("../docs/"):
        return os.path.relpath(target.removeprefix("../docs/"), NOTEBOOK_FOLDER)
    return target.replace(".ipynb", ".md")


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text'])}```"
    data = {kind: "".join(lines) for kind, lines in output["data"].items()}
    picture = data.get("text/html") or data.get("image/svg+xml")
    if picture is None:
        return f"```text\n{data['text/plain']}\n```"
    return f'<div class="shown">{_picture(picture)}</div>'


def _picture(picture: str) -> str:
    """A picture in the page. One with a style sheet is an image: its styles do not reach the page, and follow the page's theme."""
    if not picture.startswith("<svg"):
        return picture
    if "<style" not in picture:
        return "".join(picture.splitlines())  # an empty line would end the HTML in Markdown
    return f'<img alt="" src="data:image/svg+xml;base64,{b64encode(picture.encode()).decode()}">'


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put tables and plans where their marks stand."""
    for mark, table in TABLES.items():
        if mark in markdown:
            markdown = markdown.replace(mark, table())
    up = "../" * page.url.count("/")
    return PLAN_MARK.sub(
        rf'<iframe class="plan" title="The page of a plan" src="{up}plans/\1.html"></iframe>', markdown
    )


def on_post_page(output: str, **_: Any) -> str:
    """Show public paths, `dovetail.math.abs`, in place of those of the source tree, and as headings."""
    output = with_public_paths(output)
    return re.sub(r'(<h2 id="(dovetail[\w.]*)" class="doc doc-heading">\s*<span class="[^"]*">)[^<]*', r"\1\2", output)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """The same for the index that the search uses."""
    index = Path(config["site_dir"], "search", "search_index.json")
    if index.is_file():
        index.write_text(with_public_paths(index.read_text(encoding="utf-8")), encoding="utf-8")


def with_public_paths(text: str) -> str:
    """A text with the public path in place of each path below `dovetail` that has one."""
    for public, home in sorted(HOMES.items(), key=lambda pair: -len(pair[1])):
        text = re.sub(rf"\bdovetail\.{re.escape(home)}(?!\w)", f"dovetail.{public}", text)
    return text
