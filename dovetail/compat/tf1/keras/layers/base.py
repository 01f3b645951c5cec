"""`Layer`: weights, and what is computed from them.

Theory of operation. Calling a layer adds nodes to the graph. The first call makes the layer's weights (`build`), whose shapes follow
from the inputs'. Each call whose inputs come from an `Input` is remembered (`Call`), so that a `Model` can later do the same calls
again on other tensors: once to train, once to evaluate, and once for each replica of a strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from typing import Any

import numpy as np

from .....graph.core.build import convert
from .....graph.core.default_graph import GraphKeys, get_default_graph
from .....graph.core.dtypes import DType, as_dtype
from .....graph.core.graph import Node, Tensor
from .....graph.core.nest import flatten, pack
from .....graph.core.operators import is_tracing
from .....graph.ops.array.shapes import shape
from .....graph.ops.math.cast import cast
from .....graph.variables.scope import get_variable_scope
from .....graph.variables.variable import Variable, VariableAggregation, VariableSynchronization
from .. import constraints, initializers, regularizers
from ..backend import GraphState, batch_get_value, batch_set_value, floatx, snake_case
from ..registry import Configured
from .passes import current_pass, passes

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a layer: what it was given, and what it gave."""

    layer: Layer
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return [t for t in flatten([list(self.args), self.kwargs]) if isinstance(t, Tensor)]


