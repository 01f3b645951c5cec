"""The cluster: its jobs and tasks, its devices, and the links between tasks.

A cluster is a set of jobs, a job a set of tasks, a task one process with an address. `ClusterSpec` is what a
user writes down before anything runs. `Cluster` is what a session finds once the tasks have answered: their
devices, and which task is the master.
"""

from __future__ import annotations

import operator
import os
import platform
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...graph.core.device import DeviceFields, DeviceName, is_specialization, matches, parse_strict
from ...graph.core.gpu_models import DEFAULT_GPU, GPU_MODELS, GpuModel
from ...graph.core.repeated_field import Repeated
from .calibration import Calibration

# -- what a user writes down -------------------------------------------------------------------------------


@dataclass(slots=True)
class JobDef:
    """One job: its name and the address of each task, by task index. The indices may have gaps."""

    name: str = ""
    tasks: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterDef:
    """A cluster as plain data: jobs by name, tasks by index (TensorFlow's message of the same name).

    >>> cluster = ClusterDef()
    >>> cluster.job.add(name="worker").tasks[0] = "localhost:2222"
    >>> ClusterSpec(cluster)
    ClusterSpec({'worker': ['localhost:2222']})
    """

    job: Any = ()  # jobs; then a `Repeated` of them

    def __post_init__(self) -> None:
        self.job = Repeated(self.job, JobDef)


def masters_job(jobs: Iterable[str]) -> str:
    """The job whose first task is the master unless another is named: `chief`, `master` or `worker`, else the first by name."""
    there = set(jobs)
    return next((job for job in ("chief", "master", "worker") if job in there), min(there))


