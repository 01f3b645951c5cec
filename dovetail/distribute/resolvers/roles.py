"""The roles of tasks in a cluster: chief, worker, parameter server, evaluator.

The chief is the task that initializes, saves and writes summaries: `chief:0`, or `worker:0` in a cluster without the job `chief`. The
evaluator does not belong to the cluster of the other tasks, and is its own chief.

Launchers pass the cluster and the task to a process as JSON, in the environment variable TF_CONFIG.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ...placer.cluster.spec import ClusterDef, ClusterSpec

EVALUATOR = "evaluator"


def as_cluster_spec(cluster: Any) -> ClusterSpec:
    """Converts a `ClusterSpec`, an argument of its constructor, or None (the empty cluster) to a `ClusterSpec`.

    Raises:
        ValueError: the argument has another type.
    """
    if cluster is None:
        return ClusterSpec({})
    if isinstance(cluster, (ClusterSpec, ClusterDef, Mapping)):
        return ClusterSpec(cluster)
    raise ValueError(f"`cluster_spec` should be a dict, a ClusterDef or a ClusterSpec, not {cluster!r}")


def check_role(cluster: Any, task_type: str, task_id: int) -> ClusterSpec:
    """Checks that a task exists, and returns the cluster.

    Raises:
        ValueError: there is more than one chief, the type is unknown, or the index is too large.
    """
    spec = as_cluster_spec(cluster)
    if task_type not in ("chief", "worker", "ps", EVALUATOR):
        raise ValueError(f"Unrecognized task_type: {task_type!r}; valid types are: chief, worker, ps, evaluator")
    if task_type not in spec.jobs and task_type != EVALUATOR:
        raise ValueError(
            f"`task_type` {task_type!r} not found in cluster_spec; its jobs: {', '.join(spec.jobs) or 'none'}"
        )
    if _count(spec, "chief") > 1:
        raise ValueError("There must be at most one 'chief' job.")
    if _count(spec, EVALUATOR) > 1:
        raise ValueError("There must be at most one 'evaluator' job.")
    if task_type in spec.jobs and task_id >= _count(spec, task_type):
        raise ValueError(
            f"The `task_id` {task_id} exceeds the maximum id of {task_type}: there are {_count(spec, task_type)}"
        )
    return spec


def is_chief(cluster: Any = None, task_type: str | None = None, task_id: int | None = None) -> bool:
    """Whether a task is the chief of its cluster. True without a cluster."""
    spec = as_cluster_spec(cluster)
    if not spec or task_type is None:
        return True
    index = int(task_id or 0)
    check_role(spec, task_type, index)
    if task_type in ("chief", EVALUATOR):
        return True
    return "chief" not in spec.jobs and task_type == "worker" and index == 0


def worker_count(cluster: Any, task_type: str) -> int:
    """Returns the number of tasks that compute together with this one: the chief and the workers, or the evaluators.

    Raises:
        ValueError: the task is a parameter server.
    """
    spec = check_role(cluster, task_type, 0)
    if task_type == EVALUATOR:
        return _count(spec, EVALUATOR)
    if task_type == "ps":
        raise ValueError(f"Unexpected `task_type` {task_type!r}: parameter servers are not workers")
    return _count(spec, "chief") + _count(spec, "worker")


def id_in_cluster(cluster: Any, task_type: str, task_id: int) -> int:
    """Returns the task's number among the tasks that compute together. The chief comes before the workers."""
    spec = check_role(cluster, task_type, task_id)
    if task_type == "worker":
        return task_id + _count(spec, "chief")
    if task_type in ("chief", EVALUATOR):
        return task_id
    raise ValueError(f"There is no id for task_type {task_type!r}")


def _count(spec: ClusterSpec, job: str) -> int:
    return spec.num_tasks(job) if job in spec.jobs else 0


_LOOKS_SO = '{"cluster": {"ps": ["host:2222"], "worker": ["host:2223"]}, "task": {"type": "worker", "index": 0}}'


def tf_config() -> dict[str, Any]:
    """Returns the current content of TF_CONFIG. It is empty if the variable is not set.

    Raises:
        ValueError: it is not valid JSON, or not of the form `{"cluster": {...}, "task": {...}}`.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ValueError(
            f"TF_CONFIG is not valid JSON: {e}. It is {text!r}, and should look like {_LOOKS_SO}"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object, not {found!r}; it should look like {_LOOKS_SO}")
    for part in ("cluster", "task"):
        if not isinstance(found.get(part, {}), dict):
            raise ValueError(
                f"'{part}' in TF_CONFIG must be a JSON object, not {found[part]!r}; TF_CONFIG should look like {_LOOKS_SO}"
            )
    return found


def task_index(given: Any) -> int:
    """Converts the index of a task in TF_CONFIG, which may be a string. ValueError: it is not an integer."""
    try:
        return int(given)
    except (TypeError, ValueError):
        raise ValueError(f"The task's index in TF_CONFIG must be an integer, not {given!r}") from None
