"""What a session, a server and a step can be told, under TensorFlow 1's names.

They are plain values with defaults, checked when made: a misspelt option is an error at the user's line, not ignored.
`to_fields`/`from_fields` turn a `ConfigProto` into what a message carries.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..codegen.options import KernelOptions
from ..graph.errors import InvalidArgumentError
from ..graph.settings import setting


@dataclass(slots=True)
class GPUOptions:
    """Options of GPU devices. Kept for programs that set them; memory options act once real GPUs run."""

    allow_growth: bool = False
    per_process_gpu_memory_fraction: float = 0.0
    visible_device_list: str = ""


@dataclass(slots=True)
class OptimizerOptions:
    """Options of graph rewriting."""

    L0: ClassVar[int] = -1
    L1: ClassVar[int] = 0

    opt_level: int = 0
    global_jit_level: int = 0


@dataclass(slots=True)
class GraphOptions:
    """Options of how a session treats its graph."""

    optimizer_options: OptimizerOptions = field(default_factory=OptimizerOptions)


@dataclass(slots=True)
class ConfigProto:
    """Options of a session, or of a server.

    Attributes:
        device_count: devices per type of each task ({"CPU": 4}); for a server or an in-process session.
        allow_soft_placement: when a device cannot run a node, choose another one of the same task and say so. Off by default.
        log_device_placement: print where each node was placed.
        device_filters: the session only sees devices that match one of these specs (and its master's task).
        operation_timeout_in_ms: limit for each call; 0: none but the limits that notice dead tasks.
        isolate_session_state: variables of this session are its own, and go when it is closed.
        wait_for_cluster_s: how long making a session waits for tasks that have not started, in seconds.
        peer_timeout_s: a task that is silent for so long is taken for dead, in seconds.
        intra_op_parallelism_threads, inter_op_parallelism_threads: threads per kernel, and kernels at once; 0: chosen.
        gpu_options, graph_options: see those classes.
        kernel_backend: how kernels are made: "auto", "numba" or "numpy"; "": as DOVETAIL_BACKEND says where the session is.
        kernel_check: 2: compare every fused kernel with the NumPy references; -1: what DOVETAIL_CHECK says there.
    """

    device_count: dict[str, int] = field(default_factory=dict)
    allow_soft_placement: bool = False
    log_device_placement: bool = False
    device_filters: list[str] = field(default_factory=list)
    operation_timeout_in_ms: int = 0
    isolate_session_state: bool = False
    wait_for_cluster_s: float = 30.0
    peer_timeout_s: float = 5.0
    intra_op_parallelism_threads: int = 0
    inter_op_parallelism_threads: int = 0
    gpu_options: GPUOptions = field(default_factory=GPUOptions)
    graph_options: GraphOptions = field(default_factory=GraphOptions)
    kernel_backend: str = ""
    kernel_check: int = -1

    def kernel_options(self, warm: bool = False) -> KernelOptions:
        """How kernels are made; `warm`: all compiled before the first step. What is not said follows this process's settings.

        Raises:
            InvalidArgumentError: there is no such backend.
        """
        backend = self.kernel_backend or setting("DOVETAIL_BACKEND")
        check = self.kernel_check if self.kernel_check >= 0 else setting("DOVETAIL_CHECK")
        try:
            return KernelOptions(backend, warm, check, self.intra_op_parallelism_threads)
        except ValueError as e:
            raise InvalidArgumentError(None, None, f"{e} (ConfigProto.kernel_backend, or DOVETAIL_BACKEND)") from None

    def settled(self) -> ConfigProto:
        """The same, with nothing left to the settings of whichever process reads it."""
        options = self.kernel_options()
        return dataclasses.replace(self, kernel_backend=options.backend, kernel_check=options.check)

    def to_fields(self) -> dict[str, Any]:
        """Plain data for a message."""
        return dataclasses.asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ConfigProto:
        """From a message's plain data; unknown names are ignored, so that a newer client is understood.

        Raises:
            TypeError: a value of the wrong type.
        """
        config = cls()
        _fill(config, fields)
        return config


def _fill(target: Any, fields: dict[str, Any]) -> None:
    for f in dataclasses.fields(target):
        if f.name not in fields:
            continue
        now, value = getattr(target, f.name), fields[f.name]
        if dataclasses.is_dataclass(now):
            if not isinstance(value, dict):
                raise TypeError(f"{f.name} must be a dict, not {value!r}")
            _fill(now, value)
            continue
        kind = (int, float) if isinstance(now, float) else type(now)
        if not isinstance(value, kind) or (isinstance(value, bool) and not isinstance(now, bool)):
            raise TypeError(f"{f.name} must be of type {type(now).__name__}, not {value!r}")
        setattr(target, f.name, value)


def check_config(config: Any) -> ConfigProto:
    """The config itself, or the default for None; TypeError for anything else."""
    if config is None:
        return ConfigProto()
    if not isinstance(config, ConfigProto):
        raise TypeError(
            f"config must be a ConfigProto, not {type(config).__name__}: dt.ConfigProto(allow_soft_placement=True)"
        )
    return config


@dataclass(slots=True)
class RunOptions:
    """Options of one step.

    Attributes:
        timeout_in_ms: limit for the step; 0: the session's.
        trace_level: how much to record. Only NO_TRACE is there yet; another level is refused when the step is run.
        output_partition_graphs: put the step's partitions into the `RunMetadata`.
    """

    NO_TRACE: ClassVar[int] = 0
    SOFTWARE_TRACE: ClassVar[int] = 1
    HARDWARE_TRACE: ClassVar[int] = 2
    FULL_TRACE: ClassVar[int] = 3

    trace_level: int = 0
    timeout_in_ms: int = 0
    output_partition_graphs: bool = False


@dataclass(slots=True)
class RunMetadata:
    """What one step tells about itself.

    Attributes:
        partition_graphs: device -> its partition (`Plan.partitions`), when `output_partition_graphs` was set.
    """

    partition_graphs: dict[str, Any] = field(default_factory=dict)
