"""`dt.distribute.experimental`: strategies under their first names in TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from . import coordinator, partitioners
from .mirrored import CentralStorageStrategy, TPUStrategy
from .multi_worker import CollectiveCommunication, MultiWorkerMirroredStrategy
from .parameter_server import ParameterServerStrategy

CommunicationImplementation = CollectiveCommunication


@dataclass(frozen=True, slots=True)
class CommunicationOptions:
    """Options for `MultiWorkerMirroredStrategy(communication_options=...)`, as in TensorFlow 2.

    Attributes:
        bytes_per_pack: accepted without effect; gradients are reduced in buckets of a fixed size.
        timeout_seconds: accepted without effect; dead workers are detected.
        implementation: a `CollectiveCommunication`.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CollectiveCommunication = CollectiveCommunication.AUTO


__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "coordinator",
    "partitioners",
]
