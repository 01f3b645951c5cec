"""What a server is told, as one value: TensorFlow's message of the same name."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...placer.cluster.spec import ClusterDef
from ..config import ConfigProto, Options


@dataclass(slots=True, repr=False)
class ServerDef(Options):
    """A server as plain data.

    Attributes:
        cluster: the jobs, and their tasks' addresses.
        job_name, task_index: which task it is.
        default_session_config: what its sessions get where they do not say otherwise.
        protocol: "grpc" or "zmq".
        port: ignored: the cluster has the address.
    """

    cluster: ClusterDef = field(default_factory=ClusterDef)
    job_name: str = ""
    task_index: int = 0
    default_session_config: ConfigProto = field(default_factory=ConfigProto)
    protocol: str = ""
    port: int = 0


__all__ = ["ServerDef"]
