"""Distribution strategies: one model, trained by several replicas (`dt.distribute`)."""

from . import experimental
from .context import has_strategy, in_cross_replica_context
from .coordinator import ClusterCoordinator, PerWorkerValues, RemoteValue
from .extended import Extended as StrategyExtended
from .input import InputContext
from .mirrored import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, TPUStrategy
from .multi_worker import CollectiveAllReduceStrategy, CollectiveCommunication, MultiWorkerMirroredStrategy
from .parameter_server import ParameterServerStrategy
from .reduction import CrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce, ReduceOp, ReductionToOneDevice
from .replica import ReplicaContext, get_replica_context
from .resolvers import cluster_resolver
from .strategy import Strategy, get_strategy
from .values import DistributedValues, DistributedVariable, PerReplica

CommunicationImplementation = CollectiveCommunication
get_distribution_strategy = get_strategy

__all__ = [
    "CentralStorageStrategy",
    "ClusterCoordinator",
    "CollectiveAllReduceStrategy",
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CrossDeviceOps",
    "DistributedValues",
    "DistributedVariable",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "PerWorkerValues",
    "ReduceOp",
    "ReductionToOneDevice",
    "RemoteValue",
    "ReplicaContext",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "cluster_resolver",
    "experimental",
    "get_distribution_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
