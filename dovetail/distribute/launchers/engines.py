"""Starts the cluster of a cluster file on this machine, on Ray, or in a Slurm job, for `dovetail up` and `dovetail run`.

key of the file         this machine              Ray                 Slurm
devices                 CPUs, emulated GPUs       emulated GPUs       -
resources: cpus         threads of kernels        num_cpus            --cpus-per-task
           gpus         -                         num_gpus            --gpus-per-task
           memory       memory in plans           memory              --mem-per-cpu
keys                    the key of all tasks and clients; created if the folder has none
checkpoint              CHECKPOINT_DIR of programs
ps_replicas             DOVETAIL_PS_REPLICAS of all tasks; on Ray also the strategy SPREAD
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...graph.core.device import parse_strict
from ...placer.cluster.file_format import ClusterFile, DeviceFacts, checked
from ...placer.cluster.load import described_by, quantity
from ...runtime.server.local_cluster import LocalCluster
from ...runtime.server.running_cluster import RunningCluster
from ...runtime.transport.keys import OWN, Keys, write_keys
from ...runtime.transport.zmq_sockets import new_key_pair
from .ray_cluster import RayCluster
from .slurm_cluster import SlurmCluster, counts
from .supervisor import LocalSupervisor, Supervisor

# The job whose tasks always run servers, even if the other tasks run the user's program.
SERVER_JOB = "ps"
# The default folder of the key of a cluster over several machines.
KEYS = "dovetail-keys"

Output = Callable[[str, int, str], None]
"""A function of a line that a task printed: job, index, line."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The description of a cluster.

    Attributes:
        text: what the user passed: a path, the text of a cluster file, or numbers of tasks.
        file: the parsed cluster file.
        path: the path of the file; None: `text` is not a path.
    """

    text: str
    file: ClusterFile
    path: Path | None

    @staticmethod
    def read(text: str) -> ClusterDescription:
        """Reads a cluster file. ValueError: it is malformed, or cannot be read."""
        try:
            file = checked(described_by(text), ClusterFile)
        except (ValueError, OSError) as e:
            raise ValueError(f"{text}: {e}") from None
        path = Path(text) if len(text) < 1024 and "\n" not in text and Path(text).is_file() else None
        return ClusterDescription(text, file, path)

    def within(self, folder: str) -> str:
        """Returns a folder that the file names as an absolute path. A URL is unchanged."""
        if "://" in folder:
            return folder
        return str((Path() if self.path is None else self.path.parent).joinpath(Path(folder).expanduser()).resolve())

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of tasks and programs: the folder of checkpoints, and the replication of variables."""
        folder = {} if self.file.checkpoint is None else {"CHECKPOINT_DIR": self.within(self.file.checkpoint)}
        return {**folder, **({"DOVETAIL_PS_REPLICAS": str(self.file.ps_replicas)} if self.file.ps_replicas > 1 else {})}

    def keys(self, given: Path | None = None, default: str | None = None) -> Path | None:
        """Returns the folder of the cluster's key, and creates a missing key. None: the cluster has no key.

        The folder is the first of these that is set: `given`, `keys` in the file, DOVETAIL_KEYS, `default`.
        """
        named = given or self.file.keys or os.environ.get("DOVETAIL_KEYS") or default
        if not named:
            return None
        folder = given.expanduser() if given else Path(self.within(str(named)))
        if not (folder / OWN).exists() and not any(folder.glob(f"*/{OWN}")):
            write_keys(folder, "cluster", new_key_pair())
        Keys.load(folder)  # raises an error if the key is malformed or readable by others
        return folder.resolve()

    def key_text(self, given: Path | None = None, default: str | None = None) -> str | None:
        """Returns the text of the key file in the folder that `keys` returns. None: the cluster has no key."""
        folder = self.keys(given, default)
        return None if folder is None else (folder / OWN).read_text(encoding="ascii")


