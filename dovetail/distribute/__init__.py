"""Distribution strategies: one model, trained by several replicas (`dt.distribute`).

- `strategy`, `extended`: the base class, and its methods for authors of loops and optimizers. `context`: the current strategy.
- `mirrored`, `multi_worker`, `parameter_server`: the strategies. `experimental`: their first names in TensorFlow.
- `replica`: calls a function once per replica, and synchronizes the replicas.
- `values`, `reduction`: values per replica and variables with copies; how these are reduced. `input`: data sets under a strategy.
- `coordinator`, `per_worker`: one client that dispatches calls to workers; the values and data sets of each worker.
- `partitioners`: partitioners of variables.
- `resolvers`: find the cluster of a process. `launchers`: start clusters on Ray, Slurm and Kubernetes.

`train`, `interop`, `compat`, `tools` and `dt.compile` may import it.
"""

from ..public_paths import exported as _exported
from . import experimental
from .context import has_strategy, in_cross_replica_context
from .coordinator import ClusterCoordinator, PerWorkerValues, RemoteValue
from .extended import Extended as StrategyExtended
from .input import InputContext
from .mirrored import CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, TPUStrategy
from .multi_worker import (
    CollectiveAllReduceStrategy,
    CollectiveCommunication,
    CollectiveCommunication as CommunicationImplementation,
    MultiWorkerMirroredStrategy,
)
from .parameter_server import ParameterServerStrategy
from .reduction import CrossDeviceOps, HierarchicalCopyAllReduce, NcclAllReduce, ReduceOp, ReductionToOneDevice
from .replica import ReplicaContext, get_replica_context
from .resolvers import cluster_resolver
from .strategy import Strategy, get_strategy, get_strategy as get_distribution_strategy
from .values import DistributedValues, DistributedVariable, PerReplica

__all__ = _exported(globals(), "cluster_resolver", "experimental")
