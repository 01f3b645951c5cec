"""`Iterator`: returns the elements of a data set in a graph. Its position is a variable.

The data set runs in the task where this variable is placed: it reads files, calls functions and prefetches elements there. An iterator
without a device runs in the task of the session's target.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ..graph.core.build import apply, constant, convert, make
from ..graph.core.default_graph import GraphKeys, get_default_graph
from ..graph.core.device import DeviceSpec
from ..graph.core.dtypes import int64
from ..graph.core.graph import Graph, Node, Tensor
from ..graph.core.shape import compatible
from ..graph.ops.array.concat_stack import stack
from ..graph.ops.array.identity_and_placeholders import identity, no_op
from ..graph.ops.io.iterators import FULL_BATCH, SMALLER_BATCHES, handle_of, register
from ..graph.ops.random.random import random_uniform
from ..graph.ops.state.variables import assign
from ..graph.variables.variable import Variable, without_creators
from .checks import element_spec, need_tensors
from .function import constant_function, state_nodes_in
from .kind_registry import DatasetBase
from .runtime_values import seed_of, static_int
from .serialize import LIMIT, NotSerializableError, encode
from .spec import Component, Structured, pack, same_structure

# Kinds that change no element.
_ELEMENT_PRESERVING_KINDS = frozenset(
    [
        "filter",
        "shuffle",
        "repeat",
        "take",
        "skip",
        "shard",
        "cache",
        "prefetch",
        "with_options",
        "with_values",
        "take_while",
        "ignore_errors",
    ]
)


class Iterator(Structured):
    """Returns the elements of a data set, one per step. Concurrent steps get elements in the order in which they run.

    Attributes:
        initializer: the node that starts the iterator.
        position: the variable that holds its position, an int64 vector: the seed, the number of elements returned so far and, after
            `from_structure`, the number of the data set.
    """

    def __init__(self, dataset: DatasetBase, one_shot: bool, name: str | None = None) -> None:
        self._one_shot = one_shot
        if one_shot and dataset._runtime_inputs:
            dataset = _with_values(dataset)
        self._set_up(
            dataset._structure,
            dataset._components,
            name or ("OneShotIterator" if one_shot else "Iterator"),
            (),
            state_nodes_in(dataset),
        )
        drawn = seed_of(None) if one_shot else None
        self._seed = drawn if isinstance(drawn, int) else 0
        self._attrs = register({0: dataset}, get_default_graph())
        self._batches = _batches(dataset)
        self._sent = _sent(dataset, 0, self._attrs, self.position)
        self._initializer = self._start(dataset, None) if dataset._runtime_inputs else self.position.initializer
        self._handle = self.string_handle()  # made now, because the graph may be finalized when a session needs it

    @classmethod
    def from_structure(
        cls,
        output_types: Any,
        output_shapes: Any = None,
        shared_name: str | None = None,
        output_classes: Any = None,
    ) -> Iterator:
        """An iterator for any data set of a structure. `make_initializer` binds it to a data set.

        Args:
            output_types: element types, in the structure of an element.
            output_shapes: shapes, in the same structure; None: unknown.
            shared_name: name of the iterator's nodes.
            output_classes: accepted without effect.

        >>> iterator = dt.data.Iterator.from_structure(train.output_types, train.output_shapes)
        >>> to_train, to_test = iterator.make_initializer(train), iterator.make_initializer(test)
        >>> x, y = iterator.get_next()
        """
        found = cls.__new__(cls)
        found._one_shot, found._seed, found._sent = False, 0, ()
        found._datasets = {}
        structure, components = element_spec(output_types, output_shapes)
        found._set_up(structure, components, shared_name or "Iterator", (-1,))
        found._attrs = register(found._datasets, get_default_graph())
        found._handle = found.string_handle()
        return found

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> HandleIterator:
        """An iterator that returns elements of another one, whose handle is fed.

        Args:
            string_handle: a scalar string placeholder, fed with the value of another iterator's `string_handle()`.
            output_types: as in `from_structure`.
            output_shapes: as in `from_structure`.
            output_classes: as in `from_structure`.
        """
        return HandleIterator(string_handle, *element_spec(output_types, output_shapes))

    def _set_up(
        self,
        structure: Any,
        components: Sequence[Component],
        name: str,
        which: tuple[int, ...],
        state_nodes: Sequence[Node] = (),
    ) -> None:
        self._structure, self._components = structure, tuple(components)
        graph = get_default_graph()
        with graph.name_scope(name) as scope:
            anchor = _anchor(graph, state_nodes)
            with graph.init_scope(), graph.colocate_with(anchor), without_creators():
                seed = random_uniform([], 0, 2**62, dtype=int64)
                self.position = Variable(
                    stack([seed, constant(0, int64), *(constant(n, int64) for n in which)]),
                    trainable=False,
                    use_resource=False,
                    collections=[GraphKeys.LOCAL_VARIABLES],
                    name=f"{scope}position" if scope else "position",
                )

    @property
    def initializer(self) -> Node:
        """The node that starts the iterator. ValueError: `make_initializable_iterator` did not create the iterator."""
        if self._one_shot or self._datasets is not None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: DatasetBase, name: str | None = None) -> Node:
        """Returns a node that starts an iterator of `from_structure` with a data set.

        Args:
            dataset: the data set.
            name: name scope of the nodes.

        Raises:
            ValueError: `from_structure` did not create the iterator, or the structures differ.
            TypeError: the types or shapes differ.
        """
        datasets = self._datasets
        if datasets is None:
            raise ValueError("Iterator does not support multiple initializers. Create it with Iterator.from_structure")
        if len(dataset._components) != len(self._components) or not same_structure(dataset._structure, self._structure):
            raise ValueError(
                f"The data set's structure, {dataset.output_types}, is not that of the iterator, {self.output_types}"
            )
        fits = all(
            a.dtype is b.dtype and compatible(a.dims, b.dims)
            for a, b in zip(dataset._components, self._components, strict=True)
        )
        if not fits:
            raise TypeError(
                f"Expected elements of {self.output_types} with shapes {self.output_shapes}, "
                f"got {dataset.output_types} with {dataset.output_shapes}"
            )
        which = len(datasets)
        datasets[which] = dataset
        return self._start(dataset, which, name)

    def _start(self, dataset: DatasetBase, which: int | None, name: str | None = None) -> Node:
        """Returns a node that restarts a data set with new values of its runtime inputs. `which`: its number, if there are several."""
        graph = self.position.graph
        sent = self._sent if which is None else _sent(dataset, which, self._attrs, self.position)
        with (
            graph.name_scope(name or "make_initializer"),
            graph.colocate_with(self.position.op),
            graph.control_dependencies(sent),
        ):
            seed = random_uniform([], 0, 2**62, dtype=int64)
            tensors = [t for given in dataset._runtime_inputs for t in given.tensors]
            if tensors:
                inputs = (self.position.op.outputs[0], seed, *tensors)
                seed = apply("IteratorGive", inputs, {**self._attrs, "which": which or 0})
            numbers = () if which is None else (constant(which, int64),)
            start: Node = assign(self.position, stack([seed, constant(0, int64), *numbers])).op
            return start

    def string_handle(self, name: str | None = None) -> Tensor:
        """A string tensor that names this iterator, for `from_string_handle` in the same session."""
        if name is None and self._handle is not None:
            return self._handle
        op, graph = self.position.op, self.position.graph
        handle = handle_of(self._attrs, self._one_shot, self._seed, op.container, op.attrs["shared_name"] or op.name)
        with graph.colocate_with(op), graph.control_dependencies(self._sent):
            found = constant(handle, name="handle" if self._sent else name or "handle")
            return identity(found, name=name or "handle") if self._sent else found

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure. A step without a next element fails with OutOfRangeError."""
        attrs = {**self._attrs, "one_shot": self._one_shot, "seed": self._seed, **_outputs(self._components)}
        attrs |= self._batches
        position = self.position.op.outputs[0]
        with self.position.graph.control_dependencies(self._sent):
            node = make("IteratorGetNext", (position,), attrs, name)
        return pack(self._structure, node.outputs)

    def __next__(self) -> Any:
        """`get_next()`, so that `next(iterator)` works."""
        return self.get_next()

    def __iter__(self) -> Iterator:
        """Returns the iterator itself. `next` returns the tensors of the next element. They never end, so a `for` loop does not either."""
        return self

    _attrs: dict[str, Any]
    _initializer: Node
    _handle: Tensor | None = None
    _datasets: dict[int, DatasetBase] | None = None
    _batches: dict[str, Any] = {}


