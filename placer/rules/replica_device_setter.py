"""`replica_device_setter`: variables go to parameter servers, all other nodes to the worker.

The setter is a device function: a device block calls it with each node made inside, and the device that it returns
becomes the node's request. It merges, so blocks inside it win field by field. The one thing it keeps is the
strategy's state: round robin advances once per variable that could go to the ps job, so the order of creation
decides, and every client that builds the same graph puts each variable on the same task.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex

from ...graph.core.argument_names import explains_arguments
from ...graph.core.device import DeviceSpec, canonical_name, merge_names
from ...graph.core.dtypes import DType, as_dtype
from ...graph.core.shape import Dims, as_dims, element_count
from ..cluster.load import as_cluster, as_cluster_spec
from ..cluster.spec import ClusterDef, ClusterSpec

logger = logging.getLogger(__name__)

SETTER = "replica_device_setter"
"""What `explain` calls the block of such a device function, and by what plans know it."""
STANDARD_PS_OPS = (
    "Variable", "VariableV2", "AutoReloadVariable", "MutableHashTable", "MutableHashTableV2",
    "MutableHashTableOfTensors", "MutableHashTableOfTensorsV2", "MutableDenseHashTable",
    "MutableDenseHashTableV2", "VarHandleOp", "BoostedTreesEnsembleResourceHandleOp",
    "BoostedTreesQuantileStreamResourceHandleOp", "ResourceConditionalAccumulator", "DecisionTreeResource",
)  # fmt: skip
"""Ops that hold state and so belong to a parameter server. Queues are none of them."""


class NodeLike(Protocol):
    """What setters and strategies read of a node."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def graph(self) -> Any: ...
    @property
    def outputs(self) -> Sequence[Any]: ...
    def get_attr(self, name: str) -> Any: ...


Strategy = Callable[[Any], SupportsIndex]
"""Chooses a ps task's index for a node."""


@explains_arguments
def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str | None = "/job:ps",
    worker_device: str | None = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Collection[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> Callable[[NodeLike], str] | None:
    """A device function for replicated training, for use as `with dt.device(replica_device_setter(...))`.

    Args:
        ps_tasks: number of parameter servers. Ignored when `cluster` is given.
        ps_device: where ps ops go. When it names a job, the strategy assigns its task, unless an inner
            block requests another job. `""` or None: ps ops are treated like all others.
        worker_device: where other ops go. `""` or None: nowhere in particular.
        merge_devices: False leaves a node alone that inner blocks gave any device at all (deprecated).
        cluster: what `place` takes: jobs with their tasks or numbers of tasks (`{"ps": 2, "worker": 2}`), the path of a YAML file,
            something that runs. The number of parameter servers is the number of tasks of the job in `ps_device`.
        ps_ops: types of the ops that go to the parameter servers; `STANDARD_PS_OPS` unless given.
        ps_strategy: function from a node to the index of its ps task; round robin unless given. Its value is
            not checked here: a task that does not exist is an error of the placer.

    Returns:
        The device function; None when there are no parameter servers. Mind that `with dt.device(None)` does
        more than nothing: it hides the device blocks around it.

    Raises:
        TypeError: `ps_strategy` is not callable, `ps_ops` is a string, or `cluster` describes no cluster.
        ValueError: `ps_tasks` is negative, or `ps_device` or `worker_device` is no device spec.

    >>> with dt.device(replica_device_setter(cluster={"ps": 2, "worker": 1})):
    ...     v, w = dt.Variable(1.0), dt.Variable(2.0)  # /job:ps/task:0, /job:ps/task:1
    ...     s = v + w  # /job:worker
    """
    ps_spec = DeviceSpec.from_string(ps_device)
    if cluster is not None:
        ps_tasks = _task_count(cluster, ps_spec.job)
    if ps_tasks < 0:
        raise ValueError(f"ps_tasks cannot be negative: {ps_tasks}")
    if ps_tasks == 0:
        return None
    strategy: Strategy = RoundRobinStrategy(ps_tasks) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise TypeError(f"ps_strategy must be callable, not {ps_strategy!r}")
    if not merge_devices:
        logger.warning("replica_device_setter(merge_devices=False) is deprecated; merging is recommended")
    if isinstance(ps_ops, str):
        raise TypeError(f"ps_ops must be a collection of op types, such as [{ps_ops!r}], not a string")
    ps_types = frozenset(STANDARD_PS_OPS if ps_ops is None else ps_ops) if ps_device else frozenset()
    worker = canonical_name(worker_device)

    def choose(node: NodeLike) -> str:
        current = node.device
        if current and not merge_devices:
            return current
        if node.type not in ps_types:
            return merge_names(worker, current)
        inner = DeviceSpec.from_string(current)
        spec = ps_spec
        if spec.job and (not inner.job or inner.job == spec.job):
            spec = spec.replace(task=strategy(node))
        return spec.make_merged_spec(inner).to_string()

    choose.__name__ = SETTER
    if ps_spec.job:
        choose.__dict__["servers"] = f"/job:{ps_spec.job}", ps_tasks  # for warnings about plans
    return choose


def _task_count(cluster: Any, job: str | None) -> int:
    """The number of tasks of a job. A cluster may be empty: that of a program that runs alone."""
    if isinstance(cluster, (ClusterSpec, ClusterDef, Mapping)):
        spec = as_cluster_spec(cluster)
        return spec.num_tasks(job) if job is not None and job in spec.jobs else 0
    return sum(task.startswith(f"/job:{job}/") for task in as_cluster(cluster).tasks)


# -- strategies --------------------------------------------------------------------------------------------


class RoundRobinStrategy:
    """Tasks 0, 1, ..., n-1, 0, ... in the order of the calls."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = _positive(num_tasks)
        self._next = 0

    def __call__(self, node: object) -> int:
        task = self._next
        self._next = (task + 1) % self._num_tasks
        return task


class GreedyLoadBalancingStrategy:
    """The task with the least load so far, the lowest of equals; then the node's load is added to it.

    The order of creation matters: nothing is moved later.

    Args:
        num_tasks: number of ps tasks.
        load_fn: the load of a node, in any unit; `byte_size_load_fn` is the usual one.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Any], float]) -> None:
        self._loads = [0.0] * _positive(num_tasks)
        self._load_fn = load_fn

    def __call__(self, node: NodeLike) -> int:
        load = self._load_fn(node)
        task = min(range(len(self._loads)), key=self._loads.__getitem__)
        self._loads[task] += load
        return task


