"""`Iterator`: takes elements of a data set in a graph, from a position that is a variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.build import apply, constant, convert, make
from ..graph.default_graph import get_default_graph
from ..graph.dtypes import int64
from ..graph.graph_keys import GraphKeys
from ..graph.node import Node, Tensor
from ..graph.ops.iterators import handle_of, register
from ..graph.ops.joining import stack
from ..graph.ops.passing import no_op
from ..graph.ops.random import random_uniform
from ..graph.ops.state import assign
from ..graph.shape import TensorShape, compatible
from ..graph.variables import Variable
from .checks import described
from .spec import Array, Component, pack

if TYPE_CHECKING:
    from .dataset import Dataset


class Iterator:
    """Takes elements of a data set in a graph. Steps that take from one iterator get elements in the order in which they run.

    Attributes:
        initializer: starts it. position: the variable that says where it stands: a seed, and how many elements it has given; and from
            which data set, for one of `from_structure`.
    """

    def __init__(self, dataset: Dataset, one_shot: bool, name: str | None = None) -> None:
        self._one_shot = one_shot
        if one_shot and dataset._given:
            tensor = dataset._given[0].tensors[0]
            raise ValueError(
                f"Cannot capture {tensor!r} by value: an iterator of a data set that is made from tensors needs make_initializable_iterator"
            )
        self._set_up(
            dataset._structure, dataset._components, name or ("OneShotIterator" if one_shot else "Iterator"), ()
        )
        self._attrs = register(
            lambda seed, skip: dataset._walk((seed,), skip),
            get_default_graph(),
            lambda *given: _keep([dataset], *given),
        )
        self._initializer = self._start(dataset, None) if dataset._given else self.position.initializer

    @classmethod
    def from_structure(
        cls,
        output_types: Any,
        output_shapes: Any = None,
        shared_name: str | None = None,
        output_classes: Any = None,
    ) -> Iterator:
        """An iterator for any data set of this structure: `make_initializer` chooses one.

        Args:
            output_types, output_shapes: of the elements, in their structure; None: shapes are unknown.
            shared_name: name of its nodes. output_classes: accepted: elements are tensors.

        >>> iterator = dt.data.Iterator.from_structure(train.output_types, train.output_shapes)
        >>> to_train, to_test = iterator.make_initializer(train), iterator.make_initializer(test)
        >>> x, y = iterator.get_next()
        """
        found = cls.__new__(cls)
        found._one_shot = False
        datasets: list[Dataset] = []
        found._datasets = datasets
        structure, components = described(output_types, output_shapes)
        found._set_up(structure, components, shared_name or "Iterator", (-1,))
        found._attrs = register(
            lambda seed, skip, which: datasets[which]._walk((seed,), skip),
            get_default_graph(),
            lambda *given: _keep(datasets, *given),
        )
        return found

    @staticmethod
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None, output_classes: Any = None
    ) -> HandleIterator:
        """What takes from the iterator whose handle is fed.

        Args:
            string_handle: a placeholder of one text, for what `session.run(iterator.string_handle())` gave.
            output_types, output_shapes, output_classes: as of `from_structure`.
        """
        return HandleIterator(string_handle, *described(output_types, output_shapes))

    def _set_up(self, structure: Any, components: Sequence[Component], name: str, which: tuple[int, ...]) -> None:
        self._structure, self._components = structure, tuple(components)
        graph = get_default_graph()
        with graph.name_scope(name) as scope:
            # where this client computes: a device function must not send the position away
            anchor = no_op(name="place")
            with graph.init_scope(), graph.colocate_with(anchor):
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
        """A node that starts it; only of `make_initializable_iterator`."""
        if self._one_shot or self._datasets is not None:
            raise ValueError("Iterator does not have an initializer.")
        return self._initializer

    def make_initializer(self, dataset: Dataset, name: str | None = None) -> Node:
        """A node that lets it start with a data set; only of `from_structure`.

        Raises:
            ValueError: it belongs to one data set. TypeError: the data set's elements are not those of its structure.
        """
        datasets = self._datasets
        if datasets is None:
            raise ValueError("Iterator does not support multiple initializers: make it with Iterator.from_structure")
        fits = len(dataset._components) == len(self._components) and all(
            a.dtype is b.dtype and compatible(a.dims, b.dims)
            for a, b in zip(dataset._components, self._components, strict=True)
        )
        if not fits:
            raise TypeError(
                f"Expected elements of {self.output_types} with shapes {self.output_shapes}, "
                f"got {dataset.output_types} with {dataset.output_shapes}"
            )
        datasets.append(dataset)
        return self._start(dataset, len(datasets) - 1, name)

    def _start(self, dataset: Dataset, which: int | None, name: str | None = None) -> Node:
        """A node that starts a data set anew, with the values that its tensors have then. `which`: its number, if there are several."""
        graph = get_default_graph()
        with graph.name_scope(name or "make_initializer"), graph.colocate_with(self.position.op):
            seed = random_uniform([], 0, 2**62, dtype=int64)
            tensors = [t for given in dataset._given for t in given.tensors]
            if tensors:
                seed = apply("IteratorGive", (seed, *tensors), {**self._attrs, "which": which or 0})
            numbers = () if which is None else (constant(which, int64),)
            start: Node = assign(self.position, stack([seed, constant(0, int64), *numbers])).op
            return start

    def string_handle(self, name: str | None = None) -> Tensor:
        """One text that names this iterator, for a node of `from_string_handle` in the same session."""
        op = self.position.op
        return constant(
            handle_of(self._attrs, self._one_shot, op.container, op.attrs["shared_name"] or op.name),
            name=name or "handle",
        )

    @property
    def output_types(self) -> Any:
        """As of the data set."""
        return pack(self._structure, [c.dtype for c in self._components])

    @property
    def output_shapes(self) -> Any:
        """As of the data set."""
        return pack(self._structure, [TensorShape(c.dims) for c in self._components])

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure. OutOfRangeError in the step that finds none."""
        attrs = {**self._attrs, "one_shot": self._one_shot, **_outputs(self._components)}
        node = make("IteratorGetNext", (self.position.op.outputs[0],), attrs, name)
        return pack(self._structure, node.outputs)

    _attrs: dict[str, Any]
    _initializer: Node
    _datasets: list[Dataset] | None = None


