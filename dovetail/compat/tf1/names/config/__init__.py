"""`dt.config`: switches of the process.

`experimental` has the switches that TensorFlow names so. Only programs import it.
"""

from . import experimental

__all__ = ["experimental"]