class RandomStrategy:
    """A task that looks random but depends on the node's name and the seed only: the same in every process.

    Args:
        num_tasks: number of ps tasks.
        seed: another seed gives another assignment.
    """

    def __init__(self, num_tasks: int, seed: int = 0) -> None:
        self._num_tasks = _positive(num_tasks)
        self._seed = seed

    def __call__(self, node: NodeLike) -> int:
        # Python's own hash of a string differs between processes; MD5 does not, and gives TensorFlow's tasks.
        digest = hashlib.md5(f"{node.name}_{self._seed}".encode(), usedforsecurity=False).hexdigest()
        return int(digest, 16) % self._num_tasks


class BalancedStrategy:
    """Balances the memory and the network traffic of parameter servers together.

    Each variable goes to the task whose larger share, of memory or of traffic, stays smallest with it: the least
    `max(bytes stored / all bytes, bytes moved / all bytes moved)`; of equal ones to that with the smaller sum of both
    shares, then to the lowest. Round robin gives one server all the large tables when
    large and small ones alternate; balancing bytes alone gives one server all the small variables, whose messages
    cost the more the more there are.

    Every client that builds the same graph gets the same tasks: nothing is random, and the loads are counted for
    each graph by itself, so one strategy (and one setter) may serve many graphs, in any order and from any thread.
    A second call for a node gives the same task. An optimizer's slot (`w/Adam` of `w`) is where its
    variable is, counts there, and moves nothing.

    Args:
        num_tasks: number of ps tasks.
        traffic_fn: bytes that a variable moves in a step, per worker; `expected_traffic` unless given. For an
            embedding of which a step touches few rows, give what these rows have.

    >>> strategy = BalancedStrategy(num_tasks=2)
    >>> with dt.device(replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
    ...     table = dt.Variable(dt.zeros([1000, 64]))
    """

    def __init__(self, num_tasks: int, traffic_fn: Callable[[Any], float] | None = None) -> None:
        self._num_tasks = _positive(num_tasks)
        self._traffic_fn = expected_traffic if traffic_fn is None else traffic_fn
        self._loads: weakref.WeakKeyDictionary[object, _Loads] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def __call__(self, node: NodeLike) -> int:
        stored, moved = float(_least_bytes(node)), float(self._traffic_fn(node))
        if not (stored >= 0 and 0 <= moved < math.inf):
            raise ValueError(f"The traffic of node '{node.name}' must be a number of bytes, not {moved}")
        with self._lock:
            loads = self._loads.get(node.graph)
            if loads is None:
                loads = self._loads[node.graph] = _Loads(self._num_tasks)
            return loads.add(node.name, stored, moved)


