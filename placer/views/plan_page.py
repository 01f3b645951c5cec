"""A plan as one HTML file that opens without a server, a network or an installed Dovetail.

The page is written in `placer/render/page_assets/`: a skeleton, a style sheet, and scripts that are joined in the order of
`SCRIPTS`. Nodes and boxes are laid out by dagre (MIT licence, page_assets/dagre.LICENSE.txt); everything is drawn as
SVG. The plan travels inside the file as compressed columns (page_data.py), and the page draws only what is
opened, so a graph of 100,000 nodes is ordinary input.

Names of nodes, files and jobs come from users, or from a graph that was received. They are part of the
compressed data, which is base64 and so can't end a tag, and the scripts put them into the page as text only.
A content security policy holds the browser to that: it runs and styles by nothing but what is hashed here,
and connects to nowhere.
"""

from __future__ import annotations

import html
import os
from pathlib import Path

from ..plan_data import PlanData
from ..render.page import filled, page_file
from .page_data import payload

LIBRARY = "dagre.min.js"
SCRIPTS = (
    "data",
    "words",
    "tree",
    "edges",
    "layout",
    "routes",
    "draw",
    "map",
    "detail",
    "table",
    "search",
    "app",
)


def render_html(plan: PlanData, title: str = "") -> str:
    """The page of a plan, as text.

    Args:
        plan: the plan.
        title: what the browser's tab shows; '' says how large the plan is.
    """
    own = "\n".join(page_file(f"{name}.js") for name in SCRIPTS)
    # The library puts itself into the window; the page's own names stay inside a function.
    script = f'"use strict";\n{page_file(LIBRARY)}\n(() => {{\n{own}\n}})();\n'
    nodes = sum(len(p.nodes) for p in plan.partitions.values())
    title = title or f"Plan: {nodes:,} nodes on {len(plan.partitions)} devices"
    licence = html.escape(page_file("dagre.LICENSE.txt").strip().replace("--", "- -"))
    return filled("page.html", title, page_file("page.css"), script, payload(plan), licence=licence)


def write_html(plan: PlanData, path: str | os.PathLike[str], title: str = "") -> None:
    """Write the page of a plan.

    It shows tasks and devices with their loads, the step's nodes folded by name scope, the channels by bytes,
    and why each node is where it is. A file of 100,000 nodes has some megabytes.

    Args:
        plan: the plan.
        path: the file; an existing one is replaced.
        title: what the browser's tab shows; '' says how large the plan is.

    Raises:
        OSError: the file cannot be written.

    >>> write_html(dt.place(graph, {"ps": 2, "worker": 2}), "plan.html")
    """
    Path(path).write_text(render_html(plan, title), encoding="utf-8", newline="\n")
