"""Distribution strategies: one model, trained by several replicas (`dt.distribute`).

- `strategy`, `extended`: the base, and its interface for authors of loops and optimizers. `context`: the current strategy and replica.
- `mirrored`, `multi_worker`, `parameter_server`: the strategies. `experimental`: their first names. `replica`: building once per replica.
- `values`, `reduction`: values per replica, variables with copies; how they are reduced. `input`: data sets under a strategy.
- `coordinator`, `per_worker`: one client that dispatches calls to workers; what each worker has. `partitioners`: of variables.
- `resolvers`, `launchers`: where the cluster comes from; clusters on Ray, Slurm and Kubernetes.

`train`, `interop`, `compat`, `tools` and `dt.compile` may import it.
"""

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