@contextlib.contextmanager
def running(
    description: ClusterDescription,
    on: str,
    *,
    log: Callable[[str], None],
    output: Output | None = None,
    restart: bool = True,
    program: Sequence[str] = (),
    restarts: int = 0,
    keys: Path | None = None,
) -> Iterator[tuple[RunningCluster, Supervisor]]:
    """A block in which the cluster of a file runs. Yields the cluster and its supervisor.

    Args:
        description: the cluster.
        on: "local", "ray" or "slurm".
        log: called with a message for each event of a task.
        output: called with each line that a task prints; None: tasks print to the streams of this process.
        restart: restart tasks of this machine that end. Ray always restarts tasks, and Slurm never does.
        program: a command that tasks run instead of a server, except those of the job "ps". Ray does not support it.
        restarts: how often each such task is restarted when it fails.
        keys: the folder of the cluster's key.
    """
    if on == "ray":
        if program:
            raise ValueError(
                "On Ray the program is the only client. Use RayCluster.run to call a function in each worker's process"
            )
        with RayCluster(counts(description.file), **_grants(description.file), keys=description.keys(keys)) as ray:
            yield ray, Supervisor()
    elif on == "slurm":
        where = description.keys(keys, KEYS)
        os.environ["DOVETAIL_KEYS"] = str(where)  # srun's tasks inherit it
        os.environ.update(description.environment())
        with SlurmCluster(counts(description.file), program=program, output=output) as slurm:
            yield slurm, slurm.supervisor
    else:
        programs = {job: list(program) for job in description.file.jobs if program and job != SERVER_JOB}
        with local_cluster(description, programs=programs, output=output, keys=keys) as local:
            yield local, LocalSupervisor(local, log, restart=restart, programs=dict.fromkeys(programs, restarts))


def local_cluster(
    description: ClusterDescription,
    *,
    programs: Mapping[str, Sequence[str]] | None = None,
    output: Output | None = None,
    keys: Path | None = None,
) -> LocalCluster:
    """Starts the cluster of a file on this machine. The other arguments are those of `LocalCluster`."""
    jobs = _local_jobs(description.file)
    cpus, emulated = _devices(description.file)
    return LocalCluster(
        jobs, programs=programs, device_count={job: {"CPU": n} for job, n in cpus.items()}, emulate_gpus=emulated,
        environment={job: {**_limits(description.file, job), **description.environment()} for job in jobs}, output=output,
        keys=description.keys(keys), start_timeout_s=None if programs else 30.0,
    )  # fmt: skip


def _local_jobs(file: ClusterFile) -> dict[str, Any]:
    """Returns the jobs as an argument of `LocalCluster`, which numbers tasks from 0."""
    return {job: list(tasks.values()) if isinstance(tasks, dict) else tasks for job, tasks in file.jobs.items()}


def _devices(file: ClusterFile) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the number of CPU devices and of emulated GPUs of each task, by job."""
    cpus, gpus = dict.fromkeys(file.jobs, 1), dict.fromkeys(file.jobs, 0)
    for where, devices in (file.devices or {}).items():
        job = (parse_strict(where).job or "") if where.startswith("/") else where
        if job not in file.jobs:
            raise ValueError(f"`devices` names the job {job!r}, which is not in the cluster")
        facts = [d if isinstance(d, DeviceFacts) else DeviceFacts(d) for d in devices]
        kinds = [(f.name.lower().rpartition("device:")[2].partition(":")[0], f.emulated) for f in facts]
        cpus[job] = max(cpus[job], sum(kind == "cpu" for kind, _ in kinds))
        gpus[job] = max(gpus[job], sum(kind == "gpu" and emulated for kind, emulated in kinds))
    return cpus, gpus


def _limits(file: ClusterFile, job: str) -> dict[str, str]:
    """Returns the environment variables that limit a task of this machine to its resources."""
    takes = (file.resources or {}).get(job)
    found: dict[str, str] = {}
    if takes is not None and takes.cpus:
        found |= dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(max(1, int(takes.cpus)))
        )
    if takes is not None and takes.memory is not None:
        found["DOVETAIL_HOST_MEMORY"] = str(int(quantity(takes.memory, "memory") or 0))
    return found


def _grants(file: ClusterFile) -> dict[str, Any]:
    """Returns the arguments of `RayCluster` that a file sets."""
    resources: dict[str, dict[str, Any]] = {}
    for job, takes in (file.resources or {}).items():
        memory = quantity(takes.memory, "memory")
        grants = {
            "num_cpus": takes.cpus,
            "num_gpus": takes.gpus or None,
            "memory": None if memory is None else int(memory),
        }
        resources[job] = {name: n for name, n in grants.items() if n is not None}
    emulated = _devices(file)[1]
    for job, gpus in emulated.items():
        if gpus:
            resources.setdefault(job, {}).setdefault("num_gpus", gpus)
    spread = {"ps_replicas": file.ps_replicas, "strategy": "SPREAD"} if file.ps_replicas > 1 else {}
    return {"resources": resources, "emulate_gpus": any(emulated.values()), **spread}
