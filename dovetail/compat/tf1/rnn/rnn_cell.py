"""`dt.nn.rnn_cell`: cells of recurrent networks.

>>> cell = dt.nn.rnn_cell.MultiRNNCell([dt.nn.rnn_cell.LSTMCell(200) for _ in range(2)])
>>> outputs, state = dt.nn.dynamic_rnn(cell, words, dtype=dt.float32)
"""

from .cells import BasicLSTMCell, BasicRNNCell, GRUCell, LSTMCell, LSTMStateTuple, MultiRNNCell, RNNCell
from .wrappers import DeviceWrapper, DropoutWrapper, ResidualWrapper

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
]
