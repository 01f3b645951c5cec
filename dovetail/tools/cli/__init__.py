"""The command `dovetail`, one module per family of commands.

A command imports heavy modules when it runs, so `dovetail --help` is fast.

- `plan`, `ops`, `devices`, `calibrate`: plans, the index of ops, devices, measurements of this machine. `programs`: the argument PROGRAM.
- `run`, `serve`, `trace`, `watch`: run programs and servers, and show their state. `keys`: keys of servers and clients.
- `cluster`, `cluster_managers`: clusters from a file, here and on Slurm and Kubernetes. `lock_file`: the lock file of a cluster that is up.
- `common`: exit statuses, error messages, options and cluster names.

Only `dovetail/__main__.py` and the installed script import it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ... import __version__
from .calibrate import calibrate
from .cluster import cluster, down, up
from .cluster_managers import k8s, slurm
from .common import Commands
from .devices import devices
from .keys import keys
from .ops import ops
from .plan import diff, explain, plan, simulate
from .run import run
from .serve import PASS_ON, demo, server, tf1
from .trace import trace
from .watch import status, top

app = Commands("Plan dataflow graphs, see which device runs each part and why, and run them across processes.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dovetail {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command(context_settings={"allow_interspersed_args": False})(run)
for _command in (up, down, plan, diff, explain, simulate, trace, devices, calibrate, ops, demo, server, status, top):
    app.command()(_command)
app.command(context_settings=PASS_ON, options_metavar="PROGRAM [ARGUMENT...]")(tf1)
app.add_typer(cluster, name="cluster")
app.add_typer(keys, name="keys")
app.add_typer(k8s, name="k8s")
app.add_typer(slurm, name="slurm")


def main() -> None:
    """Run the command line."""
    app(prog_name="dovetail")  # also under `python -m`, because completion uses this name
