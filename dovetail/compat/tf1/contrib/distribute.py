"""Strategies under the names, and with the arguments, that TensorFlow 1 gave them first in `tf.contrib.distribute`.

They count GPUs where `dt.distribute`, in which they live, names devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .... import distribute as _distribute
from ....distribute import (
    CentralStorageStrategy,
    CollectiveCommunication,
    OneDeviceStrategy,
    TPUStrategy,
    get_replica_context,
    get_strategy as get_distribution_strategy,
    has_strategy as has_distribution_strategy,
    in_cross_replica_context,
)
from ..estimator.run_config import DistributeConfig


def _gpus(count: int | None) -> list[str] | None:
    """So many GPUs; None, which lets a strategy choose, for none."""
    return [f"/device:GPU:{i}" for i in range(count)] if count else None


class MirroredStrategy(_distribute.MirroredStrategy):
    """See `dt.distribute.MirroredStrategy`.

    Args:
        devices: the replicas' devices. num_gpus, num_gpus_per_worker: or how many GPUs of this process.
        cross_device_ops: as there. auto_shard_dataset: accepted: each worker always takes its own rows.

    Raises:
        ValueError: both devices and a number of GPUs.
    """

    def __init__(
        self,
        devices: Sequence[Any] | None = None,
        num_gpus: int | None = None,
        num_gpus_per_worker: int | None = None,
        cross_device_ops: Any = None,
        auto_shard_dataset: bool = False,
    ) -> None:
        count = num_gpus if num_gpus is not None else num_gpus_per_worker
        if devices is not None and count is not None:
            raise ValueError("Must only specify one of `devices` and `num_gpus`.")
        super().__init__(_gpus(count) if devices is None else devices, cross_device_ops)


class CollectiveAllReduceStrategy(_distribute.CollectiveAllReduceStrategy):
    """See `dt.distribute.experimental.MultiWorkerMirroredStrategy`.

    Args:
        num_gpus_per_worker: how many GPUs of each worker; 0: its GPUs, or else its CPU. communication: as there.
    """

    def __init__(self, num_gpus_per_worker: int = 0, communication: Any = CollectiveCommunication.AUTO) -> None:
        super().__init__(communication, devices=_gpus(num_gpus_per_worker))


class ParameterServerStrategy(_distribute.ParameterServerStrategy):
    """See `dt.distribute.experimental.ParameterServerStrategy`.

    Args:
        num_gpus_per_worker: how many GPUs of each worker; 0: its GPUs, or else its CPU.
    """

    def __init__(self, num_gpus_per_worker: int = 0) -> None:
        super().__init__(devices=_gpus(num_gpus_per_worker))


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
