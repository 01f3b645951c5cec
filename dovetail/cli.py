"""The command `dovetail`. Each command imports what it needs when it runs: `dovetail --help` is quick."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Build dataflow graphs, see where each part will run and why, and run them across processes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended: 128 + SIGINT


@app.command()
def demo(
    in_graph: Annotated[
        bool, typer.Option("--in-graph", help="One client, one graph, a copy of the compute per worker.")
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates made by all workers together.")] = None,
    ps: Annotated[int, typer.Option(min=1, help="Parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Workers.")] = 2,
    out: Annotated[Path, typer.Option(help="Where plan.txt and graph.dtg go.", file_okay=False)] = Path(),
) -> None:
    """Train a reader of handwritten digits across processes of this machine, and show what ran where."""
    from rich.console import Console

    from .demo.data import DataMissingError
    from .demo.run import STEPS, Settings, run
    from .demo.watch import DemoError

    console = Console()
    with _errors_explained(DataMissingError, DemoError):
        run(Settings(steps or STEPS, ps, workers, in_graph, out), console)


@app.command()
def devices(
    target: Annotated[str, typer.Option(help="A server of a cluster, zmq://host:port; without it: this machine.")] = "",
    cluster: Annotated[
        Path | None, typer.Option(help="A file that describes a cluster; it need not run.", dir_okay=False)
    ] = None,
) -> None:
    """List the devices of this machine, or of a cluster."""
    with _errors_explained():
        import dovetail as tf

        if cluster is not None:
            from .placer.cluster_input import read_cluster
            from .plan_command import devices_table

            print(devices_table(read_cluster(cluster).devices))
            return

        with tf.Session(target, graph=tf.Graph()) as session:
            for device in session.list_devices():
                print(device)


@app.command()
def server(
    cluster: Annotated[
        str | None, typer.Option(help='The cluster as JSON: {"ps": ["host:2222"], "worker": ["host:2223"]}.')
    ] = None,
    job: Annotated[str | None, typer.Option("--job", "-j", help="The job of this task.")] = None,
    task: Annotated[int | None, typer.Option("--task", "-i", min=0, help="The index of this task in its job.")] = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPU devices of this task.")] = 1,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address that other machines can reach, without authentication."),
    ] = False,
) -> None:
    """Serve one task of a cluster until Ctrl-C. Without --cluster, TF_CONFIG says which cluster and task."""
    with _errors_explained():
        import dovetail as tf

        if cluster is None:
            cluster, job, task = _from_environment(job, task)
        try:
            spec = json.loads(cluster)
        except ValueError as e:
            raise ValueError(f"--cluster={cluster!r} is no JSON ({e})") from None
        try:
            running = tf.train.Server(
                spec, job, task, config=tf.ConfigProto(device_count={"CPU": cpus}), insecure=insecure
            )
        except PermissionError as e:
            raise PermissionError(f"{e} (here: --insecure)") from None
        with running:
            try:
                for device in running.devices:
                    print(device)
                print(f"Serving {running.task} at {running.target}; Ctrl-C ends it.", flush=True)
                running.join()
            except KeyboardInterrupt:
                print("Stopped.")


@app.command()
def plan(
    program: Annotated[
        str, typer.Argument(help="FILE.py:FUNCTION or MODULE:FUNCTION that builds a graph, or a saved graph.")
    ],
    cluster: Annotated[
        str | None,
        typer.Option(help="A YAML file, or a running server, zmq://host:port; without it: this machine."),
    ] = None,
    master: Annotated[str | None, typer.Option(help="The task the session talks to: /job:worker/task:0.")] = None,
    fetch: Annotated[
        list[str] | None, typer.Option(help="What the step returns or runs; without it: what FUNCTION says.")
    ] = None,
    soft: Annotated[bool, typer.Option("--soft", help="Give up device types and indices that cannot be had.")] = False,
    explain: Annotated[
        list[str] | None, typer.Option(help="Say why a node is where it is, instead of the tables.")
    ] = None,
    diff: Annotated[
        Path | None, typer.Option(help="Compare with a saved plan; exit status 3 when they differ.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page that shows the plan.", dir_okay=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture of it.", dir_okay=False)] = None,
    save: Annotated[Path | None, typer.Option(help="Write the plan as text.", dir_okay=False)] = None,
) -> None:
    """Show where each part of a program will run and why, without running it.

    Exit status: 0 planned, 1 it cannot be placed, 2 a mistake in the command or the program, 3 --diff differs.
    """
    from .plan_command import MISUSED, run

    try:
        status = run(
            program, cluster, master=master, fetches=fetch or (), soft=soft, explain=explain or (),
            compare=diff, html=html, svg=svg, save=save,
        )  # fmt: skip
    except OSError as e:
        print(f"error: {e}", file=sys.stderr)
        status = MISUSED
    except Exception:  # the program's own: its author needs the traceback
        traceback.print_exc()
        status = MISUSED
    raise typer.Exit(status)


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    print(f"dovetail {__version__}")


def _from_environment(job: str | None, task: int | None) -> tuple[str, str, int]:
    """Cluster, job and task from TF_CONFIG; what was given on the command line wins."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        place = config.get("task", {})
        index = int(place["index"]) if task is None else task
        return json.dumps(config["cluster"]), job or str(place["type"]), index
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            "Which cluster? Give --cluster, --job and --task, or set TF_CONFIG to JSON such as "
            '{"cluster": {"ps": ["localhost:2222"]}, "task": {"type": "ps", "index": 0}}'
            + (f"; it is {text!r}" if text else "")
        ) from None


@contextmanager
def _errors_explained(*more: type[Exception]) -> Iterator[None]:
    """Turn errors that a person can mend into a line without a traceback, and Ctrl-C into a clean end."""
    from .graph.errors import OpError

    explained: tuple[type[Exception], ...] = (OpError, ValueError, TypeError, OSError, *more)
    try:
        yield
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except explained as e:
        print(f"error: {e}", file=sys.stderr)
        raise typer.Exit(1) from None


def main() -> None:
    """Run the command line."""
    app()
