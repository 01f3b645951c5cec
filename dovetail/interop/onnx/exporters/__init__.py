"""The exporters, by families of ops. Loading this package registers all of them."""

from .. import correspondences  # noqa: F401
from . import elementwise, indexing, layers, layout, reductions  # noqa: F401
