"""`dovetail keys`: creates, allows, revokes and lists keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...graph.core.settings import setting
from ...runtime.transport.keys import ALLOWED, SERVERS, Keys, part_of, parts_of, public_keys, write_cluster, write_keys
from .common import Commands, errors_explained, read_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...runtime.transport.keys import KeyPair

keys = Commands("Keys that authenticate servers and clients to each other.")

_Folder = Annotated[
    Path | None, typer.Option("--keys", help="Folder of keys. Default: DOVETAIL_KEYS.", exists=True, file_okay=False)
]


@keys.command()
def new(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder for the keys. Default: DOVETAIL_KEYS.", file_okay=False)
    ] = None,
    name: Annotated[str, typer.Option(help="Without --cluster: name of the key's owner.")] = "client",
    cluster: Annotated[
        str | None, typer.Option(help="Create keys for all tasks of this cluster: JSON, or a file of JSON or YAML.")
    ] = None,
    client: Annotated[list[str] | None, typer.Option(help="With --cluster: name of a client. May be repeated.")] = None,
) -> None:
    """Create a key. With --cluster, create a key for each task and each client; they accept each other."""
    with errors_explained():
        where = _folder(folder)
        if cluster is None:
            if client:
                raise ValueError("--client needs --cluster. Use --name for a single key")
            made = write_keys(where, name, next(_pairs()))
            print(f"Created {where / 'own.key'} (private) for {made.name}.")
            print(f"To allow it on a server: dovetail keys allow {where / (made.name + '.pub')} --keys SERVER_FOLDER")
            return
        tasks = _tasks(cluster)
        clients = client or ["client"]
        write_cluster(where, tasks, clients, _pairs())
        print(f"Created keys for {len(tasks)} tasks and {', '.join(clients)} in {where}.")
        print(
            f"On this machine, set DOVETAIL_KEYS={where}. To other machines, copy only the subfolder of the task or client that runs there."
        )


@keys.command()
def allow(
    files: Annotated[list[Path], typer.Argument(help="Public key files, NAME.pub.", exists=True, dir_okay=False)],
    folder: _Folder = None,
) -> None:
    """Allow public keys, in the folder of one server or of a cluster. Running servers apply the change."""
    with errors_explained():
        from ...runtime.transport.keys import allow, read_public  # a command has this name

        for key in [read_public(f) for f in files]:  # read all before allowing one
            for path in allow(_folder(folder), key):
                print(f"Allowed {key.name}: {path}")


@keys.command()
def revoke(
    names: Annotated[list[str], typer.Argument(help="Names of keys, or their first digits, eight or more.")],
    folder: _Folder = None,
) -> None:
    """Revoke keys, and close the connections of their owners."""
    with errors_explained():
        from ...runtime.transport.keys import revoke  # a command has this name

        for name in names:
            for path in revoke(_folder(folder), name):
                print(f"Revoked {name}: {path} deleted")


@keys.command(name="list")
def list_(folder: _Folder = None) -> None:
    """List the keys in a folder."""
    with errors_explained():
        where = _folder(folder)
        parts = list(parts_of(where)) or [where]
        for part in parts:
            own = Keys.load(part)
            print(f"{own.name}  {own.pair.public}  {part}")
            for key in public_keys(part / ALLOWED):
                print(f"  allows {key.name}  {key.key[:16]}...")
            for key in public_keys(part / SERVERS):
                print(f"  expects {key.name}  {key.key[:16]}...  at {', '.join(key.addresses) or 'any address'}")


def _folder(given: Path | None) -> Path:
    folder = given or setting("DOVETAIL_KEYS")
    if not folder:
        raise ValueError("No folder of keys is given. Pass one, or set DOVETAIL_KEYS")
    return Path(folder).expanduser()


def _pairs() -> Iterator[KeyPair]:
    from ...runtime.transport.zmq_sockets import new_key_pair  # loads ZeroMQ

    while True:
        yield new_key_pair()


def _tasks(text: str) -> list[tuple[str, str]]:
    """Returns the subfolder and the address of each task of a cluster."""
    jobs = read_jobs(text)
    known = {
        job: tasks if not isinstance(tasks, int) else dict.fromkeys(range(tasks), "") for job, tasks in jobs.items()
    }
    return [
        (part_of(job, int(i)), address)
        for job, tasks in known.items()
        for i, address in (tasks.items() if isinstance(tasks, dict) else enumerate(tasks))
    ]
