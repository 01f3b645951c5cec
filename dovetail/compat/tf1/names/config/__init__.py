"""`dt.config`: switches of the process.

`experimental` has the switches that TensorFlow names so. Only programs import it.
"""

from . import experimental
from .experimental import enable_op_determinism

__all__ = ["enable_op_determinism", "experimental"]
