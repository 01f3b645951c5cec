"""Types of `dovetail`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail import compat as compat, data as data, distribute as distribute, io as io, train as train
from dovetail.api import errors as errors, nest as nest
from dovetail.api.ops import (
    debugging as debugging, initializers as initializers, linalg as linalg, lookup as lookup, math as math, nn as nn, random as random,
    sparse as sparse, strings as strings,
)
from dovetail.api.ops.debugging import (
    add_check_numerics_ops as add_check_numerics_ops, assert_equal as assert_equal, assert_greater as assert_greater,
    assert_greater_equal as assert_greater_equal, assert_integer as assert_integer, assert_less as assert_less, assert_less_equal as
    assert_less_equal, assert_near as assert_near, assert_negative as assert_negative, assert_non_negative as assert_non_negative,
    assert_non_positive as assert_non_positive, assert_none_equal as assert_none_equal, assert_positive as assert_positive,
    assert_proper_iterable as assert_proper_iterable, assert_rank as assert_rank, assert_rank_at_least as assert_rank_at_least,
    assert_rank_in as assert_rank_in, assert_same_float_dtype as assert_same_float_dtype, assert_scalar as assert_scalar, assert_type as
    assert_type, check_numerics as check_numerics, is_non_decreasing as is_non_decreasing, is_numeric_tensor as is_numeric_tensor,
    is_strictly_increasing as is_strictly_increasing, verify_tensor_all_finite as verify_tensor_all_finite,
)
from dovetail.api.ops.math import (
    abs as abs, acos as acos, acosh as acosh, asin as asin, asinh as asinh, atan as atan, atanh as atanh, ceil as ceil, cos as cos, cosh
    as cosh, digamma as digamma, divide_no_nan as _div_no_nan, equal as equal, erf as erf, erfc as erfc, exp as exp, expm1 as expm1,
    floor as floor, floormod as floormod, greater as greater, greater_equal as greater_equal, is_finite as is_finite, is_inf as is_inf,
    is_nan as is_nan, less as less, less_equal as less_equal, lgamma as lgamma, log as log, log1p as log1p, logical_and as logical_and,
    logical_not as logical_not, logical_or as logical_or, reduce_max as _max, maximum as maximum, reduce_mean as _mean, reduce_min as
    _min, minimum as minimum, floormod as _mod, multiply as multiply, negative as negative, not_equal as not_equal, reciprocal as
    reciprocal, reduce_all as reduce_all, reduce_any as reduce_any, reduce_max as reduce_max, reduce_mean as reduce_mean, reduce_min as
    reduce_min, reduce_prod as reduce_prod, reduce_sum as reduce_sum, rint as rint, rsqrt as rsqrt, sigmoid as sigmoid, sign as sign,
    sin as sin, sinh as sinh, sqrt as sqrt, square as square, squared_difference as squared_difference, subtract as subtract, reduce_sum
    as _sum, tan as tan, tanh as tanh,
)
from dovetail.compat.tf1 import (
    contrib as contrib, estimator as estimator, feature_column as feature_column, image as image, keras as keras, layers as layers,
    losses as losses, metrics as metrics,
)
from dovetail.compat.tf1.image.patches import extract_image_patches as extract_image_patches
from dovetail.compat.tf1.names import bitwise as bitwise, config as config, dtypes as dtypes, manip as manip
from dovetail.compat.tf1.names.control_flow import foldl as foldl, foldr as foldr, switch_case as switch_case
from dovetail.compat.tf1.names.functions import (
    AggregationMethod as AggregationMethod, add_to_collections as add_to_collections, convert_to_tensor_or_indexed_slices as
    convert_to_tensor_or_indexed_slices, get_static_value as get_static_value, init_scope as init_scope, initialize_all_tables as
    initialize_all_tables, is_tensor as is_tensor, tables_initializer as tables_initializer, to_bfloat16 as to_bfloat16, to_double as
    to_double, to_int32 as to_int32, to_int64 as to_int64,
)
from dovetail.compat.tf1.names.gradients import (
    NoGradient as NoGradient, NotDifferentiable as NotDifferentiable, RegisterGradient as RegisterGradient, grad_pass_through as
    grad_pass_through, hessians as hessians, recompute_grad as recompute_grad,
)
from dovetail.compat.tf1.names.switches import (
    control_flow_v2_enabled as control_flow_v2_enabled, disable_control_flow_v2 as disable_control_flow_v2, disable_eager_execution as
    disable_eager_execution, disable_tensor_equality as disable_tensor_equality, disable_v2_behavior as disable_v2_behavior,
    disable_v2_tensorshape as disable_v2_tensorshape, enable_eager_execution as enable_eager_execution, enable_tensor_equality as
    enable_tensor_equality, enable_v2_behavior as enable_v2_behavior, enable_v2_tensorshape as enable_v2_tensorshape, executing_eagerly
    as executing_eagerly, executing_eagerly_outside_functions as executing_eagerly_outside_functions,
)
from dovetail.compat.tf1.names.variables import (
    all_variables as all_variables, assert_variables_initialized as assert_variables_initialized, create_partitioned_variables as
    create_partitioned_variables, get_local_variable as get_local_variable, initialize_all_variables as initialize_all_variables,
    initialize_local_variables as initialize_local_variables, initialize_variables as initialize_variables, make_template as
    make_template, model_variables as model_variables, no_regularizer as no_regularizer, variable_op_scope as variable_op_scope,
)
from dovetail.compat.tf1.ops import sets as sets
from dovetail.compat.tf1.ops.arrays import (
    batch_gather as batch_gather, batch_to_space as batch_to_space, broadcast_static_shape as broadcast_static_shape,
    clip_by_average_norm as clip_by_average_norm, guarantee_const as guarantee_const, histogram_fixed_width as histogram_fixed_width,
    histogram_fixed_width_bins as histogram_fixed_width_bins, meshgrid as meshgrid, parallel_stack as parallel_stack,
    required_space_to_batch_paddings as required_space_to_batch_paddings, roll as roll, shape_n as shape_n, strided_slice as
    strided_slice, string_split as string_split, tensor_scatter_nd_sub as tensor_scatter_nd_sub, tensor_scatter_nd_sub as
    _tensor_scatter_sub, unique_with_counts as unique_with_counts,
)
from dovetail.compat.tf1.ops.barriers import Barrier as Barrier
from dovetail.compat.tf1.ops.printing import Print as Print
from dovetail.compat.tf1.ops.python_functions import numpy_function as numpy_function, py_func as py_func, py_function as py_function
from dovetail.compat.tf1.ops.sequence_parsing import (
    decode_json_example as decode_json_example, parse_single_sequence_example as parse_single_sequence_example, parse_tensor as
    parse_tensor, serialize_tensor as serialize_tensor,
)
from dovetail.compat.tf1.ops.sets import convert_to_tensor_or_sparse_tensor as convert_to_tensor_or_sparse_tensor
from dovetail.compat.tf1.programs import app as app, flags as flags, logging as logging, test as test
from dovetail.compat.tf1.programs.logging import get_logger as get_logger
from dovetail.compat.tf1.queues.readers import (
    FixedLengthRecordReader as FixedLengthRecordReader, IdentityReader as IdentityReader, ReaderBase as ReaderBase, TFRecordReader as
    TFRecordReader, TextLineReader as TextLineReader, WholeFileReader as WholeFileReader,
)
from dovetail.compiled_function import compile as compile
from dovetail.distribute.launchers.ray_cluster import RayCluster as RayCluster
from dovetail.graph.control_flow.cond_while import case as case, cond as cond, while_loop as while_loop
from dovetail.graph.control_flow.functional import map_fn as map_fn, scan as scan
from dovetail.graph.core.build import (
    constant as constant, convert_to_tensor as convert_to_tensor, placeholder as placeholder, register_tensor_conversion_function as
    register_tensor_conversion_function,
)
from dovetail.graph.core.default_graph import (
    GraphKeys as GraphKeys, add_to_collection as add_to_collection, colocate_with as colocate_with, container as container,
    control_dependencies as control_dependencies, device as device, get_collection as get_collection, get_collection_ref as
    get_collection_ref, get_default_graph as get_default_graph, get_default_session as get_default_session, merge_device as
    merge_device, name_scope as name_scope, reset_default_graph as reset_default_graph, set_random_seed as set_random_seed,
)
from dovetail.graph.core.device import DeviceSpec as DeviceSpec, DeviceSpecV1 as DeviceSpecV1
from dovetail.graph.core.dtypes import (
    DType as DType, as_dtype as as_dtype, bfloat16 as bfloat16, bool_ as bool, complex128 as complex128, complex64 as complex64, double
    as double, float16 as float16, float32 as float32, float64 as float64, half as half, int16 as int16, int32 as int32, int64 as int64,
    int8 as int8, resource as resource, string as string, uint16 as uint16, uint32 as uint32, uint64 as uint64, uint8 as uint8, variant
    as variant,
)
from dovetail.graph.core.errors import OpError as OpError
from dovetail.graph.core.graph import Graph as Graph, Node as Operation, Tensor as Tensor
from dovetail.graph.core.opdef import NodeDef as NodeDef
from dovetail.graph.core.shape import (
    Dimension as Dimension, TensorShape as TensorShape, dimension_at_index as dimension_at_index, dimension_value as dimension_value,
)
from dovetail.graph.formats.values import make_ndarray as make_ndarray, make_tensor_proto as make_tensor_proto
from dovetail.graph.gradients.custom import custom_gradient as custom_gradient
from dovetail.graph.gradients.reverse import UnconnectedGradients as UnconnectedGradients, gradients as gradients
from dovetail.graph.io.serialization import load as load_graph, save as save_graph
from dovetail.graph.ops.array.concat_stack import concat as concat, split as split, stack as stack, unstack as unstack
from dovetail.graph.ops.array.creation import (
    fill as fill, ones as ones, ones_like as ones_like, zeros as zeros, zeros_like as zeros_like,
)
from dovetail.graph.ops.array.diagonal import (
    diag as diag, diag_part as diag_part, eye as eye, matrix_band_part as matrix_band_part, matrix_diag as matrix_diag, matrix_diag_part
    as matrix_diag_part, matrix_set_diag as matrix_set_diag, trace as trace,
)
from dovetail.graph.ops.array.dynamic_partition import (
    boolean_mask as boolean_mask, dynamic_partition as dynamic_partition, dynamic_stitch as dynamic_stitch, parallel_dynamic_stitch as
    parallel_dynamic_stitch, setdiff1d as setdiff1d, unique as unique,
)
from dovetail.graph.ops.array.gather import (
    gather as gather, gather_nd as gather_nd, one_hot as one_hot, reverse as reverse, reverse as _reverse_v2,
)
from dovetail.graph.ops.array.identity_and_placeholders import (
    Assert as Assert, group as group, identity as identity, identity_n as identity_n, no_op as no_op, placeholder_with_default as
    placeholder_with_default, stop_gradient as stop_gradient, tuple as tuple,
)
from dovetail.graph.ops.array.padding import pad as pad, tile as tile
from dovetail.graph.ops.array.ranges import range as _arange, linspace as _lin_space, linspace as linspace, range as range
from dovetail.graph.ops.array.scatter import (
    scatter_nd as scatter_nd, tensor_scatter_nd_add as _tensor_scatter_add, tensor_scatter_nd_add as tensor_scatter_nd_add,
    tensor_scatter_nd_max as tensor_scatter_nd_max, tensor_scatter_nd_min as tensor_scatter_nd_min, tensor_scatter_nd_update as
    tensor_scatter_nd_update, tensor_scatter_nd_update as _tensor_scatter_update,
)
from dovetail.graph.ops.array.segments import (
    segment_max as segment_max, segment_mean as segment_mean, segment_min as segment_min, segment_prod as segment_prod, segment_sum as
    segment_sum, unsorted_segment_max as unsorted_segment_max, unsorted_segment_mean as unsorted_segment_mean, unsorted_segment_min as
    unsorted_segment_min, unsorted_segment_prod as unsorted_segment_prod, unsorted_segment_sqrt_n as unsorted_segment_sqrt_n,
    unsorted_segment_sum as unsorted_segment_sum,
)
from dovetail.graph.ops.array.sequences import repeat as repeat, reverse_sequence as reverse_sequence, sequence_mask as sequence_mask
from dovetail.graph.ops.array.shapes import (
    broadcast_to as broadcast_to, ensure_shape as ensure_shape, expand_dims as expand_dims, invert_permutation as invert_permutation,
    rank as rank, reshape as reshape, shape as shape, size as size, squeeze as squeeze, transpose as transpose,
)
from dovetail.graph.ops.array.slicing import slice as slice
from dovetail.graph.ops.array.sorting import argsort as argsort, searchsorted as searchsorted, sort as sort
from dovetail.graph.ops.array.space_depth import (
    batch_to_space_nd as batch_to_space_nd, depth_to_space as depth_to_space, space_to_batch as space_to_batch, space_to_batch_nd as
    space_to_batch_nd, space_to_depth as space_to_depth,
)
from dovetail.graph.ops.control.tensor_array import TensorArray as TensorArray
from dovetail.graph.ops.io.files import matching_files as matching_files, read_file as read_file, write_file as write_file
from dovetail.graph.ops.io.parsing import (
    FixedLenFeature as FixedLenFeature, FixedLenSequenceFeature as FixedLenSequenceFeature, SparseFeature as SparseFeature,
    VarLenFeature as VarLenFeature, decode_raw as decode_raw, parse_example as parse_example, parse_single_example as
    parse_single_example,
)
from dovetail.graph.ops.linalg.einsum import einsum as einsum, tensordot as tensordot
from dovetail.graph.ops.linalg.linalg import matmul as matmul, matrix_transpose as matrix_transpose
from dovetail.graph.ops.linalg.matrix_functions import cross as cross, qr as qr, svd as svd
from dovetail.graph.ops.linalg.solving import (
    cholesky as cholesky, cholesky_solve as cholesky_solve, matrix_determinant as matrix_determinant, matrix_inverse as matrix_inverse,
    matrix_solve as matrix_solve, matrix_triangular_solve as matrix_triangular_solve,
)
from dovetail.graph.ops.math.arithmetic import (
    accumulate_n as accumulate_n, add as add, add_n as add_n, div as div, divide as divide, floordiv as _floor_div, floordiv as
    floordiv, power as _pow, real_divide as _realdiv, scalar_mul as scalar_mul, truediv as truediv, truncatediv as truncatediv,
    truncatemod as truncatemod,
)
from dovetail.graph.ops.math.broadcasting import broadcast_dynamic_shape as broadcast_dynamic_shape
from dovetail.graph.ops.math.cast import cast as cast, to_float as to_float
from dovetail.graph.ops.math.clip import (
    clip_by_global_norm as clip_by_global_norm, clip_by_norm as clip_by_norm, clip_by_value as clip_by_value, global_norm as
    global_norm, saturate_cast as saturate_cast,
)
from dovetail.graph.ops.math.compare import logical_xor as logical_xor, where as where, where_v2 as where_v2
from dovetail.graph.ops.math.elementwise import atan2 as atan2, polygamma as polygamma, round as round
from dovetail.graph.ops.math.scan import (
    argmax as _arg_max, argmin as _arg_min, argmax as argmax, argmin as argmin, cumprod as cumprod, cumsum as cumsum,
)
from dovetail.graph.ops.math.special_functions import bincount as bincount, confusion_matrix as confusion_matrix, lbeta as lbeta
from dovetail.graph.ops.math.statistics import (
    count_nonzero as count_nonzero, norm as norm, reduce_euclidean_norm as reduce_euclidean_norm, reduce_logsumexp as reduce_logsumexp,
    reduce_std as reduce_std, reduce_variance as reduce_variance,
)
from dovetail.graph.ops.nn.activations import log_sigmoid as log_sigmoid
from dovetail.graph.ops.random.random import (
    multinomial as multinomial, random_crop as random_crop, random_normal as random_normal, random_shuffle as random_shuffle,
    random_uniform as random_uniform, truncated_normal as truncated_normal,
)
from dovetail.graph.ops.random.random_common import get_seed as get_seed
from dovetail.graph.ops.sparse.arrange import (
    sparse_concat as sparse_concat, sparse_fill_empty_rows as sparse_fill_empty_rows, sparse_mask as sparse_mask, sparse_merge as
    sparse_merge, sparse_placeholder as sparse_placeholder, sparse_reorder as sparse_reorder, sparse_reset_shape as sparse_reset_shape,
    sparse_reshape as sparse_reshape, sparse_retain as sparse_retain, sparse_slice as sparse_slice, sparse_split as sparse_split,
    sparse_tensor_to_dense as sparse_tensor_to_dense, sparse_to_dense as sparse_to_dense, sparse_to_indicator as sparse_to_indicator,
    sparse_transpose as sparse_transpose,
)
from dovetail.graph.ops.sparse.math import (
    sparse_add as sparse_add, sparse_maximum as sparse_maximum, sparse_minimum as sparse_minimum, sparse_reduce_max as
    sparse_reduce_max, sparse_reduce_max_sparse as sparse_reduce_max_sparse, sparse_reduce_sum as sparse_reduce_sum,
    sparse_reduce_sum_sparse as sparse_reduce_sum_sparse, sparse_segment_mean as sparse_segment_mean, sparse_segment_sqrt_n as
    sparse_segment_sqrt_n, sparse_segment_sum as sparse_segment_sum, sparse_softmax as sparse_softmax, sparse_tensor_dense_matmul as
    sparse_tensor_dense_matmul,
)
from dovetail.graph.ops.state import queue_api as _queue
from dovetail.graph.ops.state.accumulators import (
    ConditionalAccumulator as ConditionalAccumulator, ConditionalAccumulatorBase as ConditionalAccumulatorBase,
    SparseConditionalAccumulator as SparseConditionalAccumulator,
)
from dovetail.graph.ops.state.queue_api import (
    FIFOQueue as FIFOQueue, PaddingFIFOQueue as PaddingFIFOQueue, PriorityQueue as PriorityQueue, QueueBase as QueueBase,
    RandomShuffleQueue as RandomShuffleQueue,
)
from dovetail.graph.ops.state.scatter_state import (
    scatter_add as scatter_add, scatter_div as scatter_div, scatter_max as scatter_max, scatter_min as scatter_min, scatter_mul as
    scatter_mul, scatter_nd_add as scatter_nd_add, scatter_nd_sub as scatter_nd_sub, scatter_nd_update as scatter_nd_update, scatter_sub
    as scatter_sub, scatter_update as scatter_update,
)
from dovetail.graph.ops.state.variables import (
    assign as assign, assign_add as assign_add, assign_sub as assign_sub, count_up_to as count_up_to, is_variable_initialized as
    is_variable_initialized,
)
from dovetail.graph.ops.strings.printing import print_v2 as print
from dovetail.graph.ops.strings.regular_expressions import regex_replace as regex_replace
from dovetail.graph.ops.strings.split_join import (
    decode_csv as decode_csv, reduce_join as reduce_join, string_join as string_join, substr as substr,
)
from dovetail.graph.ops.strings.strings import (
    as_string as as_string, decode_base64 as decode_base64, encode_base64 as encode_base64, string_strip as string_strip,
    string_to_hash_bucket as string_to_hash_bucket, string_to_hash_bucket_fast as string_to_hash_bucket_fast,
    string_to_hash_bucket_strong as string_to_hash_bucket_strong, string_to_number as string_to_number,
)
from dovetail.graph.tensorflow.import_graph_def import import_graph_def as import_graph_def
from dovetail.graph.tensors.indexed_slices import IndexedSlices as IndexedSlices, IndexedSlicesValue as IndexedSlicesValue
from dovetail.graph.tensors.sparse_tensor import SparseTensor as SparseTensor, SparseTensorValue as SparseTensorValue
from dovetail.graph.variables.initializers import (
    constant_initializer as constant_initializer, glorot_normal_initializer as glorot_normal_initializer, glorot_uniform_initializer as
    glorot_uniform_initializer, ones_initializer as ones_initializer, orthogonal_initializer as orthogonal_initializer,
    random_normal_initializer as random_normal_initializer, random_uniform_initializer as random_uniform_initializer,
    truncated_normal_initializer as truncated_normal_initializer, uniform_unit_scaling_initializer as uniform_unit_scaling_initializer,
    variance_scaling_initializer as variance_scaling_initializer, zeros_initializer as zeros_initializer,
)
from dovetail.graph.variables.partitioned import (
    fixed_size_partitioner as fixed_size_partitioner, min_max_variable_partitioner as min_max_variable_partitioner,
    variable_axis_size_partitioner as variable_axis_size_partitioner,
)
from dovetail.graph.variables.scope import (
    VariableScope as VariableScope, get_variable as get_variable, get_variable_scope as get_variable_scope, variable_scope as
    variable_scope,
)
from dovetail.graph.variables.store import (
    AUTO_REUSE as AUTO_REUSE, global_variables as global_variables, global_variables_initializer as global_variables_initializer,
    local_variables as local_variables, local_variables_initializer as local_variables_initializer, moving_average_variables as
    moving_average_variables, report_uninitialized_variables as report_uninitialized_variables, trainable_variables as
    trainable_variables, variables_initializer as variables_initializer,
)
from dovetail.graph.variables.variable import (
    Variable as Variable, VariableAggregation as VariableAggregation, VariableSynchronization as VariableSynchronization,
    disable_resource_variables as disable_resource_variables, enable_resource_variables as enable_resource_variables,
    resource_variables_enabled as resource_variables_enabled, variable_creator_scope as variable_creator_scope,
)
from dovetail.interop import onnx as onnx, tensorboard as summary
from dovetail.interop.tensorflow import graph_util as graph_util, saved_model as saved_model
from dovetail.io import files as _gfile, records as _python_io
from dovetail.placer.cost.profile import Profile as Profile
from dovetail.placer.pipeline import place as place
from dovetail.placer.plan import Plan as Plan
from dovetail.placer.simulate import simulate as simulate
from dovetail.runtime.config import (
    ConfigProto as ConfigProto, GPUOptions as GPUOptions, GraphOptions as GraphOptions, OptimizerOptions as OptimizerOptions,
    RunMetadata as RunMetadata, RunOptions as RunOptions, ThreadPoolOptionProto as ThreadPoolOptionProto,
)
from dovetail.runtime.observability import timeline as timeline
from dovetail.runtime.server.local_cluster import LocalCluster as LocalCluster
from dovetail.runtime.session.profiling import profile as profile
from dovetail.runtime.session.session import InteractiveSession as InteractiveSession, Session as Session
arange = _arange
arg_max = _arg_max
arg_min = _arg_min
div_no_nan = _div_no_nan
floor_div = _floor_div
gfile = _gfile
lin_space = _lin_space
max = _max
mean = _mean
min = _min
mod = _mod
pow = _pow
python_io = _python_io
queue = _queue
realdiv = _realdiv
reverse_v2 = _reverse_v2
sum = _sum
tensor_scatter_add = _tensor_scatter_add
tensor_scatter_sub = _tensor_scatter_sub
tensor_scatter_update = _tensor_scatter_update
AttrValue: Any
Event: Any
GraphDef: Any
MetaGraphDef: Any
Summary: Any
TensorInfo: Any
VERSION: str
__version__: str
newaxis: None
__all__ = [
    "AUTO_REUSE", "ConfigProto", "DType", "Graph", "IndexedSlices", "LocalCluster", "Operation", "Plan", "Profile", "RayCluster",
    "RunMetadata", "RunOptions", "Session", "Tensor", "TensorArray", "TensorShape", "Variable", "argmax", "bfloat16", "bool",
    "broadcast_to", "case", "cast", "clip_by_value", "colocate_with", "compile", "concat", "cond", "constant", "control_dependencies",
    "convert_to_tensor", "custom_gradient", "data", "debugging", "device", "distribute", "einsum", "equal", "errors", "exp",
    "expand_dims", "fill", "float16", "float32", "float64", "gather", "gather_nd", "get_default_graph", "get_variable",
    "global_variables", "global_variables_initializer", "gradients", "group", "identity", "initializers", "int32", "int64", "int8",
    "io", "linalg", "load_graph", "lookup", "map_fn", "math", "matmul", "maximum", "minimum", "name_scope", "nest", "newaxis", "nn",
    "no_op", "one_hot", "ones", "ones_like", "onnx", "pad", "place", "placeholder", "placeholder_with_default", "print", "profile",
    "random", "range", "reduce_max", "reduce_mean", "reduce_min", "reduce_sum", "reset_default_graph", "reshape", "reverse",
    "save_graph", "saved_model", "scan", "shape", "simulate", "size", "slice", "sparse", "split", "sqrt", "square", "squeeze", "stack",
    "stop_gradient", "string", "strings", "summary", "tile", "train", "trainable_variables", "transpose", "uint8", "unstack",
    "variable_scope", "where", "while_loop", "zeros", "zeros_like",
]
