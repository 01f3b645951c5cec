"""Recurrent networks under the names that TensorFlow 1 had for them first; they live in `dt.nn` and `dt.nn.rnn_cell`."""

from ..rnn import static_bidirectional_rnn, static_rnn
from ..rnn.rnn_cell import (
    BasicLSTMCell,
    BasicRNNCell,
    DeviceWrapper,
    DropoutWrapper,
    GRUCell,
    LSTMCell,
    LSTMStateTuple,
    MultiRNNCell,
    ResidualWrapper,
    RNNCell,
)

__all__ = [
    "BasicLSTMCell",
    "BasicRNNCell",
    "DeviceWrapper",
    "DropoutWrapper",
    "GRUCell",
    "LSTMCell",
    "LSTMStateTuple",
    "MultiRNNCell",
    "RNNCell",
    "ResidualWrapper",
    "static_bidirectional_rnn",
    "static_rnn",
]
