"""The exporters, by family of ops. Importing this package registers all of them. Only `saving` imports it.

`elementwise`, `reductions`, `layers`, `layout` (shapes and transposes), `indexing` (slices and gathers).
"""

from .. import correspondences  # noqa: F401
from . import elementwise, indexing, layers, layout, reductions  # noqa: F401
