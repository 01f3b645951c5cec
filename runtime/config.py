"""Options of a session, a server and a step, under TensorFlow 1's names.

They are plain values with defaults. The constructor checks them, so that a misspelt option is an error at the user's line.
`to_fields`/`from_fields` convert a `ConfigProto` to and from the plain data of a message.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, get_type_hints

import msgspec

from ..codegen.options import KernelOptions
from ..graph.core.argument_names import explain_members
from ..graph.core.errors import invalid
from ..graph.core.repeated_field import Repeated
from ..graph.core.settings import setting
from ..placer.cluster.spec import ClusterDef, ClusterSpec
from ..placer.cost.profile import Profile, as_profile
from .observability.timeline import StepStats

# Servers do not need it.
_STAYS = frozenset({"experimental", "keys", "use_per_session_threads", "session_inter_op_thread_pool"})

if TYPE_CHECKING:
    from .observability.trace import Trace


class Options:
    """Base of the options; `repr` prints the options that differ from their defaults."""

    __slots__ = ()

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise a TypeError if a boolean option has another type."""
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if type(f.default) is bool and type(value) is not bool and value not in (0, 1):
                raise TypeError(f"{type(self).__name__}.{f.name} must be True or False, not {value!r}")

    def _changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        plain, names = type(self)(), [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._changed().items())})"

    def over(self, defaults: Self) -> Self:
        """A copy whose default-valued options are replaced by those of `defaults`."""
        found = self._changed()
        for name, value in defaults._changed().items():
            if isinstance(value, Options):
                found[name] = getattr(self, name).over(value)
            elif name not in _OWN:
                found.setdefault(name, value)
        return dataclasses.replace(self, **found)  # type: ignore[type-var]


@dataclass(slots=True, repr=False)
class GPUOptions(Options):
    """Options of GPU devices, accepted for existing programs. The memory options have an effect on real GPUs only."""

    allow_growth: bool = False
    per_process_gpu_memory_fraction: float = 0.0
    visible_device_list: str = ""
    allocator_type: str = ""
    deferred_deletion_bytes: int = 0
    polling_active_delay_usecs: int = 0
    polling_inactive_delay_msecs: int = 0
    force_gpu_compatible: bool = False


@dataclass(slots=True, repr=False)
class OptimizerOptions(Options):
    """Which rewrites a session applies to graphs before they run, with TensorFlow's names.

    Attributes:
        do_common_subexpression_elimination: enable this rewrite even at level L0.
        do_constant_folding: enable this rewrite even at level L0.
        do_function_inlining: accepted without effect; functions are always inlined.
        opt_level: L1, the default: all rewrites. L0: only those that the flags above enable.
        global_jit_level: accepted without effect; see `ConfigProto.kernel_backend`.
    """

    L0: ClassVar[int] = -1
    L1: ClassVar[int] = 0
    DEFAULT: ClassVar[int] = 0
    OFF: ClassVar[int] = -1
    ON_1: ClassVar[int] = 1
    ON_2: ClassVar[int] = 2

    do_common_subexpression_elimination: bool = False
    do_constant_folding: bool = False
    do_function_inlining: bool = False
    opt_level: int = 0
    global_jit_level: int = 0


@dataclass(slots=True, repr=False)
class GraphOptions(Options):
    """Options for a session's graph.

    Attributes:
        optimizer_options: `OptimizerOptions`.
        place_pruned_graph: place only the nodes that a run needs. A node that cannot be placed then fails only the runs that need
            it.
        enable_bfloat16_sendrecv: send float32 values between devices as bfloat16: half the bytes, less precise.
        infer_shapes: accepted without effect; shapes are always inferred as far as possible.
        build_cost_model: accepted without effect; `dt.profile` measures costs.
        enable_recv_scheduling: delay sends while their receiver is far behind, which bounds the values that wait there.
    """

    optimizer_options: OptimizerOptions = field(default_factory=OptimizerOptions)
    place_pruned_graph: bool = False
    enable_bfloat16_sendrecv: bool = False
    infer_shapes: bool = False
    build_cost_model: int = 0
    enable_recv_scheduling: bool = False


@dataclass(slots=True, repr=False)
class ThreadPoolOptionProto(Options):
    """A thread pool of TensorFlow's sessions, accepted for existing programs.

    Attributes:
        num_threads: number of threads; 0: automatic.
        global_name: sessions with the same name share the pool.
    """

    num_threads: int = 0
    global_name: str = ""


@dataclass(slots=True, repr=False)
class Experimental(Options):
    """Options that TensorFlow programs set in `ConfigProto.experimental`: accepted without effect."""

    collective_group_leader: str = ""
    executor_type: str = ""
    recv_buf_max_chunk: int = 0
    use_numa_affinity: bool = False
    collective_deterministic_sequential_execution: bool = False
    collective_nccl: bool = False
    share_session_state_in_clusterspec_propagation: bool = False
    disable_thread_spinning: bool = False
    share_cluster_devices_in_session: bool = False


