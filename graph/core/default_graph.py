"""The default graph and session of a thread, public functions that act on them, and standard names of collections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .device import merge_names
from .graph import Graph, Node, Tensor
from .scopes import as_canonical, open_blocks, pushed

_global: list[Graph] = []  # the process's default graph, made on first use; in a list so that it can be replaced


def get_default_graph() -> Graph:
    """The graph of the innermost `with graph.as_default()` of this thread, or else the process's own graph."""
    graphs: list[Graph] = open_blocks.graphs
    if graphs:
        return graphs[-1]
    if not _global:
        _global.append(Graph())
    return _global[0]


def reset_default_graph() -> None:
    """Replace the default graph by a new one. AssertionError inside a `with graph.as_default()` block, as in TensorFlow."""
    if open_blocks.graphs:
        raise AssertionError("Do not use reset_default_graph() inside a `with graph.as_default()` block")
    _global[:] = [Graph()]


def get_default_session() -> Any:
    """The innermost `with session:` of this thread, or None."""
    return open_blocks.sessions[-1] if open_blocks.sessions else None


def default_session(session: Any) -> AbstractContextManager[Any]:
    """A context in which `session` is the default session of the thread."""
    return pushed(open_blocks.sessions, session)


# --- public functions that act on the default graph ----------------------------------------------------------------
def device(device_name_or_function: Any) -> AbstractContextManager[None]:
    """A context whose nodes in the default graph request a device.

    Blocks nest; fields of inner blocks take precedence.

    Args:
        device_name_or_function: a device spec (`"/job:ps/task:0"`, `"/gpu:1"`), a `DeviceSpec`, a function from a node to one of these, or
            None, which hides outer blocks.

    Raises:
        ValueError: the name is malformed.

    >>> with dt.device("/job:worker"), dt.device("/gpu:0"):
    ...     x = dt.constant(1.0)
    >>> x.device
    '/job:worker/device:GPU:0'
    """
    return get_default_graph().device(device_name_or_function)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """A context whose nodes in the default graph share the device of `op` (a node, tensor or variable).

    Device blocks around it do not apply inside. `ignore_existing` also hides outer `colocate_with` blocks; only then may `op` be None.

    >>> with dt.colocate_with(w):
    ...     moving_average = dt.Variable(dt.zeros_like(w.initial_value), trainable=False)
    """
    return get_default_graph().colocate_with(op, ignore_existing)


def control_dependencies(control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
    """A context whose nodes in the default graph run after the given nodes, tensors or variables.

    It applies to nodes that are *created* inside: a tensor that was created before does not wait. None hides outer blocks.

    >>> with dt.control_dependencies([update]):
    ...     value = dt.identity(w)  # read after the update
    """
    return get_default_graph().control_dependencies(control_inputs)


def container(container_name: str) -> AbstractContextManager[str]:
    """A context whose variables and queues in the default graph have their state in this container of their task.

    `dt.Session.reset(target, [container_name])` clears it.
    """
    return get_default_graph().container(container_name)


def name_scope(
    name: str | None, default_name: str | None = None, values: Sequence[Any] | None = None
) -> AbstractContextManager[str]:
    """A context whose nodes' names start with `<name>/`; yields that prefix.

    Args:
        name: the scope; a name that ends with '/' is used unchanged, which re-enters a scope. '' or None leaves all scopes.
        default_name: used if `name` is None.
        values: tensors that determine the graph. Without a tensor, the default graph is used.

    Raises:
        ValueError: the name is invalid.

    >>> with dt.name_scope("layer"):
    ...     print(dt.constant(1.0, name="x").name)
    layer/x:0
    """
    graph = next((v.graph for v in values or () if isinstance(v, (Tensor, Node))), None) or get_default_graph()
    return graph.name_scope(default_name if name is None else name)


def add_to_collection(name: str, value: Any) -> None:
    """`Graph.add_to_collection` on the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """`Graph.get_collection` on the default graph."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: str) -> list[Any]:
    """`Graph.get_collection_ref` on the default graph."""
    return get_default_graph().get_collection_ref(key)


def set_random_seed(seed: int | None) -> None:
    """Set the graph-level seed of the default graph; nodes that are created afterwards use it."""
    get_default_graph().seed = seed


def merge_device(spec: Any) -> Callable[[Node], Any]:
    """A device function that merges `spec` as a device block does; for use as `with dt.device(merge_device(spec))`."""
    requested = as_canonical(spec if spec is not None else "")

    def merge(node: Node) -> str:
        return merge_names(requested, node.device)

    return merge


class GraphKeys:
    """Standard names of collections, as TensorFlow 1 has them."""

    GLOBAL_VARIABLES = "variables"
    VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    METRIC_VARIABLES = "metric_variables"
    MODEL_VARIABLES = "model_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    SUMMARIES = "summaries"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    ASSET_FILEPATHS = "asset_filepaths"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    REGULARIZATION_LOSSES = "regularization_losses"
    CONCATENATED_VARIABLES = "concatenated_variables"
    SAVERS = "savers"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    UPDATE_OPS = "update_ops"
    LOSSES = "losses"
    SAVEABLE_OBJECTS = "saveable_objects"
    RESOURCES = "resources"
    LOCAL_RESOURCES = "local_resources"
    TRAINABLE_RESOURCE_VARIABLES = "trainable_resource_variables"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    SUMMARY_OP = "summary_op"
    GLOBAL_STEP = "global_step"
    TRAIN_OP = "train_op"
    COND_CONTEXT = "cond_context"
    WHILE_CONTEXT = "while_context"
