"""`Iterator`: returns elements of a data set in a graph. Its position is a variable.

The data set runs on the task where the position is placed: it reads files, calls functions and prefetches elements there. An iterator
without a device is in the task of the session's target.
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
from ..graph.ops.io.iterators import FULL_BATCH, handle_of, register
from ..graph.ops.random.random import random_uniform
from ..graph.ops.state.variables import assign
from ..graph.variables.variable import Variable, without_creators
from .checks import described, need_tensors
from .function import by_value, places_in
from .kind_registry import Described
from .runtime_values import as_known, seed_of
from .serialize import LIMIT, BoundError, encode
from .spec import Component, Structured, pack, same_form

# Kinds that change no element.
_PASS_ON = frozenset(
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
        position: the variable that holds its position: a seed, the number of elements given so far and, after
            `from_structure`, the data set.
    """

    def __init__(self, dataset: Described, one_shot: bool, name: str | None = None) -> None:
        self._one_shot = one_shot
        if one_shot and dataset._given:
            dataset = _with_values(dataset)
        self._set_up(
            dataset._structure,
            dataset._components,
            name or ("OneShotIterator" if one_shot else "Iterator"),
            (),
            places_in(dataset),
        )
        drawn = seed_of(None) if one_shot else None
        self._seed = drawn if isinstance(drawn, int) else 0
        self._attrs = register({0: dataset}, get_default_graph())
        self._full_batch = _full_batch(dataset)
        self._sent = _sent(dataset, 0, self._attrs, self.position)
        self._initializer = self._start(dataset, None) if dataset._given else self.position.initializer
        self._handle = self.string_handle()  # now, since sessions ask for it when the graph is finalized

    @classmethod
    def from_structure(
        cls,
        output_types: Any,
        output_shapes: Any = None,
        shared_name: str | None = None,
        output_classes: Any = None,
    ) -> Iterator:
        """An iterator for any data set of this structure; `make_initializer` binds it to one.

        Args:
            output_types: element types, in the structure of an element.
            output_shapes: shapes, in the same structure; None: unknown.
            shared_name: name of its nodes.
            output_classes: accepted without effect; components are tensors.

        >>> iterator = dt.data.Iterator.from_structure(train.output_types, train.output_shapes)
        >>> to_train, to_test = iterator.make_initializer(train), iterator.make_initializer(test)
        >>> x, y = iterator.get_next()
        """
        found = cls.__new__(cls)
        found._one_shot, found._seed, found._sent = False, 0, ()
        found._datasets = {}
        structure, components = described(output_types, output_shapes)
        found._set_up(structure, components, shared_name or "Iterator", (-1,))
        found._attrs = register(found._datasets, get_default_graph())
        found._handle = found.string_handle()
        return found

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> HandleIterator:
        """An iterator that returns elements of the iterator whose handle is fed.

        Args:
            string_handle: a scalar string placeholder, fed with the value of another iterator's `string_handle()`.
            output_types: as in `from_structure`.
            output_shapes: as in `from_structure`.
            output_classes: as in `from_structure`.
        """
        return HandleIterator(string_handle, *described(output_types, output_shapes))

    def _set_up(
        self,
        structure: Any,
        components: Sequence[Component],
        name: str,
        which: tuple[int, ...],
        places: Sequence[Node] = (),
    ) -> None:
        self._structure, self._components = structure, tuple(components)
        graph = get_default_graph()
        with graph.name_scope(name) as scope:
            anchor = _anchor(graph, places)
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
        """The node that starts the iterator, if `make_initializable_iterator` created it. ValueError: it did not."""
        if self._one_shot or self._datasets is not None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: Described, name: str | None = None) -> Node:
        """A node that starts the iterator with a data set, if `from_structure` created it.

        Raises:
            ValueError: the iterator belongs to one data set, or the structures differ. TypeError: types or shapes differ.
        """
        datasets = self._datasets
        if datasets is None:
            raise ValueError("Iterator does not support multiple initializers: make it with Iterator.from_structure")
        if len(dataset._components) != len(self._components) or not same_form(dataset._structure, self._structure):
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

    def _start(self, dataset: Described, which: int | None, name: str | None = None) -> Node:
        """A node that restarts a data set with the current values of its tensors. `which`: its number, if there are several."""
        graph = self.position.graph
        sent = self._sent if which is None else _sent(dataset, which, self._attrs, self.position)
        with (
            graph.name_scope(name or "make_initializer"),
            graph.colocate_with(self.position.op),
            graph.control_dependencies(sent),
        ):
            seed = random_uniform([], 0, 2**62, dtype=int64)
            tensors = [t for given in dataset._given for t in given.tensors]
            if tensors:
                inputs = (self.position.op.outputs[0], seed, *tensors)
                seed = apply("IteratorGive", inputs, {**self._attrs, "which": which or 0})
            numbers = () if which is None else (constant(which, int64),)
            start: Node = assign(self.position, stack([seed, constant(0, int64), *numbers])).op
            return start

    def string_handle(self, name: str | None = None) -> Tensor:
        """A string that names this iterator, for an iterator of `from_string_handle` in the same session."""
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
        if self._full_batch is not None:
            attrs[FULL_BATCH] = self._full_batch
        position = self.position.op.outputs[0]
        with self.position.graph.control_dependencies(self._sent):
            node = make("IteratorGetNext", (position,), attrs, name)
        return pack(self._structure, node.outputs)

    def __next__(self) -> Any:
        """`get_next()`, as programs of TensorFlow 2 write it: `next(iterator)`."""
        return self.get_next()

    def __iter__(self) -> Iterator:
        """Itself: in a graph there is no loop over its elements, so take them one by one with `next`."""
        return self

    _attrs: dict[str, Any]
    _initializer: Node
    _handle: Tensor | None = None
    _datasets: dict[int, Described] | None = None
    _full_batch: int | None = None


