"""`Model`: layers between inputs and outputs, that can be trained, evaluated, asked and saved; and `Sequential`, its simple form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....distribute.context import get_strategy, has_strategy, in_cross_replica_context
from ....graph.core.default_graph import get_default_graph
from ....graph.core.graph import Tensor
from ....graph.core.nest import flatten, pack
from . import saving
from .layers.base import Layer
from .layers.inputs import Input, InputLayer
from .layers.passes import passes, passing
from .network import Network
from .registry import LAYERS, custom_object_scope
from .training import Trainer


class Model(Trainer, Layer):
    """A model: what leads from `inputs` to `outputs`, tensors that began as a `keras.Input`.

    Or a subclass, which makes its layers in `__init__` (after `super().__init__()`) and defines `call(self, inputs)`, maybe with
    `training`; its weights are made when it first sees data.

    Args:
        inputs: an Input, or a list (or dictionary by name) of them; a list of one is that one.
        outputs: a tensor, or a list or dictionary of them; a list of one is that one.
        name: its name.

    Raises:
        ValueError: the outputs do not follow from the inputs.

    >>> x = dt.keras.Input([64])
    >>> h = dt.keras.layers.Dense(32, activation="relu")(x)
    >>> model = dt.keras.Model(x, dt.keras.layers.Dense(10)(h))
    """

    def __init__(self, inputs: Any = None, outputs: Any = None, name: str | None = None, **kwargs: Any) -> None:
        Layer.__init__(self, name=name, **kwargs)
        self._network: Network | None = None
        self._takes: Any = None  # the structures of inputs and outputs
        self._gives: Any = None
        # In a replica the model is a part of a step: what is made for it is made there.
        self._strategy = get_strategy() if has_strategy() and in_cross_replica_context() else None
        self._graph = get_default_graph()
        self._init_training()
        if (inputs is None) != (outputs is None):
            raise ValueError("A functional Model takes inputs and outputs")
        if inputs is not None:
            self._connect(inputs, outputs)

    def _connect(self, inputs: Any, outputs: Any) -> None:
        self._network = Network(flatten(inputs), flatten(outputs))
        self._takes, self._gives = _one(inputs), _one(outputs)
        self._layers[:] = self._network.layers
        self.built = True

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[Layer]:
        """Its layers."""
        return list(self._layers)

    @property
    def inputs(self) -> list[Tensor]:
        """The Inputs that it begins with; [] for a subclass."""
        return [] if self._network is None else list(self._network.inputs)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors that it ends with; [] for a subclass."""
        return [] if self._network is None else list(self._network.outputs)

    @property
    def input(self) -> Any:
        """Its input, or inputs in their structure."""
        return self._takes if self._network is not None else super().input

    @property
    def output(self) -> Any:
        """Its output, or outputs in their structure: tensors that a session can fetch."""
        return self._gives if self._network is not None else super().output

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs' layers."""
        return [] if self._network is None else [self._network.maker(t).name for t in self._network.inputs]

    @property
    def output_names(self) -> list[str]:
        """What outputs are called, in losses, metrics and logs: their layers' names, or the keys of a dictionary of outputs."""
        if isinstance(self._gives, Mapping):
            return sorted(self._gives)
        if self._network is None:
            return []
        names: list[str] = []
        for t in self._network.outputs:
            name = self._network.maker(t).name
            names.append(name if name not in names else f"{name}_{names.count(name)}")
        return names

    def get_layer(self, name: str | None = None, index: int | None = None) -> Layer:
        """The layer of that name, or at that place. ValueError: there is none."""
        if index is not None:
            if not -len(self.layers) <= index < len(self.layers):
                raise ValueError(f"There are {len(self.layers)} layers, and none at {index}")
            return self.layers[index]
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise ValueError(f"No such layer: {name!r}. There are: {', '.join(layer.name for layer in self.layers)}")

    @property
    def weights(self) -> list[Any]:
        """All variables, layer by layer."""
        own = [*(w for w in self._weights if w.trainable), *(w for w in self._weights if not w.trainable)]
        found = [*(w for layer in self._layers for w in layer.weights), *own]
        return list({id(w): w for w in found}.values())

    # --- calling ------------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Its outputs for other tensors (or arrays, which become constants), as tensors."""
        if kwargs.get("training") is None:
            return super().__call__(inputs, *args, **kwargs)
        with passing(kwargs["training"], inside=True):
            return super().__call__(inputs, *args, **kwargs)

    def _path(self, outer: tuple[str, ...]) -> tuple[str, ...]:
        return outer  # layers keep their names in whatever model they are

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The outputs. A subclass defines it."""
        if self._network is None:
            raise NotImplementedError(f"{type(self).__name__} needs a `call` method, or inputs and outputs")
        return pack(self._gives, self._network.run(self._as_list(inputs)))

    def _as_list(self, inputs: Any) -> list[Any]:
        """Inputs in the model's order; a dictionary goes by the names of the Inputs."""
        if isinstance(inputs, Mapping) and not isinstance(self._takes, Mapping):
            missing = [n for n in self.input_names if n not in inputs]
            if missing:
                raise ValueError(f"The inputs {list(inputs)} lack {missing}; '{self.name}' takes {self.input_names}")
            return [inputs[n] for n in self.input_names]
        found = flatten(inputs)
        if len(found) != len(self.inputs):
            raise ValueError(f"'{self.name}' takes {len(self.inputs)} inputs ({self.input_names}), not {len(found)}")
        return found

    def _remember(self, call: Any, state: Any) -> None:
        if self._network is None or call.outputs is not self._gives:
            super()._remember(call, state)

    def build(self, input_shape: Any = None) -> None:
        """Make the weights for inputs of a shape, the batch included: `model.build([None, 64])`."""
        if input_shape is None or self.built:
            return
        if passes.depth:  # called by itself, with tensors at hand: its layers make theirs when they are called
            return
        with self._graph.as_default(), self._scope():
            self(Input(batch_shape=tuple(input_shape)))

    # --- saving -------------------------------------------------------------------------------------------------------

    def save(self, filepath: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
        """Write config, weights and optimizer to one file: see `keras.models.save_model`."""
        saving.save_model(self, filepath, overwrite, include_optimizer)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Write the weights to one file."""
        saving.save_weights(self, filepath, overwrite)

    def load_weights(self, filepath: Any, by_name: bool = False, skip_mismatch: bool = False) -> None:
        """Read weights that `save_weights` or `save` wrote: see `keras.saving.load_weights`."""
        saving.load_weights(self, filepath, by_name, skip_mismatch)

    def to_json(self) -> str:
        """The config as JSON."""
        return saving.to_json(saving.serialize(self))

    def get_config(self) -> dict[str, Any]:
        """Layers and calls as plain values. NotImplementedError for a subclass that does not define it."""
        if self._network is None or type(self).call is not Model.call:
            raise NotImplementedError(
                f"{type(self).__name__} is defined by its `call`, which cannot be written down: define get_config in it, or use "
                "save_weights and load_weights"
            )
        return {
            "name": self.name,
            "layers": [saving.serialize(layer) for layer in self.layers],
            **self._network.get_config(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """The model that a config says, with new weights."""

        if "layers" not in config:
            return cls(**config)
        with custom_object_scope(custom_objects):
            made: dict[str, Layer] = {c["config"]["name"]: saving.deserialize(c) for c in config["layers"]}
            inputs, outputs = Network.tensors(config, made)
        return cls(list(inputs), list(outputs), name=config.get("name"))

    def summary(self, line_length: int = 88, print_fn: Callable[[str], Any] = print) -> None:
        """Print the layers with the shapes of their outputs and the number of their weights."""
        from .summary import lines

        for line in lines(self, line_length):
            print_fn(line)


class Sequential(Model):
    """Layers one after another.

    With a shape for the first one (`input_shape=` of a layer, or an `Input` first), weights are made at once; else when the model first
    sees data.

    Args:
        layers: the layers.
        name: its name.

    >>> model = dt.keras.models.Sequential([
    ...     dt.keras.layers.Flatten(input_shape=(8, 8)),
    ...     dt.keras.layers.Dense(10, activation="softmax"),
    ... ])
    """

    def __init__(self, layers: Sequence[Any] | None = None, name: str | None = None) -> None:
        super().__init__(name=name)
        for layer in layers or ():
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Add a layer at the end. One that is there already is used once more, with the same weights.

        Raises:
            TypeError: it is no layer. ValueError: another one has its name.
        """
        if isinstance(layer, Tensor) and not self._layers and self._network is None:
            self._begin(layer)
            return
        if not isinstance(layer, Layer):
            raise TypeError(f"A Sequential consists of layers, not of {layer!r}")
        if isinstance(layer, InputLayer):
            self._begin(layer.output)
            return
        if any(layer.name == other.name for other in self._layers if other is not layer):
            raise ValueError(f"There is a layer called '{layer.name}' already: layers of a model need different names")
        if self._takes is None and not self._layers:
            shape = layer.batch_input_shape
            if shape is None and isinstance(layer, Model) and layer.inputs:
                shape = tuple(layer.inputs[0].shape.as_list())
            if shape is not None:
                kind = "int32" if type(layer).__name__ == "Embedding" else layer.dtype
                self._begin(Input(batch_shape=shape, dtype=kind))
        self._layers.append(layer)
        if self._takes is not None:
            self._extend([layer])

    def pop(self) -> None:
        """Take the last layer away. TypeError: there is none."""
        if not self._layers:
            raise TypeError("There are no layers in the model.")
        popped = self._layers.pop()
        if self._takes is None:
            return
        if not self._layers:
            self._network, self._gives, self.built = None, self._takes, False
            return
        kept = list(self._layers)
        self._connect(self._takes, kept[-1]._calls[-2 if popped is kept[-1] else -1].outputs)
        self._layers[:] = kept
        self._forget_steps()

    def _begin(self, start: Tensor) -> None:
        self._takes = self._gives = start

    def _extend(self, layers: Sequence[Layer]) -> None:
        kept = list(self._layers)
        x = self._gives
        with self._graph.as_default(), self._scope():
            for layer in layers:
                x = layer(x)
        self._connect(self._takes, x)
        self._layers[:] = kept
        self._forget_steps()

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """See `Model.call`."""
        x = inputs
        for layer in self._layers:
            x = layer(x)
        return x

    def _build_for(self, inputs: Any) -> None:
        if self._network is None and isinstance(inputs, Tensor):
            self._begin_like(inputs)
        super()._build_for(inputs)

    def _begin_like(self, tensor: Tensor) -> None:
        """Begin with an Input of a tensor's shape, for any batch."""
        sizes = tensor.shape.as_list()
        self._outside(lambda: self._begin_and_extend((None, *sizes[1:]), tensor.dtype.base))

    def _begin_and_extend(self, shape: Any, dtype: Any) -> None:
        self._begin(Input(batch_shape=shape, dtype=dtype))
        self._extend(self._layers)

    def build(self, input_shape: Any = None) -> None:
        """See `Model.build`."""
        if input_shape is not None and self._network is None and self._layers:
            with self._graph.as_default(), self._scope():
                kind = "int32" if type(self._layers[0]).__name__ == "Embedding" else self._layers[0].dtype
                self._begin_and_extend(tuple(input_shape), kind)

    @staticmethod
    def _outside(make: Callable[[], None]) -> None:
        """Do something as if no layer were being called."""
        saved = passes.depth, passes.path, passes.open
        passes.depth, passes.path, passes.open = 0, (), []
        try:
            make()
        finally:
            passes.depth, passes.path, passes.open = saved

    def get_config(self) -> dict[str, Any]:
        """See `Model.get_config`."""
        config: dict[str, Any] = {"name": self.name, "layers": [saving.serialize(layer) for layer in self._layers]}
        if self._network is not None:
            start = self._network.inputs[0]
            config["build_input_shape"] = start.shape.as_list()
            config["input_dtype"] = start.dtype.base.name
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
        """See `Model.from_config`."""

        model = cls(name=config.get("name"))
        with custom_object_scope(custom_objects):
            if config.get("build_input_shape") is not None:
                model.add(Input(batch_shape=tuple(config["build_input_shape"]), dtype=config.get("input_dtype")))
            for written in config["layers"]:
                model.add(saving.deserialize(written))
        return model


def _one(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, list) and len(tensors) == 1 else tensors


LAYERS.add("Model", Model)
LAYERS.add("Functional", Model)
LAYERS.add("Sequential", Sequential)


__all__ = ["Model", "Sequential"]
