"""Top-level names that are not in the core face, as `dt.to_float`, and second names, as `dt.sum`. `table` looks them up on use."""

from typing import Any as _Any

from ....api.ops.debugging import (
    add_check_numerics_ops,
    assert_equal,
    assert_greater,
    assert_greater_equal,
    assert_integer,
    assert_less,
    assert_less_equal,
    assert_near,
    assert_negative,
    assert_non_negative,
    assert_non_positive,
    assert_none_equal,
    assert_positive,
    assert_proper_iterable,
    assert_rank,
    assert_rank_at_least,
    assert_rank_in,
    assert_same_float_dtype,
    assert_scalar,
    assert_type,
    check_numerics,
    is_non_decreasing,
    is_numeric_tensor,
    is_strictly_increasing,
    verify_tensor_all_finite,
)
from ....graph.core.build import register_tensor_conversion_function
from ....graph.core.default_graph import (
    GraphKeys,
    add_to_collection,
    container,
    get_collection,
    get_collection_ref,
    get_default_session,
    merge_device,
    set_random_seed,
)
from ....graph.core.device import DeviceSpec, DeviceSpecV1
from ....graph.core.dtypes import (
    as_dtype,
    complex64,
    complex128,
    double,
    half,
    int16,
    resource,
    uint16,
    uint32,
    uint64,
    variant,
)
from ....graph.core.errors import OpError
from ....graph.core.opdef import NodeDef
from ....graph.core.shape import Dimension, dimension_at_index, dimension_value
from ....graph.formats.protos import message as _message
from ....graph.formats.values import make_ndarray, make_tensor_proto
from ....graph.gradients.reverse import UnconnectedGradients
from ....graph.ops.array.diagonal import (
    diag,
    diag_part,
    eye,
    matrix_band_part,
    matrix_diag,
    matrix_diag_part,
    matrix_set_diag,
    trace,
)
from ....graph.ops.array.dynamic_partition import (
    boolean_mask,
    dynamic_partition,
    dynamic_stitch,
    parallel_dynamic_stitch,
    setdiff1d,
    unique,
)
from ....graph.ops.array.gather import reverse as reverse_v2
from ....graph.ops.array.identity_and_placeholders import Assert, identity_n, tuple
from ....graph.ops.array.ranges import linspace, linspace as lin_space, range as arange
from ....graph.ops.array.scatter import (
    scatter_nd,
    tensor_scatter_nd_add,
    tensor_scatter_nd_add as tensor_scatter_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_update,
    tensor_scatter_nd_update as tensor_scatter_update,
)
from ....graph.ops.array.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from ....graph.ops.array.sequences import repeat, reverse_sequence, sequence_mask
from ....graph.ops.array.shapes import ensure_shape, invert_permutation, rank
from ....graph.ops.array.sorting import argsort, searchsorted, sort
from ....graph.ops.array.space_depth import (
    batch_to_space_nd,
    depth_to_space,
    space_to_batch,
    space_to_batch_nd,
    space_to_depth,
)
from ....graph.ops.io.files import matching_files, read_file, write_file
from ....graph.ops.io.parsing import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    decode_raw,
    parse_example,
    parse_single_example,
)
from ....graph.ops.linalg.einsum import tensordot
from ....graph.ops.linalg.linalg import matrix_transpose
from ....graph.ops.linalg.matrix_functions import cross, qr, svd
from ....graph.ops.linalg.solving import (
    cholesky,
    cholesky_solve,
    matrix_determinant,
    matrix_inverse,
    matrix_solve,
    matrix_triangular_solve,
)
from ....graph.ops.math.arithmetic import (
    absolute as abs,
    accumulate_n,
    add,
    add_n,
    div,
    div_no_nan,
    divide,
    floordiv,
    floordiv as floor_div,
    floormod,
    floormod as mod,
    multiply,
    negative,
    power as pow,
    real_divide as realdiv,
    reciprocal,
    rsqrt,
    scalar_mul,
    sign,
    squared_difference,
    subtract,
    truediv,
    truncatediv,
    truncatemod,
)
from ....graph.ops.math.broadcasting import broadcast_dynamic_shape
from ....graph.ops.math.cast import to_float
from ....graph.ops.math.clip import clip_by_global_norm, clip_by_norm, global_norm, saturate_cast
from ....graph.ops.math.compare import (
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    where_v2,
)
from ....graph.ops.math.elementwise import (
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
from ....graph.ops.math.reduce import (
    reduce_all,
    reduce_any,
    reduce_max as max,
    reduce_mean as mean,
    reduce_min as min,
    reduce_prod,
    reduce_sum as sum,
)
from ....graph.ops.math.scan import argmax as arg_max, argmin, argmin as arg_min, cumprod, cumsum
from ....graph.ops.math.special_functions import bincount, confusion_matrix, lbeta
from ....graph.ops.math.statistics import (
    count_nonzero,
    norm,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_std,
    reduce_variance,
)
from ....graph.ops.nn.activations import log_sigmoid
from ....graph.ops.random.random import (
    multinomial,
    random_crop,
    random_normal,
    random_shuffle,
    random_uniform,
    truncated_normal,
)
from ....graph.ops.random.random_common import get_seed
from ....graph.ops.sparse.arrange import (
    sparse_concat,
    sparse_fill_empty_rows,
    sparse_mask,
    sparse_merge,
    sparse_placeholder,
    sparse_reorder,
    sparse_reset_shape,
    sparse_reshape,
    sparse_retain,
    sparse_slice,
    sparse_split,
    sparse_tensor_to_dense,
    sparse_to_dense,
    sparse_to_indicator,
    sparse_transpose,
)
from ....graph.ops.sparse.math import (
    sparse_add,
    sparse_maximum,
    sparse_minimum,
    sparse_reduce_max,
    sparse_reduce_max_sparse,
    sparse_reduce_sum,
    sparse_reduce_sum_sparse,
    sparse_segment_mean,
    sparse_segment_sqrt_n,
    sparse_segment_sum,
    sparse_softmax,
    sparse_tensor_dense_matmul,
)
from ....graph.ops.state.accumulators import (
    ConditionalAccumulator,
    ConditionalAccumulatorBase,
    SparseConditionalAccumulator,
)
from ....graph.ops.state.queue_api import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from ....graph.ops.state.scatter_state import (
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_nd_add,
    scatter_nd_sub,
    scatter_nd_update,
    scatter_sub,
    scatter_update,
)
from ....graph.ops.state.variables import assign, assign_add, assign_sub, count_up_to, is_variable_initialized
from ....graph.ops.strings.regular_expressions import regex_replace
from ....graph.ops.strings.split_join import decode_csv, reduce_join, string_join, substr
from ....graph.ops.strings.strings import (
    as_string,
    decode_base64,
    encode_base64,
    string_strip,
    string_to_hash_bucket,
    string_to_hash_bucket_fast,
    string_to_hash_bucket_strong,
    string_to_number,
)
from ....graph.tensorflow.import_graph_def import import_graph_def
from ....graph.tensors.indexed_slices import IndexedSlicesValue
from ....graph.tensors.sparse_tensor import SparseTensor, SparseTensorValue
from ....graph.variables.initializers import (
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
from ....graph.variables.partitioned import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from ....graph.variables.scope import VariableScope, get_variable_scope
from ....graph.variables.store import (
    local_variables,
    local_variables_initializer,
    moving_average_variables,
    report_uninitialized_variables,
    variables_initializer,
)
from ....graph.variables.variable import (
    VariableAggregation,
    VariableSynchronization,
    disable_resource_variables,
    enable_resource_variables,
    resource_variables_enabled,
    variable_creator_scope,
)
from ....interop import tensorboard as _tensorboard
from ....runtime.config import GPUOptions, GraphOptions, OptimizerOptions, ThreadPoolOptionProto
from ....runtime.session.session import InteractiveSession
from ..image.patches import extract_image_patches
from ..ops.arrays import (
    batch_gather,
    batch_to_space,
    broadcast_static_shape,
    clip_by_average_norm,
    guarantee_const,
    histogram_fixed_width,
    histogram_fixed_width_bins,
    meshgrid,
    parallel_stack,
    required_space_to_batch_paddings,
    roll,
    shape_n,
    strided_slice,
    string_split,
    tensor_scatter_nd_sub,
    tensor_scatter_nd_sub as tensor_scatter_sub,
    unique_with_counts,
)
from ..ops.barriers import Barrier
from ..ops.printing import Print
from ..ops.python_functions import numpy_function, py_func, py_function
from ..ops.sequence_parsing import (
    decode_json_example,
    parse_single_sequence_example,
    parse_tensor,
    serialize_tensor,
)
from ..ops.sets import convert_to_tensor_or_sparse_tensor
from ..programs.logging import get_logger
from ..queues.readers import (
    FixedLengthRecordReader,
    IdentityReader,
    ReaderBase,
    TextLineReader,
    TFRecordReader,
    WholeFileReader,
)
from .control_flow import foldl, foldr, switch_case
from .functions import (
    AggregationMethod,
    add_to_collections,
    convert_to_tensor_or_indexed_slices,
    get_static_value,
    init_scope,
    initialize_all_tables,
    is_tensor,
    tables_initializer,
    to_bfloat16,
    to_double,
    to_int32,
    to_int64,
)
from .gradients import NoGradient, NotDifferentiable, RegisterGradient, grad_pass_through, hessians, recompute_grad
from .switches import (
    control_flow_v2_enabled,
    disable_control_flow_v2,
    disable_eager_execution,
    disable_tensor_equality,
    disable_v2_behavior,
    disable_v2_tensorshape,
    enable_eager_execution,
    enable_tensor_equality,
    enable_v2_behavior,
    enable_v2_tensorshape,
    executing_eagerly,
    executing_eagerly_outside_functions,
)
from .variables import (
    all_variables,
    assert_variables_initialized,
    create_partitioned_variables,
    get_local_variable,
    initialize_all_variables,
    initialize_local_variables,
    initialize_variables,
    make_template,
    model_variables,
    no_regularizer,
    variable_op_scope,
)

VERSION = "1.15.0"
"""TensorFlow's version whose names these are: programs ask for it."""

_MESSAGES = ("AttrValue", "GraphDef", "MetaGraphDef", "TensorInfo")
_SUMMARIES = ("Event", "Summary")


def __getattr__(name: str) -> _Any:
    """Protocol buffers: `protobuf` and `tensorboardX` are loaded when one is used."""
    if name in _MESSAGES:
        return _message(name)
    if name in _SUMMARIES:
        return getattr(_tensorboard, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MESSAGES, *_SUMMARIES})
