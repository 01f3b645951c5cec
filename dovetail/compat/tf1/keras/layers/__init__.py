"""`dt.keras.layers`: what models are made of.

`base` (`Layer`), `core`, `convolution`, `pooling`, `recurrent`, `attention`, `normalization`, `renormalization`, `merging`, `inputs`;
`passes` is what layers know of a pass through the model. `keras` and `compat.tf1.layers` import it.
"""

from ..registry import LAYERS
from .attention import MultiHeadAttention
from .base import Layer
from .convolution import Conv1D, Conv2D, Conv2DTranspose, DepthwiseConv2D, SeparableConv2D, ZeroPadding2D
from .core import (
    Activation,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Lambda,
    LeakyReLU,
    Masking,
    Permute,
    ReLU,
    RepeatVector,
    Rescaling,
    Reshape,
    Softmax,
    SpatialDropout1D,
)
from .inputs import Input, InputLayer
from .merging import (
    Add,
    Average,
    Concatenate,
    Dot,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    add,
    average,
    concatenate,
    multiply,
)
from .normalization import BatchNormalization, LayerNormalization
from .pooling import (
    AveragePooling1D,
    AveragePooling2D,
    AvgPool1D,
    AvgPool2D,
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalMaxPooling1D,
    GlobalMaxPooling2D,
    MaxPool1D,
    MaxPool2D,
    MaxPooling1D,
    MaxPooling2D,
)
from .recurrent import GRU, LSTM, RNN, Bidirectional, SimpleRNN, TimeDistributed, Wrapper

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Add",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AvgPool1D",
    "AvgPool2D",
    "BatchNormalization",
    "Bidirectional",
    "Concatenate",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Dense",
    "DepthwiseConv2D",
    "Dot",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "Input",
    "InputLayer",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPooling1D",
    "MaxPooling2D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "Permute",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "SeparableConv2D",
    "SimpleRNN",
    "Softmax",
    "SpatialDropout1D",
    "Subtract",
    "TimeDistributed",
    "Wrapper",
    "ZeroPadding2D",
    "add",
    "average",
    "concatenate",
    "multiply",
]

for _name in dir():
    if isinstance(globals()[_name], type):
        LAYERS.add(_name, globals()[_name])
