"""From tensors back to layers: which calls lead from a model's inputs to its outputs, and how they are done again.

Nodes that no layer made, such as `x * 2`, are done again one by one: each is a call of a layer for that node alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....graph.core.default_graph import get_default_graph
from ....graph.core.graph import Node, Tensor
from ....graph.core.nest import flatten, map_structure
from .backend import GraphState
from .layers.base import Call, Layer
from .layers.inputs import InputLayer


class NodeLayer(Layer):
    """A node that is made anew with other inputs."""

    def __init__(self, node: Node) -> None:
        super().__init__(name=GraphState.of(get_default_graph()).unique_name(f"node_{node.type.lower()}"))
        self._node = node
        self.built = True

    def call(self, inputs: Any) -> Any:
        """See `Layer.call`."""
        node = self._node
        made = get_default_graph().create(node.opdef, tuple(flatten(inputs)), node.attrs, node.name.rpartition("/")[2])
        return list(made.outputs)

    def get_config(self) -> dict[str, Any]:
        """Not possible: ValueError."""
        raise ValueError(
            f"'{self._node.name}' was made by an op, not by a layer, and cannot be saved: put what makes it into a layer, such as "
            "Lambda(function)"
        )


class Network:
    """The calls between some inputs and some outputs, in an order in which each comes after those that it needs.

    Args:
        inputs, outputs: tensors.

    Raises:
        ValueError: an output depends on an `Input` that is not among the inputs, or a tensor is no `Input` and follows from none.
    """

    def __init__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.calls: list[Call] = []
        self._state = GraphState.of(self.inputs[0].graph)
        self._made: dict[Tensor, Call | None] = {}  # None: it follows from no input
        self._wanted = set(self.inputs)
        for t in self.inputs:
            if t not in self._state.calls:
                raise ValueError(f"A model's inputs are made by `keras.Input`; {t!r} is not")
        for t in self.outputs:
            if not self._visit(t) and t not in self._wanted:
                raise ValueError(f"The output {t!r} does not depend on the inputs {self.inputs}")

    def _visit(self, start: Tensor) -> bool:
        """Order the calls that a tensor needs; says whether it follows from an input."""
        todo: list[tuple[Tensor, bool]] = [(start, False)]
        while todo:
            tensor, ready = todo.pop()
            if tensor in self._made or tensor in self._wanted:
                continue
            call = self._state.calls.get(tensor)
            needed = call.inputs if call is not None else list(tensor.op.inputs)
            if call is not None and isinstance(call.layer, InputLayer):
                raise ValueError(
                    f"{tensor!r} is an Input on which the outputs depend, and is not among the model's inputs"
                )
            if not ready:
                todo.append((tensor, True))
                todo.extend((t, False) for t in needed)
                continue
            if call is None and any(self._follows(t) for t in needed):
                call = Call(NodeLayer(tensor.op), (list(needed),), {}, list(tensor.op.outputs))
            if call is not None:
                self.calls.append(call)
                for y in flatten(call.outputs):
                    self._made[y] = call
            self._made.setdefault(tensor, None)
        return self._follows(start)

    def _follows(self, tensor: Tensor) -> bool:
        return tensor in self._wanted or self._made.get(tensor) is not None

    @property
    def layers(self) -> list[Layer]:
        """The layers, inputs first, each once."""
        found = [self._state.calls[t].layer for t in self.inputs] + [c.layer for c in self.calls]
        return list(dict.fromkeys(found))

    def maker(self, tensor: Tensor) -> Layer:
        """The layer that makes a tensor."""
        call = self._made.get(tensor) or self._state.calls[tensor]
        return call.layer

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for other inputs: all calls, once more."""
        values: dict[Any, Any] = dict(zip(self.inputs, inputs, strict=True))

        def now(x: Any) -> Any:
            return values.get(x, x) if isinstance(x, Tensor) else x

        for call in self.calls:
            first, *rest = map_structure(now, list(call.args))
            found = call.layer(first, *rest, **{k: map_structure(now, v) for k, v in call.kwargs.items()})
            values.update(zip(flatten(call.outputs), flatten(found), strict=True))
        return [now(t) for t in self.outputs]

    # --- as plain values ----------------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """The layers and calls as plain values; a tensor is `{"tensor": [call, output]}`, inputs being the first calls."""
        places = {t: [i, 0] for i, t in enumerate(self.inputs)}
        calls = []
        for i, call in enumerate(self.calls, start=len(self.inputs)):
            calls.append(
                {
                    "layer": call.layer.name,
                    "args": _written(list(call.args), places),
                    "kwargs": _written(call.kwargs, places),
                }
            )
            for k, y in enumerate(flatten(call.outputs)):
                places.setdefault(y, [i, k])
        return {
            "calls": calls,
            "inputs": [self.maker(t).name for t in self.inputs],
            "outputs": [places[t] for t in self.outputs],
        }

    @staticmethod
    def tensors(config: Mapping[str, Any], layers: Mapping[str, Layer]) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs and outputs, made by calling the layers as a config says."""
        inputs: list[Tensor] = [layers[name].output for name in config["inputs"]]
        made: list[list[Any]] = [[t] for t in inputs]
        for call in config["calls"]:
            first, *rest = _read(call["args"], made)
            made.append(flatten(layers[call["layer"]](first, *rest, **_read(call["kwargs"], made))))
        return inputs, [made[i][k] for i, k in config["outputs"]]


def _written(value: Any, places: Mapping[Any, Any]) -> Any:
    if isinstance(value, Tensor):
        if value not in places:
            raise ValueError(f"{value!r} is given to a layer and does not come from an Input: it cannot be saved")
        return {"tensor": places[value]}
    if isinstance(value, Mapping):
        return {k: _written(v, places) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(v, places) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{value!r} is given to a layer's call and cannot be saved")


def _read(value: Any, made: Sequence[Sequence[Any]]) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {"tensor"}:
            i, k = value["tensor"]
            return made[i][k]
        return {k: _read(v, made) for k, v in value.items()}
    return [_read(v, made) for v in value] if isinstance(value, list) else value


__all__ = ["Network", "NodeLayer"]
