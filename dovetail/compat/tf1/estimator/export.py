"""Estimators' models as saved models: what they take when they serve, and what they give (`dt.estimator.export`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....graph.core.build import convert, placeholder
from ....graph.core.dtypes import string
from ....graph.core.graph import Tensor
from ....graph.formats.atomic_files import path_of
from ....graph.ops.io.parsing import parse_example
from ....graph.ops.strings.strings import as_string
from ....interop.tensorflow.saved_model import signature_constants as names
from ....interop.tensorflow.saved_model.signature_def_utils import (
    build_signature_def,
    classification_signature_def,
    predict_signature_def,
    regression_signature_def,
)
from ....interop.tensorflow.saved_model.utils import build_tensor_info

SINGLE_FEATURE, SINGLE_RECEIVER = "feature", "input"
"""What a feature, or a tensor that is fed, is called where it is the only one."""


class ServingInputReceiver(
    NamedTuple(
        "ServingInputReceiver", [("features", Any), ("receiver_tensors", Any), ("receiver_tensors_alternatives", Any)]
    )
):
    """What a serving model takes.

    Attributes:
        features: what the model function gets.
        receiver_tensors: placeholders that are fed: one, or by name.
        receiver_tensors_alternatives: None, or name -> other tensors that may be fed instead.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        given = receiver_tensors if isinstance(receiver_tensors, Mapping) else {SINGLE_RECEIVER: receiver_tensors}
        for name, tensor in given.items():
            if not isinstance(tensor, Tensor):
                raise ValueError(f"receiver_tensor {name} must be a Tensor, not {tensor!r}")
        return super().__new__(cls, features, dict(given), receiver_tensors_alternatives)


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that makes a placeholder for each feature.

    Args:
        features: name -> a tensor whose type, and shape but for the first axis, the placeholder has.
        default_batch_size: length of the first axis; None: any.
    """
    told = {name: (t.dtype.base, t.dims) for name, t in ((n, convert(f)) for n, f in features.items())}

    def receive() -> ServingInputReceiver:
        made = {
            name: placeholder(dtype, dims if not dims else (default_batch_size, *dims[1:]), name=name)
            for name, (dtype, dims) in told.items()
        }
        return ServingInputReceiver(made, made)

    return receive


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """A function that makes a placeholder for serialised `Example`s, called `examples`, and parses them.

    Args:
        feature_spec: name -> `FixedLenFeature` and so on.
        default_batch_size: how many there are at a time; None: any.
    """

    def receive() -> ServingInputReceiver:
        serialized = placeholder(string, [default_batch_size], name="input_example_tensor")
        return ServingInputReceiver(parse_example(serialized, feature_spec), {"examples": serialized})

    return receive


# --- what a model gives -------------------------------------------------------------------------------------------------


class ExportOutput:
    """Base of what an `EstimatorSpec.export_outputs` holds."""

    def as_signature_def(self, receiver_tensors: Mapping[str, Tensor]) -> Any:
        """The signature of a model that takes these tensors."""
        raise NotImplementedError


class PredictOutput(ExportOutput):
    """Tensors by name; one alone is called `output`."""

    def __init__(self, outputs: Any) -> None:
        self.outputs: dict[str, Any] = dict(outputs) if isinstance(outputs, Mapping) else {"output": outputs}

    def as_signature_def(self, receiver_tensors: Mapping[str, Tensor]) -> Any:
        """As of `ExportOutput`."""
        return predict_signature_def(receiver_tensors, self.outputs)


class RegressionOutput(ExportOutput):
    """A number for each example. ValueError: it is none."""

    def __init__(self, value: Any) -> None:
        if not isinstance(value, Tensor) or not (value.dtype.is_floating or value.dtype.is_integer):
            raise ValueError(f"Regression output value must be a numeric Tensor; got {value!r}")
        self.value = value

    def as_signature_def(self, receiver_tensors: Mapping[str, Tensor]) -> Any:
        """As of `ExportOutput`."""
        examples = _examples(receiver_tensors)
        if examples is None:
            return build_signature_def(
                _infos(receiver_tensors), _infos({names.REGRESS_OUTPUTS: self.value}), names.PREDICT_METHOD_NAME
            )
        return regression_signature_def(examples, self.value)


class ClassificationOutput(ExportOutput):
    """Scores, classes (texts), or both, of each example. ValueError: there is neither, or they have other types."""

    def __init__(self, scores: Any = None, classes: Any = None) -> None:
        if scores is None and classes is None:
            raise ValueError("At least one of scores and classes must be set")
        if scores is not None and not (isinstance(scores, Tensor) and scores.dtype.is_floating):
            raise ValueError(f"Classification scores must be a float32 Tensor; got {scores!r}")
        if classes is not None and not (isinstance(classes, Tensor) and classes.dtype.base is string):
            raise ValueError(f"Classification classes must be a string Tensor; got {classes!r}")
        self.scores, self.classes = scores, classes

    def as_signature_def(self, receiver_tensors: Mapping[str, Tensor]) -> Any:
        """As of `ExportOutput`."""
        examples = _examples(receiver_tensors)
        if examples is None:
            given = {names.CLASSIFY_OUTPUT_SCORES: self.scores, names.CLASSIFY_OUTPUT_CLASSES: self.classes}
            outputs = {name: t for name, t in given.items() if t is not None}
            return build_signature_def(_infos(receiver_tensors), _infos(outputs), names.PREDICT_METHOD_NAME)
        return classification_signature_def(examples, self.classes, self.scores)


def _examples(receiver_tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Serialised examples, if these are what a model takes."""
    if len(receiver_tensors) == 1:
        (only,) = receiver_tensors.values()
        return only if only.dtype.base is string else None
    return None


