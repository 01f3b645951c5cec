"""`dt.manip`: what rearranges arrays."""

from .graph.ops.arranging import roll
from .graph.ops.gathering import gather_nd, reverse
from .graph.ops.padding import tile
from .graph.ops.scattering import scatter_nd
from .graph.ops.shapes import reshape

__all__ = ["gather_nd", "reshape", "reverse", "roll", "scatter_nd", "tile"]
