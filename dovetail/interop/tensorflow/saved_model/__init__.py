"""`tf.saved_model`: models with their variables and signatures in a folder, in TensorFlow 1's format.

    folder/saved_model.pb                     graphs, each with its tags and signatures
    folder/variables/variables.index, .data-  a checkpoint of the variables
    folder/assets/                            files with the contents of the graphs' tables

TensorFlow can read the files that `simple_save` and `Builder` write. `load` reads these and saved models of TensorFlow 1. It does not
support models of TensorFlow 2, which consist of functions.

- `builder`, `loader`: write and read saved models. `main_op`: the op that initializes a loaded model.
- `signature_def_utils`, `utils`: create signatures.
- `constants`, `tag_constants`, `signature_constants`: names.

`compat` and programs import this package.
"""

from ....public_paths import exported as _exported
from . import builder, constants, loader, main_op, signature_constants, signature_def_utils, tag_constants, utils
from .builder import Builder, simple_save
from .constants import (
    ASSETS_DIRECTORY,
    ASSETS_KEY,
    LEGACY_INIT_OP_KEY,
    MAIN_OP_KEY,
    SAVED_MODEL_FILENAME_PB,
    SAVED_MODEL_FILENAME_PBTXT,
    SAVED_MODEL_SCHEMA_VERSION,
    VARIABLES_DIRECTORY,
    VARIABLES_FILENAME,
)
from .loader import contains_saved_model, load, maybe_saved_model_directory
from .signature_constants import (
    CLASSIFY_INPUTS,
    CLASSIFY_METHOD_NAME,
    CLASSIFY_OUTPUT_CLASSES,
    CLASSIFY_OUTPUT_SCORES,
    DEFAULT_SERVING_SIGNATURE_DEF_KEY,
    PREDICT_INPUTS,
    PREDICT_METHOD_NAME,
    PREDICT_OUTPUTS,
    REGRESS_INPUTS,
    REGRESS_METHOD_NAME,
    REGRESS_OUTPUTS,
)
from .signature_def_utils import (
    build_signature_def,
    classification_signature_def,
    is_valid_signature,
    predict_signature_def,
    regression_signature_def,
)
from .tag_constants import GPU, SERVING, TPU, TRAINING
from .utils import build_tensor_info, get_tensor_from_tensor_info

__all__ = _exported(
    globals(), "builder", "constants", "loader", "main_op", "signature_constants", "signature_def_utils", "tag_constants", "utils"
)  # fmt: skip
