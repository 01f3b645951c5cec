"""Models on disk: one safetensors file holds the weights and, in its header, the config as JSON.

The header's metadata: `format` ("dovetail-keras-1"), `model` (the written form of the model), and, where it was compiled, `training`
(loss, metrics and the written form of the optimizer). Tensors are called `<layer>/<weight>` as their variables are;
`optimizer/<slot>/<weight>`, `optimizer/iterations` and `optimizer/learning_rate` belong to the optimizer. `save_weights` writes a file
of tensors alone, which any reader of safetensors opens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ....graph.core.shape import TensorShape
from ....graph.formats.atomic_files import path_of, write_bytes_durably
from .backend import batch_get_value, batch_set_value, copies
from .registry import LAYERS, custom_object_scope

FORMAT = "dovetail-keras-1"


def serialize(layer: Any) -> Any:
    """The written form of a layer or model: `{"class_name": ..., "config": ...}`."""
    return LAYERS.serialize(layer)


def deserialize(config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The layer or model of a written form, with new weights."""
    return LAYERS.deserialize(config, custom_objects)


# --- weights ----------------------------------------------------------------------------------------------------------


def weight_names(model: Any) -> dict[str, Any]:
    """Name in files -> variable. Names follow the layers, so a model that is made a second time has the same ones."""
    found: dict[str, Any] = {}

    def visit(layer: Any, path: str) -> None:
        for weight, v in zip(layer._weight_names, layer._weights, strict=True):
            name = f"{path}{weight}"
            while name in found and found[name] is not v:
                name += "_"
            found[name] = v
        for inner in layer._layers:
            visit(inner, f"{path}{inner.name}/")

    visit(model, "")
    return found


def save_weights(model: Any, filepath: Any, overwrite: bool = True) -> None:
    """Write the weights to a file. FileExistsError: it is there, and is not to be overwritten."""
    names = weight_names(model)
    _require_built(model)
    _write(
        filepath, dict(zip(names, batch_get_value(list(names.values())), strict=True)), {"format": FORMAT}, overwrite
    )


def load_weights(model: Any, filepath: Any, by_name: bool = False, skip_mismatch: bool = False) -> None:
    """Read weights that `save_weights` or `save` wrote.

    Args:
        by_name: only those layers whose names are in the file. skip_mismatch: leave out weights of other shapes, too.

    Raises:
        ValueError: the model has other weights than the file.
    """
    _require_built(model)
    found = {k: v for k, v in _read(filepath)[0].items() if not k.startswith("optimizer/")}
    names = weight_names(model)
    by_place = dict(zip(names, found.values(), strict=True)) if _same_but_names(names, found) else found
    missing = [n for n in names if n not in by_place]
    if not by_name and (missing or len(by_place) != len(names)):
        extra = [n for n in by_place if n not in names]
        raise ValueError(
            f"{filepath} does not fit '{model.name}': it lacks {missing or 'nothing'}, and has {extra or 'nothing'} more"
        )
    pairs = [(v, by_place[n]) for n, v in names.items() if n in by_place]
    batch_set_value([(v, a) for v, a in pairs if not skip_mismatch or v.shape.is_compatible_with(a.shape)])


