"""RMSProp (Tieleman and Hinton, 2012): the gradient divided by a running root mean square of itself.

`ms = decay * ms + (1 - decay) * gradient**2; mom = momentum * mom + learning_rate * gradient / sqrt(ms +
epsilon); var -= mom`; the centred form subtracts the square of the running mean under the root (Graves, 2013,
arXiv:1308.0850).
"""

from __future__ import annotations

from ...graph.variables.initializers import Ones
from .optimizer import Hyperparameter
from .rules import RuleOptimizer


class RMSPropOptimizer(RuleOptimizer):
    """RMSProp. Its slots are `rms` (which starts at one), `momentum`, and `mg` when centred.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        decay: how much of the mean square is kept; as `learning_rate`.
        momentum: how much of the last step is kept; as `learning_rate`.
        epsilon: added under the root.
        use_locking: see `Optimizer`.
        centered: divide by the running standard deviation instead.
        name: name of its nodes and slots.
    """

    scalars = {"lr": "learning_rate", "rho": "decay", "momentum": "momentum", "epsilon": "epsilon"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        decay: Hyperparameter = 0.9,
        momentum: Hyperparameter = 0.0,
        epsilon: Hyperparameter = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(
            use_locking, name, learning_rate=learning_rate, decay=decay, momentum=momentum, epsilon=epsilon
        )
        self.rule = "CenteredRMSProp" if centered else "RMSProp"
        self.slots = {"ms": ("rms", Ones), **({"mg": ("mg", 0)} if centered else {}), "mom": ("momentum", 0)}
