"""The argument `cluster` of `dt.compile`: a running cluster, or the description of a cluster whose tasks this process starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .placer.cluster.load import as_cluster
from .placer.cluster.spec import ClusterDef, ClusterSpec

if TYPE_CHECKING:
    from .runtime.server.local_cluster import LocalCluster

DESCRIPTIONS = (str, os.PathLike, Mapping, ClusterSpec, ClusterDef)
"""Types of descriptions of clusters, whose tasks this process starts. A string may also be a target."""


def processes(given: Any) -> AbstractContextManager[LocalCluster]:
    """Start the tasks of a described cluster as processes on this machine. They end with the `with` block."""
    from .runtime.server.local_cluster import LocalCluster  # loads ZeroMQ

    if isinstance(given, str | os.PathLike):
        from .distribute.launchers.engines import ClusterDescription, local_cluster  # loads ZeroMQ

        return local_cluster(ClusterDescription.read(os.fspath(given)))
    jobs: Mapping[str, Any] = given if isinstance(given, Mapping) else ClusterSpec(given).as_dict()
    return LocalCluster(jobs)


def check_cluster(given: Any) -> None:
    """Check the argument `cluster` of `compile`.

    Raises:
        TypeError: the argument has another type.
        ValueError: the description of the cluster is malformed.
        OSError: the cluster file cannot be read.
    """
    if isinstance(given, DESCRIPTIONS) and not is_target(given):
        as_cluster(given)
    elif given is not None and target_of(given) is None:
        raise TypeError(
            "`cluster` must be None, numbers of tasks ({'ps': 1, 'worker': 2} or 'ps=1,worker=2'), the path of a cluster file, a "
            "ClusterSpec, the target of a running cluster ('zmq://host:port'), a LocalCluster, a RayCluster or a server, "
            f"not {given!r}"
        )


def is_target(given: Any) -> bool:
    return isinstance(given, str) and (not given or "://" in given)


def target_of(given: Any) -> str | None:
    """The target of a running cluster or a server, or None if `given` is neither."""
    if is_target(given):
        return str(given)
    target = getattr(given, "target", None)
    if callable(target):
        target = target()
    return target if isinstance(target, str) else None
