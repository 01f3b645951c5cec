"""Signatures: the named inputs and outputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....graph.core.dtypes import string
from ....graph.formats.protos import message
from . import signature_constants as names
from .utils import build_tensor_info


def build_signature_def(
    inputs: Mapping[str, Any] | None = None, outputs: Mapping[str, Any] | None = None, method_name: str = ""
) -> Any:
    """Create a `SignatureDef`.

    Args:
        inputs: name -> `TensorInfo` (`build_tensor_info`).
        outputs: name -> `TensorInfo` (`build_tensor_info`).
        method_name: the serving method, such as `PREDICT_METHOD_NAME`.
    """
    found = message("SignatureDef")(method_name=method_name or "")
    for given, field in ((inputs, found.inputs), (outputs, found.outputs)):
        for name, info in (given or {}).items():
            field[name].CopyFrom(message("TensorInfo").FromString(info.SerializeToString()))
    return found


def predict_signature_def(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """Create the signature of a function from named tensors to named tensors.

    Args:
        inputs: name -> tensor.
        outputs: name -> tensor.

    Raises:
        ValueError: there are no inputs or no outputs.
    """
    if not inputs or not outputs:
        raise ValueError("Prediction inputs and outputs cannot be None or empty")
    takes, gives = ({n: build_tensor_info(t) for n, t in of.items()} for of in (inputs, outputs))
    return build_signature_def(takes, gives, names.PREDICT_METHOD_NAME)


def regression_signature_def(examples: Any, predictions: Any) -> Any:
    """Create the signature of a model that predicts numbers from serialized `Example`s.

    Args:
        examples: a string tensor of serialized `Example`s.
        predictions: the numbers.

    Raises:
        ValueError: `examples` is not a string tensor.
    """
    _need_text(examples, "Regression examples")
    return build_signature_def(
        {names.REGRESS_INPUTS: build_tensor_info(examples)},
        {names.REGRESS_OUTPUTS: build_tensor_info(predictions)},
        names.REGRESS_METHOD_NAME,
    )


def classification_signature_def(examples: Any, classes: Any, scores: Any) -> Any:
    """Create the signature of a model that predicts classes, scores or both from serialized `Example`s.

    Args:
        examples: a string tensor of serialized `Example`s.
        classes: a string tensor, or None.
        scores: a float tensor, or None.

    Raises:
        ValueError: `examples` is not a string tensor, or there are neither classes nor scores.
    """
    _need_text(examples, "Classification examples")
    if classes is None and scores is None:
        raise ValueError("Classification classes and scores cannot both be None")
    given = {names.CLASSIFY_OUTPUT_CLASSES: classes, names.CLASSIFY_OUTPUT_SCORES: scores}
    return build_signature_def(
        {names.CLASSIFY_INPUTS: build_tensor_info(examples)},
        {name: build_tensor_info(t) for name, t in given.items() if t is not None},
        names.CLASSIFY_METHOD_NAME,
    )


def is_valid_signature(signature_def: Any) -> bool:
    """Whether a signature has the inputs and outputs that its method requires."""
    inputs, outputs = set(signature_def.inputs), set(signature_def.outputs)
    match signature_def.method_name:
        case names.PREDICT_METHOD_NAME:
            return bool(inputs) and bool(outputs)
        case names.REGRESS_METHOD_NAME:
            return inputs == {names.REGRESS_INPUTS} and outputs == {names.REGRESS_OUTPUTS}
        case names.CLASSIFY_METHOD_NAME:
            allowed = {names.CLASSIFY_OUTPUT_CLASSES, names.CLASSIFY_OUTPUT_SCORES}
            return inputs == {names.CLASSIFY_INPUTS} and bool(outputs) and outputs <= allowed
    return False


def _need_text(examples: Any, what: str) -> None:
    if examples is None:
        raise ValueError(f"{what} cannot be None")
    if examples.dtype.base is not string:
        raise ValueError(f"{what} must be serialized strings, not {examples.dtype.name}")


__all__ = [
    "build_signature_def",
    "classification_signature_def",
    "is_valid_signature",
    "predict_signature_def",
    "regression_signature_def",
]
