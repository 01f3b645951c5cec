"""Kubernetes manifests of a cluster, as plain data for `kubectl apply`. This module does not contact Kubernetes.

Per cluster:  a ConfigMap with the cluster file, a Secret with the key that all tasks and clients share
Per job:      a StatefulSet, whose pods keep their names; a headless Service, which gives each pod an address by its name;
              a PodDisruptionBudget, so that a drained node takes one task of a job at a time

A restarted pod keeps its name, also on another node, so the address of its task does not change. It listens on the pod's IP address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ...placer.cluster.file_format import ClusterFile, TaskResources, checked
from ...placer.cluster.load import quantity

PORT, METRICS_PORT = 2222, 9100
# The user of the Dockerfile's image.
USER = 1000
FILES, KEYS, SECRET = "/etc/dovetail", "/run/dovetail/keys", "/run/dovetail/secret"
# With a job and a pod's number, such a name is still a valid DNS label.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_POD_INDEX = "apps.kubernetes.io/pod-index"

Manifest = dict[str, Any]


def manifests(described: Any, image: str, *, name: str = "dovetail", key: str | None = None) -> list[Manifest]:
    """Returns the manifests of a cluster.

    Args:
        described: a `ClusterFile`, or the content of one as a dict. Its `jobs` must be numbers of tasks.
        image: the container image; `docker/Dockerfile` builds one.
        name: prefix of the names of all objects.
        key: text of the key file for the Secret. None: pods listen without keys, and any process that can reach them can run code there.

    Raises:
        ValueError: `described` is not a cluster file, has addresses instead of numbers, or a name is invalid in Kubernetes.

    >>> [(m["kind"], m["metadata"]["name"]) for m in manifests({"jobs": {"ps": 1}}, "dovetail:1")]
    [('ConfigMap', 'dovetail'), ('Service', 'dovetail-ps'), ('StatefulSet', 'dovetail-ps'), ('PodDisruptionBudget', 'dovetail-ps')]
    """
    file = checked(described, ClusterFile)
    jobs: dict[str, int] = {}
    for job, tasks in file.jobs.items():
        if not isinstance(tasks, int) or tasks < 1:
            raise ValueError(
                f"Job {job!r} must have a number of tasks, at least 1, not {tasks!r}. Kubernetes assigns their addresses"
            )
        jobs[job] = tasks
    for part in (name, *jobs):
        if not _NAME.fullmatch(part):
            raise ValueError(
                f"{part!r} is not a valid name in Kubernetes. Use up to 40 lower-case letters, digits and '-', starting with a letter"
            )
    unknown = sorted(set(file.resources or ()) - set(jobs))
    if unknown:
        raise ValueError(f"`resources` names jobs that are not in the cluster: {', '.join(unknown)}")
    addresses = {job: [f"{name}-{job}-{i}.{name}-{job}:{PORT}" for i in range(n)] for job, n in jobs.items()}
    made = [_object("v1", "ConfigMap", name, name, data={"cluster.json": json.dumps({"jobs": addresses}, indent=1)})]
    if key is not None:
        made.append(_object("v1", "Secret", name, name, type="Opaque", stringData={"own.key": key}))
    for job, count in jobs.items():
        made += _job(name, job, count, image, file, key is not None)
    return made


def _job(name: str, job: str, count: int, image: str, file: ClusterFile, has_key: bool) -> list[Manifest]:
    """Returns the Service, the StatefulSet and the PodDisruptionBudget of a job."""
    own, chosen = f"{name}-{job}", {"matchLabels": _labels(name, job)}
    ports = [{"name": "dovetail", "port": PORT}, {"name": "metrics", "port": METRICS_PORT}]
    # Tasks connect to each other while they start, so the addresses of pods that are not ready must also be published.
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(name, job), "ports": ports}
    stateful_set = {
        "serviceName": own,
        "replicas": count,
        "podManagementPolicy": "Parallel",
        "selector": chosen,
        "template": {"metadata": {"labels": _labels(name, job)}, "spec": _pod(name, job, image, file, has_key)},
    }
    return [
        _object("v1", "Service", own, name, job, spec=service),
        _object("apps/v1", "StatefulSet", own, name, job, spec=stateful_set),
        _object("policy/v1", "PodDisruptionBudget", own, name, job, spec={"maxUnavailable": 1, "selector": chosen}),
    ]


def _pod(name: str, job: str, image: str, file: ClusterFile, has_key: bool) -> Manifest:
    resources = (file.resources or {}).get(job) or TaskResources()
    takes = _takes(resources)
    environment: list[Manifest] = [
        {"name": "TASK_INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_POD_INDEX}']"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "DOVETAIL_CACHE_DIR", "value": "/tmp/dovetail"},
    ]
    if resources.memory is not None:
        limit = {"containerName": "server", "resource": "limits.memory"}
        environment.append({"name": "DOVETAIL_HOST_MEMORY", "valueFrom": {"resourceFieldRef": limit}})
    if resources.cpus:
        environment.append({"name": "OMP_NUM_THREADS", "value": str(max(1, int(resources.cpus)))})
    if file.ps_replicas > 1:
        environment.append({"name": "DOVETAIL_PS_REPLICAS", "value": str(file.ps_replicas)})
    closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    server: Manifest = {
        "name": "server",
        "image": image,
        "args": [
            "server", "--cluster", f"{FILES}/cluster.json", "--job", job, "--task", "$(TASK_INDEX)",
            "--listen", f"$(POD_IP):{PORT}", "--metrics", f"0.0.0.0:{METRICS_PORT}",
            *(("--keys", KEYS) if has_key else ("--insecure",)),
        ],
        "env": environment,
        "ports": [
            {"name": "dovetail", "containerPort": PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
        ],
        "resources": {"requests": takes, "limits": takes} if takes else {},
        "startupProbe": {**_probe("/ready"), "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**_probe("/live"), "periodSeconds": 10, "failureThreshold": 3},
        "readinessProbe": {**_probe("/ready"), "periodSeconds": 5},
        "volumeMounts": [{"name": "cluster", "mountPath": FILES, "readOnly": True}],
        "securityContext": closed,
    }  # fmt: skip
    pod: Manifest = {
        "terminationGracePeriodSeconds": 10,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER},
        "containers": [server],
        "volumes": [{"name": "cluster", "configMap": {"name": name}}],
    }
    if has_key:
        # Kubernetes makes a secret's files readable by the group. Servers refuse such a private key, so it is copied.
        server["volumeMounts"].append({"name": "keys", "mountPath": KEYS, "readOnly": True})
        pod["volumes"] += [
            {"name": "secret", "secret": {"secretName": name}},
            {"name": "keys", "emptyDir": {"medium": "Memory"}},
        ]
        pod["initContainers"] = [
            {
                "name": "key",
                "image": image,
                "command": ["install", "-m", "600", f"{SECRET}/own.key", f"{KEYS}/own.key"],
                "volumeMounts": [
                    {"name": "secret", "mountPath": SECRET, "readOnly": True},
                    {"name": "keys", "mountPath": KEYS},
                ],
                "securityContext": closed,
            }
        ]
    return pod


def _takes(resources: TaskResources) -> dict[str, str]:
    """Returns the resources that a task requests, which are also its limits."""
    memory = quantity(resources.memory, "memory")
    found = {
        "cpu": None if resources.cpus is None else f"{resources.cpus:g}",
        "memory": None if memory is None else str(int(memory)),
        "nvidia.com/gpu": str(resources.gpus) if resources.gpus else None,
    }
    return {what: text for what, text in found.items() if text is not None}


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "metrics"}, "timeoutSeconds": 5}


def _labels(name: str, job: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "dovetail", "app.kubernetes.io/instance": name}
    return {**labels, "app.kubernetes.io/component": job} if job else labels


def _object(version: str, kind: str, own: str, name: str, job: str = "", **content: Any) -> Manifest:
    metadata: Mapping[str, Any] = {"name": own, "labels": _labels(name, job)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}
