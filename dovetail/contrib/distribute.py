"""Strategies under the names that TensorFlow 1 had for them in `tf.contrib.distribute`; they live in `dt.distribute`."""

from ..distribute import (
    CentralStorageStrategy,
    CollectiveAllReduceStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    TPUStrategy,
    get_replica_context,
    get_strategy as get_distribution_strategy,
    has_strategy as has_distribution_strategy,
    in_cross_replica_context,
)
from ..estimator.run_config import DistributeConfig

__all__ = [
    "CentralStorageStrategy",
    "CollectiveAllReduceStrategy",
    "DistributeConfig",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
    "get_distribution_strategy",
    "get_replica_context",
    "has_distribution_strategy",
    "in_cross_replica_context",
]
