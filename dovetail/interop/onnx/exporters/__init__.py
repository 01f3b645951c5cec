"""The exporters, by families of ops. Loading this package registers all of them; only `saving` imports it.

`elementwise`, `reductions`, `layers`, `layout` (shapes and transposes), `indexing` (slices and gathers).
"""

from .. import correspondences  # noqa: F401
from . import elementwise, indexing, layers, layout, reductions  # noqa: F401
