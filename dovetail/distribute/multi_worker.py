"""`MultiWorkerMirroredStrategy`: synchronous training with the same program in every worker process.

Each worker builds its own graph, with its own copies of the variables, and runs it on its own server. Gradients are reduced before they are
applied, first over the replicas of the worker and then over the workers by a collective op. So all workers apply the same update to the
same values. The initial values are the same, because the first worker broadcasts its own.

The first collective blocks until all workers have started. If a worker fails or dies, the step of all workers fails with an error that
names it. New sessions then resume from the last checkpoint.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..graph.core.build import convert
from ..graph.core.default_graph import get_default_graph
from ..graph.core.device import DeviceSpec, canonical_name
from ..graph.core.errors import FailedPreconditionError
from ..graph.core.graph import Tensor
from ..graph.ops.array.identity_and_placeholders import no_op
from ..graph.ops.array.shapes import transpose
from ..graph.ops.state import collectives
from ..graph.ops.state.collectives import are_gpus
from ..graph.tensors.indexed_slices import IndexedSlices
from ..placer.cluster.spec import ClusterSpec
from ..runtime.config import ConfigProto
from .mirrored import accelerators
from .reduction import ReduceOp, all_reduce_buckets, buckets, collective_reduction, dense_columns, scaled
from .resolvers import roles
from .resolvers.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from .strategy import Strategy
from .values import DistributedValues, PerReplica

# The collection that counts the collectives of a graph.
_COLLECTIVES = "__collectives"


class CollectiveCommunication(enum.Enum):
    """How the workers of a `MultiWorkerMirroredStrategy` reduce their gradients."""

    AUTO = "AUTO"
    """NCCL between GPUs that have it. Otherwise, recursive doubling for small values and a ring for large ones."""
    RING = "RING"
    """A ring."""
    NCCL = "NCCL"
    """NCCL between GPUs. A worker without it raises an error."""


class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training on all workers of a cluster. Each replica has a copy of the variables, and all copies get the same updates.

    Run the same program in each worker. TF_CONFIG or the resolver defines its task. Create sessions with the target
    `strategy.session_target`. This is the worker's server: the program's own `dt.train.Server` for the task, or one that is started on
    first use.

    Args:
        communication: how workers reduce gradients, a `CollectiveCommunication`.
        cluster_resolver: the cluster and this task. None: from TF_CONFIG.
        devices: devices of this worker's replicas, without a task, such as `["/gpu:0"]`. None: all its GPUs, or its CPU if it has none.
        communication_options: TensorFlow 2's form of `communication`, an object with the attribute `implementation`.
        server: the server of the task. None: the server of this process, or a new one.

    Raises:
        ValueError: the cluster has parameter servers, or no such task.
        FailedPreconditionError: NCCL is requested, and a replica is not on a GPU.

    >>> strategy = MultiWorkerMirroredStrategy()
    >>> with strategy.scope():
    ...     losses, train = strategy.run(train_step, args=(images, labels))
    ...     with dt.Session(strategy.session_target, config=strategy.update_config_proto(dt.ConfigProto())) as session:
    ...         session.run(dt.global_variables_initializer())
    """

    def __init__(
        self,
        communication: Any = CollectiveCommunication.AUTO,
        cluster_resolver: ClusterResolver | None = None,
        devices: Sequence[Any] | None = None,
        communication_options: Any = None,
        server: Any = None,
    ) -> None:
        chosen = getattr(communication_options, "implementation", None) or communication
        self._communication = CollectiveCommunication(str(getattr(chosen, "value", chosen)).upper())
        self._resolver = cluster_resolver or TFConfigClusterResolver()
        self._spec = self._resolver.cluster_spec()
        local = list(accelerators() or ["/device:CPU:0"] if devices is None else devices)
        self._own: TaskServer | None = None
        self._collective_device = "/device:CPU:0"
        if ":GPU:" in _text(local[0]).upper() and self._communication is not CollectiveCommunication.RING:
            self._collective_device = f"/device:{_text(local[0]).partition('/device:')[2]}"
        elif self._communication is CollectiveCommunication.NCCL:
            raise FailedPreconditionError.of(
                f"NCCL reduces only between GPUs, but the first replica of this worker is on {local[0]}. Use "
                "communication=CollectiveCommunication.AUTO or RING",
            )
        job, index = self._resolver.task_type, self._resolver.task_id
        if not self._spec or job == roles.EVALUATOR or job is None:
            super().__init__(local)
            self._workers: tuple[str, ...] = ()
            self._rank, self._is_chief = 0, True
            return
        index = int(index or 0)
        if "ps" in self._spec.jobs:
            raise ValueError(
                "MultiWorkerMirroredStrategy has no parameter servers. Use ParameterServerStrategy, or omit the job 'ps'"
            )
        roles.check_role(self._spec, job, index)
        self._rank, self._is_chief = roles.id_in_cluster(self._spec, job, index), roles.is_chief(self._spec, job, index)
        tasks = [(j, i) for j in ("chief", "worker") if j in self._spec.jobs for i in self._spec.task_indices(j)]
        self._workers = tuple(f"/job:{j}/replica:0/task:{i}" for j, i in tasks)
        task = f"/job:{job}/task:{index}"
        super().__init__([f"{task}{d if d.startswith('/') else '/' + d}" for d in map(_text, local)])
        self._first_replica = self._rank * len(self._devices)
        self._own = TaskServer(self._spec, job, index, self._devices, server)
        self._task = task

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of all workers."""
        return len(self._devices) * max(1, len(self._workers))

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver of the cluster."""
        return self._resolver

    @property
    def session_target(self) -> str:
        """The target of this worker's server."""
        return "" if self._own is None else str(self._own.server.target)

    def update_config_proto(self, config: Any) -> Any:
        """Returns a session's config with a filter for this task's devices, because workers communicate only by collectives."""
        if self._own is not None:
            config.device_filters = [self._task]
        return config

    def _default_device(self) -> Any:
        return get_default_graph().device(self._task if self._own is not None else "")

    # --- collectives between the workers ----------------------------------------------------------------------------

    def _local(self, op: ReduceOp) -> ReduceOp:
        return ReduceOp.SUM if len(self._workers) > 1 else op

    def _collective(self, build: Callable[[str], Any]) -> Any:
        """Returns `build(instance)`, built on the device of this worker's collectives.

        All workers build their collectives in the same order, so they use the same instance names.
        """
        graph = get_default_graph()
        made = graph.get_collection_ref(_COLLECTIVES)
        made.append(self._task)
        instance = str(len(made))
        with graph.colocate_with(None, ignore_existing=True), graph.device(f"{self._task}{self._collective_device}"):
            return build(instance)

    @property
    def _members(self) -> list[str]:
        return [f"{w}{self._collective_device}" for w in self._workers]

    def _all_reduced(self, tensors: Sequence[Tensor], op: ReduceOp) -> list[Tensor]:
        """Returns each tensor's sum or mean over all replicas. Tensors of one type are reduced in buckets."""
        way = self._communication.value.lower()
        members, count = self._members, self.num_replicas_in_sync
        done: dict[Tensor, Tensor] = {}
        for bucket in buckets(list(dict.fromkeys(tensors))):
            reduction = collective_reduction(op, bucket[0].dtype, members) if count == len(members) else "sum"
            build = functools.partial(collectives.all_reduce, bucket, members, self._rank, reduction, way)
            found = self._collective(build)
            if op is ReduceOp.MEAN and reduction == "sum":
                found = [scaled(total, count) for total in found]
            done.update(zip(bucket, found, strict=True))
        return [done[t] for t in tensors]

    def _reduce_across(self, op: ReduceOp, values: Sequence[Any]) -> list[Any]:
        if len(self._workers) <= 1:
            return list(values)
        dense = [(i, convert(v)) for i, v in enumerate(values) if not isinstance(v, IndexedSlices)]
        out: list[Any] = list(values)
        for (i, _), total in zip(dense, self._all_reduced([t for _, t in dense], op), strict=True):
            out[i] = total
        for i, v in enumerate(values):
            if isinstance(v, IndexedSlices):
                rows = self._gather_across(v.values, 0)
                rows = scaled(rows, self.num_replicas_in_sync) if op is ReduceOp.MEAN else rows
                out[i] = IndexedSlices(rows, self._gather_across(v.indices, 0), v.dense_shape)
        return out

    def _mean_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Implements `Strategy._mean_gradients`. If each replica is a member of the collectives, nothing is reduced locally before."""
        if not self._replicas_are_members():
            return super()._mean_gradients(gradients, variables)
        count, graph = len(self._devices), get_default_graph()
        rows = [g.values if isinstance(g, DistributedValues) else (g,) * count for g in gradients]
        dense, columns = dense_columns(rows, count)
        rest = [i for i in range(len(rows)) if i not in set(dense)]
        others = super()._mean_gradients([gradients[i] for i in rest], [variables[i] for i in rest])
        found = dict(zip(rest, others, strict=True))
        members = self._replica_names()
        way, made = self._communication.value.lower(), graph.get_collection_ref(_COLLECTIVES)
        with graph.name_scope("reduce"):
            means = all_reduce_buckets(columns, self._devices, members, self._rank * count, way, made, ReduceOp.MEAN)
            found.update(zip(dense, map(PerReplica, means), strict=True))
        return [found[i] for i in range(len(rows))]

    def _replica_names(self) -> Sequence[str]:
        local = [d.partition("/device:")[2] for d in self._devices]
        return [f"{w}/device:{d}" for w in self._workers for d in local] or self._devices

    def _replicas_are_members(self) -> bool:
        """Whether each replica is a member of the collectives. This is not the case for GPUs that would communicate through host memory."""
        if len(self._devices) == 1 or len(self._workers) <= 1:
            return False
        if all(":CPU:" in d for d in self._devices):
            return True
        from ..codegen.gpu.driver import nccl  # loads the CUDA bindings

        ring = self._communication is CollectiveCommunication.RING
        return not ring and are_gpus(self._devices) and bool(nccl.bindings())

    def _gather_across(self, value: Tensor, axis: int) -> Tensor:
        if len(self._workers) <= 1:
            return value

        rank = value.shape.rank
        if axis == 0:
            return self._gathered(value)
        if rank is None:
            raise ValueError("gather along an axis other than 0 needs a value of known rank")
        swap = list(range(rank))
        swap[0], swap[axis] = swap[axis], swap[0]
        turned: Tensor = transpose(self._gathered(transpose(value, swap)), swap)
        return turned

    def _gathered(self, value: Tensor) -> Tensor:
        found: Tensor = self._collective(lambda i: collectives.all_gather(value, self._members, self._rank, i))
        return found

    def _broadcast_initial_value(self, value: Any, name: str) -> Any:
        if len(self._workers) <= 1:
            return value

        def initial() -> Tensor:
            own = convert(value() if callable(value) else value)
            found: Tensor = self._collective(
                lambda i: collectives.broadcast(own, self._members, self._rank, 0, f"initial {name} {i}")
            )
            return found

        return initial

    def _broadcast_first(self, value: Any) -> Any:
        if len(self._workers) <= 1:
            return value
        own = convert(value)
        return self._collective(lambda i: collectives.broadcast(own, self._members, self._rank, 0, i))

    def barrier(self) -> Any:
        """A node that finishes when all workers have reached it."""
        if len(self._workers) <= 1:
            return no_op()
        return self._collective(lambda i: collectives.barrier(self._members, self._rank, i))


class CollectiveAllReduceStrategy(MultiWorkerMirroredStrategy):
    """An older name of `MultiWorkerMirroredStrategy`."""


def _text(device: Any) -> str:
    return canonical_name(device if isinstance(device, str) else device.to_string())


class TaskServer:
    """The server of a strategy's task: the program's own server, or one that is started on first use.

    So a program may create its `dt.train.Server` before or after the strategy. A server that is started here has enough CPU devices for the
    replicas.
    """

    def __init__(self, spec: ClusterSpec, job: str, index: int, devices: Sequence[str], given: Any = None) -> None:
        named = [DeviceSpec.from_string(d) for d in devices]
        cpus = max([1, *(1 + (d.device_index or 0) for d in named if d.device_type == "CPU")])
        self._task = spec, job, index, cpus
        self._found = given

    @property
    def server(self) -> Any:
        """The server."""
        if self._found is None:
            self._found = server_of(*self._task)
        return self._found


# Servers that were started here, by address. This keeps them alive.
_started: dict[str, Any] = {}


def server_of(spec: ClusterSpec, job: str, index: int, cpus: int = 1) -> Any:
    """Returns the server of a task in this process. If none is running, starts one with `cpus` CPU devices."""
    from ..runtime.server.server import Server  # loads ZeroMQ
    from ..runtime.worker.worker import servers  # loads the compiler

    address = spec.task_address(job, index)
    for server, _ in list(servers.values()):
        own = (server.job_name, server.task_index) == (job, index)
        if own and server.cluster_spec.task_address(job, index) == address:
            return server
    _started[address] = Server(spec, job, index, config=ConfigProto(device_count={"CPU": cpus}))
    return _started[address]
