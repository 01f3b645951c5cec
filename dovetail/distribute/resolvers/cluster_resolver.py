"""Cluster resolvers, by which a process finds its cluster and its task, mostly in environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...placer.cluster.spec import ClusterSpec, task_addresses
from ..mirrored import accelerators
from .roles import task_index, tf_config


class ClusterResolver:
    """Base of the resolvers.

    Attributes:
        task_type: the job of this process; None: unknown.
        task_id: the task index of this process; None: unknown.
        rpc_layer: the prefix before `://` in a target, such as "grpc"; None: no prefix.
        environment: the name of the environment, '' or "google".
        is_elastic: whether workers may join and leave the cluster.
    """

    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    environment: str = ""
    is_elastic: bool = False

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster."""
        raise NotImplementedError

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns a session's target: the address of a task; '' if the task is unknown.

        Args:
            task_type: the job; None: that of this process.
            task_id: the index; None: that of this process.
            rpc_layer: the prefix before `://`; None: that of this resolver.

        Raises:
            ValueError: the cluster has no such task.
        """
        kind = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if kind is None or index is None:
            return ""
        return _target(self.cluster_spec().task_address(kind, index), rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns the number of accelerators of a task, by type. The base class returns those of this process."""
        count = len(accelerators())
        return {"GPU": count} if count else {}


def _target(address: str, rpc_layer: str | None) -> str:
    return f"{rpc_layer}://{address}" if rpc_layer else address


