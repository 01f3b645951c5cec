"""`RayCluster`: a cluster whose tasks are Ray actors.

Each task is an actor in a bundle of a placement group. Its server runs in the actor's process, with the CPUs, GPUs and memory that Ray
granted. Another actor, the *directory*, records the locations (host and port) of all tasks:

    a task starts         it reserves a port of its node, and joins the directory with this location
    all have joined       each receives the cluster spec, and starts its server
    the cluster scales    the directory receives the new list of tasks, and each server a new cluster spec (`Server.update_cluster`)
    a task dies           Ray restarts its actor (`max_restarts`), on another node if its node is lost. The task joins again from its new
                          location. Its address in the cluster spec does not change; the directory sends the new location to all
                          processes (`runtime/transport/address.py`)
    the directory dies    Ray restarts it, and it recovers its state from the processes that poll it

Every process of the cluster, including this one, has a thread that polls the directory. The variables of a dead task are lost unless
`ps_replicas` is 2. `MonitoredTrainingSession` restores them from the last checkpoint. `ClusterCoordinator` reassigns a dead worker's
calls to another worker.

Unless all nodes are on loopback, a key pair is created for the cluster. Ray passes it to the tasks, and does not log it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ...graph.core.errors import UnavailableError
from ...placer.cluster.spec import ClusterSpec, check_ps_replicas, task_addresses
from ...runtime.config import ConfigProto
from ...runtime.logs import set_up_log
from ...runtime.server.local_cluster import reserved_address
from ...runtime.server.running_cluster import RunningCluster
from ...runtime.server.server import Server
from ...runtime.transport.endpoint import relocate
from ...runtime.transport.keys import OWN, Keys, keys_of_servers, write_keys
from ...runtime.transport.zmq_sockets import new_key_pair
from ..resolvers.cluster_resolver import ClusterResolver

# Seconds that a poll waits in the directory for changes.
POLL_S = 10.0
# Pause after a failed poll, in seconds.
AGAIN_S = 1.0
# Seconds to wait until running tasks have received a new cluster spec.
UPDATE_S = 10.0
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
GRANTS = ("num_cpus", "num_gpus", "memory", "resources")
# Options of a call that Ray repeats when it has restarted the actor.
ALWAYS = {"max_task_retries": -1}
# Number of concurrent calls that a task's actor serves.
CALLS = 8


class Directory:
    """Records the locations of a cluster's tasks. It is an asynchronous actor: its methods run in one thread and may wait for each other.

    Args:
        tasks: (job, index) of all tasks.
    """

    def __init__(self, tasks: Sequence[tuple[str, int]]) -> None:
        self._tasks = list(tasks)
        self._addresses: dict[tuple[str, int], str] = {}
        self._locations: dict[str, str] = {}
        self._version = time.time_ns()  # higher than the versions of an earlier instance that died
        self._changed = asyncio.Condition()
        import ray  # an engine's package is loaded where it is used

        # A restarted directory knows no addresses until a task sends them.
        self._is_forgetful = bool(ray.get_runtime_context().was_current_actor_reconstructed)

    async def join(self, job: str, index: int, location: str) -> dict[str, list[str]]:
        """Records the location of a task, waits until all tasks have joined, and returns the cluster.

        The first location of a task is its address in the cluster spec, and does not change after restarts.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_forgetful)
            self._locations[self._addresses.setdefault((job, index), location)] = location
            self._version += 1
            self._changed.notify_all()
            await self._changed.wait_for(lambda: all(task in self._addresses for task in self._tasks))
        return self._cluster()

    async def scale(self, tasks: Sequence[tuple[str, int]]) -> None:
        """Sets the tasks of the cluster. `join` waits for tasks that have not joined yet."""
        async with self._changed:
            self._tasks = list(tasks)
            self._addresses = {task: at for task, at in self._addresses.items() if task in set(tasks)}
            self._changed.notify_all()

    async def changes(
        self, version: int, addresses: Mapping[tuple[str, int], str], here: tuple[str, str] | None
    ) -> tuple[int, dict[str, str]]:
        """Waits until the version differs from `version`, at most `POLL_S` seconds. Returns the version and the locations by address.

        Args:
            version: the version that the caller has.
            addresses: task -> address, if the caller has all of them; else {}. A restarted directory recovers its state from it.
            here: address and location of the calling task; None: the caller is not a task.
        """
        async with self._changed:
            if addresses and self._is_forgetful:
                self._tasks, self._addresses, self._is_forgetful = list(addresses), dict(addresses), False
                self._changed.notify_all()
            if here is not None and here[0] not in self._locations:
                self._locations[here[0]] = here[1]
                self._version += 1
                self._changed.notify_all()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: self._version != version), POLL_S)
        return self._version, dict(self._locations)

    def _cluster(self) -> dict[str, list[str]]:
        jobs: dict[str, list[str]] = {}
        for task in self._tasks:
            jobs.setdefault(task[0], []).append(self._addresses[task])
        return jobs


