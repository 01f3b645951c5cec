"""`dovetail up`, `down` and `cluster`: a cluster from a file, on this machine, Ray, Slurm or Kubernetes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...graph.core.errors import OpError
from ...placer.cluster import file_format
from . import lock_file
from .common import Commands, FailedError, UsageError, errors_explained, monitor, one_of
from .watch import picture

if TYPE_CHECKING:
    from ...distribute.launchers.engines import ClusterDescription
    from ...distribute.launchers.supervisor import Supervisor
    from ...runtime.server.running_cluster import RunningCluster

cluster = Commands("Restart a task of a cluster that is up; print the schema of cluster files.")

# Seconds between two checks of the tasks.
POLL_S = 0.5
# Seconds to wait until all tasks of a detached cluster answer.
UP_S = 150.0
ENGINES = ("local", "ray", "slurm", "k8s")

File = Annotated[Path, typer.Argument(help="Cluster file, YAML.", exists=True, dir_okay=False)]
On = Annotated[str, one_of(ENGINES, "Where tasks run: local, ray, slurm or k8s (kubectl's current context).")]
KeyFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the cluster's key. Default: the file's `keys`, else DOVETAIL_KEYS.", file_okay=False
    ),
]
Image = Annotated[str, typer.Option(help="On k8s: container image of the tasks.")]
Name = Annotated[str, typer.Option(help="On k8s: prefix of the names of all objects.")]
SlurmOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="On slurm: an option of salloc, such as --time=1:00:00. May be repeated."),
]


def up(
    file: File,
    on: On = "local",
    keys: KeyFolder = None,
    restart: Annotated[bool, typer.Option(help="On local: restart tasks that end.")] = True,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            "-d",
            help="Run the tasks in the background and return once all answer. Their output goes to FILE.log.",
        ),
    ] = False,
    option: SlurmOption = None,
    image: Image = "",
    name: Name = "dovetail",
) -> None:
    """Start the tasks of a cluster, show their state, and restart those that end. Ctrl-C or `dovetail down` stops them.

    On k8s the command returns when the pods are ready; `dovetail down --on k8s` deletes them.
    """
    with errors_explained(subprocess.CalledProcessError):
        from ...distribute.launchers.engines import ClusterDescription, running  # loads ZeroMQ

        description = ClusterDescription.read(str(file))
        if on == "k8s":
            on_kubernetes(description, image, name, keys)
            return
        if detach:
            _detach(file, ["--on", on, *(["--keys", str(keys)] if keys else []), *([] if restart else ["--no-restart"]),
                           *(f"--option={o}" for o in option or ())])  # fmt: skip
            return
        enter_allocation(description, on, option or [])
        with ended_by_signals(), up_file(description, on) as lock, contextlib.ExitStack() as ending:
            try:
                running_now, supervisor = ending.enter_context(
                    running(description, on, log=print_event, restart=restart, keys=key_folder(description, on, keys))
                )
                lock.write(targets_of(running_now), supervisor.processes())
                _show(targets_of(running_now))
                print(f"Up. Stop it with Ctrl-C or: dovetail down {file}", flush=True)
                _watch(running_now, supervisor, lock, file)
            except KeyboardInterrupt:
                print("Stopped.")


def down(
    file: File,
    on: On = "local",
    name: Name = "dovetail",
) -> None:
    """Stop a cluster that is up. Only clusters on k8s need --on."""
    with errors_explained(subprocess.CalledProcessError):
        if on == "k8s":
            from ...distribute.launchers.engines import ClusterDescription  # loads ZeroMQ

            delete_from_kubernetes(ClusterDescription.read(str(file)), name)
        else:
            lock_file.stop(file)
        print("Stopped.")


cluster.command("up", hidden=True)(up)  # the old names of `up` and `down`
cluster.command("down", hidden=True)(down)


@cluster.command()
def schema() -> None:
    """Print the JSON schema of cluster files, for completion and checks in editors."""
    print(json.dumps(file_format.schema(), indent=2))


@cluster.command()
def restart(
    file: File,
    task: Annotated[str, typer.Argument(help="The task: ps:0, or /job:ps/task:0.")],
) -> None:
    """Restart one task of a cluster that is up on this machine. The memory of the task is lost."""
    with errors_explained():
        lock_file.restart(file, task)


def on_kubernetes(description: ClusterDescription, image: str, name: str, keys: Path | None) -> None:
    """Starts a cluster with kubectl, and waits until its pods are ready."""
    from ...distribute.launchers import kubectl  # loads the launchers
    from ...distribute.launchers.kubernetes_manifests import manifests  # loads the launchers

    if not image:
        raise UsageError("No container image is given for the tasks. Pass --image; docker/Dockerfile builds an image")
    kubectl.apply(manifests(description.file, image, name=name, key=description.key_text(keys, "dovetail-keys")))
    print(
        f"Up. Target for pods of its namespace: {kubectl.target(description.file.jobs, name)}. Stop it with: dovetail down --on k8s FILE"
    )


def delete_from_kubernetes(description: ClusterDescription, name: str) -> None:
    """Deletes a cluster with kubectl."""
    from ...distribute.launchers import kubectl  # loads the launchers
    from ...distribute.launchers.kubernetes_manifests import manifests  # loads the launchers

    kubectl.delete(manifests(description.file, "any", name=name, key="any"))


def enter_allocation(description: ClusterDescription, on: str, options: list[str]) -> None:
    """Outside a Slurm job, replaces this process with `salloc`, which runs the same command inside a job."""
    if on != "slurm" or "SLURM_JOB_ID" in os.environ:
        return
    from ...distribute.launchers.slurm_cluster import allocation  # loads ZeroMQ

    command = [
        "salloc",
        "--job-name=dovetail",
        *allocation(description.file, options),
        sys.executable,
        "-m",
        "dovetail",
        *sys.argv[1:],
    ]
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        raise FileNotFoundError(
            "salloc was not found. Slurm is not installed on this machine, or not in PATH"
        ) from None


def key_folder(description: ClusterDescription, on: str, given: Path | None) -> Path | None:
    """Returns the folder of the cluster's key, and sets DOVETAIL_KEYS to it for this process and its children."""
    folder = description.keys(given, "dovetail-keys" if on == "slurm" else None)
    if folder is not None:
        os.environ["DOVETAIL_KEYS"] = str(folder)
    return folder


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """A block that SIGTERM ends as Ctrl-C does."""

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class NoFile:
    """Replaces an `UpFile` if the cluster has no file. It does nothing."""

    def write(self, targets: dict[str, str], processes: dict[str, int]) -> None:
        """Does nothing."""


