"""What TensorFlow 1's programs take from `tf.contrib`, as far as it is there; it lives elsewhere."""

from . import cluster_resolver, distribute, framework, training

__all__ = ["cluster_resolver", "distribute", "framework", "training"]
