"""Supervisors of running clusters. `LocalSupervisor` restarts the tasks of this machine; engines such as Ray restart their own tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...runtime.rpc.pending_call import how_it_ended
from ...runtime.server.local_cluster import LocalCluster

# Exponential back-off, in seconds: the pause before the first restart of a task, which doubles with each restart, ...
FIRST_PAUSE_S = 1.0
# ... the longest pause, ...
MOST_PAUSE_S = 30.0
# ... and the uptime after which the pause is reset.
STEADY_S = 60.0


@dataclass(slots=True)
class _TaskState:
    """The state of a task: the times of its last and its next start, in seconds."""

    started: float
    pause: float = FIRST_PAUSE_S
    again_at: float | None = None
    restarts: int = 0


class Supervisor:
    """Watches the tasks of a running cluster. This base class does nothing; it is for engines that supervise their tasks themselves."""

    def poll(self) -> bool:
        """Checks all tasks once. Returns whether a task has ended or was restarted since the last check."""
        return False

    @property
    def all_ended(self) -> bool:
        """Whether all tasks have ended and none will be restarted."""
        return False

    def processes(self) -> dict[str, int]:
        """Returns the process ids of the tasks on this machine."""
        return {}

    def program_status(self) -> int | None:
        """Returns the exit status of the programs that tasks run.

        This is the status of a program that failed and will not be restarted, 0 if all are done, or None while some run.
        """
        return None


class LocalSupervisor(Supervisor):
    """Restarts the tasks of a cluster on this machine when they end, with exponential back-off.

    Args:
        cluster: a running cluster.
        log: called with a message for each event.
        restart: restart tasks that have ended.
        programs: job whose tasks run the user's program -> how often a failed task is restarted. A task that exits with
            status 0 is done.
        clock: the time in seconds; tests pass their own.
    """

    def __init__(
        self, cluster: LocalCluster, log: Callable[[str], None], *, restart: bool = True,
        programs: Mapping[str, int] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._log = log
        self._restart = restart
        self._programs = dict(programs or {})
        self._clock = clock
        self._tasks = {task: _TaskState(clock()) for task in cluster.tasks}

    def poll(self) -> bool:
        """Checks all tasks once. Returns whether a task has ended or was restarted since the last check."""
        changed = False
        for (job, i), task in self._tasks.items():
            now = self._clock()
            code = self._cluster.process(job, i).poll()
            if code is None:
                if now - task.started > STEADY_S:
                    task.pause = FIRST_PAUSE_S
                continue
            if task.again_at is None:
                changed = True
                task.again_at = now + task.pause
                then = f"; it restarts in {task.pause:.0f} s" if self._restarts(job, task, code) else ""
                self._log(f"/job:{job}/task:{i} {how_it_ended(code)}{then}")
            if now >= task.again_at and self._restarts(job, task, code):
                changed = True
                self._cluster.start(job, i)
                task.restarts += 1
                task.started, task.again_at = now, None
                task.pause = min(MOST_PAUSE_S, 2 * task.pause)
                self._log(f"/job:{job}/task:{i} was restarted")
        return changed

    def _restarts(self, job: str, task: _TaskState, code: int) -> bool:
        return self._restart and (job not in self._programs or (code != 0 and task.restarts < self._programs[job]))

    @property
    def all_ended(self) -> bool:
        """Whether all tasks have ended and none will be restarted."""
        return not self._restart and all(self._cluster.process(*task).poll() is not None for task in self._tasks)

    def program_status(self) -> int | None:
        """Returns the status of the first program that failed and will not be restarted, 0 if all are done, or None while some run."""
        codes = {task: self._cluster.process(*task).poll() for task in self._tasks if task[0] in self._programs}
        for (job, i), code in codes.items():
            if code and not self._restarts(job, self._tasks[job, i], code):
                return code
        return None if any(code != 0 for code in codes.values()) else 0

    def processes(self) -> dict[str, int]:
        """Returns the process ids of the tasks."""
        return {f"/job:{job}/task:{i}": self._cluster.process(job, i).pid for job, i in self._tasks}