class Task:
    """A task of the cluster: an actor with a server.

    Args:
        job: the task's job.
        index: index of the task in its job.
        directory: the name of the directory's actor.
        key: the text of the cluster's key file; None: the cluster has no keys.
        cpus: number of CPUs that Ray granted; 0: all CPUs of the machine.
        memory: memory in bytes that Ray granted; 0: unspecified.
        emulate_gpus: serve emulated GPUs instead of those that Ray granted.
        ps_replicas: number of parameter servers that have a copy of each variable.
    """

    def __init__(
        self,
        job: str,
        index: int,
        directory: str,
        key: str | None,
        cpus: float,
        memory: float,
        emulate_gpus: bool,
        ps_replicas: int,
    ) -> None:
        import ray  # an engine's package is loaded where it is used

        self.name = f"{job}:{index}"
        found = ray.get_actor(directory)
        os.environ["DOVETAIL_HOST_MEMORY"] = str(int(memory))
        if ps_replicas > 1:
            os.environ["DOVETAIL_PS_REPLICAS"] = str(ps_replicas)
        gpus = len(ray.get_gpu_ids())
        if emulate_gpus:
            os.environ["DOVETAIL_EMULATE_GPUS"] = str(gpus)
        set_up_log(job, index)
        folder = None if key is None else tempfile.mkdtemp(prefix="dovetail-ray-")
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            with os.fdopen(os.open(Path(folder) / OWN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(str(key))
        host = ray.util.get_node_ip_address()
        config = ConfigProto(device_count={"GPU": gpus}, intra_op_parallelism_threads=int(cpus))
        with reserved_address(host) as at:
            cluster = ray.get(found.join.options(**ALWAYS).remote(job, index, at))
            self.server = Server(cluster, job, index, config=config, keys=folder, listen=at)
        _follow(found, here=(cluster[job][index], at))

    def cluster(self) -> dict[str, Any]:
        """Waits until this task serves, and returns the cluster spec."""
        return self.server.cluster_spec.as_dict()

    def __repr__(self) -> str:
        return self.name  # Ray prefixes log lines with it

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function in this process."""
        return function(self.server, *args, **kwargs)


def _follow(
    directory: Any,
    ended: threading.Event | None = None,
    addresses: Callable[[], dict[tuple[str, int], str]] = dict,
    here: tuple[str, str] | None = None,
) -> threading.Thread:
    """Starts a thread that applies the directory's changes to this process until `ended` is set.

    `addresses` and `here` are the arguments of `Directory.changes`.
    """
    thread = threading.Thread(
        target=_apply_changes, args=(directory, ended or threading.Event(), addresses, here), daemon=True
    )
    thread.start()
    return thread


def _apply_changes(
    directory: Any,
    ended: threading.Event,
    addresses: Callable[[], dict[tuple[str, int], str]],
    here: tuple[str, str] | None,
) -> None:
    import ray  # an engine's package is loaded where it is used

    version = -1
    while not ended.is_set():
        try:
            version, locations = ray.get(directory.changes.remote(version, addresses(), here), timeout=3 * POLL_S)
        except Exception:  # the directory is busy, or Ray is shutting down
            ended.wait(AGAIN_S)
            continue
        for address, location in locations.items():
            if not ended.is_set():
                relocate(address, location)


class RayCluster(RunningCluster):
    """Starts a cluster on Ray, with an actor per task. Needs the extra `ray`: pip install 'dovetail[ray]'.

    The program is Ray's driver: a process that called `ray.init(address=...)`, or one under `ray job submit`. If the program did not call
    `ray.init`, this connects to `RAY_ADDRESS`, or else to a Ray on this machine, which is started if needed.

    Args:
        jobs: job -> number of tasks: `{"ps": 2, "worker": 4}`.
        resources: job -> resources of each of its tasks: `num_cpus` (default 1), `num_gpus` (also the number of its GPU devices),
            `memory` (bytes; also its memory in plans), and `resources`, a mapping of Ray's custom resources.
        strategy: how Ray's placement group distributes tasks over nodes: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        max_restarts: how often Ray restarts each task; -1: without limit.
        keys: the folder of a key; or True: create a key pair, and refuse connections without it; False: no keys. None: True, unless
            all of Ray's nodes are on loopback.
        emulate_gpus: emulate the tasks' GPUs on CPUs, to test a program on a Ray cluster without GPUs.
        ps_replicas: 2: two tasks of the job "ps" hold each variable, so that no update is lost when one of them dies
            (`docs/guides/state.md`), or its node if `strategy` spreads tasks.
        start_timeout_s: seconds to wait until Ray has granted all resources and all tasks serve.

    Raises:
        TypeError, ValueError: an argument is malformed.
        ImportError: Ray is not installed.
        UnavailableError: Ray did not grant the resources in time, or a task did not start.

    >>> with dt.RayCluster({"ps": 1, "worker": 2}) as cluster, dt.Session(cluster.target()) as session:  # doctest: +SKIP
    ...     print(len(session.list_devices()))
    3
    """

    def __init__(
        self,
        jobs: Mapping[str, int],
        *,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        strategy: str = "PACK",
        max_restarts: int = -1,
        keys: bool | str | Path | None = None,
        emulate_gpus: bool = False,
        ps_replicas: int = 1,
        start_timeout_s: float = 120.0,
    ) -> None:
        grants = _checked(jobs, resources or {}, strategy, ps_replicas)
        self._ray = ray = _ray()
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray:
            ray.init()
        self._ended = threading.Event()
        self._folder: str | None = None
        self._groups: list[tuple[Any, list[tuple[str, int]]]] = []  # placement groups, each with its tasks
        self._actors: dict[tuple[str, int], Any] = {}
        self._directory: Any = None
        self._follower: threading.Thread | None = None
        self._grants, self._strategy, self._max_restarts = grants, strategy, max_restarts
        self._emulate_gpus, self._ps_replicas = emulate_gpus, ps_replicas
        tasks = [(job, i) for job, count in jobs.items() for i in range(count)]
        deadline = time.monotonic() + start_timeout_s
        try:
            self._key = self._make_key(keys)
            here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=False
            )
            self._name = f"dovetail {secrets.token_hex(4)}"  # the dashboard shows it
            self._directory = (
                ray.remote(Directory)
                .options(num_cpus=0, scheduling_strategy=here, max_concurrency=10_000, max_restarts=-1, name=self._name)
                .remote(tasks)
            )
            self._start(tasks, deadline)
            self._follower = _follow(self._directory, self._ended, lambda: task_addresses(self.cluster_spec))
        except BaseException:
            self.close()
            raise

    def _start(self, tasks: Sequence[tuple[str, int]], deadline: float) -> None:
        """Starts tasks in a new placement group, and waits until they serve."""
        ray = self._ray
        group = ray.util.placement_group([_bundle(self._grants[job]) for job, _ in tasks], strategy=self._strategy)
        self._groups.append((group, list(tasks)))
        self._wait([group.ready()], deadline, f"for Ray to grant {len(tasks)} tasks their resources")
        for number, (job, i) in enumerate(tasks):
            grant = self._grants[job]
            bundle = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, number)
            self._actors[job, i] = (
                ray.remote(Task)
                .options(
                    **grant, max_restarts=self._max_restarts, max_concurrency=CALLS, scheduling_strategy=bundle,
                    name=f"/job:{job}/task:{i} of {self._name}",
                )
                .remote(
                    job, i, self._name, self._key, grant["num_cpus"], grant.get("memory", 0), self._emulate_gpus, self._ps_replicas
                )
            )  # fmt: skip
        started = [self._actors[task].cluster.remote() for task in tasks]
        self._wait(started, deadline, "for all tasks to serve")
        self.cluster_spec = ClusterSpec(ray.get(started[0]))

    def scale(self, job: str, count: int, timeout_s: float = 120.0) -> None:
        """Change the number of tasks of a job. Starts new tasks, or ends those with the highest indices.

        Open sessions keep their devices. A `ClusterCoordinator` whose strategy uses this cluster's `resolver` uses new workers, and
        reassigns the calls of workers that end. Resources return to Ray when all tasks of a placement group have ended. The initial tasks
        form one group, and the new tasks of each call of `scale` form another one.

        Args:
            job: a job of the cluster, except "ps", whose tasks own variables.
            count: the new number of tasks, at least 1.
            timeout_s: seconds to wait until new tasks serve.

        Raises:
            ValueError: there is no such job, it is "ps", or the count is below 1.
            UnavailableError: Ray did not grant the resources in time, or a task did not start. The cluster is unchanged.
        """
        if job not in self.cluster_spec.jobs or job == "ps":
            raise ValueError(f"scale needs a job of {self.cluster_spec.jobs} other than ps, not {job!r}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"Job {job!r} must have at least one task, not {count!r}")
        before = self.tasks
        had = self.cluster_spec.num_tasks(job)
        more = [(job, i) for i in range(had, count)]
        kept = [(name, i) for name, i in before if name != job or i < count]
        if more:
            self._ray.get(self._directory.scale.options(**ALWAYS).remote([*before, *more]))
            try:
                self._start(more, time.monotonic() + timeout_s)
            except BaseException:
                self._ray.get(self._directory.scale.options(**ALWAYS).remote(before))
                self._end(more)
                raise
        elif kept != before:
            self._ray.get(self._directory.scale.options(**ALWAYS).remote(kept))
            spec = self.cluster_spec.as_dict()
            self.cluster_spec = ClusterSpec(
                {**spec, job: [self.cluster_spec.task_address(job, i) for i in range(count)]}
            )
            self._end([task for task in before if task not in kept])
        known = [
            self._actors[t].call.remote(Server.update_cluster, self.cluster_spec.as_dict()) for t in before if t in kept
        ]
        # A task that is being restarted gets the spec from the directory.
        self._ray.wait(known, num_returns=len(known), timeout=UPDATE_S)

    def _end(self, tasks: Sequence[tuple[str, int]]) -> None:
        """Ends tasks, and removes placement groups without tasks."""
        for task in tasks:
            if (actor := self._actors.pop(task, None)) is not None:
                self._ray.kill(actor)
        for group, members in list(self._groups):
            members[:] = [task for task in members if task not in tasks]
            if not members:
                self._ray.util.remove_placement_group(group)
                self._groups.remove((group, members))

    def resolver(self) -> ClusterResolver:
        """Returns a cluster resolver for strategies whose client is this process. It reflects later calls of `scale`.

        >>> strategy = dt.distribute.experimental.ParameterServerStrategy(cluster.resolver())  # doctest: +SKIP
        """
        return _Elastic(self)

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """The job and the index of each task."""
        return list(self._actors)

    def node(self, job: str, task_index: int) -> str:
        """The id of the Ray node of a task. Waits while the task is being restarted."""
        return str(self._ray.get(self._actors[job, task_index].call.options(**ALWAYS).remote(_node)))

    def run(self, function: Callable[..., Any], *args: Any, job: str = "worker", **kwargs: Any) -> list[Any]:
        """Call a function in each task of a job concurrently, and return the results in order of tasks.

        Use it for between-graph replication: each call builds its own graph and opens a session at `server.target`. A call whose task dies
        is not repeated.

        Args:
            function: called as `function(server, *args, **kwargs)`.
            args: its arguments.
            job: the job.
            kwargs: its keyword arguments.

        Raises:
            UnavailableError: a task died.
            RayTaskError: a call raised an error.
        """
        calls = [
            actor.call.remote(function, *args, **kwargs) for (name, _), actor in self._actors.items() if name == job
        ]
        try:
            return list(self._ray.get(calls))
        except self._ray.exceptions.RayActorError as e:
            raise UnavailableError.of(f"A task of the job {job!r} died during its call: {e}") from None

    def kill(self, job: str, task_index: int) -> None:
        """Kill a task's process, to test recovery. Ray restarts it."""
        self._ray.kill(self._actors[job, task_index], no_restart=False)

    def close(self) -> None:
        """End all tasks, and return their resources to Ray. A second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._ray.is_initialized():
            for actor in filter(None, [*self._actors.values(), self._directory]):
                self._ray.kill(actor)
            for group, _ in self._groups:
                self._ray.util.remove_placement_group(group)
        if self._follower is not None:
            self._follower.join()  # its poll ends with the directory
            for job, i in self.tasks:  # other clusters may use these addresses
                address = self.cluster_spec.task_address(job, i)
                relocate(address, address)
        if self.keys in keys_of_servers:
            keys_of_servers.remove(self.keys)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._owns_ray:
            self._ray.shutdown()

    def __repr__(self) -> str:
        return f"<dt.RayCluster {self.cluster_spec.as_dict()}>"

    def _make_key(self, keys: bool | str | Path | None) -> str | None:
        """Returns the text of the cluster's key file, or None if it has no keys. Creates the key unless `keys` is its folder."""
        if keys is None:
            keys = not all(ip_address(n["NodeManagerAddress"]).is_loopback for n in self._ray.nodes() if n["Alive"])
        if not keys:
            return None
        if keys is True:
            keys = self._folder = tempfile.mkdtemp(prefix="dovetail-ray-")
            write_keys(Path(keys), "cluster", new_key_pair())
        self.keys = Keys.load(keys)
        keys_of_servers.append(self.keys)  # sessions of this process use them
        return (Path(keys) / OWN).read_text(encoding="ascii")

    def _wait(self, promised: Iterable[Any], deadline: float, what: str) -> None:
        """Waits for Ray objects. UnavailableError: they are not ready in time, or their task failed."""
        began = time.monotonic()
        errors = self._ray.exceptions
        try:
            self._ray.get(list(promised), timeout=max(0.0, deadline - began))
        except errors.GetTimeoutError:
            raise UnavailableError.of(
                f"Waited {time.monotonic() - began:.0f} s {what}. Ray has {_counts(self._ray.available_resources())} free of "
                f"{_counts(self._ray.cluster_resources())}. Request less (resources=...), add nodes, or wait longer (start_timeout_s=...)",
            ) from None
        except errors.RayError as e:
            raise UnavailableError.of(f"A task did not start: {e}") from None


class _Elastic(ClusterResolver):
    """Resolves to a Ray cluster, whose workers may join and leave."""

    is_elastic = True

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster

    def cluster_spec(self) -> ClusterSpec:
        return self._cluster.cluster_spec


def _node(server: Server) -> str:
    import ray  # an engine's package is loaded where it is used

    return str(ray.get_runtime_context().get_node_id())


def _ray() -> Any:
    try:
        import ray  # an engine's package is loaded where it is used
        import ray.util.scheduling_strategies
    except ImportError:
        raise ImportError("RayCluster needs Ray, which is not installed. Run pip install 'dovetail[ray]'") from None
    return ray


def _checked(
    jobs: Mapping[str, int], resources: Mapping[str, Mapping[str, Any]], strategy: str, ps_replicas: int
) -> dict[str, dict[str, Any]]:
    """Checks the arguments of a `RayCluster`. Returns the resources of each task, by job."""
    if not isinstance(jobs, Mapping) or not all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in jobs.values()
    ):
        raise TypeError(f"`jobs` must be numbers of tasks such as {{'ps': 1, 'worker': 2}}, not {jobs!r}")
    if not any(jobs.values()):
        raise ValueError(f"A RayCluster needs at least one task: {dict(jobs)}")
    if strategy not in STRATEGIES:
        raise ValueError(f"`strategy` is one of {', '.join(STRATEGIES)}, not {strategy!r}")
    check_ps_replicas(ps_replicas, jobs.get("ps", 0))
    unknown = sorted(set(resources) - set(jobs))
    if unknown:
        raise ValueError(f"`resources` names jobs that are not in `jobs`: {', '.join(unknown)}")
    for job, grant in resources.items():
        wrong = sorted(set(grant) - set(GRANTS))
        if wrong:
            raise ValueError(f"The resources of job {job!r} are {', '.join(GRANTS)}, not {', '.join(wrong)}")
    return {job: {"num_cpus": 1, **resources.get(job, {})} for job in jobs}


def _bundle(grant: Mapping[str, Any]) -> dict[str, float]:
    """Returns the bundle of a placement group for a task, which uses all of it."""
    named = {"CPU": grant["num_cpus"], "GPU": grant.get("num_gpus", 0), "memory": grant.get("memory", 0)}
    # Ray refuses an empty bundle.
    return {name: n for name, n in {**named, **grant.get("resources", {})}.items() if n} or {"CPU": 0.001}


def _counts(found: Mapping[str, float]) -> str:
    return ", ".join(
        f"{n:g} {name}" for name, n in sorted(found.items()) if not name.startswith(("node:", "bundle", "object_store"))
    )
