"""`dt.random`: random ops. For a given seed their values do not depend on the placement."""

from ...graph.core.default_graph import set_random_seed
from ...graph.ops.random.random import (
    categorical,
    multinomial,
    random_crop,
    random_normal as normal,
    random_shuffle as shuffle,
    random_uniform as uniform,
    truncated_normal,
)
from ...graph.ops.random.random_common import get_seed
from ...graph.ops.random.stateless_random import (
    stateless_random_normal as stateless_normal,
    stateless_random_uniform as stateless_uniform,
    stateless_truncated_normal,
)
from ...public_paths import exported as _exported

__all__ = _exported(globals())
