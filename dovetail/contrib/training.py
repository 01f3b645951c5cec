"""Strategies for `replica_device_setter` under the names that TensorFlow 1 gave them; they live in `dt.train`."""

from ..placer.device_setter import GreedyLoadBalancingStrategy, RandomStrategy, byte_size_load_fn

__all__ = ["GreedyLoadBalancingStrategy", "RandomStrategy", "byte_size_load_fn"]