class HandleIterator:
    """Returns the elements of the iterator whose handle is fed. `Iterator.from_string_handle` creates it."""

    def __init__(self, handle: Any, structure: Any, components: Sequence[Component]) -> None:
        self._handle = convert(handle)
        self._structure, self._components = structure, tuple(components)
        graph = get_default_graph()
        with graph.init_scope():
            self._anchor = _anchor(graph)  # its iterators must be in the same task

    output_types = Iterator.output_types
    output_shapes = Iterator.output_shapes
    output_classes = Iterator.output_classes

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure. A step without a next element fails with OutOfRangeError."""
        with get_default_graph().colocate_with(self._anchor):
            node = make("IteratorGetNextByHandle", (self._handle,), _outputs(self._components), name)
        return pack(self._structure, node.outputs)


def single_element(dataset: DatasetBase) -> Any:
    """Returns the first element of a data set, as tensors. Each step starts the data set again."""
    graph = get_default_graph()
    attrs = {**register({0: dataset}, graph), "which": 0, "seed": seed_of(None) or 0, **_outputs(dataset._components)}
    tensors = [t for given in dataset._runtime_inputs for t in given.tensors]
    with graph.name_scope("single_element"), graph.init_scope():
        anchor = _anchor(graph, state_nodes_in(dataset))
    with graph.colocate_with(anchor):
        node = make("DatasetToSingleElement", tensors, {**attrs, **_description(dataset, anchor)})
    return pack(dataset._structure, node.outputs)


# --- placement --------------------------------------------------------------------------------------------------------


def _anchor(graph: Graph, state_nodes: Sequence[Node] = ()) -> Node:
    """Returns a node with which an iterator is colocated.

    The device blocks around the iterator determine its task. Without them, it is the task of the state that the data set uses, or else the
    client's own task. A device function that places variables has no effect on it.

    Raises:
        ValueError: the state is in another task than the one that the blocks request.
    """
    anchor = no_op(name="place")
    if state_nodes:
        for state in state_nodes:
            if _requests_task(anchor) and _requests_task(state) and not _is_same_task(anchor, state):
                raise ValueError(
                    f"A function of the data set uses '{state.name}' on {state.device} (created at {state.source}), but its iterator is "
                    f"placed on {anchor.device}. State can be used only in its own task. Create both under the same device"
                )
        with ExitStack() as stack:
            for node in (anchor, *state_nodes):
                stack.enter_context(graph.colocate_with(node))
            anchor = no_op(name="place_with_state")
    if not _requests_task(anchor):
        with graph.colocate_with(anchor), graph.control_dependencies(None):
            make("InClient", (), None, f"{anchor.name}/in_client/")
    return anchor


def _requests_task(node: Node) -> bool:
    """Whether a node requests a specific task."""
    if not node.device:
        return False
    spec = DeviceSpec.from_string(node.device)
    return spec.job is not None or spec.task is not None


def _is_same_task(a: Node, b: Node) -> bool:
    one, other = (DeviceSpec.from_string(node.device) for node in (a, b))
    return (one.job, one.task or 0) == (other.job, other.task or 0)


def _description(dataset: DatasetBase, anchor: Node) -> dict[str, Any]:
    """Returns the attributes of a node that sends a data set: its description, or the reason why it stays in this process."""
    stays = {"description": b"", "arrays": ()}
    try:
        description, arrays = encode(dataset)
    except NotSerializableError as e:
        return {**stays, "reason": f"it has {e}"}
    size = sum(a.nbytes for a in arrays)
    if not _requests_task(anchor) and size > LIMIT:  # most sessions run in this process, which has the arrays
        return {**stays, "reason": f"it has {size} bytes of arrays, and no device requests another task"}
    return {"description": description, "arrays": arrays, "reason": ""}


def _sent(dataset: DatasetBase, which: int, attrs: dict[str, Any], position: Variable) -> tuple[Node, ...]:
    """Returns the node that sends a data set to the task of a position, if that task is in another process."""
    description, graph = _description(dataset, position.op), position.graph
    with graph.name_scope(f"{position.op.name.removesuffix('/position')}/"), graph.control_dependencies(None):
        return (make("IteratorPipeline", (position.op.outputs[0],), {**attrs, "which": which, **description}),)


def _with_values(dataset: Any) -> DatasetBase:
    """Returns a data set that computes its runtime inputs itself. ValueError: they depend on a placeholder or on state."""
    tensors = [t for given in dataset._runtime_inputs for t in given.tensors]
    try:
        function = constant_function(tensors)
    except ValueError as e:
        raise ValueError(
            f"`Dataset.make_one_shot_iterator()` does not support datasets that capture stateful objects. {e}. Use "
            f"make_initializable_iterator for a data set that depends on {tensors[0].name}"
        ) from None
    bound = tuple([(g, g.count) for g in dataset._runtime_inputs])
    found: DatasetBase = dataset._transformed("with_values", dataset._size, function=function, bound=bound)
    found._runtime_inputs = ()
    return found


def _batches(dataset: DatasetBase) -> dict[str, Any]:
    """Returns what is known of the last `batch`, as attributes of `IteratorGetNext`, if only element-preserving kinds follow it."""
    while dataset._kind in _ELEMENT_PRESERVING_KINDS:
        dataset = dataset._inputs[0]
    if dataset._kind not in ("batch", "padded_batch") or dataset._params.get("sparse"):
        return {}
    rows, elements = static_int(dataset._params["batch_size"]), dataset._inputs[0]._size
    fits = rows is not None and elements is not None and (elements == float("inf") or elements % rows == 0)
    return {} if rows is None else {FULL_BATCH: rows, SMALLER_BATCHES: not fits}


def _outputs(components: Sequence[Component]) -> dict[str, Any]:
    need_tensors(components, "get_next")
    return {
        "output_types": tuple([c.dtype for c in components]),
        "output_shapes": tuple([c.dims for c in components]),
    }


def get_output_types(dataset_or_iterator: DatasetBase | Iterator) -> Any:
    """Element types, in the structure of the elements."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: DatasetBase | Iterator) -> Any:
    """Static shapes, in the structure of the elements."""
    return dataset_or_iterator.output_shapes


def get_output_classes(dataset_or_iterator: DatasetBase | Iterator) -> Any:
    """Classes of the components, in the structure of the elements."""
    return dataset_or_iterator.output_classes


def make_one_shot_iterator(dataset: DatasetBase) -> Iterator:
    """`dataset.make_one_shot_iterator()`, under its name in `tf.compat.v1.data`."""
    return Iterator(dataset, True)


def make_initializable_iterator(dataset: DatasetBase, shared_name: str | None = None) -> Iterator:
    """`dataset.make_initializable_iterator()`, under its name in `tf.compat.v1.data`."""
    return Iterator(dataset, False, shared_name)
