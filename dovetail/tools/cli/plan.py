"""`dovetail plan`, `diff`, `explain` and `simulate`, which show the plan of a program or a saved plan without running the graph.

`programs.py` makes the plan. `dovetail trace` (`trace.py`) runs a step.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ...graph.core.graph import Node, Tensor
from ...placer.render.text import AT_LEAST, WIDTH, short, table, time_text
from ...placer.simulate import Timeline
from ...placer.views import lint
from ...placer.views.facts import PREDICTED
from ...placer.views.plan_warning import PlanWarning
from .common import DIFFERENT, WARNED, UsageError, errors_explained, output_file, print_text
from .programs import PageOption, Placing, Program, ProgramArgument, TraceOption, build, takes_placing, without_log


@takes_placing
def plan(
    program: ProgramArgument,
    placing: Placing,
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Print an evaluation first: predicted step time, lower bound, memory, bottleneck."
        ),
    ] = False,
    explain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE", help="Explain why this node is on its device, instead of the tables. May be repeated."
        ),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="Print the kernels of this device's partition instead of the tables.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the warnings instead of the tables. Exit status 4 if there are any.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Like --check, and print the predicted gain of the change that each warning suggests."
        ),
    ] = False,
    html: PageOption = None,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete",
            help="With --html: show the timeline and kernels of a step of any size, which may take minutes.",
        ),
    ] = False,
    svg: Annotated[Path | None, output_file("Write the plan as an SVG picture.")] = None,
    save: Annotated[
        Path | None, output_file("Save the plan to a file that the other commands accept as PROGRAM.")
    ] = None,
) -> None:
    """Show which device runs each part of a program and why, without running it.

    Exit status: 0 planned, 1 the program fails or cannot be placed, 2 wrong use, 4 --check or --fix found warnings.
    """
    with errors_explained():
        if complete and html is None:
            raise UsageError("--complete applies to the page. Pass --html, too")
        built = build(program)
        explained = _nodes(built, explain or ())
        made = placing.plan(built)
        if html is not None:
            made.to_html(html, costs=placing.profile, complete=complete)
        if save is not None:
            made.save(save)
        if svg is not None:
            svg.write_text(made.to_svg(), encoding="utf-8")
        if kernels is not None:
            print_text(str(made.kernels(kernels)))
        if check or fix:
            with without_log():
                warnings = made.check(fix=fix)
            print_text("\n\n".join(map(_wrapped, warnings)) or "no warnings")
            if warnings:
                raise typer.Exit(WARNED)
            return
        if report:
            print_text(f"{made.report(costs=placing.profile, client=placing.objective == 'latency')}\n")
        if explained:
            print_text("\n\n".join(map(made.explain, explained)))
        elif report or kernels is None:
            print_text(str(made))
            for warning in lint.check(made, predict=len(made.decisions) <= PREDICTED):
                print_text("\n" + _wrapped(warning))


@takes_placing
def explain(
    program: ProgramArgument,
    nodes: Annotated[list[str], typer.Argument(help="Names of nodes or tensors, or names of an ONNX model.")],
    placing: Placing,
    device: Annotated[str | None, typer.Option(help="Explain why the nodes are not on this device.")] = None,
) -> None:
    """Explain why nodes are on their devices: the request, its source line, colocation, and the candidates."""
    with errors_explained():
        built = build(program)
        explained = _nodes(built, nodes)
        made = placing.plan(built)
        print_text("\n\n".join(made.explain(n) if device is None else made.why_not(n, device) for n in explained))


@takes_placing
def diff(
    before: ProgramArgument,
    after: ProgramArgument,
    placing: Placing,
    html: Annotated[Path | None, output_file("Write an HTML page that compares the plans.")] = None,
) -> None:
    """Compare two plans. The placement options apply to programs, not to saved plans.

    Exit status: 0 no differences, 1 a failure, 2 wrong use, 3 differences.
    """
    with errors_explained():
        built = [build(before), build(after)]
        bare = Placing(shape=placing.shape, costs=placing.costs)
        old, new = ((placing if b.plan is None or all(b.plan for b in built) else bare).plan(b) for b in built)
        if html is not None:
            new.to_html(html, before=old, costs=placing.profile)
        changes = old.diff(new)
        print_text(str(changes))
        if changes:
            raise typer.Exit(DIFFERENT)


@takes_placing
def simulate(program: ProgramArgument, placing: Placing, trace: TraceOption = None, html: PageOption = None) -> None:
    """Predict one step: its time, the load and peak memory of each device, and the critical path."""
    with errors_explained():
        made = placing.plan(build(program))
        predicted = made.simulate(costs=placing.profile, client=placing.objective == "latency")
        if html is not None:
            predicted.to_html(html)
        if trace is not None:
            predicted.save(trace)
        print_text(f"{predicted}\n\n{_critical_path(predicted)}")


def _nodes(built: Program, names: Sequence[str]) -> list[Node]:
    """Returns the nodes with these names, and the producers of tensors with these names."""
    return [n.op if isinstance(n, Tensor) else n for n in map(built.element, names)]


def _critical_path(step: Timeline) -> str:
    """Returns the critical path as a table, in order of time, without parts that take no time."""
    rows = []
    for part in [p for p in step.critical if p.finish > p.start] or step.critical:
        exact = AT_LEAST * (not step.exact)
        times = (exact + time_text(seconds) for seconds in (part.start, part.finish - part.start))
        rows.append((*times, part.name, short(step.where(part))))
    return table(("start", "time", "critical path", "device or link"), rows)


def _wrapped(warning: PlanWarning) -> str:
    """Returns a warning in lines that fit a terminal."""
    first, *rest = f"warning: {warning}".splitlines()
    found = textwrap.wrap(first, WIDTH, break_long_words=False, break_on_hyphens=False)
    for line in rest:
        found += textwrap.wrap(
            line, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(found)
