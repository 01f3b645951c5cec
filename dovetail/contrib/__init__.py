"""What TensorFlow 1's programs take from `tf.contrib`, as far as it is there: `dt.contrib.training`, `dt.contrib.distribute`."""

from . import distribute, training

__all__ = ["distribute", "training"]
