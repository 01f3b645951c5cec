"""`ParameterServerStrategy`: asynchronous training with variables on parameter servers.

Every worker builds its own graph. Variables have the same names in all graphs and are on the job `ps`, so they are the same variables. The
replicas of a worker (its devices) are synchronous with each other, but not with other workers. Each worker applies its gradients to the
current values of the variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ..graph.core.default_graph import get_default_graph
from ..graph.core.device import DeviceSpec
from ..graph.variables.scope import get_variable_scope, variable_scope
from ..placer.cluster.spec import ClusterSpec
from ..placer.rules.replica_device_setter import replica_device_setter
from .mirrored import accelerators
from .multi_worker import TaskServer, _text
from .resolvers import roles
from .resolvers.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from .strategy import Strategy


class ParameterServerStrategy(Strategy):
    """Asynchronous training. Variables are on the tasks of job `ps`, and computation is on this worker.

    Tasks of job `ps` run `strategy.server.join()`, or any server. Device blocks in the scope apply to ops and not to variables; they are
    merged with the worker's device. Without a cluster, everything is on the CPU of this process. If the resolver has no task, this process
    is a client: see `ClusterCoordinator`.

    Args:
        cluster_resolver: the cluster and this task. None: from TF_CONFIG.
        variable_partitioner: function of shape and dtype that partitions the variables of `get_variable`, except scalars, over the
            servers, such as `experimental.partitioners.MinSizePartitioner()`. None: variables are not partitioned.
        devices: devices of this worker's replicas, without a task, such as `["/gpu:0"]`. None: all its GPUs, or its CPU if it has none.
        ps_strategy: function that chooses the server of a variable. None: round-robin.
        server: the server of the task. None: the server of this process, or a new one.

    Raises:
        ValueError: the cluster has no parameter server or no such task, or the partitioner is not a function.

    >>> strategy = ParameterServerStrategy(SimpleClusterResolver(ClusterSpec({"ps": ["a:2222"], "worker": ["b:2222"]})))
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: Callable[..., Any] | None = None,
        devices: Sequence[Any] | None = None,
        ps_strategy: Callable[[Any], int] | None = None,
        server: Any = None,
    ) -> None:
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise ValueError(f"variable_partitioner must be a function, not {variable_partitioner!r}")
        self._partitioner = variable_partitioner
        self._resolver = cluster_resolver or TFConfigClusterResolver()
        self._spec: ClusterSpec = self._resolver.cluster_spec()
        local = [_text(d) for d in (accelerators() or ["/device:CPU:0"] if devices is None else devices)]
        job, index = self._resolver.task_type, self._resolver.task_id
        self._own: TaskServer | None = None
        self._task = ""
        self._coordinator: Any = None  # the last `ClusterCoordinator` of this strategy
        if not self._spec or job == roles.EVALUATOR:
            super().__init__(local)
            self._is_chief = True
            self._variables_go: Any = local[0] if len(local) == 1 else "/device:CPU:0"
            return
        if "ps" not in self._spec.jobs:
            raise ValueError(
                "ParameterServerStrategy needs a job 'ps' in its cluster. MultiWorkerMirroredStrategy does not"
            )
        if job is None:
            # A client without a task, such as one with a ClusterCoordinator, sets the device of the computation itself.
            super().__init__(local if devices is not None else [""])
            self._is_chief = True
            self._variables_go = replica_device_setter(
                worker_device="/job:worker", cluster=self._spec, ps_strategy=ps_strategy, ps_ops=["VarHandleOp"]
            )
            return
        number = int(index or 0)
        roles.check_role(self._spec, str(job), number)
        self._is_chief = roles.is_chief(self._spec, job, number)
        self._task = f"/job:{job}/task:{number}"
        super().__init__([f"{self._task}{d}" for d in local])
        self._variables_go = replica_device_setter(
            worker_device=self._task, cluster=self._spec, ps_strategy=ps_strategy, ps_ops=["VarHandleOp"]
        )
        self._own = TaskServer(self._spec, str(job), number, self._devices, server)

    @property
    def server(self) -> Any:
        """This task's server: the program's own server, or one that is started on first use. None without a task."""
        return None if self._own is None else self._own.server

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver of the cluster."""
        return self._resolver

    @property
    def session_target(self) -> str:
        """The target of this worker's server. For a client without a task, the target of the first parameter server."""
        if self._own is None and "ps" in self._spec.jobs and self._resolver.task_type is None:
            return f"zmq://{self._spec.task_address('ps', self._spec.task_indices('ps')[0])}"
        return "" if self._own is None else str(self._own.server.target)

    def update_config_proto(self, config: Any) -> Any:
        """Returns a session's config with a filter for this worker and the parameter servers, so that it needs no other workers."""
        if self._own is not None:
            config.device_filters = [self._task, "/job:ps"]
        return config

    @contextmanager
    def _default_device(self) -> Iterator[None]:
        with ExitStack() as blocks:
            if self._task:
                blocks.enter_context(get_default_graph().device(self._task))
            if self._partitioner is not None:
                blocks.enter_context(variable_scope(get_variable_scope(), partitioner=self._partitioner))
            yield

    def _variable_devices(self) -> Sequence[Any]:
        return (self._variables_go,)

    def _on_read_devices(self) -> Sequence[Any]:
        # A client's replicas run on any free worker, so these variables are on the parameter servers.
        is_client = bool(self._spec) and self._resolver.task_type is None
        return [self._variables_go if is_client and not _requests_task(d) else d for d in self._devices]


def _requests_task(device: str) -> bool:
    return DeviceSpec.from_string(device).task is not None
