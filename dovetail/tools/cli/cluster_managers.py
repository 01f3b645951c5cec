"""`dovetail k8s` and `dovetail slurm`: files for Kubernetes and Slurm, from the same cluster file as on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import Commands, errors_explained

k8s = Commands("Kubernetes manifests of a cluster.")
slurm = Commands("Slurm batch scripts of a cluster.")


@k8s.callback()
def _k8s() -> None:
    """Keeps `manifests` a subcommand. Without a callback, typer would replace a group of one command by the command."""


@k8s.command()
def manifests(
    file: Annotated[str, typer.Argument(help="Cluster file whose `jobs` are numbers of tasks, with `resources`.")],
    image: Annotated[str, typer.Option(help="Container image of the tasks; docker/Dockerfile builds one.")],
    name: Annotated[str, typer.Option(help="Prefix of the names of all objects.")] = "dovetail",
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the key that all tasks and clients share; a missing key is created. "
            "Default: `keys` of the file, or DOVETAIL_KEYS.",
            file_okay=False,
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use no keys: everyone who can reach a pod can run code in it.")
    ] = False,
) -> None:
    """Print manifests for `kubectl apply -f -`: a StatefulSet, a headless Service and a PodDisruptionBudget for each job."""
    with errors_explained():
        import yaml  # slow to load, and most commands write no YAML

        from ...distribute.launchers.engines import ClusterDescription  # loads ZeroMQ
        from ...distribute.launchers.kubernetes_manifests import manifests as manifests_of  # loads the launchers

        description = ClusterDescription.read(file)
        key = None if insecure else description.key_text(keys)
        if key is None and not insecure:
            raise ValueError(
                "Other machines can reach the pods, so they need a key. Pass --keys FOLDER, or --insecure to use no key"
            )
        try:
            made = manifests_of(description.file, image, name=name, key=key)
        except ValueError as e:
            raise ValueError(f"{file}: {e}") from None
        print(yaml.safe_dump_all(made, sort_keys=False, width=120), end="")


@slurm.callback()
def _slurm() -> None:
    """Keeps `script` a subcommand, as `_k8s` keeps `manifests`."""


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
