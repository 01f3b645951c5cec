"""Manages a cluster on Kubernetes with `kubectl`: starts it, waits for it, runs a program in it, and deletes it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...placer.cluster.spec import masters_job
from .kubernetes_manifests import PORT

# The file descriptor of standard error.
STDERR = 2
# Seconds to wait until all pods are ready.
READY_S = 300


def apply(manifests: Iterable[Mapping[str, Any]]) -> None:
    """Applies manifests, and waits until all pods are ready.

    Raises:
        OSError: kubectl is not installed.
        CalledProcessError: it failed, and printed the reason.
    """
    _with_manifests("apply", manifests)
    for own in (m["metadata"]["name"] for m in manifests if m["kind"] == "StatefulSet"):
        kubectl("rollout", "status", f"statefulset/{own}", f"--timeout={READY_S}s")


def is_up(jobs: Iterable[str], name: str) -> bool:
    """Whether a cluster of this name exists."""
    command = ["kubectl", "get", f"statefulset/{name}-{masters_job(jobs)}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def delete(manifests: Iterable[Mapping[str, Any]]) -> None:
    """Deletes the objects of manifests. Errors as in `apply`."""
    _with_manifests("delete", manifests, "--ignore-not-found")


def target(jobs: Iterable[str], name: str) -> str:
    """Returns the session target of a cluster, for pods of its namespace."""
    own = f"{name}-{masters_job(jobs)}"
    return f"zmq://{own}-0.{own}:{PORT}"


def run(program: Sequence[str], jobs: Sequence[str], name: str, environment: Mapping[str, str]) -> int:
    """Runs a Python file as the client, in the pod of the master's task.

    Args:
        program: the path of the file, which is sent on standard input, and its arguments.
        jobs: the cluster's jobs.
        name: the prefix of the cluster's names.
        environment: additional environment variables of the program.

    Returns:
        The program's exit status.

    Raises:
        ValueError: the program is not a Python file.
    """
    if not program[0].endswith(".py"):
        raise ValueError(
            f"On Kubernetes the program must be a single Python file, which is sent to a pod, not {shlex.join(program)}"
        )
    variables = {"TARGET": target(jobs, name), "PYTHONUNBUFFERED": "1", **environment}
    pod = f"{name}-{masters_job(jobs)}-0"
    settings = [f"{variable}={value}" for variable, value in variables.items()]
    with Path(program[0]).open("rb") as file:
        command = ["kubectl", "exec", "-i", pod, "-c", "server", "--", "env", *settings, "python", "-", *program[1:]]
        return subprocess.run(command, stdin=file, check=False).returncode


def kubectl(*words: str, text: str | None = None) -> None:
    """Runs `kubectl`. Its output goes to standard error. Errors as in `apply`."""
    try:
        subprocess.run(["kubectl", *words], input=text, text=True, stdout=STDERR, check=True)
    except FileNotFoundError:
        raise FileNotFoundError(
            "kubectl was not found. Install it, and configure it for a Kubernetes cluster"
        ) from None


def _with_manifests(command: str, manifests: Iterable[Mapping[str, Any]], *words: str) -> None:
    import yaml  # slow to load, and most commands write no YAML

    kubectl(command, "-f", "-", *words, text=yaml.safe_dump_all(list(manifests), sort_keys=False, width=120))
