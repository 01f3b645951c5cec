"""`Iterator`: takes elements of a data set in a graph, from a position that is a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..graph.build import constant, make
from ..graph.default_graph import get_default_graph
from ..graph.dtypes import int64
from ..graph.graph_keys import GraphKeys
from ..graph.node import Node
from ..graph.ops.iterators import register
from ..graph.ops.joining import stack
from ..graph.ops.passing import no_op
from ..graph.ops.random import random_uniform
from ..graph.variables import Variable
from .spec import pack

if TYPE_CHECKING:
    from .dataset import Dataset


class Iterator:
    """Takes elements of a data set in a graph. Steps that take from one iterator get elements in the order in which they run.

    Attributes:
        initializer: starts it. position: the variable that says where it stands: a seed, and how many elements it has given.
    """

    def __init__(self, dataset: Dataset, one_shot: bool, name: str | None = None) -> None:
        self._dataset = dataset
        self._one_shot = one_shot
        graph = get_default_graph()
        with graph.name_scope(name or ("OneShotIterator" if one_shot else "Iterator")) as scope:
            anchor = no_op(
                name="place"
            )  # where this client computes: a device function must not send the position away
            with graph.init_scope(), graph.colocate_with(anchor):
                seed = random_uniform([], 0, 2**62, dtype=int64)
                self.position = Variable(
                    stack([seed, constant(0, int64)]),
                    trainable=False,
                    use_resource=False,
                    collections=[GraphKeys.LOCAL_VARIABLES],
                    name=f"{scope}position" if scope else "position",
                )
        self._attrs = register(lambda seed, skip: dataset._walk((seed,), skip), graph)

    @property
    def initializer(self) -> Node:
        """A node that starts it; only of `make_initializable_iterator`."""
        if self._one_shot:
            raise ValueError("Iterator does not have an initializer.")
        return self.position.initializer

    @property
    def output_types(self) -> Any:
        """As of the data set."""
        return self._dataset.output_types

    @property
    def output_shapes(self) -> Any:
        """As of the data set."""
        return self._dataset.output_shapes

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure. OutOfRangeError in the step that finds none."""
        components = self._dataset._components
        attrs = {
            **self._attrs,
            "one_shot": self._one_shot,
            "output_types": tuple([c.dtype for c in components]),
            "output_shapes": tuple([c.dims for c in components]),
        }
        node = make("IteratorGetNext", (self.position.op.outputs[0],), attrs, name)
        return pack(self._dataset._structure, node.outputs)


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
