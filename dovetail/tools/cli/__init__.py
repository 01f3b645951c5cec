"""The command `dovetail`, one module per family of commands. Each imports what it needs when it runs: `dovetail --help` is quick."""

from __future__ import annotations

import typer

from ... import __version__
from .calibrate import calibrate
from .cluster import cluster
from .k8s import k8s
from .keys import keys
from .plan import devices, plan
from .run import PASS_ON, demo, server, tf1
from .slurm import slurm
from .watch import status, top

app = typer.Typer(
    help="Build dataflow graphs, see where each part will run and why, and run them across processes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def version() -> None:
    """Print the version."""
    print(f"dovetail {__version__}")


for _command in (calibrate, demo, devices, server, status, top, plan, version):
    app.command()(_command)
app.command(context_settings=PASS_ON)(tf1)
app.add_typer(cluster, name="cluster")
app.add_typer(keys, name="keys")
app.add_typer(k8s, name="k8s")
app.add_typer(slurm, name="slurm")


def main() -> None:
    """Run the command line."""
    app()
