"""Sequences that become sequences (`tf.contrib.seq2seq`): decoders, what they are given, attention, beam search, and the loss.

`attention`, `beam_search`, `decoding`, `helpers`, `losses`. Only `contrib` imports it.
"""

from .attention import AttentionMechanism, AttentionWrapper, AttentionWrapperState, BahdanauAttention, LuongAttention
from .beam_search import (
    BeamSearchDecoder,
    BeamSearchDecoderOutput,
    BeamSearchDecoderState,
    FinalBeamSearchDecoderOutput,
    gather_tree,
    tile_batch,
)
from .decoding import BasicDecoder, BasicDecoderOutput, Decoder, dynamic_decode
from .helpers import (
    CustomHelper,
    GreedyEmbeddingHelper,
    Helper,
    InferenceHelper,
    SampleEmbeddingHelper,
    ScheduledEmbeddingTrainingHelper,
    TrainingHelper,
)
from .losses import sequence_loss

__all__ = [
    "AttentionMechanism",
    "AttentionWrapper",
    "AttentionWrapperState",
    "BahdanauAttention",
    "BasicDecoder",
    "BasicDecoderOutput",
    "BeamSearchDecoder",
    "BeamSearchDecoderOutput",
    "BeamSearchDecoderState",
    "CustomHelper",
    "Decoder",
    "FinalBeamSearchDecoderOutput",
    "GreedyEmbeddingHelper",
    "Helper",
    "InferenceHelper",
    "LuongAttention",
    "SampleEmbeddingHelper",
    "ScheduledEmbeddingTrainingHelper",
    "TrainingHelper",
    "dynamic_decode",
    "gather_tree",
    "sequence_loss",
    "tile_batch",
]
