"""Strategies of one process: `OneDeviceStrategy`, `MirroredStrategy`, `CentralStorageStrategy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.core.default_graph import get_default_graph
from ..graph.core.device import canonical_name
from ..graph.core.errors import UnimplementedError
from ..graph.core.settings import setting
from ..graph.ops.state.collectives import are_gpus
from ..placer.cluster.spec import local_devices
from .reduction import CrossDeviceOps, NcclAllReduce
from .strategy import Strategy


class OneDeviceStrategy(Strategy):
    """Places all variables and computation on one device, to test a program that is written for several devices.

    Args:
        device: the device, a string or a DeviceSpec.

    >>> strategy = OneDeviceStrategy("/cpu:0")
    """

    def __init__(self, device: Any) -> None:
        super().__init__([device])

    def _default_device(self) -> Any:
        return get_default_graph().device(self._devices[0])


class MirroredStrategy(Strategy):
    """Synchronous training on several devices. Each device has a replica and a copy of every variable. Updates use the mean gradient.

    Args:
        devices: the devices, such as `["/gpu:0", "/gpu:1"]`, of one or several tasks. None: all GPUs of this process, or its CPU if
            it has none.
        cross_device_ops: how values are reduced. None: `NcclAllReduce` between GPUs if NCCL is available, or else
            `ReductionToOneDevice`.

    >>> strategy = MirroredStrategy(["/gpu:0", "/gpu:1"])
    """

    def __init__(self, devices: Sequence[Any] | None = None, cross_device_ops: CrossDeviceOps | None = None) -> None:
        super().__init__(accelerators() or ["/device:CPU:0"] if devices is None else devices, cross_device_ops)
        if cross_device_ops is None and len(self._devices) > 1 and are_gpus(self._devices):
            from ..codegen.gpu.driver.nccl import bindings  # loads the CUDA bindings

            if bindings():
                self._cross_device_ops = NcclAllReduce()


class CentralStorageStrategy(Strategy):
    """Synchronous training with a replica on each device. All variables are on one device, which updates them with the mean gradient.

    Args:
        compute_devices: the replicas' devices. None: all GPUs of this process, or its CPU if it has none.
        parameter_device: the device of the variables. None: the compute device if there is one, or else the CPU.

    >>> strategy = CentralStorageStrategy(["/gpu:0", "/gpu:1"], parameter_device="/cpu:0")
    """

    def __init__(self, compute_devices: Sequence[Any] | None = None, parameter_device: Any = None) -> None:
        super().__init__(accelerators() or ["/device:CPU:0"] if compute_devices is None else compute_devices)
        if parameter_device is None:
            self._parameter_device = self._devices[0] if len(self._devices) == 1 else "/device:CPU:0"
        else:
            given = parameter_device if isinstance(parameter_device, str) else parameter_device.to_string()
            self._parameter_device = canonical_name(given)

    def _variable_devices(self) -> Sequence[Any]:
        return (self._parameter_device,)


class TPUStrategy(Strategy):
    """Not supported: Dovetail does not run on TPUs.

    Raises:
        UnimplementedError: always. The message names the strategies to use.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UnimplementedError.of(
            "TPUStrategy: Dovetail runs on CPUs and GPUs, not on TPUs. Use MirroredStrategy for the devices of one machine, or "
            "MultiWorkerMirroredStrategy for those of several. The model under the strategy's scope need not change.",
        )


def accelerators() -> list[str]:
    """The short names of the GPUs of this process."""
    from ..codegen.gpu.driver.api import present_gpus  # loads the CUDA bindings

    task = "/job:localhost/replica:0/task:0"
    found = local_devices(task, {}, setting("DOVETAIL_EMULATE_GPUS"), gpus=present_gpus())
    return [f"/device:GPU:{d.name.device_index}" for d in found if d.name.device_type == "GPU"]
