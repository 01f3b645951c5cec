"""`dovetail run`: starts a cluster, runs a program on it, and stops the cluster when the program ends."""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...graph.core.errors import OpError
from ...placer.render.text import size_text
from .cluster import (
    POLL_S,
    Image,
    KeyFolder,
    Name,
    On,
    SlurmOption,
    delete_from_kubernetes,
    ended_by_signals,
    enter_allocation,
    key_folder,
    on_kubernetes,
    targets_of,
    up_file,
)
from .common import UsageError, errors_explained, program_errors
from .lock_file import read_up
from .watch import rates

if TYPE_CHECKING:
    from ...distribute.launchers.engines import ClusterDescription
    from ...distribute.launchers.supervisor import Supervisor
    from ...runtime.server.running_cluster import RunningCluster

# Seconds that a program has to end after Ctrl-C, for example to save a checkpoint.
GRACE_S = 10.0
# Seconds between two updates of the progress line.
REFRESH_S = 1.0


def run(
    file: Annotated[str, typer.Argument(help="Cluster file, or numbers of tasks: ps=1,worker=2.")],
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROGRAM...", help="A Python file, `-m module` or any command, with its arguments."),
    ] = None,  # `_order` explains a call without it
    on: On = "local",
    each: Annotated[
        bool,
        typer.Option(
            "--each", help="Run the program in each task, with its TF_CONFIG. Tasks of the job ps are servers."
        ),
    ] = False,
    restarts: Annotated[int, typer.Option(min=0, help="On local: how many times a failed program is restarted.")] = 0,
    keys: KeyFolder = None,
    option: SlurmOption = None,
    image: Image = "",
    name: Name = "dovetail",
) -> None:
    """Start a cluster, run a program on it, and stop the cluster when the program ends. Options come before FILE.

    The program is the cluster's client. Its environment has the session target as TARGET, the cluster as TF_CONFIG, and the cluster
    file's `checkpoint` as CHECKPOINT_DIR. If the cluster is up already (`dovetail up`), the program uses it and leaves it up. The output
    of tasks is prefixed with their names. Ctrl-C interrupts the program, and then stops the tasks. The exit status is the program's.
    """
    with errors_explained(subprocess.CalledProcessError):
        from ...distribute.launchers.engines import ClusterDescription  # loads ZeroMQ

        if file.endswith(".py") or not program:
            raise UsageError(_order(file, program or []))
        description = ClusterDescription.read(file)
        if each and on == "k8s":
            raise UsageError("--each does not work on k8s: pods run servers, and the program is the only client")
        if on == "k8s":
            raise typer.Exit(_on_kubernetes(description, program, image, name, keys))
        enter_allocation(description, on, option or [])
        with ended_by_signals():
            raise typer.Exit(_run(description, program, on, each, restarts, keys))


def _order(file: str, program: Sequence[str]) -> str:
    """Returns an error with the corrected command, for a call without a cluster or a program. `file`: the first argument."""
    if file.endswith(".py"):
        words = [*(w for w in program if w == "--each"), "ps=1,worker=2", file, *(w for w in program if w != "--each")]
        return f"The cluster comes first: dovetail run {shlex.join(words)}"
    return f"There is no program: dovetail run {shlex.join([file, 'train.py'])}"


