"""`replica_device_setter`: variables to the parameter servers, all else to the worker.

The setter is a device function: a device block calls it with each node made inside, and what it returns
becomes the node's device. It merges, so blocks inside it win field by field. The one thing it keeps is the
strategy's state: round robin advances once per variable that could go to the ps job, so the order of creation
decides, and every client that builds the same graph puts each variable on the same task.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, SupportsIndex

from ..graph.device import DeviceSpec, canonical_name, merge_names
from ..graph.dtypes import as_dtype
from ..graph.shape import Dims, as_dims, element_count
from .cluster import ClusterDef, ClusterSpec

logger = logging.getLogger(__name__)

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
    def outputs(self) -> Sequence[Any]: ...
    def get_attr(self, name: str) -> Any: ...


Strategy = Callable[[Any], SupportsIndex]
"""Chooses a ps task's index for a node."""


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Mapping[str, Any] | ClusterDef | ClusterSpec | None = None,
    ps_ops: Collection[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> Callable[[NodeLike], str] | None:
    """A device function for replicated training, for use as `with dt.device(replica_device_setter(...))`.

    Args:
        ps_tasks: number of parameter servers. Ignored when `cluster` is given.
        ps_device: where ps ops go. When it names a job, its task is chosen by the strategy, unless an inner
            block asks for another job. `""`: ps ops are treated like all others.
        worker_device: where other ops go. `""`: nowhere in particular.
        merge_devices: False leaves a node alone that inner blocks gave any device at all (deprecated).
        cluster: the number of parameter servers is the number of tasks of the job in `ps_device`.
        ps_ops: types of the ops that go to the parameter servers; `STANDARD_PS_OPS` unless given.
        ps_strategy: function from a node to the index of its ps task; round robin unless given. Its value is
            not checked here: a task that does not exist is an error of the placer.

    Returns:
        The device function; None when there are no parameter servers. Mind that `with dt.device(None)` does
        more than nothing: it hides the device blocks around it.

    Raises:
        TypeError: `ps_strategy` is not callable, `ps_ops` is a string, or `cluster` describes no cluster.
        ValueError: `ps_tasks` is negative, or `ps_device` or `worker_device` is no device spec.

    >>> with dt.device(replica_device_setter(cluster={"ps": ["a:1", "b:1"], "worker": ["c:1"]})):
    ...     v, w = dt.Variable(1.0), dt.Variable(2.0)  # /job:ps/task:0, /job:ps/task:1
    ...     s = v + w  # /job:worker
    """
    ps_spec = DeviceSpec.from_string(ps_device)
    if cluster is not None:
        spec = ClusterSpec(cluster)
        ps_tasks = spec.num_tasks(ps_spec.job) if ps_spec.job in spec.jobs else 0
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
        wanted = ps_spec
        if wanted.job and (not inner.job or inner.job == wanted.job):
            wanted = wanted.replace(task=strategy(node))
        return wanted.make_merged_spec(inner).to_string()

    choose.__name__ = "replica_device_setter"  # what `explain` calls the block
    return choose


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
        # Python's own hash of a string differs between processes; blake2b's does not.
        digest = hashlib.blake2b(f"{node.name}_{self._seed}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self._num_tasks


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