class SimpleClusterResolver(ClusterResolver):
    """Resolves to a given cluster.

    Args:
        cluster_spec: the cluster.
        master: the target of sessions; '': the address of this task.
        task_type: the job of this process.
        task_id: the task index of this process.
        environment: the name of the environment.
        num_accelerators: number of accelerators of a task, by type; None: those of this process.
        rpc_layer: the prefix before `://` in targets.

    Raises:
        TypeError: `cluster_spec` is not a `ClusterSpec`.

    >>> resolver = SimpleClusterResolver(ClusterSpec({"worker": ["a:2222", "b:2222"]}), task_type="worker", task_id=1)
    >>> resolver.master()
    'b:2222'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError(f"cluster_spec must be a `tf.train.ClusterSpec`, not {cluster_spec!r}")
        self._spec, self._master, self._accelerators = cluster_spec, master, num_accelerators
        self.task_type, self.task_id, self.environment, self.rpc_layer = task_type, task_id, environment, rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """The cluster."""
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of a task. Without a task, returns the given master, or the address of this task."""
        if task_type is None and task_id is None and self._master:
            return _target(self._master, rpc_layer or self.rpc_layer)
        return super().master(task_type, task_id, rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns the given numbers, or those of this process."""
        if self._accelerators is None:
            return super().num_accelerators(task_type, task_id, config_proto)
        return dict(self._accelerators)


class UnionResolver(ClusterResolver):
    """The union of the clusters of several resolvers. Everything else comes from the first resolver.

    Args:
        resolvers: one or more resolvers.
        rpc_layer: replaces the value of the first resolver.
        task_type: replaces the value of the first resolver.
        task_id: replaces the value of the first resolver.

    Raises:
        ValueError: there is no resolver.
        TypeError: an argument is not a resolver.

    >>> one, two = (SimpleClusterResolver(ClusterSpec({"worker": [host]})) for host in ("a:1", "b:2"))
    >>> UnionResolver(one, two).cluster_spec()
    ClusterSpec({'worker': ['a:1', 'b:2']})
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        if not resolvers:
            raise ValueError("At least one ClusterResolver is required.")
        if not all(isinstance(r, ClusterResolver) for r in resolvers):
            raise TypeError(f"All arguments must be cluster resolvers, not {resolvers!r}")
        self._resolvers, first = resolvers, resolvers[0]
        self.task_type = first.task_type if task_type is None else task_type
        self.task_id = first.task_id if task_id is None else task_id
        self.rpc_layer, self.environment = rpc_layer or first.rpc_layer, first.environment

    def cluster_spec(self) -> ClusterSpec:
        """Returns all jobs. The tasks of a job are concatenated. If a resolver has gaps between indices, tasks keep their indices.

        Raises:
            KeyError: two tasks that keep their indices have the same one.
        """
        parts: dict[str, list[list[str] | dict[int, str]]] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                parts.setdefault(job, []).append(tasks)
        return ClusterSpec({job: _union(job, tasks) for job, tasks in parts.items()})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of a task. Without a task, returns the first resolver's master."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns the numbers of the first resolver."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _union(job: str, parts: Sequence[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    """Merges the tasks of one job from several resolvers."""
    if all(isinstance(tasks, list) for tasks in parts):
        return [address for tasks in parts for address in tasks if isinstance(address, str)]
    merged: dict[int, str] = {}
    for tasks in parts:
        numbered = dict(enumerate(tasks)) if isinstance(tasks, list) else tasks
        twice = merged.keys() & numbered.keys()
        if twice:
            raise KeyError(
                f"Duplicate keys detected when merging two ClusterSpecs: job {job!r} has {sorted(twice)} twice"
            )
        merged |= numbered
    return merged


class TFConfigClusterResolver(ClusterResolver):
    """Resolves to the cluster in the environment variable TF_CONFIG, which is JSON:

        {"cluster": {"chief": [..], "worker": [..], "ps": [..]}, "task": {"type": "worker", "index": 0}}

    TF_CONFIG is read at each access.

    Args:
        task_type: replaces the job in TF_CONFIG.
        task_id: replaces the index in TF_CONFIG.
        rpc_layer: replaces `rpc_layer` in TF_CONFIG.
        environment: replaces `environment` in TF_CONFIG.

    Raises:
        ValueError: at an access, if TF_CONFIG is malformed.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._given = {"type": task_type, "index": task_id, "rpc_layer": rpc_layer, "environment": environment}

    @property
    def task_type(self) -> str | None:
        """The job of this task."""
        given = self._given["type"] if self._given["type"] is not None else tf_config().get("task", {}).get("type")
        return None if given is None else str(given)

    @task_type.setter
    def task_type(self, value: str | None) -> None:
        self._given["type"] = value

    @property
    def task_id(self) -> int | None:
        """The index of this task in its job. In TF_CONFIG it may be a string."""
        given = self._given["index"] if self._given["index"] is not None else tf_config().get("task", {}).get("index")
        return None if given is None else task_index(given)

    @task_id.setter
    def task_id(self, value: int | None) -> None:
        self._given["index"] = value

    @property
    def rpc_layer(self) -> str | None:
        """The prefix before `://` in targets."""
        given = self._given["rpc_layer"] or tf_config().get("rpc_layer")
        return None if given is None else str(given)

    @rpc_layer.setter
    def rpc_layer(self, value: str | None) -> None:
        self._given["rpc_layer"] = value

    @property
    def environment(self) -> str:  # type: ignore[override]
        """The name of the environment."""
        given = self._given["environment"]
        return str(tf_config().get("environment", "") if given is None else given)

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster. It is empty if TF_CONFIG has none."""
        return ClusterSpec(tf_config().get("cluster", {}))

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns `session_master` of TF_CONFIG or, without it, the address of a task, by default of this one.

        The target is '' if the cluster has at most one task.

        Raises:
            ValueError: the cluster has no such task.
        """
        config = tf_config()
        if "session_master" in config:
            return str(config["session_master"])
        spec = self.cluster_spec()
        if len(task_addresses(spec)) <= 1:
            return ""
        kind = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        return _target(spec.task_address(str(kind), int(index or 0)), rpc_layer or self.rpc_layer)


class SlurmClusterResolver(ClusterResolver):
    """Resolves to the cluster of a Slurm job step. Its tasks are assigned to the jobs in order, node by node.

    Args:
        jobs: job -> number of tasks, in order; None: all tasks are workers.
        port_base: port of the first task on each node. The other tasks have the following ports.
        gpus_per_node: number of GPUs of a node; None: that of this machine.
        gpus_per_task: number of GPUs of a task; None: an equal share of the node's GPUs.
        tasks_per_node: number of tasks of each node; None: from SLURM_STEP_TASKS_PER_NODE.
        auto_set_gpu: whether to set CUDA_VISIBLE_DEVICES of this process to its GPUs.
        rpc_layer: the prefix before `://` in targets.

    Raises:
        RuntimeError: this process is not in a Slurm step, the step and `jobs` have different numbers of tasks, or a node has too few GPUs.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Sequence[int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        number, total = int(_slurm("PROCID")), int(_slurm("STEP_NUM_TASKS"))
        self._jobs = {"worker": total} if jobs is None else dict(jobs)
        if sum(self._jobs.values()) != total:
            raise RuntimeError(
                f"`jobs` has {sum(self._jobs.values())} tasks, but the Slurm step has {total}. The numbers must be equal"
            )
        hosts = expand_hostlist(_slurm("STEP_NODELIST"))
        if tasks_per_node is None:
            counts = expand_tasks_per_node(_slurm("STEP_TASKS_PER_NODE"))
        else:
            counts = [tasks_per_node] * len(hosts) if isinstance(tasks_per_node, int) else list(tasks_per_node)
        self._spec = slurm_cluster(self._jobs, hosts, counts, port_base)
        tasks = [(job, i) for job, count in self._jobs.items() for i in range(count)]
        places = [(host, i) for host, count in zip(hosts, counts, strict=False) for i in range(count)]
        self.task_type, self.task_id = tasks[number]
        self.rpc_layer = rpc_layer
        on_node = places[number][1]
        share = counts[hosts.index(places[number][0])]
        if gpus_per_node is None:
            gpus_per_node = len(accelerators())
        self._gpus = gpus_per_node // share if gpus_per_task is None else gpus_per_task
        if self._gpus * share > gpus_per_node:
            raise RuntimeError(
                f"{share} tasks with {self._gpus} GPUs each need more than the {gpus_per_node} GPUs of a node"
            )
        if auto_set_gpu and self._gpus:
            mine = range(on_node * self._gpus, (on_node + 1) * self._gpus)
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, mine))

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster."""
        return self._spec

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Returns the job and the index of this task."""
        return self.task_type, self.task_id

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """Returns the number of GPUs of each task."""
        return {"GPU": self._gpus}


