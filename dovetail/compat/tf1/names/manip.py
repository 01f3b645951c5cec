"""`dt.manip`: what rearranges arrays."""

from ....graph.ops.array.gather import gather_nd, reverse
from ....graph.ops.array.padding import tile
from ....graph.ops.array.scatter import scatter_nd
from ....graph.ops.array.shapes import reshape
from ....graph.ops.array.space_depth import batch_to_space_nd, space_to_batch_nd
from ..ops.arrays import roll

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
