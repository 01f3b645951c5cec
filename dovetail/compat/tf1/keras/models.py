"""`dt.keras.models`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .model import Model, Sequential
from .saving import deserialize, load_model, save_model, serialize


def clone_model(model: Any) -> Any:
    """A model like another one, with weights of its own."""
    return deserialize(serialize(model))


def model_from_json(json_string: str, custom_objects: Mapping[str, Any] | None = None) -> Any:
    """The model that `model.to_json()` wrote, with new weights."""
    return deserialize(json.loads(json_string), custom_objects)


__all__ = ["Model", "Sequential", "clone_model", "load_model", "model_from_json", "save_model"]