class _Loads:
    """The bytes that each task stores and moves for one graph."""

    def __init__(self, num_tasks: int) -> None:
        self.tasks = [(0.0, 0.0)] * num_tasks
        self.chosen: dict[str, int] = {}

    def add(self, name: str, stored: float, moved: float) -> int:
        """The task of a variable, whose bytes are added to the task's."""
        task = self.chosen.get(name)
        if task is not None:
            return task
        task = self.chosen.get(name.rpartition("/")[0])
        if task is not None:
            moved = 0.0  # a slot: updated where it is
        else:
            all_stored = sum(h for h, _ in self.tasks) + stored or 1.0
            all_moved = sum(m for _, m in self.tasks) + moved or 1.0

            def fullness(task: int) -> tuple[float, float]:
                h, m = self.tasks[task]
                shares = (h + stored) / all_stored, (m + moved) / all_moved
                return max(shares), sum(shares)

            task = min(range(len(self.tasks)), key=fullness)
        self.chosen[name] = task
        h, m = self.tasks[task]
        self.tasks[task] = h + stored, m + moved
        return task


MESSAGE_BYTES = 16 << 10
"""What a message costs beside its bytes, in bytes: about what a link of 10 Gbit/s sends in the 10 to 15 us that a
server spends on any message."""


def expected_traffic(node: NodeLike) -> int:
    """Bytes that a variable moves in a step of one worker: it is read once, and a gradient of its size comes back.

    Each of the two counts `MESSAGE_BYTES` more, so that many small variables weigh something. Unknown sizes count
    as 1. Integers have no gradient: they are only read.
    """
    dtype = _dtype_attr(node)
    messages = 2 if dtype is not None and (dtype.is_floating or dtype.is_complex) else 1
    return messages * (_least_bytes(node) + MESSAGE_BYTES)


def _least_bytes(node: NodeLike) -> int:
    """The bytes of the state behind a place, as far as they are known; 0 for what is no variable (a table)."""
    dtype, dims = _dtype_attr(node), _shape_attr(node)
    return 0 if dtype is None else math.prod(1 if d is None else d for d in dims or ()) * int(dtype.size)


def _dtype_attr(node: NodeLike) -> DType | None:
    try:
        return as_dtype(node.get_attr("dtype"))
    except (KeyError, ValueError, TypeError):  # a table, say
        return None


def _positive(num_tasks: int) -> int:
    if num_tasks < 1:
        raise ValueError(f"A strategy needs at least one task to choose from, not {num_tasks}")
    return num_tasks


def byte_size_load_fn(node: NodeLike) -> int:
    """The bytes that a node's value takes: elements times bytes per element.

    For a `VarHandleOp`, whose output is only a handle, the bytes of the variable behind it. An output of
    unknown shape is measured by the node's `shape` attribute.

    Raises:
        ValueError: the node does not have exactly one output, or the shape is not fully known.
    """
    if len(node.outputs) != 1:
        raise ValueError(f"Node '{node.name}' ({node.type}) must have one output, not {len(node.outputs)}")
    output = node.outputs[0]
    if node.type == "VarHandleOp":
        dtype, dims = as_dtype(node.get_attr("dtype")), _shape_attr(node)
    else:
        dtype, dims = output.dtype.base_dtype, output.dims
        if element_count(dims) is None:
            dims = _shape_attr(node)
    count = element_count(dims)
    if count is None:
        raise ValueError(
            f"The size of node '{node.name}' ({node.type}) is unknown: its shape is not fully defined. "
            f"Give it a static shape, or a load function that does not need one"
        )
    return count * int(dtype.size)


def _shape_attr(node: NodeLike) -> Dims:
    try:
        return as_dims(node.get_attr("shape"))
    except (KeyError, ValueError):  # no such attribute: then the shape stays unknown
        return None
