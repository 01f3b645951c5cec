"""Recurrent networks under TensorFlow 1's names, which `dt.nn` gives out.

`cells` and `wrappers` are cells, together `rnn_cell`; `networks` applies them. `contrib` and `names` import it.
"""

from . import rnn_cell
from .networks import (
    bidirectional_dynamic_rnn,
    dynamic_rnn,
    raw_rnn,
    static_bidirectional_rnn,
    static_rnn,
    static_state_saving_rnn,
)

__all__ = [
    "bidirectional_dynamic_rnn",
    "dynamic_rnn",
    "raw_rnn",
    "rnn_cell",
    "static_bidirectional_rnn",
    "static_rnn",
    "static_state_saving_rnn",
]
