"""The importers, by family of ops. Importing this package registers all of them. Only `loading` imports it.

`elementwise`, `reductions`, `normalizations`, `convolutions`, `recurrent`, `resize`, `quantization`; `layout` (shapes and transposes),
`indexing` (slices and gathers), `control_flow`.
"""

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
