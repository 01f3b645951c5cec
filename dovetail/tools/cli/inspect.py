"""`dovetail devices` and `dovetail plan`: look at machines, clusters and programs, without running anything."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from ...placer.cluster.load import cluster_text, read_cluster
from .common import errors_explained
from .plan import MISUSED, devices_table, links_table, run


def devices(
    target: Annotated[str, typer.Option(help="A server of a cluster, zmq://host:port; without it: this machine.")] = "",
    cluster: Annotated[
        str | None, typer.Option(help="The description of a cluster, which need not run: see `dovetail plan`.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure how fast devices and links are; takes seconds for each.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where --measure writes the cluster as YAML, for `dovetail plan --cluster`.", dir_okay=False),
    ] = None,
) -> None:
    """List the devices of this machine, or of a cluster."""
    with errors_explained():
        import dovetail as tf

        if out is not None and not measure:
            raise ValueError("--out is where --measure writes what it finds: give both")
        if measure:
            if cluster is not None:
                raise ValueError(
                    "A description cannot be measured: --measure needs a running cluster (--target), or this machine"
                )
            _measured(target, out)
            return
        if cluster is not None:
            print(devices_table(read_cluster(cluster).devices))
            return

        with tf.Session(target, graph=tf.Graph()) as session:
            for device in session.list_devices():
                print(device)


def _measured(target: str, out: Path | None) -> None:
    """Measure, show, and write a cluster file."""
    from ...runtime.session.profiling import measure  # a parameter has this name

    found = measure(target, lambda text: print(text, file=sys.stderr))
    print(devices_table(found.devices))
    if found.links:
        print(f"\n{links_table(found.links)}")
    if out is not None:
        out.write_text(cluster_text(found), encoding="utf-8")


def plan(
    program: Annotated[
        str,
        typer.Argument(
            help="FILE.py:FUNCTION or MODULE:FUNCTION that builds a graph, a saved graph, or an ONNX model."
        ),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Numbers of tasks, worker=4,ps=2; a description as JSON or YAML, or a file of it; or a running server, zmq://host:port. "
            "Without it: this machine."
        ),
    ] = None,
    master: Annotated[str | None, typer.Option(help="The task the session talks to: /job:worker/task:0.")] = None,
    fetch: Annotated[
        list[str] | None, typer.Option(help="What the step returns or runs; without it: what FUNCTION says.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="How large an input is: x=64,784. What stays unknown is marked with ≥.")
    ] = None,
    soft: Annotated[bool, typer.Option("--soft", help="Give up device types and indices that cannot be had.")] = False,
    strategy: Annotated[
        str, typer.Option(help="rules: TensorFlow's; auto: search for what is predicted to be fastest.")
    ] = "rules",
    objective: Annotated[
        str, typer.Option(help="What auto makes small: makespan, latency for a client, or throughput (time from step to step).")
    ] = "makespan",
    report: Annotated[
        bool, typer.Option("--report", help="First say what the plan is worth: predicted time, bound, memory, what limits it.")
    ] = False,
    explain: Annotated[
        list[str] | None,
        typer.Option(help="Say why a node is where it is, instead of the tables; for an ONNX model, by its own names, too."),
    ] = None,
    kernels: Annotated[
        str | None, typer.Option(help="Show what this device's part is compiled to, instead of the tables.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print the warnings, instead of the tables; exit status 4 when there are any.")
    ] = False,
    fix: Annotated[
        bool, typer.Option("--fix", help="As --check, and say what the plan gains by the change that each warning names.")
    ] = False,
    diff: Annotated[
        Path | None, typer.Option(help="Compare with a saved plan; exit status 3 when they differ.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the plan.", dir_okay=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture of it.", dir_okay=False)] = None,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a page that shows a predicted step on a clock.", dir_okay=False)
    ] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Measured costs, and the sizes of that step: what dt.profile wrote.", dir_okay=False)
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan as text.", dir_okay=False)] = None,
) -> None:
    """Show where each part of a program will run and why, without running it.

    Exit status: 0 planned, 1 it cannot be placed, 2 a mistake in the command or the program, 3 --diff differs, 4 --check found
    something.
    """
    try:
        status = run(
            program, cluster, master=master, fetches=fetch or (), shapes=shape or (), soft=soft, strategy=strategy, explain=explain or (),
            compare=diff, html=html, svg=svg, save=save, kernels=kernels, timeline=timeline, costs=costs,
            check=check, fix=fix, objective=objective, report=report,
        )  # fmt: skip
    except OSError as e:
        print(f"error: {e}", file=sys.stderr)
        status = MISUSED
    except Exception:  # the program's own: its author needs the traceback
        traceback.print_exc()
        status = MISUSED
    raise typer.Exit(status)
