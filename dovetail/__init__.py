"""Dovetail: build a dataflow graph, see where each part will run and why, and run it across processes.

The names are TensorFlow 1's, so an old program starts with `import dovetail as tf`. The engine lives in four
parts, each of which knows only those after it: `runtime` runs plans, `placer` and `codegen` make them,
`graph` says what a graph is.
"""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout the parts lie beside this folder, not inside it, and Python started there finds this folder
# before any installed Dovetail. Without the next lines `import dovetail` in a clone would see a package
# without its parts, even after a plain `pip install .`; with them a checkout needs no install at all. An
# installed package has no pyproject.toml beside it and keeps its own path.
_beside = Path(__file__).resolve().parent.parent
if (_beside / "pyproject.toml").is_file():
    __path__.append(str(_beside))
del _beside

from typing import TYPE_CHECKING, Any

from . import bitwise, errors, initializers, linalg, math, nn, random, train
from .graph.build import (
    constant,
    placeholder,
)
from .graph.build import (
    convert as convert_to_tensor,
)
from .graph.control_flow import (
    case,
    cond,
    while_loop,
)
from .graph.device import (
    DeviceSpec,
)
from .graph.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    complex64,
    complex128,
    double,
    float16,
    float32,
    float64,
    half,
    int8,
    int16,
    int32,
    int64,
    resource,
    string,
    uint8,
    uint16,
    uint32,
    uint64,
    variant,
)
from .graph.dtypes import (
    bool_ as bool,
)
from .graph.gradients import (
    gradients,
)
from .graph.graph import (
    Graph,
    GraphKeys,
    add_to_collection,
    colocate_with,
    container,
    control_dependencies,
    device,
    get_collection,
    get_collection_ref,
    get_default_graph,
    get_default_session,
    merge_device,
    name_scope,
    reset_default_graph,
    set_random_seed,
)
from .graph.indexed_slices import (
    IndexedSlices,
)
from .graph.initializers import (
    constant_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    orthogonal_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    uniform_unit_scaling_initializer,
    variance_scaling_initializer,
    zeros_initializer,
)
from .graph.node import (
    Node as Operation,
)
from .graph.node import (
    Tensor,
)
from .graph.ops.activations import (
    log_sigmoid,
)
from .graph.ops.arithmetic import (
    absolute as abs,
)
from .graph.ops.arithmetic import (
    add,
    add_n,
    div,
    div_no_nan,
    divide,
    floordiv,
    floormod,
    maximum,
    minimum,
    multiply,
    negative,
    reciprocal,
    rsqrt,
    scalar_mul,
    sign,
    sqrt,
    square,
    squared_difference,
    subtract,
    truediv,
    truncatediv,
    truncatemod,
)
from .graph.ops.arithmetic import (
    floormod as mod,
)
from .graph.ops.arithmetic import (
    power as pow,
)
from .graph.ops.arithmetic import (
    real_divide as realdiv,
)
from .graph.ops.cast import (
    cast,
    saturate_cast,
    to_bfloat16,
    to_double,
    to_float,
    to_int32,
    to_int64,
)
from .graph.ops.clip import (
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    global_norm,
)
from .graph.ops.compare import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    not_equal,
    where,
    where_v2,
)
from .graph.ops.creation import (
    eye,
    fill,
    linspace,
    ones,
    ones_like,
    range,
    zeros,
    zeros_like,
)
from .graph.ops.creation import (
    linspace as lin_space,
)
from .graph.ops.diagonal import (
    diag,
    diag_part,
    matrix_band_part,
    trace,
)
from .graph.ops.einsum import (
    einsum,
    tensordot,
)
from .graph.ops.gathering import (
    gather,
    gather_nd,
    one_hot,
    reverse,
)
from .graph.ops.joining import (
    concat,
    split,
    stack,
    unstack,
)
from .graph.ops.linalg import (
    matmul,
    matrix_transpose,
)
from .graph.ops.logic import (
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from .graph.ops.math import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    cos,
    cosh,
    digamma,
    erf,
    erfc,
    exp,
    expm1,
    floor,
    is_finite,
    is_inf,
    is_nan,
    lgamma,
    log,
    log1p,
    polygamma,
    rint,
    round,
    sigmoid,
    sin,
    sinh,
    tan,
    tanh,
)
from .graph.ops.padding import (
    pad,
    tile,
)
from .graph.ops.partitions import (
    boolean_mask,
    dynamic_partition,
    dynamic_stitch,
    unique,
    unique_with_counts,
)
from .graph.ops.passing import (
    Assert,
    Print,
    group,
    identity,
    no_op,
    placeholder_with_default,
    stop_gradient,
    tuple,
)
from .graph.ops.python_function import (
    numpy_function,
    py_func,
    py_function,
)
from .graph.ops.random import (
    multinomial,
    random_normal,
    random_shuffle,
    random_uniform,
    truncated_normal,
)
from .graph.ops.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from .graph.ops.scan import (
    argmax,
    argmin,
    cumprod,
    cumsum,
)
from .graph.ops.scatter_state import (
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_sub,
    scatter_update,
)
from .graph.ops.scattering import (
    scatter_nd,
    tensor_scatter_nd_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_sub,
    tensor_scatter_nd_update,
)
from .graph.ops.segments import (
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
from .graph.ops.shapes import (
    broadcast_static_shape,
    broadcast_to,
    ensure_shape,
    expand_dims,
    invert_permutation,
    rank,
    reshape,
    shape,
    shape_n,
    size,
    squeeze,
    transpose,
)
from .graph.ops.slicing import (
    slice,
    strided_slice,
)
from .graph.ops.sorting import (
    argsort,
    searchsorted,
    sort,
)
from .graph.ops.state import (
    assign,
    assign_add,
    assign_sub,
    count_up_to,
    is_variable_initialized,
    report_uninitialized_variables,
)
from .graph.ops.statistics import (
    count_nonzero,
    norm,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_std,
    reduce_variance,
)
from .graph.serialize import (
    load as load_graph,
)
from .graph.serialize import (
    save as save_graph,
)
from .graph.shape import (
    Dimension,
    TensorShape,
)
from .graph.variable_scope import (
    AUTO_REUSE,
    VariableScope,
    get_local_variable,
    get_variable,
    get_variable_scope,
    no_regularizer,
    variable_op_scope,
    variable_scope,
)
from .graph.variables import (
    Variable,
    all_variables,
    assert_variables_initialized,
    disable_resource_variables,
    enable_resource_variables,
    global_variables,
    global_variables_initializer,
    initialize_all_variables,
    initialize_local_variables,
    initialize_variables,
    local_variables,
    local_variables_initializer,
    model_variables,
    moving_average_variables,
    trainable_variables,
    variables_initializer,
)
from .placer.plan import (
    Plan,
    place,
)
from .runtime.config import (
    ConfigProto,
    GPUOptions,
    GraphOptions,
    OptimizerOptions,
    RunMetadata,
    RunOptions,
)
from .runtime.session import (
    InteractiveSession,
    Session,
)

if TYPE_CHECKING:
    from .runtime.local import LocalCluster

newaxis = None
"""An axis of size 1 in an index, as in `tensor[:, dt.newaxis]`."""


def __getattr__(name: str) -> Any:
    """Names whose modules need ZeroMQ: loaded when they are used."""
    if name == "LocalCluster":
        from .runtime.local import LocalCluster

        return LocalCluster
    raise AttributeError(f"module 'dovetail' has no attribute {name!r}")


__all__ = [
    "AUTO_REUSE",
    "Assert",
    "ConfigProto",
    "DType",
    "DeviceSpec",
    "Dimension",
    "GPUOptions",
    "Graph",
    "GraphKeys",
    "GraphOptions",
    "IndexedSlices",
    "InteractiveSession",
    "LocalCluster",
    "Operation",
    "OptimizerOptions",
    "Plan",
    "Print",
    "RunMetadata",
    "RunOptions",
    "Session",
    "Tensor",
    "TensorShape",
    "Variable",
    "VariableScope",
    "abs",
    "acos",
    "acosh",
    "add",
    "add_n",
    "add_to_collection",
    "all_variables",
    "argmax",
    "argmin",
    "argsort",
    "as_dtype",
    "asin",
    "asinh",
    "assert_variables_initialized",
    "assign",
    "assign_add",
    "assign_sub",
    "atan",
    "atan2",
    "atanh",
    "bfloat16",
    "bitwise",
    "bool",
    "boolean_mask",
    "broadcast_static_shape",
    "broadcast_to",
    "case",
    "cast",
    "ceil",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "colocate_with",
    "complex128",
    "complex64",
    "concat",
    "cond",
    "constant",
    "constant_initializer",
    "container",
    "control_dependencies",
    "convert_to_tensor",
    "cos",
    "cosh",
    "count_nonzero",
    "count_up_to",
    "cumprod",
    "cumsum",
    "device",
    "diag",
    "diag_part",
    "digamma",
    "disable_resource_variables",
    "div",
    "div_no_nan",
    "divide",
    "double",
    "dynamic_partition",
    "dynamic_stitch",
    "einsum",
    "enable_resource_variables",
    "ensure_shape",
    "equal",
    "erf",
    "erfc",
    "errors",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "fill",
    "float16",
    "float32",
    "float64",
    "floor",
    "floordiv",
    "floormod",
    "gather",
    "gather_nd",
    "get_collection",
    "get_collection_ref",
    "get_default_graph",
    "get_default_session",
    "get_local_variable",
    "get_variable",
    "get_variable_scope",
    "global_norm",
    "global_variables",
    "global_variables_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "gradients",
    "greater",
    "greater_equal",
    "group",
    "half",
    "identity",
    "initialize_all_variables",
    "initialize_local_variables",
    "initialize_variables",
    "initializers",
    "int16",
    "int32",
    "int64",
    "int8",
    "invert_permutation",
    "is_finite",
    "is_inf",
    "is_nan",
    "is_variable_initialized",
    "less",
    "less_equal",
    "lgamma",
    "lin_space",
    "linalg",
    "linspace",
    "load_graph",
    "local_variables",
    "local_variables_initializer",
    "log",
    "log1p",
    "log_sigmoid",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "math",
    "matmul",
    "matrix_band_part",
    "matrix_transpose",
    "maximum",
    "merge_device",
    "minimum",
    "mod",
    "model_variables",
    "moving_average_variables",
    "multinomial",
    "multiply",
    "name_scope",
    "negative",
    "newaxis",
    "nn",
    "no_op",
    "no_regularizer",
    "norm",
    "not_equal",
    "numpy_function",
    "one_hot",
    "ones",
    "ones_initializer",
    "ones_like",
    "orthogonal_initializer",
    "pad",
    "place",
    "placeholder",
    "placeholder_with_default",
    "polygamma",
    "pow",
    "py_func",
    "py_function",
    "random",
    "random_normal",
    "random_normal_initializer",
    "random_shuffle",
    "random_uniform",
    "random_uniform_initializer",
    "range",
    "rank",
    "realdiv",
    "reciprocal",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
    "report_uninitialized_variables",
    "reset_default_graph",
    "reshape",
    "resource",
    "reverse",
    "rint",
    "round",
    "rsqrt",
    "saturate_cast",
    "save_graph",
    "scalar_mul",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd",
    "scatter_sub",
    "scatter_update",
    "searchsorted",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "set_random_seed",
    "shape",
    "shape_n",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "size",
    "slice",
    "sort",
    "split",
    "sqrt",
    "square",
    "squared_difference",
    "squeeze",
    "stack",
    "stop_gradient",
    "strided_slice",
    "string",
    "subtract",
    "tan",
    "tanh",
    "tensor_scatter_nd_add",
    "tensor_scatter_nd_max",
    "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub",
    "tensor_scatter_nd_update",
    "tensordot",
    "tile",
    "to_bfloat16",
    "to_double",
    "to_float",
    "to_int32",
    "to_int64",
    "trace",
    "train",
    "trainable_variables",
    "transpose",
    "truediv",
    "truncated_normal",
    "truncated_normal_initializer",
    "truncatediv",
    "truncatemod",
    "tuple",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "uniform_unit_scaling_initializer",
    "unique",
    "unique_with_counts",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sum",
    "unstack",
    "variable_op_scope",
    "variable_scope",
    "variables_initializer",
    "variance_scaling_initializer",
    "variant",
    "where",
    "where_v2",
    "while_loop",
    "zeros",
    "zeros_initializer",
    "zeros_like",
]
