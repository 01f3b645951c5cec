"""Types of `dovetail.saved_model`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.interop.tensorflow.saved_model import (
    builder as builder, constants as constants, loader as loader, main_op as main_op, signature_constants as signature_constants,
    signature_def_utils as signature_def_utils, tag_constants as tag_constants, utils as utils,
)
from dovetail.interop.tensorflow.saved_model.builder import Builder as Builder, simple_save as simple_save
from dovetail.interop.tensorflow.saved_model.constants import (
    ASSETS_DIRECTORY as ASSETS_DIRECTORY, ASSETS_KEY as ASSETS_KEY, LEGACY_INIT_OP_KEY as LEGACY_INIT_OP_KEY, MAIN_OP_KEY as
    MAIN_OP_KEY, SAVED_MODEL_FILENAME_PB as SAVED_MODEL_FILENAME_PB, SAVED_MODEL_FILENAME_PBTXT as SAVED_MODEL_FILENAME_PBTXT,
    SAVED_MODEL_SCHEMA_VERSION as SAVED_MODEL_SCHEMA_VERSION, VARIABLES_DIRECTORY as VARIABLES_DIRECTORY, VARIABLES_FILENAME as
    VARIABLES_FILENAME,
)
from dovetail.interop.tensorflow.saved_model.loader import (
    contains_saved_model as contains_saved_model, load as load, maybe_saved_model_directory as maybe_saved_model_directory,
)
from dovetail.interop.tensorflow.saved_model.signature_constants import (
    CLASSIFY_INPUTS as CLASSIFY_INPUTS, CLASSIFY_METHOD_NAME as CLASSIFY_METHOD_NAME, CLASSIFY_OUTPUT_CLASSES as
    CLASSIFY_OUTPUT_CLASSES, CLASSIFY_OUTPUT_SCORES as CLASSIFY_OUTPUT_SCORES, DEFAULT_SERVING_SIGNATURE_DEF_KEY as
    DEFAULT_SERVING_SIGNATURE_DEF_KEY, PREDICT_INPUTS as PREDICT_INPUTS, PREDICT_METHOD_NAME as PREDICT_METHOD_NAME, PREDICT_OUTPUTS as
    PREDICT_OUTPUTS, REGRESS_INPUTS as REGRESS_INPUTS, REGRESS_METHOD_NAME as REGRESS_METHOD_NAME, REGRESS_OUTPUTS as REGRESS_OUTPUTS,
)
from dovetail.interop.tensorflow.saved_model.signature_def_utils import (
    build_signature_def as build_signature_def, classification_signature_def as classification_signature_def, is_valid_signature as
    is_valid_signature, predict_signature_def as predict_signature_def, regression_signature_def as regression_signature_def,
)
from dovetail.interop.tensorflow.saved_model.tag_constants import GPU as GPU, SERVING as SERVING, TPU as TPU, TRAINING as TRAINING
from dovetail.interop.tensorflow.saved_model.utils import (
    build_tensor_info as build_tensor_info, get_tensor_from_tensor_info as get_tensor_from_tensor_info,
)
__all__ = [
    "ASSETS_DIRECTORY", "ASSETS_KEY", "Builder", "CLASSIFY_INPUTS", "CLASSIFY_METHOD_NAME", "CLASSIFY_OUTPUT_CLASSES",
    "CLASSIFY_OUTPUT_SCORES", "DEFAULT_SERVING_SIGNATURE_DEF_KEY", "GPU", "LEGACY_INIT_OP_KEY", "MAIN_OP_KEY", "PREDICT_INPUTS",
    "PREDICT_METHOD_NAME", "PREDICT_OUTPUTS", "REGRESS_INPUTS", "REGRESS_METHOD_NAME", "REGRESS_OUTPUTS", "SAVED_MODEL_FILENAME_PB",
    "SAVED_MODEL_FILENAME_PBTXT", "SAVED_MODEL_SCHEMA_VERSION", "SERVING", "TPU", "TRAINING", "VARIABLES_DIRECTORY",
    "VARIABLES_FILENAME", "build_signature_def", "build_tensor_info", "builder", "classification_signature_def", "constants",
    "contains_saved_model", "get_tensor_from_tensor_info", "is_valid_signature", "load", "loader", "main_op",
    "maybe_saved_model_directory", "predict_signature_def", "regression_signature_def", "signature_constants", "signature_def_utils",
    "simple_save", "tag_constants", "utils",
]
