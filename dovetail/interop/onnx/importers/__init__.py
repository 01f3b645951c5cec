"""The importers, by families of ops. Loading this package registers all of them."""

from .. import correspondences  # noqa: F401
from . import (  # noqa: F401
    control_flow,
    convolutions,
    elementwise,
    indexing,
    layout,
    normalizations,
    quantization,
    recurrent,
    reductions,
    resize,
)