class HandleIterator:
    """Returns elements of the iterator whose handle is fed: `Iterator.from_string_handle`."""

    def __init__(self, handle: Any, structure: Any, components: Sequence[Component]) -> None:
        self._handle = convert(handle)
        self._structure, self._components = structure, tuple(components)
        graph = get_default_graph()
        with graph.init_scope():
            self._anchor = _anchor(graph)  # where its iterators are

    output_types = Iterator.output_types
    output_shapes = Iterator.output_shapes
    output_classes = Iterator.output_classes

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure. A step without a next element fails with OutOfRangeError."""
        with get_default_graph().colocate_with(self._anchor):
            node = make("IteratorGetNextByHandle", (self._handle,), _outputs(self._components), name)
        return pack(self._structure, node.outputs)


def single_element(dataset: Described) -> Any:
    """The first element of a data set as tensors. Each step starts the data set again."""
    graph = get_default_graph()
    attrs = {**register({0: dataset}, graph), "which": 0, "seed": seed_of(None) or 0, **_outputs(dataset._components)}
    tensors = [t for given in dataset._given for t in given.tensors]
    with graph.name_scope("single_element"), graph.init_scope():
        anchor = _anchor(graph, places_in(dataset))
    with graph.colocate_with(anchor):
        node = make("DatasetToSingleElement", tensors, {**attrs, **_description(dataset, anchor)})
    return pack(dataset._structure, node.outputs)


# --- where ------------------------------------------------------------------------------------------------------------


def _anchor(graph: Graph, places: Sequence[Node] = ()) -> Node:
    """A node with which an iterator is: where the blocks around it say (no device function sends its variable away), or with the
    state that its data set uses; else in the client's own task.

    Raises:
        ValueError: the state is in another task than the blocks say.
    """
    anchor = no_op(name="place")
    if places:
        for place in places:
            if _names_task(anchor) and _names_task(place) and not _is_same_task(anchor, place):
                raise ValueError(
                    f"A function of the data set uses '{place.name}' on {place.device} (created at {place.source}), and its iterator is "
                    f"placed on {anchor.device}: state is used only in its own task. Make it, or the iterator, under the other's device"
                )
        with ExitStack() as stack:
            for node in (anchor, *places):
                stack.enter_context(graph.colocate_with(node))
            anchor = no_op(name="place_with_state")
    if not _names_task(anchor):
        with graph.colocate_with(anchor), graph.control_dependencies(None):
            make("InClient", (), None, f"{anchor.name}/in_client/")
    return anchor


def _names_task(node: Node) -> bool:
    """Whether a node requests a specific task."""
    if not node.device:
        return False
    spec = DeviceSpec.from_string(node.device)
    return spec.job is not None or spec.task is not None


def _is_same_task(a: Node, b: Node) -> bool:
    one, other = (DeviceSpec.from_string(node.device) for node in (a, b))
    return (one.job, one.task or 0) == (other.job, other.task or 0)


def _description(dataset: Described, place: Node) -> dict[str, Any]:
    """Returns the attributes that describe a data set in a message; without a description, the reason why it stays in this process."""
    stays = {"description": b"", "arrays": ()}
    try:
        description, arrays = encode(dataset)
    except BoundError as e:
        return {**stays, "reason": f"it has {e}"}
    size = sum(a.nbytes for a in arrays)
    if not _names_task(place) and size > LIMIT:  # most sessions run in this process, which has the arrays
        return {**stays, "reason": f"it has {size} bytes of arrays, and no device says that they should be sent"}
    return {"description": description, "arrays": arrays, "reason": ""}


def _sent(dataset: Described, which: int, attrs: dict[str, Any], position: Variable) -> tuple[Node, ...]:
    """Returns the node that sends a data set to the task of a position, if a session finds that task in another process."""
    description, graph = _description(dataset, position.op), position.graph
    with graph.name_scope(f"{position.op.name.removesuffix('/position')}/"), graph.control_dependencies(None):
        return (make("IteratorPipeline", (position.op.outputs[0],), {**attrs, "which": which, **description}),)


def _with_values(dataset: Any) -> Described:
    """A data set of tensors as one of what computes them. ValueError: that needs a placeholder, or has state."""
    tensors = [t for given in dataset._given for t in given.tensors]
    try:
        function = by_value(tensors)
    except ValueError as e:
        raise ValueError(
            f"`Dataset.make_one_shot_iterator()` does not support datasets that capture stateful objects. {e}: an iterator of a "
            f"data set that is made from {tensors[0].name} needs make_initializable_iterator"
        ) from None
    bound = tuple([(g, g.count) for g in dataset._given])
    found: Described = dataset._then("with_values", dataset._size, function=function, bound=bound)
    found._given = ()
    return found


def _full_batch(dataset: Described) -> int | None:
    """Returns the batch size of the last `batch`, if only kinds that change no element follow it; None if unknown."""
    while dataset._kind in _PASS_ON:
        dataset = dataset._inputs[0]
    if dataset._kind not in ("batch", "padded_batch") or dataset._params.get("sparse"):
        return None
    return as_known(dataset._params["batch_size"])


def _outputs(components: Sequence[Component]) -> dict[str, Any]:
    need_tensors(components, "get_next")
    return {
        "output_types": tuple([c.dtype for c in components]),
        "output_shapes": tuple([c.dims for c in components]),
    }


def get_output_types(dataset_or_iterator: Described | Iterator) -> Any:
    """Element types, in the structure of the elements."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Described | Iterator) -> Any:
    """Static shapes, in the structure of the elements."""
    return dataset_or_iterator.output_shapes


def get_output_classes(dataset_or_iterator: Described | Iterator) -> Any:
    """Classes of the components, in the structure of the elements."""
    return dataset_or_iterator.output_classes
