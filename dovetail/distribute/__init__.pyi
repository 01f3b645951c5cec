"""Types of `dovetail.distribute`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.distribute import experimental as experimental
from dovetail.distribute.context import has_strategy as has_strategy, in_cross_replica_context as in_cross_replica_context
from dovetail.distribute.coordinator import (
    ClusterCoordinator as ClusterCoordinator, PerWorkerValues as PerWorkerValues, RemoteValue as RemoteValue,
)
from dovetail.distribute.extended import Extended as StrategyExtended
from dovetail.distribute.input import InputContext as InputContext
from dovetail.distribute.mirrored import (
    CentralStorageStrategy as CentralStorageStrategy, MirroredStrategy as MirroredStrategy, OneDeviceStrategy as OneDeviceStrategy,
    TPUStrategy as TPUStrategy,
)
from dovetail.distribute.multi_worker import (
    CollectiveAllReduceStrategy as CollectiveAllReduceStrategy, CollectiveCommunication as CollectiveCommunication,
    CollectiveCommunication as CommunicationImplementation, MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from dovetail.distribute.parameter_server import ParameterServerStrategy as ParameterServerStrategy
from dovetail.distribute.reduction import (
    CrossDeviceOps as CrossDeviceOps, HierarchicalCopyAllReduce as HierarchicalCopyAllReduce, NcclAllReduce as NcclAllReduce, ReduceOp
    as ReduceOp, ReductionToOneDevice as ReductionToOneDevice,
)
from dovetail.distribute.replica import ReplicaContext as ReplicaContext, get_replica_context as get_replica_context
from dovetail.distribute.resolvers import cluster_resolver as cluster_resolver
from dovetail.distribute.strategy import Strategy as Strategy, get_strategy as get_distribution_strategy, get_strategy as get_strategy
from dovetail.distribute.values import (
    DistributedValues as DistributedValues, DistributedVariable as DistributedVariable, PerReplica as PerReplica,
)
__all__ = [
    "CentralStorageStrategy", "ClusterCoordinator", "CollectiveAllReduceStrategy", "CollectiveCommunication",
    "CommunicationImplementation", "CrossDeviceOps", "DistributedValues", "DistributedVariable", "HierarchicalCopyAllReduce",
    "InputContext", "MirroredStrategy", "MultiWorkerMirroredStrategy", "NcclAllReduce", "OneDeviceStrategy", "ParameterServerStrategy",
    "PerReplica", "PerWorkerValues", "ReduceOp", "ReductionToOneDevice", "RemoteValue", "ReplicaContext", "Strategy",
    "StrategyExtended", "TPUStrategy", "cluster_resolver", "experimental", "get_distribution_strategy", "get_replica_context",
    "get_strategy", "has_strategy", "in_cross_replica_context",
]
