"""Training: optimizers and what they need, under TensorFlow 1's names (`dt.train`)."""

from typing import TYPE_CHECKING, Any

from ..placer.cluster import ClusterDef, ClusterSpec, JobDef
from ..placer.device_setter import (
    BalancedStrategy,
    GreedyLoadBalancingStrategy,
    RandomStrategy,
    RoundRobinStrategy,
    byte_size_load_fn,
    replica_device_setter,
)
from .adagrad import AdagradOptimizer
from .adam import AdamOptimizer
from .gradient_descent import GradientDescentOptimizer
from .momentum import MomentumOptimizer
from .optimizer import Optimizer
from .rmsprop import RMSPropOptimizer
from .training_util import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)

if TYPE_CHECKING:
    from ..runtime.server import Server


def __getattr__(name: str) -> Any:
    """`Server` needs ZeroMQ, which is loaded when it is used."""
    if name == "Server":
        from ..runtime.server import Server

        return Server
    raise AttributeError(f"module 'dovetail.train' has no attribute {name!r}")


__all__ = [
    "AdagradOptimizer",
    "AdamOptimizer",
    "BalancedStrategy",
    "ClusterDef",
    "ClusterSpec",
    "GradientDescentOptimizer",
    "GreedyLoadBalancingStrategy",
    "JobDef",
    "MomentumOptimizer",
    "Optimizer",
    "RMSPropOptimizer",
    "RandomStrategy",
    "RoundRobinStrategy",
    "Server",
    "assert_global_step",
    "byte_size_load_fn",
    "create_global_step",
    "get_global_step",
    "get_or_create_global_step",
    "global_step",
    "replica_device_setter",
]