def _same_but_names(names: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the same architecture was made twice in one graph: `dense` there is `dense_1` here."""
    if set(names) == set(found) or len(names) != len(found):
        return False
    kinds = zip(names.items(), found.items(), strict=True)
    return all(
        a.rpartition("/")[2] == b.rpartition("/")[2] and v.shape.is_compatible_with(array.shape)
        for (a, v), (b, array) in kinds
    )


def _require_built(model: Any) -> None:
    if not model.built:
        raise ValueError(f"'{model.name}' has no weights yet: train it, call it, or build it with an input shape")


# --- models -----------------------------------------------------------------------------------------------------------


def save_model(model: Any, filepath: Any, overwrite: bool = True, include_optimizer: bool = True) -> None:
    """Write a model to one file: config, weights, and, where it was compiled, loss, metrics and the optimizer with its state.

    Raises:
        FileExistsError: it is there, and is not to be overwritten. ValueError, NotImplementedError: the model has parts that cannot
            be written down.
    """
    _require_built(model)
    metadata = {"format": FORMAT, "model": to_json(serialize(model))}
    with_optimizer = include_optimizer and model.optimizer is not None
    if with_optimizer:
        metadata["training"] = to_json(_training_config(model))
    _write(filepath, _values(model, with_optimizer), metadata, overwrite)


def to_json(config: Any) -> str:
    """A config as JSON: arrays become lists, types and functions their names, as in Keras."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        if isinstance(value, TensorShape):
            return value.as_list()
        if (name := getattr(value, "name", None) or getattr(value, "__name__", None)) is not None:
            return name
        raise TypeError(f"A config holds {value!r}, which JSON cannot hold: let get_config return plain values")

    return json.dumps(config, default=plain)


def load_model(filepath: Any, custom_objects: Mapping[str, Any] | None = None, compile: bool = True) -> Any:
    """The model of a file that `save` wrote; compiled, with its optimizer's state, if it was.

    Args:
        custom_objects: name -> your own classes and functions that the model names.

    Raises:
        ValueError: no such file format, or a name that is unknown.
    """
    tensors, metadata = _read(filepath)
    if "model" not in metadata:
        raise ValueError(f"{filepath} has weights only: make the model, and use model.load_weights")
    with custom_object_scope(custom_objects):
        model = deserialize(json.loads(metadata["model"]))
        names = weight_names(model)
        batch_set_value([(v, tensors[n]) for n, v in names.items()])
        if compile and "training" in metadata:
            from . import optimizers

            written = json.loads(metadata["training"])
            model.compile(optimizers.deserialize(written.pop("optimizer")), **_objects(written))
            _set_optimizer(model, tensors)
    return model


class Progress(NamedTuple):
    """How far training has come."""

    epoch: int
    """The epoch in which it goes on, from 0."""
    batch: int
    """How many of that epoch's batches are done."""
    epochs_done: int
    """How many epochs this model has been trained for, all calls of `fit` together."""


def save_progress(model: Any, filepath: Any, progress: Progress) -> None:
    """Write the weights, the optimizer's state, and how far training has come: what `BackupAndRestore` keeps."""
    _write(filepath, _values(model, True), {"format": FORMAT, "progress": json.dumps(progress._asdict())}, True)


def read_progress(filepath: Any) -> Progress:
    """How far training had come when `save_progress` wrote a file."""
    return Progress(**json.loads(_read(filepath)[1]["progress"]))


def load_state(model: Any, filepath: Any) -> None:
    """Set a compiled model to what `save_progress` wrote. ValueError: the model has other weights."""
    load_weights(model, filepath)
    _set_optimizer(model, _read(filepath)[0])


def state_variables(model: Any) -> list[Any]:
    """The variables that such a file is about: the weights, and the optimizer's, which are made if need be."""
    with model._graph.as_default(), model._scope():
        model.optimizer.build(model.trainable_weights)
    return [*weight_names(model).values(), *(v for found in optimizer_state(model).values() for v in found)]


def _values(model: Any, with_optimizer: bool) -> dict[str, Any]:
    """Name in files -> value, of all weights and, if wanted, of the optimizer's state."""
    names = weight_names(model)
    found = dict(zip(names, batch_get_value(list(names.values())), strict=True))
    if with_optimizer:
        state = optimizer_state(model)
        found.update(zip(state, batch_get_value([v for v, *_ in state.values()]), strict=True))
    return found


def _set_optimizer(model: Any, tensors: Mapping[str, Any]) -> None:
    """Give the optimizer the state that a file has, if it has one."""
    given = {n: a for n, a in tensors.items() if n.startswith("optimizer/")}
    if not given:
        return
    with model._graph.as_default(), model._scope():
        model.optimizer.build(model.trainable_weights)
    state = optimizer_state(model)
    if _same_but_names({n: v for n, (v, *_) in state.items()}, given):
        given = dict(zip(state, given.values(), strict=True))
    batch_set_value([(v, given[n]) for n, found in state.items() if n in given for v in found])


def optimizer_state(model: Any) -> dict[str, list[Any]]:
    """Name in files -> the optimizer's variables of that meaning: one, or one beside each copy of a weight."""
    optimizer = model.optimizer
    found: dict[str, list[Any]] = {}
    for name in ("iterations", "learning_rate", "momentum_product"):
        v = getattr(optimizer, name, None)
        if hasattr(v, "initializer"):
            found[f"optimizer/{name}"] = [v]
    names = {id(v): n for n, v in weight_names(model).items()}
    for slot in optimizer.get_slot_names():
        for weight in model.trainable_weights:
            kept = [optimizer.get_slot(c, slot) for c in copies(weight)]
            if all(k is not None for k in kept):
                found[f"optimizer/{slot}/{names[id(weight)]}"] = kept
    return found


def _training_config(model: Any) -> dict[str, Any]:
    from . import losses, metrics, optimizers

    if not hasattr(model.optimizer, "get_config"):
        raise ValueError(f"{type(model.optimizer).__name__} cannot be written down: save with include_optimizer=False")
    given = model._arguments
    return {
        "optimizer": optimizers.serialize(model.optimizer),
        "loss": _each(losses.serialize, given["loss"]),
        "metrics": _each(metrics.serialize, given["metrics"]),
        "loss_weights": given["loss_weights"],
        "weighted_metrics": _each(metrics.serialize, given["weighted_metrics"]),
    }


def _each(function: Callable[[Any], Any], given: Any) -> Any:
    if isinstance(given, Mapping):
        return {k: _each(function, v) for k, v in given.items()}
    if isinstance(given, (list, tuple)):
        return [_each(function, v) for v in given]
    return given if given is None or isinstance(given, str) else function(given)


def _objects(written: dict[str, Any]) -> dict[str, Any]:
    """Losses and metrics in place of their written forms."""
    from . import losses, metrics

    def made(registry: Any, v: Any) -> Any:
        if isinstance(v, Mapping):
            if set(v) == {"class_name", "config"}:
                return registry.deserialize(v)
            return {k: made(registry, x) for k, x in v.items()}
        return [made(registry, x) for x in v] if isinstance(v, list) else v

    kinds = {"loss": losses, "metrics": metrics, "weighted_metrics": metrics}
    return {k: made(kinds[k], v) if k in kinds else v for k, v in written.items()}


# --- files ------------------------------------------------------------------------------------------------------------


def _write(filepath: Any, tensors: Mapping[str, Any], metadata: dict[str, str], overwrite: bool) -> None:
    """Write a safetensors file, whole or not at all."""
    import numpy as np
    from safetensors.numpy import save

    path = path_of(filepath)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: say overwrite=True")
    # The format has no order: it keeps the names sorted by type and size, so the order is written down beside them.
    metadata = {**metadata, "order": json.dumps(list(tensors))}
    write_bytes_durably(path, save({k: np.array(v, order="C") for k, v in tensors.items()}, metadata))


def _read(filepath: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors, in the order in which they were written, and the metadata."""
    from safetensors.numpy import load

    path = path_of(filepath)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {filepath}")
    data = path.read_bytes()
    found = load(data)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{filepath} is not a model of {FORMAT}: its format is {metadata.get('format')!r}")
    return {n: found[n] for n in json.loads(metadata.get("order", "null")) or found}, metadata


__all__ = ["deserialize", "load_model", "load_weights", "save_model", "save_weights", "serialize", "weight_names"]