class HandleIterator:
    """Takes elements of the iterator whose handle it is fed: `Iterator.from_string_handle`."""

    def __init__(self, handle: Any, structure: Any, components: Sequence[Component]) -> None:
        self._handle = convert(handle)
        self._structure, self._components = structure, tuple(components)
        with get_default_graph().init_scope():
            self._anchor = no_op(name="place")  # where this client computes, and its iterators

    output_types = Iterator.output_types
    output_shapes = Iterator.output_shapes

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure. OutOfRangeError in the step that finds none."""
        with get_default_graph().colocate_with(self._anchor):
            node = make("IteratorGetNextByHandle", (self._handle,), _outputs(self._components), name)
        return pack(self._structure, node.outputs)


def _keep(datasets: Sequence[Dataset], which: int, seed: int, values: Sequence[Array], before: int | None) -> None:
    """Give a data set the values of its tensors for a start; forget those of the start before."""
    for dataset in datasets:
        for given in dataset._given:
            if before is not None:
                given.forget(before)
    left = iter(values)
    for given in datasets[which]._given:
        given.keep(seed, [next(left) for _ in given.tensors])


def _outputs(components: Sequence[Component]) -> dict[str, Any]:
    return {
        "output_types": tuple([c.dtype for c in components]),
        "output_shapes": tuple([c.dims for c in components]),
    }


def make_one_shot_iterator(dataset: Dataset) -> Iterator:
    """`dataset.make_one_shot_iterator()`, as TensorFlow 2's compatibility names have it."""
    return dataset.make_one_shot_iterator()


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> Iterator:
    """`dataset.make_initializable_iterator()`, likewise."""
    return dataset.make_initializable_iterator(shared_name)


def get_output_types(dataset_or_iterator: Dataset | Iterator) -> Any:
    """Element types, in the structure of the elements."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Dataset | Iterator) -> Any:
    """Static shapes, in the structure of the elements."""
    return dataset_or_iterator.output_shapes
