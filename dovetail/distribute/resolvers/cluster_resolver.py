"""Cluster resolvers: a process finds its cluster and its task, mostly in environment variables."""

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
        is_elastic: whether workers may be added and removed, which a `ClusterCoordinator` follows.
    """

    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    environment: str = ""
    is_elastic: bool = False

    def cluster_spec(self) -> ClusterSpec:
        """The cluster as a `ClusterSpec`."""
        raise NotImplementedError

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """A session's target: the address of a task, by default of this one; '' if there is none.

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
        """The number of accelerators of each task, by type; by default that of this process."""
        count = len(accelerators())
        return {"GPU": count} if count else {}


def _target(address: str, rpc_layer: str | None) -> str:
    return f"{rpc_layer}://{address}" if rpc_layer else address


class SimpleClusterResolver(ClusterResolver):
    """Resolves to a cluster that is given.

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
        """The address of the named task; without one, the given master, or this task's address."""
        if task_type is None and task_id is None and self._master:
            return _target(self._master, rpc_layer or self.rpc_layer)
        return super().master(task_type, task_id, rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The given numbers, or else those of this process."""
        if self._accelerators is None:
            return super().num_accelerators(task_type, task_id, config_proto)
        return dict(self._accelerators)


class UnionResolver(ClusterResolver):
    """The union of the clusters of several resolvers. Everything else comes from the first resolver.

    Args:
        resolvers: one or more.
        rpc_layer: overrides that of the first resolver.
        task_type: likewise.
        task_id: likewise.

    Raises:
        ValueError: there is no resolver. TypeError: an argument is no resolver.

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
        """All jobs. Tasks of a job are concatenated, or keep their indices if a resolver has gaps between them.

        Raises:
            KeyError: in the latter case, two tasks have the same index.
        """
        parts: dict[str, list[list[str] | dict[int, str]]] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                parts.setdefault(job, []).append(tasks)
        return ClusterSpec({job: _union(job, tasks) for job, tasks in parts.items()})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of the named task; without one, the first resolver's master."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The numbers of the first resolver."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _union(job: str, parts: Sequence[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    """The tasks of one job from several resolvers."""
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

    Args:
        task_type: overrides the value in TF_CONFIG, as do the other arguments.
        task_id: likewise.
        rpc_layer: likewise.
        environment: likewise.

    Raises:
        ValueError: TF_CONFIG is malformed. It is read at each access.
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
        """The index of this task in its job; TF_CONFIG may have it as a string."""
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
        """The cluster; empty if TF_CONFIG has none."""
        return ClusterSpec(tf_config().get("cluster", {}))

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """`session_master` of TF_CONFIG; else the address of the task, by default this one, or '' if there is at most one task.

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
    """Resolves to the cluster of a Slurm job step: its tasks are assigned to the jobs in order, node by node.

    Args:
        jobs: job -> number of tasks, in order; None: all tasks are workers.
        port_base: port of the first task on each node; other tasks have the following ports.
        gpus_per_node: number of GPUs of a node; None: that of this machine.
        gpus_per_task: number of GPUs of a task; None: an equal share.
        tasks_per_node: number of tasks of each node; None: from SLURM_STEP_TASKS_PER_NODE.
        auto_set_gpu: whether to set CUDA_VISIBLE_DEVICES of this process to its GPUs.
        rpc_layer: the prefix before `://` in targets.

    Raises:
        RuntimeError: this process is not in a Slurm step, or the step and `jobs` have different numbers of tasks.
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
                f"Requested {sum(self._jobs.values())} tasks in `jobs`, but the Slurm step has {total}: they must agree"
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
        """The cluster."""
        return self._spec

    def get_task_info(self) -> tuple[str | None, int | None]:
        """(job, index) of this task."""
        return self.task_type, self.task_id

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The number of GPUs of each task."""
        return {"GPU": self._gpus}


def slurm_cluster(jobs: Mapping[str, int], hosts: Sequence[str], counts: Sequence[int], port_base: int) -> ClusterSpec:
    """The cluster whose tasks are assigned to nodes in order, node by node.

    Args:
        jobs: job -> number of tasks, in order.
        hosts: the nodes.
        counts: number of tasks of each node.
        port_base: port of the first task on each node; other tasks have the following ports.

    Raises:
        RuntimeError: the nodes have fewer tasks.
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
        raise RuntimeError(f"SLURM_{name} not found in the environment: is this process started by srun?")
    return found


def expand_hostlist(text: str) -> list[str]:
    """The hosts of a Slurm host list; numbers keep leading zeros.

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
    """Expand Slurm's task counts to one number per node.

    >>> expand_tasks_per_node("3(x2),2,1")
    [3, 3, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


class KubernetesClusterResolver(ClusterResolver):
    """Resolves to a cluster of pods, which are found by their labels.

    Args:
        job_to_label_mapping: job -> label selectors of its pods; None: `{"worker": ["job-name=tensorflow"]}`. Pods are sorted by
            name within each selector.
        tf_server_port: the port of each pod's server.
        rpc_layer: the prefix before `://` in targets.
        override_client: a `CoreV1Api` of the package `kubernetes`; None: a new one.
        executable_location: `WITHIN_CLUSTER` or `OFF_CLUSTER`: where this process runs.

    Raises:
        ValueError: the location is unknown. ImportError: the package `kubernetes` is needed and not installed.
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
        """The cluster of the current pods.

        Raises:
            RuntimeError: one of them is not running.
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
            "KubernetesClusterResolver asks Kubernetes by the package `kubernetes`, which is not installed: "
            "pip install kubernetes, or pass override_client"
        ) from None
    load = config.load_incluster_config if within else config.load_kube_config
    load()
    return client.CoreV1Api()


__all__ = [
    "ClusterResolver", "KubernetesClusterResolver", "SimpleClusterResolver", "SlurmClusterResolver", "TFConfigClusterResolver",
    "UnionResolver",
]  # fmt: skip
