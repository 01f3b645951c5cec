"""A plan's page: one HTML file that opens without a server, a network or an installed Dovetail.

The page itself is in `placer/render/page.py`. Nodes and boxes are laid out by dagre; everything is drawn as SVG. The plan travels
inside the file as compressed columns (page_data.py), and the page draws only what is opened, so a graph of 100,000 nodes is
ordinary input.

Names of nodes, files and jobs come from users, or from a graph that was received. They are part of the
compressed data, which is base64 and so can't end a tag, and the scripts put them into the page as text only.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..cost.profile import Profile
from ..plan_data import PlanData
from ..render.page import page
from ..render.timeline import Chart
from ..simulate import simulate
from .facts import PREDICTED, Facts, without_compiling
from .page_data import contents

COMPILED = 20_000  # nodes of plans up to which the page shows kernels: the compiler's passes run for it
DRAWN = 1_000  # devices of clusters up to which it shows the predicted timeline
COMPLETE = "To have all: plan.to_html(path, complete=True), or dovetail plan --html FILE --complete"

Kernels = Callable[[str], Any]
"""Device -> its kernels, a `codegen.explain.DeviceKernels`."""


def render_html(
    plan: PlanData,
    title: str = "",
    *,
    kernels: Kernels | None = None,
    measured: Any = None,
    before: PlanData | None = None,
    costs: Profile | None = None,
    complete: bool = False,
) -> str:
    """The page of a plan, as text. Arguments as in `write_html`."""
    facts, charts, left_out = Facts(plan), [], {}
    nodes, devices = facts.nodes, len(plan.cluster.devices)
    if not complete and (nodes > PREDICTED or devices > DRAWN):
        left_out["timeline"] = (
            f"The step is not predicted on this page: it has {nodes:,} nodes, and the cluster {devices:,} devices. Pages are written "
            f"fast, so they predict up to {PREDICTED:,} nodes on {DRAWN:,} devices. {COMPLETE}"
        )
    elif nodes:
        with without_compiling(plan):
            predicted = simulate(plan, costs=costs) if costs is not None else facts.timeline
        assert predicted is not None
        charts.append(("predicted", replace(predicted, exact=predicted.exact and facts.is_exact).chart()))
    if measured is not None:
        charts.append(("measured", _chart(measured)))
    if kernels is not None and not complete and nodes > COMPILED:
        kernels = None
        left_out["kernels"] = (
            f"Kernels are not on this page: the step has {nodes:,} nodes. A page has the kernels of up to {COMPILED:,} nodes, as the "
            f"compiler's passes run for them. {COMPLETE}; of one device: print(plan.kernels(device))"
        )
    head, columns = contents(plan, charts, kernels, before, facts)
    head["leftOut"] = left_out
    head["view"] = "diff" if before is not None else "timeline" if measured is not None else "map"
    return page(title or f"Plan: {nodes:,} nodes on {len(plan.partitions)} devices", head, columns)


def _chart(measured: Any) -> Chart:
    """The picture of a measured step: of a trace, of an object that has one (run metadata), or a chart. TypeError: it is none of these."""
    traced = getattr(measured, "trace", measured)
    found = traced.chart() if hasattr(traced, "chart") else traced
    if not isinstance(found, Chart):
        raise TypeError(f"measured must be the trace of a step (run_metadata.trace), not {measured!r}")
    return found


def write_html(plan: PlanData, path: str | os.PathLike[str], title: str = "", **more: Any) -> None:
    """Write the page of a plan.

    It shows tasks and devices with their loads, the step's nodes folded by name scope, the channels by bytes, the decision for each node,
    and the predicted step. A page of 100,000 nodes has some megabytes.

    Args:
        plan: the plan.
        path: the file; an existing file is replaced.
        title: the title of the page; '': the size of the plan.
        more: `kernels`: function of a device that returns its kernels. `measured`: a trace or a chart, shown beside the prediction.
            `before`: a plan to compare with. `costs`: measured costs for the prediction. `complete`: predict the step and find its
            kernels however large it is.

    Raises:
        OSError: the file cannot be written.

    >>> write_html(dt.place(graph, {"ps": 2, "worker": 2}), "plan.html")
    """
    Path(path).write_text(render_html(plan, title, **more), encoding="utf-8", newline="\n")


def notebook_html(plan: PlanData, kernels: Kernels | None = None) -> str:
    """The page in a frame, for notebooks."""
    source = html.escape(render_html(plan, kernels=kernels))
    style = "width: 100%; height: 640px; border: 1px solid #8886; border-radius: 8px"
    return f'<iframe srcdoc="{source}" title="Plan" style="{style}"></iframe>'
