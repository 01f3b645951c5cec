"""Strategies under the names that TensorFlow gave them first: `dt.distribute.experimental`."""

from __future__ import annotations

from dataclasses import dataclass

from . import coordinator, partitioners
from .mirrored import CentralStorageStrategy, TPUStrategy
from .multi_worker import CollectiveCommunication, MultiWorkerMirroredStrategy
from .parameter_server import ParameterServerStrategy

CommunicationImplementation = CollectiveCommunication


@dataclass(frozen=True, slots=True)
class CommunicationOptions:
    """How workers reduce, as TensorFlow 2 says it: `MultiWorkerMirroredStrategy(communication_options=...)`.

    Attributes:
        bytes_per_pack, timeout_seconds: accepted: gradients travel in packs of a fixed size, and a dead worker is noticed anyway.
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