class ClusterSpec:
    """The jobs of a cluster and their tasks' addresses. Immutable, compared by content, false when empty.

    Args:
        cluster: `{job: [address, ...]}`, or `{job: {task index: address}}` where the indices may have gaps,
            or a `ClusterDef`, or another `ClusterSpec`. An address is `host:port`.

    Raises:
        TypeError: something else, or an address or job name that is no string.
        ValueError: a negative task index, or one given twice.

    >>> spec = ClusterSpec({"ps": ["a:2221"], "worker": {1: "b:2222"}})
    >>> spec.jobs, spec.num_tasks("worker"), spec.task_address("worker", 1)
    (['ps', 'worker'], 1, 'b:2222')
    """

    __slots__ = ("_jobs",)

    def __init__(self, cluster: Mapping[str, Any] | ClusterDef | ClusterSpec) -> None:
        if isinstance(cluster, ClusterSpec):
            self._jobs: dict[str, dict[int, str]] = cluster._jobs
            return
        given: Iterable[tuple[Any, Any]]
        if isinstance(cluster, ClusterDef):
            given = ((job.name, job.tasks) for job in cluster.job)
        elif isinstance(cluster, Mapping):
            given = cluster.items()
        else:
            raise TypeError(
                f"`cluster` must be a dictionary mapping one or more job names to lists of network "
                f"addresses, a ClusterDef or a ClusterSpec, not {cluster!r}; such as {{'worker': ['localhost:2222']}}"
            )
        self._jobs = dict(sorted((_job_name(job), _tasks(job, tasks)) for job, tasks in given))

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return list(self._jobs)

    def num_tasks(self, job_name: str) -> int:
        """How many tasks a job has. ValueError when there is no such job."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of a job's tasks, sorted. ValueError when there is no such job."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of one task. ValueError when there is no such job or task."""
        tasks = self._job(job_name)
        if task_index not in tasks:
            known = ", ".join(map(str, tasks)) or "none"
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}; it has: {known}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """A job's addresses, each at its task's index, None in gaps. ValueError when there is no such job."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """The cluster as a dictionary: a job with tasks 0 to n-1 as a list, any other as a dictionary."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def as_cluster_def(self) -> ClusterDef:
        """The cluster as plain data."""
        return ClusterDef([JobDef(job, dict(tasks)) for job, tasks in self._jobs.items()])

    def _job(self, name: str) -> dict[int, str]:
        if name not in self._jobs:
            raise ValueError(f"No such job in cluster: {name!r}; its jobs: {', '.join(self._jobs) or 'none'}")
        return self._jobs[name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple((job, tuple(tasks.items())) for job, tasks in self._jobs.items()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def task_addresses(spec: ClusterSpec) -> dict[tuple[str, int], str]:
    """(job, task index) -> address of every task, sorted."""
    return {(job, i): address for job, tasks in spec._jobs.items() for i, address in tasks.items()}


def addresses_of(spec: ClusterSpec) -> dict[str, str]:
    """Task -> address: `/job:ps/replica:0/task:0` -> `host:port`."""
    return {f"/job:{job}/replica:0/task:{i}": address for (job, i), address in task_addresses(spec).items()}


def check_ps_replicas(replicas: int, servers: int) -> None:
    """ValueError unless each variable of a job `ps` with so many tasks can be kept in `replicas` of them."""
    if replicas != 1 and (replicas != 2 or servers < 2):
        raise ValueError(
            f"`ps_replicas` (DOVETAIL_PS_REPLICAS) is 1, or 2 with a job ps of 2 tasks or more, not {replicas!r} with {servers} in job ps"
        )


def _job_name(job: object) -> str:
    if not isinstance(job, str):
        raise TypeError(f"A job's name must be a string, not {job!r}")
    return job


def _tasks(job: str, tasks: object) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        given = [(_task_index(job, index), address) for index, address in tasks.items()]
    elif isinstance(tasks, (list, tuple)):
        given = list(enumerate(tasks))
    else:
        raise TypeError(
            f"The tasks for job {job!r} must be a list of addresses or a dictionary from task index to "
            f"address, not {tasks!r}"
        )
    found: dict[int, str] = {}
    for index, address in given:
        if not isinstance(address, str):
            raise TypeError(
                f"The address of task {index} in job {job!r} must be a string such as 'host:2222', not {address!r}"
            )
        if index in found:
            raise ValueError(f"Task {index} of job {job!r} is given twice: {found[index]!r} and {address!r}")
        found[index] = address
    return dict(sorted(found.items()))


def _task_index(job: str, index: Any) -> int:
    try:
        number = int(index) if isinstance(index, str) else operator.index(index)
    except (TypeError, ValueError):
        raise TypeError(f"A task index in job {job!r} must be an integer, not {index!r}") from None
    if number < 0:
        raise ValueError(f"A task index in job {job!r} cannot be negative: {number}")
    return number


# -- what a session finds ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of a running task.

    Attributes:
        name: its complete name.
        memory_bytes: the memory that it computes in; None when unknown. Emulated devices share their host's.
        emulated: whether it only stands in for a device that this machine does not have.
        incarnation: the number that its task drew when it started.
        bandwidth: bytes per second between the device and its memory; None when not measured.
        flops: float32 operations per second; None when not measured.
        host: the machine that its task runs on, by name or address; empty when unknown.
        model: a GPU's product, one of `GPU_MODELS`; empty when unknown.
    """

    name: DeviceName
    memory_bytes: int | None
    emulated: bool
    incarnation: int
    bandwidth: float | None = None
    flops: float | None = None
    host: str = ""
    model: str = ""

    @property
    def gpu(self) -> GpuModel | None:
        """The figures of a real GPU, by which its kernels are made and its times are predicted; None: it computes as a CPU does."""
        if self.emulated or self.name.device_type != "GPU":
            return None
        return GPU_MODELS.get(self.model, DEFAULT_GPU).with_speeds(self.flops, self.bandwidth)

    @property
    def device_type(self) -> str:
        """Its type, `CPU` or `GPU`, as TensorFlow's `list_devices` tells it."""
        return self.name.device_type

    @property
    def memory_limit_bytes(self) -> int:
        """`memory_bytes` under TensorFlow's name; 0 when unknown."""
        return self.memory_bytes or 0

    def __str__(self) -> str:
        return f"{self.name} (emulated)" if self.emulated else str(self.name)


@dataclass(frozen=True, slots=True)
class Link:
    """What connects two tasks, in both directions; between tasks of one spec it connects each with each.

    Attributes:
        a, b: the tasks at its ends, as partial names (`/job:ps`); '' stands for all.
        latency: seconds until a message arrives, however small; None when unknown.
        bandwidth: bytes per second; None when unknown.
    """

    a: str
    b: str
    latency: float | None = None
    bandwidth: float | None = None

    def seconds(self, count: int) -> float:
        """Time until so many bytes have arrived that are sent without a pause; what is unknown counts as none."""
        return (self.latency or 0.0) + (count / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True)  # no slots: the cached look-up tables live in the instance
class Cluster:
    """What the placer sees: all devices of all tasks, and the task that the session talks to.

    Attributes:
        devices: the devices, the master's first, then by name.
        master: name of the master's task, `/job:worker/replica:0/task:0`.
        links: what is known of the links between tasks; the first that fits a pair of tasks counts.
        calibration: the measured profile of the machines `calibrated`; None: plans rest on what is typical.
        calibrated: names of the hosts that it counts for, as devices have them.

    Raises:
        ValueError: a device is listed twice, or the master has none.
    """

    devices: tuple[DeviceInfo, ...]
    master: str
    links: tuple[Link, ...] = ()
    calibration: Calibration | None = None
    calibrated: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ordered = sorted(self.devices, key=lambda d: (d.name.task_name != self.master, d.name))
        object.__setattr__(self, "devices", tuple(ordered))
        for first, second in zip(ordered, ordered[1:], strict=False):
            if first.name == second.name:
                raise ValueError(f"The device {first.name} is listed twice")
        if not ordered or ordered[0].name.task_name != self.master:
            known = ", ".join(self.tasks) or "none"
            raise ValueError(f"The master {self.master} has no device; tasks with devices: {known}")

    @cached_property
    def _by_name(self) -> dict[DeviceName, DeviceInfo]:
        return {device.name: device for device in self.devices}

    @cached_property
    def names(self) -> tuple[DeviceName, ...]:
        """The names of the devices, in the order of `devices`."""
        return tuple(self._by_name)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, the master's first."""
        return tuple(dict.fromkeys(device.name.task_name for device in self.devices))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def device(self, name: DeviceName) -> DeviceInfo:
        """One device. KeyError when the cluster has none of that name."""
        return self._by_name[name]

    def devices_of(self, task: str) -> tuple[DeviceInfo, ...]:
        """The devices of one task, by name; empty for a task that is not there."""
        return tuple(device for device in self.devices if device.name.task_name == task)

    def link(self, task: str, other: str) -> Link | None:
        """What is known of the link between two tasks; None when nothing is."""
        ends = parse_strict(task), parse_strict(other)
        for link in self.links:
            a, b = parse_strict(link.a), parse_strict(link.b)
            for one, two in (ends, ends[::-1]):
                if is_specialization(a, one) and is_specialization(b, two):
                    return link
        return None

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], dict[tuple[object, ...], list[int]]]:
        """Fields of a name -> values of these fields -> numbers of the devices that have them; filled as asked."""
        return {}

    def numbers(self, pattern: DeviceFields) -> Sequence[int]:
        """The numbers in `devices` of those that a spec admits, ascending.

        It takes as long as the answer is, not as there are devices: they are looked through once for each set of fields that
        specs set.
        """
        fields = tuple(f for f in DeviceName.__slots__ if getattr(pattern, f) is not None)
        found = self._numbers.get(fields)
        if found is None:
            found = self._numbers[fields] = {}
            for number, device in enumerate(self.devices):
                found.setdefault(tuple(getattr(device.name, f) for f in fields), []).append(number)
        return found.get(tuple(getattr(pattern, f) for f in fields), ())

    @cached_property
    def _hosts(self) -> dict[str, str]:
        return {device.name.task_name: device.host for device in self.devices}

    def same_host(self, task: str, other: str) -> bool:
        """Whether two tasks run on one machine, so that processes there may share memory.

        Where a host is unknown, the tasks count as being on one machine unless the cluster has a link between them.
        """
        one, two = self._hosts.get(task), self._hosts.get(other)
        return one == two if one and two else task == other or self.link(task, other) is None

    def is_calibrated(self, device: DeviceInfo) -> bool:
        """Whether the profile tells the times of a device: a processor of a machine that it counts for, whose speed is not described."""
        return (
            self.calibration is not None
            and device.gpu is None
            and device.flops is None
            and device.host in self.calibrated
        )

    def on_profile(self, calibration: Calibration | None, everywhere: bool = False) -> Cluster:
        """The cluster with a machine's profile: for tasks of this machine, and those whose host is unknown; or `everywhere`.

        It does not count for machines of which only processors of described speeds are known.
        """
        if calibration is None:
            return self
        untold = [d for d in self.devices if d.gpu is not None or d.flops is None]
        hosts = tuple(sorted({d.host for d in untold if everywhere or d.host in ("", platform.node())}))
        return replace(self, calibration=calibration, calibrated=hosts) if hosts else self

    def matching(self, pattern: DeviceFields) -> tuple[DeviceInfo, ...]:
        """The devices that a spec admits, in the order of `devices`."""
        return tuple(self.devices[i] for i in self.numbers(pattern))

    def filtered(self, device_filters: Iterable[str]) -> Cluster:
        """The cluster as a session with `device_filters` sees it.

        It keeps the devices that at least one filter admits, and the master's. No filter keeps everything.

        Raises:
            InvalidArgumentError: a malformed filter.
        """
        patterns = [parse_strict(text) for text in device_filters]
        if not patterns:
            return self
        kept = (
            d for d in self.devices
            if d.name.task_name == self.master or any(matches(p, d.name) for p in patterns)
        )  # fmt: skip
        return replace(self, devices=tuple(kept))