def _infos(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: build_tensor_info(t) for name, t in tensors.items()}


def signatures_of(spec: Any, receiver: ServingInputReceiver) -> dict[str, Any]:
    """The signatures of a model that predicts, by name.

    Raises:
        ValueError: several outputs, and none is called `serving_default`.
    """
    outputs = dict(spec.export_outputs or {}) or {
        names.DEFAULT_SERVING_SIGNATURE_DEF_KEY: PredictOutput(spec.predictions)
    }
    for name, output in outputs.items():
        if not isinstance(output, ExportOutput):
            raise TypeError(f"Values in export_outputs must be ExportOutput objects; '{name}' is {output!r}")
    if names.DEFAULT_SERVING_SIGNATURE_DEF_KEY not in outputs:
        if len(outputs) > 1:
            raise ValueError(
                f"Multiple export_outputs were provided, but none of them is specified as the default: {', '.join(outputs)}. Call one of "
                f"them '{names.DEFAULT_SERVING_SIGNATURE_DEF_KEY}'"
            )
        outputs[names.DEFAULT_SERVING_SIGNATURE_DEF_KEY] = next(iter(outputs.values()))
    return {name: output.as_signature_def(receiver.receiver_tensors) for name, output in outputs.items()}


def outputs_of_classes(predictions: Mapping[str, Tensor]) -> dict[str, ExportOutput]:
    """What a ready-made classifier exports: scores with the names of classes, and all predictions."""
    classes = predictions["classes"]
    found = classes if classes.dtype.base is string else as_string(classes)
    classified = ClassificationOutput(predictions["probabilities"], found)
    return {
        names.DEFAULT_SERVING_SIGNATURE_DEF_KEY: classified,
        "classification": classified,
        "predict": PredictOutput(predictions),
    }


def outputs_of_numbers(predictions: Mapping[str, Tensor]) -> dict[str, ExportOutput]:
    """What a ready-made regressor exports."""
    regressed = RegressionOutput(predictions["predictions"])
    return {
        names.DEFAULT_SERVING_SIGNATURE_DEF_KEY: regressed,
        "regression": regressed,
        "predict": PredictOutput(predictions),
    }


def new_folder(base: str) -> Path:
    """A folder in `base` that does not exist yet, named by the time, as TensorFlow's are."""
    stamp = int(time.time())
    while (path_of(base) / str(stamp)).exists():
        stamp += 1
    return path_of(base) / str(stamp)


__all__ = [
    "ClassificationOutput",
    "ExportOutput",
    "PredictOutput",
    "RegressionOutput",
    "ServingInputReceiver",
    "build_parsing_serving_input_receiver_fn",
    "build_raw_serving_input_receiver_fn",
]
