"""What `model.summary()` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


def lines(model: Any, width: int) -> Iterator[str]:
    """A table of the layers: name and class, shape of the output, weights."""
    columns = round(width * 0.48), round(width * 0.8), width
    yield f"Model: {model.name}"
    yield "_" * width
    yield _row(("Layer (type)", "Output Shape", "Param #"), columns)
    yield "=" * width
    for layer in model.layers:
        yield _row((f"{layer.name} ({type(layer).__name__})", _shape(layer), f"{_count(layer.weights):,}"), columns)
    yield "=" * width
    trained, kept = _count(model.trainable_weights), _count(model.non_trainable_weights)
    yield (
        f"Total params: {trained + kept:,}" if model.built else "Total params: not known before the model has seen data"
    )
    if model.built:
        yield f"Trainable params: {trained:,}"
        yield f"Non-trainable params: {kept:,}"
    yield "_" * width


def _row(cells: Sequence[str], columns: Sequence[int]) -> str:
    line = ""
    for cell, end in zip(cells, columns, strict=True):
        line = (line + cell)[: end - 1].ljust(end)
    return line.rstrip()


def _shape(layer: Any) -> str:
    try:
        return str(layer.output_shape)
    except AttributeError:
        return "multiple" if layer._calls else "?"


def _count(variables: Sequence[Any]) -> int:
    return sum(int(np.prod(v.shape.as_list())) for v in variables)


__all__ = ["lines"]
