"""`dovetail k8s`: clusters on Kubernetes, from the same file as on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...graph.core.settings import setting
from ...runtime.transport.keys import OWN, Keys, write_keys
from .common import Commands, errors_explained

k8s = Commands("Kubernetes manifests of a cluster.")


@k8s.callback()
def _group() -> None:
    """Keeps `manifests` a subcommand. Without a callback, typer would replace a group of one command by the command."""


@k8s.command()
def manifests(
    file: Annotated[str, typer.Argument(help="Cluster file whose `jobs` are numbers of tasks, with `resources`.")],
    image: Annotated[str, typer.Option(help="Container image of the tasks; docker/Dockerfile builds one.")],
    name: Annotated[str, typer.Option(help="Prefix of the names of all objects.")] = "dovetail",
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the key that all tasks and clients share; a missing key is created. Default: DOVETAIL_KEYS.",
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

        from ...distribute.launchers.kubernetes_manifests import manifests as manifests_of  # loads the launchers
        from ...placer.cluster.load import described_by

        key = None if insecure else _key(keys)
        try:
            made = manifests_of(described_by(file), image, name=name, key=key)
        except ValueError as e:
            raise ValueError(f"{file}: {e}") from None
        print(yaml.safe_dump_all(made, sort_keys=False, width=120), end="")


def _key(folder: Path | None) -> str:
    """Returns the text of the key file in a folder. Creates the key if there is none."""
    from ...runtime.transport.zmq_sockets import new_key_pair  # loads ZeroMQ

    where = folder or (Path(setting("DOVETAIL_KEYS")) if setting("DOVETAIL_KEYS") else None)
    if where is None:
        raise ValueError(
            "Other machines can reach the pods, so they need a key. Pass --keys FOLDER, or --insecure to use no key"
        )
    where = where.expanduser()
    if not (where / OWN).exists():
        write_keys(where, "cluster", new_key_pair())
    Keys.load(where)  # raises an error if the key is malformed or readable by others
    return (where / OWN).read_text(encoding="ascii")
