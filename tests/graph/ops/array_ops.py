"""The array ops of all modules in one namespace, for the cases."""

from dovetail.compat.tf1.ops.arrays import (
    broadcast_static_shape,
    shape_n,
    strided_slice,
    tensor_scatter_nd_sub,
    unique_with_counts,
)
from dovetail.compat.tf1.ops.printing import Print
from dovetail.compat.tf1.ops.python_functions import numpy_function, py_func, py_function
from dovetail.graph.ops.array.concat_stack import concat, split, stack, unstack
from dovetail.graph.ops.array.creation import fill, ones, ones_like, zeros, zeros_like
from dovetail.graph.ops.array.diagonal import eye
from dovetail.graph.ops.array.dynamic_partition import (
    boolean_mask,
    dynamic_partition,
    dynamic_stitch,
    parallel_dynamic_stitch,
    unique,
)
from dovetail.graph.ops.array.gather import gather, gather_nd, one_hot, reverse
from dovetail.graph.ops.array.identity_and_placeholders import (
    Assert,
    group,
    identity,
    no_op,
    placeholder_with_default,
    prevent_gradient,
    stop_gradient,
    tuple,
    with_dependencies,
)
from dovetail.graph.ops.array.indexing import newaxis
from dovetail.graph.ops.array.padding import pad, tile
from dovetail.graph.ops.array.ranges import linspace, range
from dovetail.graph.ops.array.scatter import (
    scatter_nd,
    tensor_scatter_nd_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_update,
)
from dovetail.graph.ops.array.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sum,
)
from dovetail.graph.ops.array.shapes import (
    broadcast_to,
    ensure_shape,
    expand_dims,
    invert_permutation,
    rank,
    reshape,
    shape,
    size,
    squeeze,
    transpose,
)
from dovetail.graph.ops.array.slicing import slice
from dovetail.graph.ops.array.sorting import argsort, in_top_k, searchsorted, sort, top_k

__all__ = [
    "Assert", "Print", "argsort", "boolean_mask", "broadcast_static_shape", "broadcast_to", "concat",
    "dynamic_partition", "dynamic_stitch", "ensure_shape", "expand_dims", "eye", "fill", "gather",
    "gather_nd", "group", "identity", "in_top_k", "invert_permutation", "linspace", "newaxis", "no_op",
    "numpy_function", "one_hot", "ones", "ones_like", "pad", "parallel_dynamic_stitch",
    "placeholder_with_default", "prevent_gradient", "py_func", "py_function", "range", "rank", "reshape",
    "reverse", "scatter_nd", "searchsorted", "segment_max", "segment_mean", "segment_min", "segment_prod",
    "segment_sum", "shape", "shape_n", "size", "slice", "sort", "split", "squeeze", "stack",
    "stop_gradient", "strided_slice", "tensor_scatter_nd_add", "tensor_scatter_nd_max",
    "tensor_scatter_nd_min", "tensor_scatter_nd_sub", "tensor_scatter_nd_update", "tile", "top_k",
    "transpose", "tuple", "unique", "unique_with_counts", "unsorted_segment_max", "unsorted_segment_mean",
    "unsorted_segment_min", "unsorted_segment_prod", "unsorted_segment_sum", "unstack",
    "with_dependencies", "zeros", "zeros_like",
]  # fmt: skip
