"""`dovetail slurm`: clusters on Slurm, from the same file as on one machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from .common import errors_explained, numbers_of_tasks

slurm = typer.Typer(help="Run a cluster on Slurm.", no_args_is_help=True)

_File = Annotated[str, typer.Argument(help="A cluster file with `jobs` as numbers of tasks, or ps=1,worker=2.")]


@slurm.command(context_settings={"allow_interspersed_args": False})
def script(
    file: _File,
    program: Annotated[list[str], typer.Argument(help="The program's command; it finds the session target in $TARGET.")],
    name: Annotated[str, typer.Option(help="The name of Slurm's job.")] = "dovetail",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="An option of sbatch, such as --time=1:00:00; may be given several times.")
    ] = None,
) -> None:
    """Print a batch script for `sbatch`: a task of Slurm per task of the cluster, and the program as their client. Options come first."""
    with errors_explained():
        from ...distribute.launchers.slurm_script import script as script_of  # a command has this name
        from ...placer.cluster.load import described_by

        try:
            print(script_of(described_by(file), program, name=name, options=option or ()), end="")
        except ValueError as e:
            raise ValueError(f"{file}: {e}") from None


@slurm.command()
def target(
    file: _File, port_base: Annotated[int, typer.Option(min=1, max=65_535, help="Port of a node's first task.")] = 8888
) -> None:
    """Print the session target of the cluster that a job of Slurm runs. Batch scripts call it."""
    with errors_explained(RuntimeError):
        from ...distribute.resolvers.cluster_resolver import (  # loads the strategies
            expand_hostlist,
            expand_tasks_per_node,
            slurm_cluster,
        )
        from ...placer.cluster.spec import masters_job

        jobs = numbers_of_tasks(file)
        try:
            hosts, counts = os.environ["SLURM_JOB_NODELIST"], os.environ["SLURM_TASKS_PER_NODE"]
        except KeyError as e:
            raise ValueError(f"{e.args[0]} is not in the environment: this is no batch job of Slurm") from None
        spec = slurm_cluster(jobs, expand_hostlist(hosts), expand_tasks_per_node(counts), port_base)
        print(f"zmq://{spec.task_address(masters_job(spec.jobs), 0)}")
