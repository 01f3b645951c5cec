"""`dt.manip`: what rearranges arrays."""

from .graph.ops.arranging import roll
from .graph.ops.gathering import gather_nd, reverse
from .graph.ops.padding import tile
from .graph.ops.scattering import scatter_nd
from .graph.ops.shapes import reshape
from .graph.ops.space_depth import batch_to_space_nd, space_to_batch_nd

__all__ = [
    "batch_to_space_nd",
    "gather_nd",
    "reshape",
    "reverse",
    "roll",
    "scatter_nd",
    "space_to_batch_nd",
    "tile",
]