def _run(
    description: ClusterDescription, program: Sequence[str], on: str, each: bool, restarts: int, keys: Path | None
) -> int:
    from ...distribute.launchers.engines import running  # loads ZeroMQ

    command = _command(program)
    folder = key_folder(description, on, keys)
    if (found := _running_already(description)) is not None:
        if each or found["on"] == "ray":
            raise UsageError(
                f"The cluster of {description.text} is up, and its tasks run servers. Stop it first: dovetail down {description.text}"
            )
        return _as_client(command, {**_environment_of(found["targets"]), **description.environment()}, None, restarts)
    with contextlib.ExitStack() as ending:
        here = ending.enter_context(up_file(description, on))
        _log(
            f"Starting {', '.join(f'{job} {n if isinstance(n, int) else len(n)}' for job, n in description.file.jobs.items())} on {on}"
        )
        cluster, supervisor = ending.enter_context(
            running(
                description,
                on,
                log=_log,
                output=_print,
                program=command if each else (),
                restarts=restarts,
                keys=folder,
            )
        )
        here.write(targets_of(cluster), supervisor.processes())
        watched = ending.enter_context(_Watched(cluster, supervisor, here))
        if each:
            return _until_programs_end(cluster, watched)
        environment = {**cluster.environment(), **description.environment()}
        if on == "ray":
            return _in_this_process(program, environment)
        return _as_client(command, environment, watched, restarts)


def _command(program: Sequence[str]) -> list[str]:
    """Returns the command of a program. Python runs a Python file or `-m module`."""
    is_python = program[0].endswith(".py") or program[0] == "-m"
    command = [sys.executable, "-u", *program] if is_python else list(program)
    if shutil.which(command[0]) is None or (program[0].endswith(".py") and not Path(program[0]).is_file()):
        raise UsageError(f"There is no program {program[0]}")
    return command


def _running_already(description: ClusterDescription) -> dict[str, Any] | None:
    """Returns the contents of the lock file if the cluster is up, or None."""
    with contextlib.suppress(FileNotFoundError):
        return read_up(description.path) if description.path is not None else None
    return None


def _environment_of(targets: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for a client of a cluster that another process runs."""
    from ...placer.cluster.spec import ClusterSpec  # loads the cluster files
    from ...runtime.server.running_cluster import RunningCluster  # loads ZeroMQ
    from ...runtime.transport.keys import client_keys

    jobs: dict[str, list[str]] = {}
    for task, target in targets.items():
        jobs.setdefault(task.removeprefix("/job:").partition("/")[0], []).append(target.removeprefix("zmq://"))
    cluster = RunningCluster()
    cluster.cluster_spec, cluster.keys = ClusterSpec(jobs), client_keys()
    return cluster.environment()


def _as_client(command: Sequence[str], environment: Mapping[str, str], watched: _Watched | None, restarts: int) -> int:
    """Runs a program as the client, restarts it when it fails, and returns its exit status."""
    from ...runtime.rpc.pending_call import how_it_ended  # loads ZeroMQ
    from ...runtime.server.local_cluster import follow_output  # loads ZeroMQ

    left = restarts
    while True:
        process = subprocess.Popen(
            command, env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if sys.stdin.isatty() else None, process_group=0,
        )  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        readers = [
            follow_output(process.stdout, lambda line: print(line, flush=True)),
            follow_output(process.stderr, lambda line: print(line, file=sys.stderr, flush=True)),
        ]
        if watched is not None:
            watched.client = process.pid
        try:
            while (code := _waited(process, POLL_S)) is None:
                if watched is not None:
                    watched.poll()
        except KeyboardInterrupt:
            _interrupt([process])
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children that the program left behind
            for reader in readers:
                reader.join(POLL_S)
        if code == 0 or not left:
            return code if code >= 0 else 128 - code
        left -= 1
        _log(f"The program {how_it_ended(code)}; it is restarted")


def _until_programs_end(cluster: RunningCluster, watched: _Watched) -> int:
    """Waits until the programs that tasks run have ended, and returns their exit status."""
    from ...distribute.launchers.engines import SERVER_JOB  # loads ZeroMQ
    from ...runtime.server.local_cluster import LocalCluster

    try:
        while (code := watched.supervisor.program_status()) is None:
            watched.poll()
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        if isinstance(cluster, LocalCluster):
            _interrupt([cluster.process(job, i) for job, i in cluster.tasks if job != SERVER_JOB])
        raise
    return code if code >= 0 else 128 - code


def _interrupt(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupts programs as Ctrl-C does. Kills those that have not ended after `GRACE_S` seconds, or at the next Ctrl-C."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_S
    with contextlib.suppress(KeyboardInterrupt):
        for process in processes:
            _waited(process, max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
        process.wait()


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _in_this_process(program: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a Python program in this process, which is Ray's driver and receives the addresses of tasks."""
    os.environ.update(environment)
    is_module = program[0] == "-m"
    name, *arguments = program[1:] if is_module else program
    if not is_module and not name.endswith(".py"):
        raise UsageError(
            f"On ray the program runs in this process, so it must be a Python file or `-m module`, not {name}"
        )
    sys.argv = [name, *arguments]
    try:
        with program_errors():
            if is_module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, str(Path(name).resolve().parent))
                runpy.run_path(name, run_name="__main__")
    except typer.Exit as e:  # `program_errors` raises it
        return e.exit_code
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    return 0