class Layer(Configured):
    """Base of all layers.

    A subclass makes its weights in `build(input_shape)`, by `add_weight`, and computes in `call(inputs)`. `call` may also take
    `training`, and `mask`.

    Args:
        trainable: whether its weights are trained.
        name: name of the layer, and first part of its weights' names; None: after the class, numbered.
        dtype: element type of its weights; None: `keras.backend.floatx()`.
        activity_regularizer: function of its output whose result, divided by the size of the batch, joins the loss.
        input_shape: shape of its input, for the first layer of a `Sequential`, without the batch.
        batch_input_shape: the same with the batch.
        input_dim: the only size after the batch, where there is one.
        batch_size: the size of the batch, beside `input_shape` or `input_dim`.
        weights: arrays that its weights start with.

    >>> class Scale(dt.keras.layers.Layer):
    ...     def build(self, input_shape):
    ...         self.factor = self.add_weight("factor", [input_shape[-1]], initializer="ones")
    ...     def call(self, inputs):
    ...         return inputs * self.factor
    """

    supports_masking = False
    """Whether a mask of its input's time steps holds for its output, too."""

    _is_part = True  # whether a layer that holds it has its weights, too

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        activity_regularizer: Any = None,
        *,
        input_shape: Any = None,
        batch_input_shape: Any = None,
        input_dim: int | None = None,
        batch_size: int | None = None,
        weights: Sequence[Any] | None = None,
    ) -> None:
        self._layers: list[Layer] = []
        self._weights: list[Any] = []
        self._weight_names: list[str] = []  # what each is called inside the layer
        self._first_weights = weights
        self.trainable = trainable
        self.name = name or GraphState.of(get_default_graph()).unique_name(snake_case(type(self).__name__))
        self._is_traced = not name and is_tracing()  # its name is counted in the trace
        self.dtype = as_dtype(dtype or floatx()).base
        self.activity_regularizer = regularizers.get(activity_regularizer)
        self.batch_input_shape = _given_shape(input_shape, batch_input_shape, input_dim, batch_size)
        self.built = False
        self._regularized: list[tuple[Any, Callable[[Any], Any]]] = []
        self._calls: list[Call] = []
        self._losses: list[Any] = []
        self._updates: list[Node] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_layers" and not name.startswith("_calls"):
            for found in _layers_in(value):
                if "_layers" not in self.__dict__:
                    raise RuntimeError(f"{type(self).__name__}.__init__ must call super().__init__() first")
                if found not in self._layers:
                    self._layers.append(found)
        if isinstance(value, Variable) and "_weights" in self.__dict__ and not any(value is w for w in self._weights):
            self._weights.append(value)
            self._weight_names.append(name)
        object.__setattr__(self, name, value)

    # --- what subclasses define ---------------------------------------------------------------------------------------

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """`build` marks a layer of Keras as built; a user's class does so by `super().build`, as in Keras."""
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls) and cls.__module__.startswith(__package__):
            cls.build = _built_after(cls.build)  # type: ignore[method-assign, assignment]

    def build(self, input_shape: Any) -> None:
        """Make the weights. `input_shape`: a tuple of sizes, None where unknown; a list of those for several inputs."""
        self.built = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The output for some input."""
        return inputs

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of its output's time steps, bool [batch, steps], or None."""
        return mask if self.supports_masking else None

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer, without its weights: plain values that JSON can hold."""
        config: dict[str, Any] = {"name": self.name, "trainable": self.trainable, "dtype": self.dtype.name}
        if self.batch_input_shape is not None:
            config["batch_input_shape"] = list(self.batch_input_shape)
        if self.activity_regularizer is not None:
            config["activity_regularizer"] = regularizers.serialize(self.activity_regularizer)
        return config

    # --- weights ------------------------------------------------------------------------------------------------------

    def add_weight(
        self,
        name: str | None = None,
        shape: Any = (),
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Make a weight: a variable called `<layer>/<name>`.

        Args:
            shape: its complete shape.
            dtype: None: the layer's.
            initializer: name, object or function of (shape, dtype); None: Glorot's uniform one for floating types, else zeros.
            regularizer: function of the weight whose result joins the loss.
            trainable: whether optimizers change it; None: yes, unless `synchronization` is ON_READ.
            constraint: function that is applied to it after each update.
            synchronization: how a strategy keeps its copies: see `dt.Variable`.
            aggregation: how a strategy keeps its copies: see `dt.Variable`.

        Returns:
            The variable.
        """
        found = as_dtype(dtype or self.dtype).base
        starts = self._default_initializer(found) if initializer is None else initializers.get(initializer)
        sizes = [int(d) for d in shape]
        constrained = constraints.get(constraint)
        if trainable and synchronization is VariableSynchronization.ON_READ:
            raise ValueError("Synchronization value can be set to ON_READ only for non-trainable variables")
        is_trainable = trainable if trainable is not None else None
        if aggregation is None and is_trainable is False:
            aggregation = VariableAggregation.MEAN if found.is_floating else VariableAggregation.ONLY_FIRST_REPLICA
        name = name or f"weight_{len(self._weights)}"
        regularize = regularizers.get(regularizer)
        variable = self._make_variable(
            name,
            sizes,
            found,
            starts,
            regularize,
            trainable=is_trainable,
            constraint=constrained,
            synchronization=synchronization,
            aggregation=aggregation,
        )
        self._weights.append(variable)
        self._weight_names.append(name)
        GraphState.of(variable.graph).weights.append(variable)
        if regularize is not None:
            self._regularized.append((variable, regularize))
        return variable

    def _default_initializer(self, dtype: DType) -> Any:
        """What a weight starts with where nothing is said."""
        return initializers.get("glorot_uniform" if dtype.is_floating else "zeros")

    def _make_variable(
        self, name: str, shape: list[int], dtype: Any, initializer: Any, regularizer: Any, **kwargs: Any
    ) -> Any:
        # A metric is called as its function is.
        path = "/".join(passes.path or (self.name,)).replace("<lambda>", "lambda")
        if self._is_traced:  # so that it is no weight of a layer that was made outside the function, or has this name
            path = f"{get_variable_scope().name}/{path}"
        with get_default_graph().name_scope(None):
            made = Variable(
                initial_value=partial(initializer, shape, dtype=dtype),
                name=f"{path}/{name}",
                dtype=dtype,
                use_resource=True,
                **kwargs,
            )
        if self._is_traced and made.shape.as_list() != list(shape):
            raise ValueError(
                f"The layer '{self.name}' needs weights '{name}' of shape {tuple(shape)}, and another trace made them with shape "
                f"{tuple(made.shape.as_list())} (at {made.op.source}): layers without a name are numbered in each trace, and share "
                "the weights of those with the same number. Give each of these layers a name of its own: name="
            )
        return made

    @property
    def weights(self) -> list[Any]:
        """All its variables, those of the layers in it included: the trainable ones first."""
        return [*self.trainable_weights, *self.non_trainable_weights]

    @property
    def trainable_weights(self) -> list[Any]:
        """The variables that training changes; none when the layer is not trainable."""
        if not self.trainable:
            return []
        own = [w for w in self._weights if w.trainable]
        return _unique([*own, *(w for layer in self._layers for w in layer.trainable_weights)])

    @property
    def non_trainable_weights(self) -> list[Any]:
        """The variables that training leaves to the layer, such as moving averages."""
        if not self.trainable:
            own = [*(w for w in self._weights if w.trainable), *(w for w in self._weights if not w.trainable)]
            return _unique([*own, *(w for layer in self._layers for w in layer.weights)])
        own = [w for w in self._weights if not w.trainable]
        return _unique([*own, *(w for layer in self._layers for w in layer.non_trainable_weights)])

    @property
    def variables(self) -> list[Any]:
        """As `weights`."""
        return self.weights

    @property
    def trainable_variables(self) -> list[Any]:
        """As `trainable_weights`."""
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Any]:
        """As `non_trainable_weights`."""
        return self.non_trainable_weights

    def get_weights(self) -> list[Any]:
        """The values of its variables, as arrays, in the order of `weights`."""
        return batch_get_value(self.weights)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Give its variables values, in the order of `weights`.

        Raises:
            ValueError: another number of arrays, or of another shape.
        """
        variables = self.weights
        if len(variables) != len(weights):
            raise ValueError(
                f"'{self.name}' has {len(variables)} weights ({', '.join(v.name for v in variables) or 'not built yet'}), and "
                f"got {len(weights)} arrays"
            )
        batch_set_value(list(zip(variables, weights, strict=True)))

    def count_params(self) -> int:
        """How many numbers its weights hold. ValueError: it has not been built."""
        if not self.built:
            raise ValueError(f"'{self.name}' has no weights yet: call it, or build it with an input shape")
        return sum(int(np.prod(w.shape.as_list())) for w in self.weights)

    # --- loss and updates -------------------------------------------------------------------------------------------

    def add_loss(self, losses: Any) -> None:
        """Add scalars (or functions without arguments that make them) to what training minimises."""
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            going = current_pass()
            if not callable(loss) and going is not None and going.collects:
                going.losses.append(convert(loss))
            elif callable(loss) or not _is_symbolic(convert(loss), GraphState.of(get_default_graph())):
                self._losses.append(loss)  # one that follows from an Input is added again by each pass

    @property
    def losses(self) -> list[Any]:
        """What the layer, and those in it, add to the loss whatever the input is: regularizers of weights."""
        own = [regularize(variable) for variable, regularize in self._regularized]
        own += [loss() if callable(loss) else loss for loss in self._losses]
        return [*own, *(loss for layer in self._layers for loss in layer.losses)]

    @property
    def updates(self) -> list[Node]:
        """Nodes that move its moving averages, made by calls outside of a model's own training."""
        return [*self._updates, *(u for layer in self._layers for u in layer.updates)]

    def _move(self, variable: Any, value: Tensor, momentum: Any) -> None:
        """Let a moving average move: `variable = variable * momentum + value * (1 - momentum)`."""
        going = current_pass()
        if going is not None and going.collects:
            going.moves.append((variable, value, momentum))
            return
        step = (variable.value() - value) * (1.0 - momentum)
        update = variable.assign_sub(step, read_value=False)
        self._updates.append(update)
        get_default_graph().add_to_collection(GraphKeys.UPDATE_OPS, update)

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As calling the layer (TensorFlow 1's spelling)."""
        return self(inputs, *args, **kwargs)

    # --- calling ------------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the layer, the first time, and compute its output.

        Args:
            inputs: a tensor or a structure of them; arrays become constants.
            args: for `call`. `training` is that of the pass around where it is left out.
            kwargs: for `call`. `training` is that of the pass around where it is left out.
        """
        inputs = _as_tensors(inputs)
        graph = get_default_graph()
        state = GraphState.of(graph)
        path = passes.path
        with self._naming():
            passes.path = self._path(path)
            passes.depth += 1
            try:
                if not self.built:
                    with graph.init_scope():
                        self._build_for(inputs)
                if self._first_weights is not None:
                    with graph.init_scope():
                        self.set_weights(self._first_weights)
                    self._first_weights = None
                given = self._completed(inputs, args, kwargs, state)
                outputs = self.call(inputs, *args, **given)
                if self.activity_regularizer is not None:
                    for y in flatten(outputs):
                        loss = convert(self.activity_regularizer(y))
                        self.add_loss(loss / cast(shape(y)[0], loss.dtype.base))  # of a sample, as in TensorFlow
                self._keep_masks(inputs, outputs, kwargs.get("mask"), state)
            finally:
                passes.path = path
                passes.depth -= 1
        self._remember(Call(self, (inputs, *args), kwargs, outputs), state)
        return outputs

    @property
    def _name(self) -> str:
        """The name. Subclasses of programs set it so, since TensorFlow's `name` cannot be set."""
        return self.name

    @_name.setter
    def _name(self, name: str) -> None:
        self.name = name

    def _path(self, outer: tuple[str, ...]) -> tuple[str, ...]:
        return (*outer, self.name)

    def _naming(self) -> Any:
        """The block in which a call stands."""
        return get_default_graph().name_scope(self.name)

    def _build_for(self, inputs: Any) -> None:
        leaves = flatten(inputs)
        shapes = [shape_of(t) for t in leaves]
        self.build(shapes[0] if not isinstance(inputs, (list, tuple, Mapping)) else pack(inputs, shapes))
        self.built = True

    def _completed(
        self, inputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any], state: GraphState
    ) -> dict[str, Any]:
        """The keywords of `call`: with `training`, and the mask of the input, where it takes them."""
        takes, given = _takes(type(self)), dict(kwargs)
        if "training" in takes and given.get("training") is None and len(args) <= takes.index("training"):
            going = current_pass()
            given["training"] = False if going is None else going.training
        if "mask" in takes and "mask" not in given and len(args) <= takes.index("mask"):
            masks = [state.masks.get(t) for t in flatten(inputs)]
            if any(m is not None for m in masks):
                given["mask"] = masks[0] if not isinstance(inputs, (list, tuple, Mapping)) else pack(inputs, masks)
        return given

    def _keep_masks(self, inputs: Any, outputs: Any, given: Any, state: GraphState) -> None:
        masks = [state.masks.get(t) for t in flatten(inputs)] if given is None else flatten(given)
        several = isinstance(inputs, (list, tuple))
        found = self.compute_mask(
            inputs, (masks if several else masks[0]) if any(m is not None for m in masks) else None
        )
        for y, mask in zip(flatten(outputs), found if isinstance(found, list) else [found], strict=False):
            if mask is not None:
                state.masks[y] = mask

    def _remember(self, call: Call, state: GraphState) -> None:
        going = current_pass()
        alone = not passes.depth and (going is None or not going.collects)
        if alone and any(_is_symbolic(t, state) for t in call.inputs):
            self._calls.append(call)
            for y in flatten(call.outputs):
                if y not in call.inputs:
                    state.calls.setdefault(y, call)

    # --- where it stands ----------------------------------------------------------------------------------------------

    @property
    def input(self) -> Any:
        """The tensor, or list of them, of its only call. AttributeError: it has been called never, or several times."""
        return self._only_call().args[0]

    @property
    def output(self) -> Any:
        """What its only call gave. Errors as of `input`."""
        return self._only_call().outputs

    @property
    def input_shape(self) -> Any:
        """The shape of `input`, as a tuple."""
        found = self.input
        return shape_of(found) if isinstance(found, Tensor) else [shape_of(t) for t in flatten(found)]

    @property
    def output_shape(self) -> Any:
        """The shape of `output`, as a tuple."""
        found = self.output
        return shape_of(found) if isinstance(found, Tensor) else [shape_of(t) for t in flatten(found)]

    def _only_call(self) -> Call:
        if len(self._calls) != 1:
            raise AttributeError(
                f"'{self.name}' has {len(self._calls)} calls on an Input, so it has no one input or output"
            )
        return self._calls[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}>"


