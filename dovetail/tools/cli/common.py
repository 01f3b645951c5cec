"""What the commands share: how their errors end, and where a task finds out which one it is."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ...graph.core.errors import OpError
from ...placer.cluster.load import described_by

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended: 128 + SIGINT


@contextmanager
def errors_explained(*more: type[Exception]) -> Iterator[None]:
    """Turn errors that a person can mend into a line without a traceback, and Ctrl-C into a clean end."""
    explained: tuple[type[Exception], ...] = (OpError, ValueError, TypeError, OSError, *more)
    try:
        yield
    except KeyboardInterrupt:
        print("\nStopped; nothing is left running.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except explained as e:
        print(f"error: {e}", file=sys.stderr)
        raise typer.Exit(1) from None


def from_environment(job: str | None, task: int | None) -> tuple[str, str, int]:
    """Cluster, job and task from TF_CONFIG; what was given on the command line wins."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        place = config.get("task", {})
        index = int(place["index"]) if task is None else task
        return json.dumps(config["cluster"]), job or str(place["type"]), index
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            "Which cluster? Give --cluster, --job and --task, or set TF_CONFIG to JSON such as "
            '{"cluster": {"ps": ["localhost:2222"]}, "task": {"type": "ps", "index": 0}}'
            + (f"; it is {text!r}" if text else "")
        ) from None


def from_slurm(counts: str | None, port_base: int) -> tuple[str, str, int]:
    """Cluster, job and task of this task of a Slurm step. `counts` describes the jobs; None: all tasks are workers.

    Raises:
        ValueError: this is no step of Slurm, it has another number of tasks, or a job has addresses.
    """
    from ...distribute.resolvers.cluster_resolver import SlurmClusterResolver  # loads the strategies

    try:
        found = SlurmClusterResolver(None if counts is None else numbers_of_tasks(counts), port_base)
    except RuntimeError as e:
        raise ValueError(str(e)) from None
    job, index = found.get_task_info()
    return json.dumps(found.cluster_spec().as_dict()), str(job), int(index or 0)


def numbers_of_tasks(text: str) -> dict[str, int]:
    """The number of tasks of each job of a cluster, as `read_jobs` finds it.

    Raises:
        ValueError: it describes no cluster, or a job has addresses.
    """
    jobs = read_jobs(text)
    for job, tasks in jobs.items():
        if not isinstance(tasks, int):
            raise ValueError(f"{text}: job {job!r} must have a number of tasks: the engine gives them their addresses")
    return jobs


def read_jobs(text: str) -> dict[str, Any]:
    """The jobs of the cluster that an option names, in any form that `dovetail plan` takes.

    Raises:
        ValueError: it describes no cluster. OSError: the file cannot be read.
    """
    found = described_by(text)
    jobs = found.get("jobs") if isinstance(found, dict) else None
    if not isinstance(jobs, dict) or not all(isinstance(v, (int, list, dict)) for v in jobs.values()):
        raise ValueError(
            f'{text} describes no cluster: it must hold jobs and addresses, such as {{"ps": ["host:2222"]}}'
        )
    return jobs