@dataclass(slots=True, repr=False)
class ConfigProto(Options):
    """Options of a session, or of a server.

    Attributes:
        device_count: device type -> number of devices, {"CPU": 4}, of a server or an in-process session.
        allow_soft_placement: if a device cannot run a node, use another device of the same task, and log it. Default: False.
        log_device_placement: print the device of each node.
        device_filters: the session only uses devices that match one of these specs, and those of its master's task.
        operation_timeout_in_ms: timeout of each call; 0: none, except failure detection.
        isolate_session_state: the session has its own variables, which are deleted when it is closed.
        wait_for_cluster_s: seconds for which a new session waits for tasks that have not started.
        peer_timeout_s: seconds after which a task that sends nothing counts as dead.
        intra_op_parallelism_threads: number of threads of one kernel; 0: automatic.
        inter_op_parallelism_threads: number of kernels that run concurrently; 0: automatic.
        use_per_session_threads: a session has its own threads. Without effect in an in-process session, which uses its caller's
            thread. An InvalidArgumentError on a cluster, as in TensorFlow, because the servers own the threads.
        session_inter_op_thread_pool: the same, as a list of `ThreadPoolOptionProto`.
        placement_period: accepted without effect; nodes are placed once.
        cluster_def: the cluster that the program expects: a `ClusterDef`, or an argument of `ClusterSpec`. A session on another
            cluster fails with InvalidArgumentError. On this cluster it has its own variables, as with `isolate_session_state`. An
            in-process session ignores it, as in TensorFlow.
        gpu_options: a `GPUOptions`.
        graph_options: a `GraphOptions`.
        kernel_backend: what runs kernels on CPUs: "auto", "numba" or "numpy"; "": DOVETAIL_BACKEND of the session's process.
        kernel_check: 2: compare every fused kernel with the NumPy references; -1: DOVETAIL_CHECK of the session's process.
        graph_rewrite: 0: run graphs as written; 1: rewrite by `graph_options.optimizer_options`; -1: DOVETAIL_REWRITE of the
            session's process.
        placement_strategy: how nodes with several candidate devices are placed: "rules", or a search, "auto" or another strategy of
            `dt.place`. A search optimizes the whole graph as one step, again whenever the graph has grown. State is not moved.
        placement_costs: the costs of nodes and links for a search: a `dt.Profile`, or the path of one; None: analytic costs.
            With a profile, the search optimizes the measured nodes as one step, and the rules place the others.
        fast_math: allow rewrites that change rounding, or results with NaN and infinity.
        tf32: let GPUs compute products, convolutions and attention of float32 in TF32, which rounds factors to 10 bits of fraction and
            adds in float32. It is several times as fast, with relative errors of about 1e-3.
        keys: folder of the keys that authenticate the session; "": the folder in DOVETAIL_KEYS, or no keys. It is never sent.
        experimental: an `Experimental`.
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
    use_per_session_threads: bool = False
    session_inter_op_thread_pool: list[ThreadPoolOptionProto] = field(
        default_factory=lambda: Repeated(make=ThreadPoolOptionProto)
    )
    placement_period: int = 0
    cluster_def: ClusterSpec | ClusterDef | Mapping[str, Any] | None = None
    gpu_options: GPUOptions = field(default_factory=GPUOptions)
    graph_options: GraphOptions = field(default_factory=GraphOptions)
    kernel_backend: str = ""
    kernel_check: int = -1
    graph_rewrite: int = -1
    placement_strategy: str = "rules"
    placement_costs: Profile | str | os.PathLike[str] | None = None
    fast_math: bool = False
    tf32: bool = False
    keys: str = ""
    experimental: Experimental = field(default_factory=Experimental)

    def kernel_options(self, warm: bool = False, deterministic: bool = False) -> KernelOptions:
        """The options of kernels. Unset options follow the settings of this process.

        Args:
            warm: compile all kernels before the first step.
            deterministic: like `warm`, and choose no kernel by measuring.

        Raises:
            InvalidArgumentError: the backend is unknown.
        """
        backend = self.kernel_backend or setting("DOVETAIL_BACKEND")
        check = self.kernel_check if self.kernel_check >= 0 else setting("DOVETAIL_CHECK")
        allowed = self._rewrites()
        rewrites = self.graph_options.optimizer_options
        everything = allowed and rewrites.opt_level >= OptimizerOptions.L1
        try:
            return KernelOptions(
                backend,
                warm,
                check,
                self.intra_op_parallelism_threads,
                fold=everything or (allowed and rewrites.do_constant_folding),
                merge=everything or (allowed and rewrites.do_common_subexpression_elimination),
                rewrite=everything,
                fast_math=self.fast_math,
                tf32=self.tf32,
                deterministic=deterministic,
            )
        except ValueError as e:
            raise invalid(f"{e} (ConfigProto.kernel_backend, or DOVETAIL_BACKEND)") from None

    def settled(self) -> ConfigProto:
        """A copy in which no option depends on settings or files of the process that reads it.

        Raises:
            InvalidArgumentError, OSError, TypeError: `placement_costs` is not a profile.
        """
        options = self.kernel_options()
        return dataclasses.replace(
            self, kernel_backend=options.backend, kernel_check=options.check, graph_rewrite=int(self._rewrites()),
            placement_costs=as_profile(self.placement_costs),
        )  # fmt: skip

    def _rewrites(self) -> bool:
        return bool(self.graph_rewrite if self.graph_rewrite >= 0 else setting("DOVETAIL_REWRITE"))

    def to_fields(self) -> dict[str, Any]:
        """The plain data of a message. The folder of keys stays private to this process."""
        costs = as_profile(self.placement_costs)
        fields = dataclasses.asdict(dataclasses.replace(self, placement_costs=None, cluster_def=None))
        for name in _STAYS:
            del fields[name]
        jobs = () if self.cluster_def is None else ClusterSpec(self.cluster_def).as_cluster_def().job
        fields["cluster_def"] = {job.name: {str(i): address for i, address in job.tasks.items()} for job in jobs}
        fields["placement_costs"] = "" if costs is None else costs.to_text()
        return fields

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> ConfigProto:
        """From the plain data of a message; unknown names are ignored, so that newer clients work.

        Raises:
            TypeError: a value has the wrong type. InvalidArgumentError: a profile is malformed.
        """
        types = get_type_hints(cls) | {"cluster_def": dict[str, dict[int, str]], "placement_costs": str}
        given: dict[str, Any] = {}
        for name in types.keys() & fields.keys() - _STAYS:
            try:  # users may say 1 for True
                given[name] = value = msgspec.convert(fields[name], types[name], strict=False, str_keys=True)
                if name == "cluster_def":
                    given[name] = ClusterSpec(value) if value else None
            except (msgspec.ValidationError, ValueError) as e:
                raise TypeError(f"{name}: {e}") from None
        costs = given.get("placement_costs")
        given["placement_costs"] = Profile.from_text(costs, "placement_costs") if costs else None
        return cls(**given)


explain_members(ConfigProto)


_OWN: Final = frozenset(
    {"device_count", "cluster_def", "placement_costs", "kernel_backend", "kernel_check", "graph_rewrite", "keys"}
)
"""Options that belong to a server, or that a client settles before its request: not defaults of sessions."""


def check_config(config: Any) -> ConfigProto:
    """`config` itself, or the default for None. TypeError: it is no ConfigProto."""
    if config is None:
        return ConfigProto()
    if not isinstance(config, ConfigProto):
        raise TypeError(
            f"config must be a ConfigProto, not {type(config).__name__}: dt.ConfigProto(allow_soft_placement=True)"
        )
    config.check()
    return config


@dataclass(slots=True, repr=False)
class RunOptions(Options):
    """Options of one step.

    Attributes:
        timeout_in_ms: timeout of the step; 0: the session's `operation_timeout_in_ms`.
        inter_op_thread_pool: accepted without effect; see `ConfigProto.session_inter_op_thread_pool`.
        trace_level: NO_TRACE; any other level records the times of kernels and transfers in `run_metadata.trace`.
        output_partition_graphs: put the step's partitions into the `RunMetadata`.
    """

    NO_TRACE: ClassVar[int] = 0
    SOFTWARE_TRACE: ClassVar[int] = 1
    HARDWARE_TRACE: ClassVar[int] = 2
    FULL_TRACE: ClassVar[int] = 3

    trace_level: int = 0
    timeout_in_ms: int = 0
    inter_op_thread_pool: int = 0
    output_partition_graphs: bool = False


@dataclass(slots=True)
class RunMetadata:
    """The metadata of one step, filled by `Session.run`.

    Attributes:
        partition_graphs: device -> its partition (`Plan.partitions`), if `output_partition_graphs` was set.
        trace: the timing of the step, if it had a `trace_level`; else None.
    """

    partition_graphs: dict[str, Any] = field(default_factory=dict)
    trace: Trace | None = None

    def HasField(self, name: str) -> bool:  # noqa: N802  (TensorFlow's name)
        """Whether a field is set, by TensorFlow's name: "step_stats", "partition_graphs"."""
        return bool(self.trace is not None if name == "step_stats" else getattr(self, name, None))

    def clear(self) -> None:
        """Delete the metadata of the previous step. Each step that gets this object calls it first."""
        self.partition_graphs, self.trace = {}, None

    @property
    def step_stats(self) -> StepStats:
        """The trace in TensorFlow's format, for `timeline.Timeline`; empty if the step was not traced."""
        return StepStats() if self.trace is None else self.trace.step_stats
