"""Steps, variables and checkpoints under the names that `tf.contrib.framework` had for them; they live in `dt.train` and `dt`."""

from ..graph.variable_lists import (
    local_variables as get_local_variables,
    trainable_variables as get_trainable_variables,
)
from ..train.checkpoint_state import list_variables, load_checkpoint, load_variable
from ..train.training_util import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)

__all__ = [
    "assert_global_step",
    "create_global_step",
    "get_global_step",
    "get_local_variables",
    "get_or_create_global_step",
    "get_trainable_variables",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]