@contextlib.contextmanager
def up_file(description: ClusterDescription, on: str) -> Iterator[Any]:
    """A block with the lock file by which other commands find the cluster. Yields an `UpFile`, or a `NoFile`."""
    if description.path is None:
        yield NoFile()
    else:
        with lock_file.UpFile(description.path, on) as lock:
            yield lock


def targets_of(running: RunningCluster) -> dict[str, str]:
    """Returns the target of each task, at its current location."""
    from ...runtime.transport.address import location_of  # loads the transport

    found = {f"/job:{job}/task:{i}": running.target(job, i).removeprefix("zmq://") for job, i in running.tasks}
    return {task: f"zmq://{location_of(address)}" for task, address in found.items()}


def _detach(file: Path, options: list[str]) -> None:
    """Runs `dovetail up` in a background process, and waits until its tasks answer."""
    with contextlib.suppress(FileNotFoundError):
        lock_file.read_up(file)
        raise FailedError(
            f"The cluster of {file} is up already ({lock_file.up_path(file)}). Stop it with: dovetail down {file}"
        )
    log = file.with_name(f"{file.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "up", str(file), *options],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )  # fmt: skip
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise FailedError(log.read_text(encoding="utf-8", errors="replace").strip().removeprefix("error: "))
        with contextlib.suppress(FileNotFoundError):  # the file is written when all tasks answer
            _show(lock_file.read_up(file)["targets"])
            print(f"Up. Stop it with: dovetail down {file}")
            return
        time.sleep(0.05)
    process.terminate()
    raise FailedError(f"The tasks of {file} did not answer within {UP_S:.0f} s. Their output is in {log}")


def _show(targets: dict[str, str]) -> None:
    for task, target in targets.items():
        print(f"{task}  {target}")


def print_event(text: str) -> None:
    """Prints an event of a task, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _watch(running: RunningCluster, supervisor: Supervisor, lock: Any, file: Path) -> None:
    """Supervises the cluster, and shows its state on a terminal."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    before: dict[str, Any] = {}
    known: Any = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            supervisor.poll()
            if known != (known := (targets_of(running), supervisor.processes())):
                lock.write(*known)
            if supervisor.all_ended:
                print("All tasks have ended.", file=sys.stderr)
                raise typer.Exit(1)
            if console.is_terminal:
                with contextlib.suppress(OpError), monitor(str(file)) as observer:
                    views = observer.look()
                    live.update(picture(views, before, console.width), refresh=True)
                    before = {view.task: view for view in views}
            time.sleep(POLL_S)