def local_devices(
    task: str,
    device_count: Mapping[str, int] | None = None,
    emulated_gpus: int = 0,
    *,
    incarnation: int | None = None,
    gpus: Sequence[tuple[int, str]] = (),
    host_memory: int | None = None,
) -> tuple[DeviceInfo, ...]:
    """The devices that a task offers on this machine: its CPUs, then its GPUs, real or emulated.

    Args:
        task: the task's name, `/job:worker/replica:0/task:0`; the replica may be left out and is 0 then.
        device_count: devices per type, as in TensorFlow's session config: `CPU` says how many there are (1
            unless given), `GPU` how many at most are used.
        emulated_gpus: how many GPU devices to emulate with the CPU's kernels. The real ones are not offered then.
        incarnation: the task's number; drawn at random when not given.
        gpus: bytes of memory and model of each GPU that this machine has.
        host_memory: bytes of memory that the task may use; None: all of this machine's.

    Raises:
        InvalidArgumentError: `task` names no task.
        ValueError: a negative count, a type other than CPU and GPU, or no CPU at all.

    >>> [str(d) for d in local_devices("/job:local/task:0", {"CPU": 1}, emulated_gpus=1)]
    ['/job:local/replica:0/task:0/device:CPU:0', '/job:local/replica:0/task:0/device:GPU:0 (emulated)']
    """
    limits = dict(device_count or {})
    for kind, count in [*limits.items(), ("emulated GPU", emulated_gpus)]:
        if kind not in ("CPU", "GPU", "emulated GPU"):
            raise ValueError(f"device_count knows the types CPU and GPU, not {kind!r}")
        if count < 0:
            raise ValueError(f"The number of {kind} devices cannot be negative: {count}")
    cpus = limits.get("CPU", 1)
    if cpus == 0:
        raise ValueError("A task needs at least one CPU device: feeds and fetches pass through it")
    present = emulated_gpus or len(gpus)
    count = min(present, limits.get("GPU", present))

    spec = parse_strict(task)
    spec = spec if spec.replica is not None else spec.replace(replica=0)
    number = new_incarnation() if incarnation is None else incarnation
    emulated = emulated_gpus > 0
    memory = host_memory or _host_memory()
    found = [("CPU", i, memory, False, "") for i in range(cpus)]
    found += [
        ("GPU", i, memory, True, "") if emulated else ("GPU", i, gpus[i][0], False, gpus[i][1]) for i in range(count)
    ]
    return tuple(
        DeviceInfo(
            DeviceName.of(spec.replace(device_type=kind, device_index=i)),
            size,
            stand_in,
            number,
            host=platform.node(),
            model=model,
        )
        for kind, i, size, stand_in, model in found
    )


def new_incarnation() -> int:
    """A number for a task that starts, so that it is not taken for an older one: 63 random bits, never 0."""
    return secrets.randbelow((1 << 63) - 1) + 1


def _host_memory() -> int | None:
    """Bytes of memory that this machine has; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