def _on_kubernetes(
    description: ClusterDescription, program: Sequence[str], image: str, name: str, keys: Path | None
) -> int:
    from ...distribute.launchers import kubectl  # loads the launchers

    jobs, checkpoint = list(description.file.jobs), description.file.checkpoint
    with contextlib.ExitStack() as ending:
        if shutil.which("kubectl") is None or not kubectl.is_up(jobs, name):
            if image:  # without an image, nothing is started
                ending.callback(delete_from_kubernetes, description, name)
            on_kubernetes(description, image, name, keys)
        return kubectl.run(program, jobs, name, {} if checkpoint is None else {"CHECKPOINT_DIR": checkpoint})


def _print(job: str, index: int, line: str) -> None:
    print(f"{job}:{index} | {line}", flush=True)


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class _Watched:
    """A running cluster with its supervisor, and a progress line if standard error is a terminal."""

    def __init__(self, cluster: RunningCluster, supervisor: Supervisor, here: Any) -> None:
        self.cluster = cluster
        self.supervisor = supervisor
        self.client: int | None = None
        self._here = here
        self._known: Any = None
        self._restarts = -1
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Restarts tasks that ended, and updates the lock file."""
        self.supervisor.poll()
        processes = self.supervisor.processes() | ({"client": self.client} if self.client else {})
        if self._known != (known := (targets_of(self.cluster), processes)):
            self._known = known
            self._restarts += 1
            self._here.write(*known)

    def __enter__(self) -> _Watched:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        from ...runtime.server.running_cluster import ClusterMonitor  # loads ZeroMQ

        began = time.monotonic()
        before: dict[str, Any] = {}
        console = Console(stderr=True)
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty()) as live:
            while not self._ended.wait(REFRESH_S):
                views: Sequence[Any] = ()
                for job, i in reversed(self.cluster.tasks):
                    with (
                        contextlib.suppress(OpError),
                        ClusterMonitor(self.cluster.target(job, i).removeprefix("zmq://")) as observer,
                    ):
                        views = observer.look()
                        break
                live.update(
                    Text(_progress(views, before, time.monotonic() - began, len(self.cluster.tasks))), refresh=True
                )
                before = {view.task: view for view in views}


def _progress(views: Sequence[Any], before: Mapping[str, Any], seconds: float, tasks: int) -> str:
    """Returns a line about a cluster: tasks that are up, steps per second of the busiest task, memory, and elapsed time."""
    up = [view for view in views if view.figures is not None]
    parts = [f"{len(up)} of {tasks} tasks up"]
    found = [(rate.steps, view.task) for view in up if (rate := rates(before.get(view.task), view)) is not None]
    if found:
        steps, task = max(found)
        parts.append(f"{task.removeprefix('/job:').replace('/replica:0/task:', ':')} {steps:.0f} steps/s")
    parts.append(size_text(sum(view.figures["memory"] for view in up)))
    minutes, rest = divmod(int(seconds), 60)
    return " · ".join([*parts, f"{minutes}:{rest:02d}"])