def slurm_cluster(jobs: Mapping[str, int], hosts: Sequence[str], counts: Sequence[int], port_base: int) -> ClusterSpec:
    """Returns a cluster whose tasks are assigned to nodes in order.

    Args:
        jobs: job -> number of tasks, in order.
        hosts: the nodes.
        counts: number of tasks of each node.
        port_base: port of the first task on each node. The other tasks have the following ports.

    Raises:
        RuntimeError: the nodes have too few tasks.
    """
    total = sum(jobs.values())
    places = [f"{host}:{port_base + i}" for host, count in zip(hosts, counts, strict=False) for i in range(count)]
    if len(places) < total:
        raise RuntimeError(f"The nodes {', '.join(hosts)} have {len(places)} tasks in all, not {total}")
    addresses = iter(places)
    return ClusterSpec({job: [next(addresses) for _ in range(count)] for job, count in jobs.items() if count})


def _slurm(name: str) -> str:
    found = os.environ.get(f"SLURM_{name}")
    if found is None:
        raise RuntimeError(f"SLURM_{name} is not in the environment. Start this process with srun")
    return found


def expand_hostlist(text: str) -> list[str]:
    """Returns the hosts of a Slurm host list. Numbers keep leading zeros.

    >>> expand_hostlist("n[1-2],m5,o[03-04,6]")
    ['n1', 'n2', 'm5', 'o03', 'o04', 'o6']
    """
    hosts: list[str] = []
    for prefix, ranges in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", text):
        if not ranges:
            hosts.append(prefix)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            hosts += [f"{prefix}{i:0{len(first)}d}" for i in range(int(first), int(last or first) + 1)]
    return hosts


def expand_tasks_per_node(text: str) -> list[int]:
    """Expands Slurm's task counts to one number per node.

    >>> expand_tasks_per_node("3(x2),2,1")
    [3, 3, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


class KubernetesClusterResolver(ClusterResolver):
    """Resolves to a cluster of pods, which it finds by their labels.

    Args:
        job_to_label_mapping: job -> label selectors of its pods. The pods of a selector are sorted by name. None:
            `{"worker": ["job-name=tensorflow"]}`.
        tf_server_port: the port of each pod's server.
        rpc_layer: the prefix before `://` in targets.
        override_client: a `CoreV1Api` of the package `kubernetes`; None: a new one.
        executable_location: where this process runs, `WITHIN_CLUSTER` or `OFF_CLUSTER`.

    Raises:
        ValueError: the location is unknown.
        ImportError: the package `kubernetes` is needed and not installed.
    """

    WITHIN_CLUSTER, OFF_CLUSTER = 0, 1

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: Any = WITHIN_CLUSTER,
    ) -> None:
        location = getattr(executable_location, "value", executable_location)
        if location not in (self.WITHIN_CLUSTER, self.OFF_CLUSTER):
            raise ValueError(f"The executable location provided is invalid: {executable_location!r}")
        self._labels = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port, self.rpc_layer = tf_server_port, rpc_layer
        self._client = override_client or _kubernetes_client(location == self.WITHIN_CLUSTER)

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster of the current pods.

        Raises:
            RuntimeError: a pod is not running.
        """
        cluster: dict[str, list[str]] = {}
        for job, selectors in self._labels.items():
            addresses: list[str] = []
            for selector in selectors:
                found = self._client.list_pod_for_all_namespaces(label_selector=selector)
                for pod in sorted(found.items, key=lambda pod: str(pod.metadata.name)):
                    if pod.status.phase != "Running":
                        raise RuntimeError(f'Pod "{pod.metadata.name}" is not running; phase: "{pod.status.phase}"')
                    addresses.append(f"{pod.status.host_ip}:{self._port}")
            cluster[job] = addresses
        return ClusterSpec(cluster)


def _kubernetes_client(within: bool) -> Any:
    load: Callable[[], Any]
    try:
        from kubernetes import client, config  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ImportError(
            "KubernetesClusterResolver needs the package `kubernetes`, which is not installed. "
            "Run pip install kubernetes, or pass override_client"
        ) from None
    load = config.load_incluster_config if within else config.load_kube_config
    load()
    return client.CoreV1Api()


__all__ = [
    "ClusterResolver", "KubernetesClusterResolver", "SimpleClusterResolver", "SlurmClusterResolver", "TFConfigClusterResolver",
    "UnionResolver",
]  # fmt: skip
