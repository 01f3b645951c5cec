"""A cluster in a Slurm job, and the batch script of such a job.

    salloc or sbatch   allocate the nodes. `allocation` returns the options for the resources in a cluster file
    `SlurmCluster`     starts one job step. Each task of the step runs a server
    the program        is the client, which runs in the job's script, or runs in each task except parameter servers

The step ends with the program. Slurm cannot restart a single task. `sbatch --requeue` restarts the whole job.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence

from ...graph.core.errors import UnavailableError
from ...placer.cluster.file_format import ClusterFile, TaskResources
from ...placer.cluster.load import quantity
from ...runtime.rpc.pending_call import how_it_ended
from ...runtime.server.local_cluster import follow_output
from ...runtime.server.running_cluster import RunningCluster
from ...runtime.transport.keys import client_keys
from ..resolvers.cluster_resolver import expand_hostlist, expand_tasks_per_node, slurm_cluster
from .supervisor import Supervisor

PROGRAM_ENDED = "The program of this task ended with status"
# Seconds that srun has to end its tasks.
GRACE_S = 5.0


def allocation(file: ClusterFile, options: Sequence[str] = ()) -> list[str]:
    """Returns the options of `salloc` and `sbatch` that allocate a cluster.

    All tasks of a Slurm step have the same resources: the largest that any job requests.

    Args:
        file: a cluster file with numbers of tasks.
        options: additional options, such as `--time=1:00:00`.

    Raises:
        ValueError: jobs have addresses instead of numbers.
    """
    takes = list((file.resources or {}).values()) or [TaskResources()]
    cpus = max(1, math.ceil(max(r.cpus or 0 for r in takes)))
    gpus = max(r.gpus for r in takes)
    memory = max(quantity(r.memory, "memory") or 0.0 for r in takes)
    return [
        f"--ntasks={sum(counts(file).values())}",
        f"--cpus-per-task={cpus}",
        *([f"--mem-per-cpu={math.ceil(memory / cpus / 2**20)}M"] if memory else []),
        *([f"--gpus-per-task={gpus}"] if gpus else []),
        *options,
    ]


def counts(file: ClusterFile) -> dict[str, int]:
    """Returns the number of tasks of each job. ValueError: a job has addresses, which the engine assigns."""
    for job, tasks in file.jobs.items():
        if not isinstance(tasks, int):
            raise ValueError(
                f"Job {job!r} must have a number of tasks, not {tasks!r}. The engine assigns their addresses"
            )
    return {job: n for job, n in file.jobs.items() if isinstance(n, int)}


def script(file: ClusterFile, command: Sequence[str], *, name: str = "dovetail", options: Sequence[str] = ()) -> str:
    """Returns the batch script of a cluster and its program.

    Args:
        file: a cluster file with numbers of tasks.
        command: the command that the job runs: `dovetail run --on slurm CLUSTER PROGRAM`.
        name: the name of the Slurm job.
        options: additional options of `sbatch`.
    """
    head = "".join(f"#SBATCH {line}\n" for line in [f"--job-name={name}", *allocation(file, options)])
    return f"#!/bin/bash\n{head}exec {shlex.join(command)}\n"


class SlurmCluster(RunningCluster):
    """Starts a cluster as one step of the Slurm job that this process runs in.

    Args:
        jobs: job -> number of tasks; together as many as the Slurm job has.
        program: a command that tasks run instead of a server, except those of the job "ps".
        output: called with (job, index, line) for each line that a task prints.
        start_timeout_s: seconds to wait until all servers answer.

    Raises:
        ValueError: this process is not in a Slurm job, or the job has another number of tasks.
        UnavailableError: a task ended, or did not answer in time.
    """

    def __init__(
        self,
        jobs: Mapping[str, int],
        *,
        program: Sequence[str] = (),
        output: Callable[[str, int, str], None] | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        try:
            hosts, tasks = os.environ["SLURM_JOB_NODELIST"], os.environ["SLURM_TASKS_PER_NODE"]
            port = 20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000  # jobs that share a node must not share ports
        except KeyError as e:
            raise ValueError(f"{e.args[0]} is not set: this process is not in a Slurm job") from None
        self.keys = client_keys()
        self.cluster_spec = slurm_cluster(jobs, expand_hostlist(hosts), expand_tasks_per_node(tasks), port)
        # Tasks that run a program. The others run servers until the end.
        self._running = {task for task in self.tasks if program and task[0] != "ps"}
        self._step = subprocess.Popen(
            [
                "srun", "--mpi=none", "--distribution=block", "--label", f"--cpus-per-task={os.environ.get('SLURM_CPUS_PER_TASK', 1)}",
                "--kill-on-bad-exit=1", sys.executable, "-m", "dovetail", "server", "--from-env", "--cluster", json.dumps(dict(jobs)),
                "--port-base", str(port), *(["--", *program] if program else []),
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        show = output or (lambda job, index, line: print(f"{job}:{index} | {line}", flush=True))
        stream, self._step.stdout = self._step.stdout, None
        assert stream is not None
        self._reader = follow_output(stream, lambda line: self._labelled(line, show))
        if program:
            return
        try:
            self.wait_until_up(start_timeout_s)
        except BaseException:
            self.close()
            raise

    def _labelled(self, line: str, show: Callable[[str, int, str], None]) -> None:
        """Passes on a line of `srun --label`, such as `2: text`."""
        number, _, text = line.partition(":")
        rank = int(number) if number.strip().isdigit() else len(self.tasks)
        job, index = self.tasks[rank] if rank < len(self.tasks) else ("srun", 0)
        if text.strip() == f"{PROGRAM_ENDED} 0":
            self._running.discard((job, index))
        show(job, index, text.removeprefix(" ") if job != "srun" else line)

    def _finished(self, waiting: Mapping[str, tuple[str, int]]) -> Collection[str]:
        code = self._step.poll()
        if code is None:
            return ()
        raise UnavailableError.of(
            f"The Slurm step {how_it_ended(code)} before all tasks answered. Its output shows the reason"
        )

    @property
    def supervisor(self) -> Supervisor:
        """The supervisor, which reports the end of the step."""
        return _StepSupervisor(self)

    def close(self) -> None:
        """End all tasks. A second call does nothing."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._step.poll() is None:
                self._step.send_signal(number)
                try:
                    self._step.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    continue
        self._reader.join(GRACE_S)


class _StepSupervisor(Supervisor):
    """Reports the end of a job step."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    @property
    def all_ended(self) -> bool:
        return self._cluster._step.poll() is not None

    def program_status(self) -> int | None:
        return self._cluster._step.poll() if self._cluster._running else 0
