"""Strategies under the names that TensorFlow gave them first: `dt.distribute.experimental`."""

from . import coordinator
from .mirrored import CentralStorageStrategy, TPUStrategy
from .multi_worker import CollectiveCommunication, MultiWorkerMirroredStrategy
from .parameter_server import ParameterServerStrategy

CommunicationImplementation = CollectiveCommunication

__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "coordinator",
]
