"""Optimizers that divide the gradient by sums or means of its squares: Adagrad, Adadelta, RMSProp.

Adagrad (Duchi, Hazan and Singer, 2011): each weight's rate decreases with the sum of its squared gradients.

`accum += gradient**2; var -= learning_rate * gradient / sqrt(accum)`

Adadelta (Zeiler, 2012, arXiv:1212.5701): each step is scaled by the ratio of the root mean squares of past steps and of gradients.

`accum = rho * accum + (1 - rho) * gradient**2; step = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * gradient`
`accum_update = rho * accum_update + (1 - rho) * step**2; var -= learning_rate * step`

RMSProp (Tieleman and Hinton, 2012): the gradient divided by its running root mean square.

`ms = decay * ms + (1 - decay) * gradient**2; mom = momentum * mom + learning_rate * gradient / sqrt(ms +
epsilon); var -= mom`; the centred form subtracts the square of the running mean under the root (Graves, 2013,
arXiv:1308.0850).
"""

from __future__ import annotations

from ...graph.variables.initializers import Ones
from .optimizer import Hyperparameter
from .rules import RuleOptimizer


class AdagradOptimizer(RuleOptimizer):
    """Adagrad (Duchi, Hazan and Singer, 2011). Its slot is `accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        initial_accumulator_value: initial value of the sums of squares, above 0.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    Raises:
        ValueError: `initial_accumulator_value` is not positive.
    """

    rule = "Adagrad"
    slots = {"accum": ("accumulator", "initial")}
    scalars = {"lr": "learning_rate"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(use_locking, name, learning_rate=learning_rate, initial=initial_accumulator_value)


class AdadeltaOptimizer(RuleOptimizer):
    """Adadelta (Zeiler, 2012). Its slots are `accum` and `accum_update`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one; the paper uses 1.0.
        rho: decay of the mean squares; types as `learning_rate`.
        epsilon: added under both roots.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.
    """

    rule = "Adadelta"
    slots = {"accum": ("accum", 0), "accum_update": ("accum_update", 0)}
    scalars = {"lr": "lr", "rho": "rho", "epsilon": "epsilon"}

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        rho: Hyperparameter = 0.95,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, rho=rho, epsilon=epsilon)


class RMSPropOptimizer(RuleOptimizer):
    """RMSProp (Tieleman and Hinton, 2012). Its slots are `rms` (initially 1), `momentum` and, if centered, `mg`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        decay: decay of the mean square; types as `learning_rate`.
        momentum: factor of the previous step; types as `learning_rate`.
        epsilon: added under the root.
        use_locking: see `Optimizer`.
        centered: divide by the running standard deviation instead of the root mean square.
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