def _given_shape(shape: Any, with_batch: Any, size: int | None, batch: int | None) -> Shape | None:
    """The batch input shape that a layer's arguments say; None: they say none."""
    if with_batch is not None:
        return tuple(with_batch)
    if shape is not None:
        return (batch, *sizes_of(shape))
    return None if size is None else (batch, int(size))


def sizes_of(shape: Any) -> Shape:
    return (shape,) if isinstance(shape, int) else tuple(None if d is None else int(d) for d in shape)


def shape_of(tensor: Any) -> Shape:
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else None
    if dims is None:
        raise ValueError(f"{tensor.name} has no known rank, which layers need: use set_shape, or an Input with a shape")
    return tuple(dims)


def _as_tensors(inputs: Any) -> Any:
    leaves = flatten(inputs) if isinstance(inputs, (list, tuple, Mapping)) else [inputs]
    if all(isinstance(t, Tensor) for t in leaves):
        return inputs
    if isinstance(inputs, (list, tuple)) and not any(hasattr(t, "shape") for t in leaves):
        return convert(inputs)
    made = [t if isinstance(t, Tensor) else convert(_narrow(t)) for t in leaves]
    return pack(inputs, made) if isinstance(inputs, (list, tuple, Mapping)) else made[0]


def _narrow(value: Any) -> Any:
    """An array as `floatx` if it is float64: NumPy's default type."""
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return value.astype(as_dtype(floatx()).np)
    return value


def _built_after(build: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @wraps(build)
    def built(self: Layer, input_shape: Any) -> None:
        build(self, input_shape)
        self.built = True

    return built


def _is_symbolic(tensor: Tensor, state: GraphState) -> bool:
    """Whether a tensor follows from an `Input`."""
    seen, todo = {tensor}, [tensor]
    while todo:
        t = todo.pop()
        if t in state.calls:
            return True
        fresh = [i for i in t.op.inputs if i not in seen]
        seen.update(fresh)
        todo.extend(fresh)
    return False


_parameters: dict[type, list[str]] = {}


def _takes(kind: type[Layer]) -> list[str]:
    """The names of `call`'s parameters after the inputs."""
    if kind not in _parameters:
        _parameters[kind] = list(signature(kind.call).parameters)[2:]
    return _parameters[kind]


def _layers_in(value: Any) -> Iterator[Layer]:
    if isinstance(value, Layer):
        if value._is_part:
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _layers_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _layers_in(item)


def _unique(items: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in items}.values())


__all__ = ["Call", "Layer", "Shape", "shape_of", "sizes_of"]
