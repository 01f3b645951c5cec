"""`dovetail slurm`: clusters on Slurm, from the same file as on one machine."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import Commands, errors_explained

slurm = Commands("Slurm batch scripts of a cluster.")


@slurm.callback()
def _group() -> None:
    """Keeps `script` a subcommand. Without a callback, typer would replace a group of one command by the command."""


@slurm.command(context_settings={"allow_interspersed_args": False})
def script(
    file: Annotated[str, typer.Argument(help="Cluster file whose `jobs` are numbers of tasks, or ps=1,worker=2.")],
    program: Annotated[list[str], typer.Argument(help="The program and its arguments, as `dovetail run` takes them.")],
    each: Annotated[
        bool, typer.Option("--each", help="Run the program in each task. Tasks of the job ps are servers.")
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the Slurm job.")] = "dovetail",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="An option of sbatch, such as --time=1:00:00. May be repeated."),
    ] = None,
) -> None:
    """Print a batch script for `sbatch` that calls `dovetail run --on slurm FILE PROGRAM`. Options come before FILE."""
    with errors_explained():
        from ...distribute.launchers.engines import ClusterDescription  # loads ZeroMQ
        from ...distribute.launchers.slurm_cluster import script as script_of  # loads ZeroMQ

        command = ["dovetail", "run", "--on", "slurm", *(["--each"] if each else []), file, *program]
        try:
            print(script_of(ClusterDescription.read(file).file, command, name=name, options=option or ()), end="")
        except ValueError as e:
            raise ValueError(f"{file}: {e}") from None
