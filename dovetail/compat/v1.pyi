"""Types of `dovetail.compat.v1`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.names.v1 import *
from dovetail import (
    AUTO_REUSE as AUTO_REUSE, AggregationMethod as AggregationMethod, Assert as Assert, AttrValue as AttrValue, Barrier as Barrier,
    ConditionalAccumulator as ConditionalAccumulator, ConditionalAccumulatorBase as ConditionalAccumulatorBase, ConfigProto as
    ConfigProto, DType as DType, DeviceSpec as DeviceSpec, DeviceSpecV1 as DeviceSpecV1, Dimension as Dimension, Event as Event,
    FIFOQueue as FIFOQueue, FixedLenFeature as FixedLenFeature, FixedLenSequenceFeature as FixedLenSequenceFeature,
    FixedLengthRecordReader as FixedLengthRecordReader, GPUOptions as GPUOptions, Graph as Graph, GraphDef as GraphDef, GraphKeys as
    GraphKeys, GraphOptions as GraphOptions, IdentityReader as IdentityReader, IndexedSlices as IndexedSlices, IndexedSlicesValue as
    IndexedSlicesValue, InteractiveSession as InteractiveSession, LocalCluster as LocalCluster, MetaGraphDef as MetaGraphDef, NoGradient
    as NoGradient, NodeDef as NodeDef, NotDifferentiable as NotDifferentiable, OpError as OpError, Operation as Operation,
    OptimizerOptions as OptimizerOptions, PaddingFIFOQueue as PaddingFIFOQueue, Plan as Plan, Print as Print, PriorityQueue as
    PriorityQueue, Profile as Profile, QueueBase as QueueBase, RandomShuffleQueue as RandomShuffleQueue, RayCluster as RayCluster,
    ReaderBase as ReaderBase, RegisterGradient as RegisterGradient, RunMetadata as RunMetadata, RunOptions as RunOptions, Session as
    Session, SparseConditionalAccumulator as SparseConditionalAccumulator, SparseFeature as SparseFeature, SparseTensor as SparseTensor,
    SparseTensorValue as SparseTensorValue, Summary as Summary, TFRecordReader as TFRecordReader, Tensor as Tensor, TensorArray as
    TensorArray, TensorInfo as TensorInfo, TensorShape as TensorShape, TextLineReader as TextLineReader, ThreadPoolOptionProto as
    ThreadPoolOptionProto, UnconnectedGradients as UnconnectedGradients, VERSION as VERSION, VarLenFeature as VarLenFeature, Variable as
    Variable, VariableAggregation as VariableAggregation, VariableScope as VariableScope, VariableSynchronization as
    VariableSynchronization, WholeFileReader as WholeFileReader, abs as abs, accumulate_n as accumulate_n, acos as acos, acosh as acosh,
    add as add, add_check_numerics_ops as add_check_numerics_ops, add_n as add_n, add_to_collection as add_to_collection,
    add_to_collections as add_to_collections, all_variables as all_variables, app as app, arange as arange, arg_max as arg_max, arg_min
    as arg_min, argmax as argmax, argmin as argmin, argsort as argsort, as_dtype as as_dtype, as_string as as_string, asin as asin,
    asinh as asinh, assert_equal as assert_equal, assert_greater as assert_greater, assert_greater_equal as assert_greater_equal,
    assert_integer as assert_integer, assert_less as assert_less, assert_less_equal as assert_less_equal, assert_near as assert_near,
    assert_negative as assert_negative, assert_non_negative as assert_non_negative, assert_non_positive as assert_non_positive,
    assert_none_equal as assert_none_equal, assert_positive as assert_positive, assert_proper_iterable as assert_proper_iterable,
    assert_rank as assert_rank, assert_rank_at_least as assert_rank_at_least, assert_rank_in as assert_rank_in, assert_same_float_dtype
    as assert_same_float_dtype, assert_scalar as assert_scalar, assert_type as assert_type, assert_variables_initialized as
    assert_variables_initialized, assign as assign, assign_add as assign_add, assign_sub as assign_sub, atan as atan, atan2 as atan2,
    atanh as atanh, batch_gather as batch_gather, batch_to_space as batch_to_space, batch_to_space_nd as batch_to_space_nd, bfloat16 as
    bfloat16, bincount as bincount, bitwise as bitwise, bool as bool, boolean_mask as boolean_mask, broadcast_dynamic_shape as
    broadcast_dynamic_shape, broadcast_static_shape as broadcast_static_shape, broadcast_to as broadcast_to, case as case, cast as cast,
    ceil as ceil, check_numerics as check_numerics, cholesky as cholesky, cholesky_solve as cholesky_solve, clip_by_average_norm as
    clip_by_average_norm, clip_by_global_norm as clip_by_global_norm, clip_by_norm as clip_by_norm, clip_by_value as clip_by_value,
    colocate_with as colocate_with, compat as compat, compile as compile, complex128 as complex128, complex64 as complex64, concat as
    concat, cond as cond, config as config, confusion_matrix as confusion_matrix, constant as constant, constant_initializer as
    constant_initializer, container as container, contrib as contrib, control_dependencies as control_dependencies,
    control_flow_v2_enabled as control_flow_v2_enabled, convert_to_tensor as convert_to_tensor, convert_to_tensor_or_indexed_slices as
    convert_to_tensor_or_indexed_slices, convert_to_tensor_or_sparse_tensor as convert_to_tensor_or_sparse_tensor, cos as cos, cosh as
    cosh, count_nonzero as count_nonzero, count_up_to as count_up_to, create_partitioned_variables as create_partitioned_variables,
    cross as cross, cumprod as cumprod, cumsum as cumsum, custom_gradient as custom_gradient, data as data, debugging as debugging,
    decode_base64 as decode_base64, decode_csv as decode_csv, decode_json_example as decode_json_example, decode_raw as decode_raw,
    depth_to_space as depth_to_space, device as device, diag as diag, diag_part as diag_part, digamma as digamma, dimension_at_index as
    dimension_at_index, dimension_value as dimension_value, disable_control_flow_v2 as disable_control_flow_v2, disable_eager_execution
    as disable_eager_execution, disable_resource_variables as disable_resource_variables, disable_tensor_equality as
    disable_tensor_equality, disable_v2_behavior as disable_v2_behavior, disable_v2_tensorshape as disable_v2_tensorshape, distribute as
    distribute, div as div, div_no_nan as div_no_nan, divide as divide, double as double, dtypes as dtypes, dynamic_partition as
    dynamic_partition, dynamic_stitch as dynamic_stitch, einsum as einsum, enable_eager_execution as enable_eager_execution,
    enable_resource_variables as enable_resource_variables, enable_tensor_equality as enable_tensor_equality, enable_v2_behavior as
    enable_v2_behavior, enable_v2_tensorshape as enable_v2_tensorshape, encode_base64 as encode_base64, ensure_shape as ensure_shape,
    equal as equal, erf as erf, erfc as erfc, errors as errors, estimator as estimator, executing_eagerly as executing_eagerly,
    executing_eagerly_outside_functions as executing_eagerly_outside_functions, exp as exp, expand_dims as expand_dims, expm1 as expm1,
    extract_image_patches as extract_image_patches, eye as eye, feature_column as feature_column, fill as fill, fixed_size_partitioner
    as fixed_size_partitioner, flags as flags, float16 as float16, float32 as float32, float64 as float64, floor as floor, floor_div as
    floor_div, floordiv as floordiv, floormod as floormod, foldl as foldl, foldr as foldr, gather as gather, gather_nd as gather_nd,
    get_collection as get_collection, get_collection_ref as get_collection_ref, get_default_graph as get_default_graph,
    get_default_session as get_default_session, get_local_variable as get_local_variable, get_logger as get_logger, get_seed as
    get_seed, get_static_value as get_static_value, get_variable as get_variable, get_variable_scope as get_variable_scope, gfile as
    gfile, global_norm as global_norm, global_variables as global_variables, global_variables_initializer as
    global_variables_initializer, glorot_normal_initializer as glorot_normal_initializer, glorot_uniform_initializer as
    glorot_uniform_initializer, grad_pass_through as grad_pass_through, gradients as gradients, graph_util as graph_util, greater as
    greater, greater_equal as greater_equal, group as group, guarantee_const as guarantee_const, half as half, hessians as hessians,
    histogram_fixed_width as histogram_fixed_width, histogram_fixed_width_bins as histogram_fixed_width_bins, identity as identity,
    identity_n as identity_n, image as image, import_graph_def as import_graph_def, init_scope as init_scope, initialize_all_tables as
    initialize_all_tables, initialize_all_variables as initialize_all_variables, initialize_local_variables as
    initialize_local_variables, initialize_variables as initialize_variables, initializers as initializers, int16 as int16, int32 as
    int32, int64 as int64, int8 as int8, invert_permutation as invert_permutation, io as io, is_finite as is_finite, is_inf as is_inf,
    is_nan as is_nan, is_non_decreasing as is_non_decreasing, is_numeric_tensor as is_numeric_tensor, is_strictly_increasing as
    is_strictly_increasing, is_tensor as is_tensor, is_variable_initialized as is_variable_initialized, keras as keras, layers as
    layers, lbeta as lbeta, less as less, less_equal as less_equal, lgamma as lgamma, lin_space as lin_space, linalg as linalg, linspace
    as linspace, load_graph as load_graph, local_variables as local_variables, local_variables_initializer as
    local_variables_initializer, log as log, log1p as log1p, log_sigmoid as log_sigmoid, logging as logging, logical_and as logical_and,
    logical_not as logical_not, logical_or as logical_or, logical_xor as logical_xor, lookup as lookup, losses as losses, make_ndarray
    as make_ndarray, make_template as make_template, make_tensor_proto as make_tensor_proto, manip as manip, map_fn as map_fn,
    matching_files as matching_files, math as math, matmul as matmul, matrix_band_part as matrix_band_part, matrix_determinant as
    matrix_determinant, matrix_diag as matrix_diag, matrix_diag_part as matrix_diag_part, matrix_inverse as matrix_inverse,
    matrix_set_diag as matrix_set_diag, matrix_solve as matrix_solve, matrix_transpose as matrix_transpose, matrix_triangular_solve as
    matrix_triangular_solve, max as max, maximum as maximum, mean as mean, merge_device as merge_device, meshgrid as meshgrid, metrics
    as metrics, min as min, min_max_variable_partitioner as min_max_variable_partitioner, minimum as minimum, mod as mod,
    model_variables as model_variables, moving_average_variables as moving_average_variables, multinomial as multinomial, multiply as
    multiply, name_scope as name_scope, negative as negative, nest as nest, newaxis as newaxis, nn as nn, no_op as no_op, no_regularizer
    as no_regularizer, norm as norm, not_equal as not_equal, numpy_function as numpy_function, one_hot as one_hot, ones as ones,
    ones_initializer as ones_initializer, ones_like as ones_like, onnx as onnx, orthogonal_initializer as orthogonal_initializer, pad as
    pad, parallel_dynamic_stitch as parallel_dynamic_stitch, parallel_stack as parallel_stack, parse_example as parse_example,
    parse_single_example as parse_single_example, parse_single_sequence_example as parse_single_sequence_example, parse_tensor as
    parse_tensor, place as place, placeholder as placeholder, placeholder_with_default as placeholder_with_default, polygamma as
    polygamma, pow as pow, print as print, profile as profile, py_func as py_func, py_function as py_function, python_io as python_io,
    qr as qr, queue as queue, random as random, random_crop as random_crop, random_normal as random_normal, random_normal_initializer as
    random_normal_initializer, random_shuffle as random_shuffle, random_uniform as random_uniform, random_uniform_initializer as
    random_uniform_initializer, range as range, rank as rank, read_file as read_file, realdiv as realdiv, reciprocal as reciprocal,
    recompute_grad as recompute_grad, reduce_all as reduce_all, reduce_any as reduce_any, reduce_euclidean_norm as
    reduce_euclidean_norm, reduce_join as reduce_join, reduce_logsumexp as reduce_logsumexp, reduce_max as reduce_max, reduce_mean as
    reduce_mean, reduce_min as reduce_min, reduce_prod as reduce_prod, reduce_std as reduce_std, reduce_sum as reduce_sum,
    reduce_variance as reduce_variance, regex_replace as regex_replace, register_tensor_conversion_function as
    register_tensor_conversion_function, repeat as repeat, report_uninitialized_variables as report_uninitialized_variables,
    required_space_to_batch_paddings as required_space_to_batch_paddings, reset_default_graph as reset_default_graph, reshape as
    reshape, resource as resource, resource_variables_enabled as resource_variables_enabled, reverse as reverse, reverse_sequence as
    reverse_sequence, reverse_v2 as reverse_v2, rint as rint, roll as roll, round as round, rsqrt as rsqrt, saturate_cast as
    saturate_cast, save_graph as save_graph, saved_model as saved_model, scalar_mul as scalar_mul, scan as scan, scatter_add as
    scatter_add, scatter_div as scatter_div, scatter_max as scatter_max, scatter_min as scatter_min, scatter_mul as scatter_mul,
    scatter_nd as scatter_nd, scatter_nd_add as scatter_nd_add, scatter_nd_sub as scatter_nd_sub, scatter_nd_update as
    scatter_nd_update, scatter_sub as scatter_sub, scatter_update as scatter_update, searchsorted as searchsorted, segment_max as
    segment_max, segment_mean as segment_mean, segment_min as segment_min, segment_prod as segment_prod, segment_sum as segment_sum,
    sequence_mask as sequence_mask, serialize_tensor as serialize_tensor, set_random_seed as set_random_seed, setdiff1d as setdiff1d,
    sets as sets, shape as shape, shape_n as shape_n, sigmoid as sigmoid, sign as sign, simulate as simulate, sin as sin, sinh as sinh,
    size as size, slice as slice, sort as sort, space_to_batch as space_to_batch, space_to_batch_nd as space_to_batch_nd, space_to_depth
    as space_to_depth, sparse as sparse, sparse_add as sparse_add, sparse_concat as sparse_concat, sparse_fill_empty_rows as
    sparse_fill_empty_rows, sparse_mask as sparse_mask, sparse_maximum as sparse_maximum, sparse_merge as sparse_merge, sparse_minimum
    as sparse_minimum, sparse_placeholder as sparse_placeholder, sparse_reduce_max as sparse_reduce_max, sparse_reduce_max_sparse as
    sparse_reduce_max_sparse, sparse_reduce_sum as sparse_reduce_sum, sparse_reduce_sum_sparse as sparse_reduce_sum_sparse,
    sparse_reorder as sparse_reorder, sparse_reset_shape as sparse_reset_shape, sparse_reshape as sparse_reshape, sparse_retain as
    sparse_retain, sparse_segment_mean as sparse_segment_mean, sparse_segment_sqrt_n as sparse_segment_sqrt_n, sparse_segment_sum as
    sparse_segment_sum, sparse_slice as sparse_slice, sparse_softmax as sparse_softmax, sparse_split as sparse_split,
    sparse_tensor_dense_matmul as sparse_tensor_dense_matmul, sparse_tensor_to_dense as sparse_tensor_to_dense, sparse_to_dense as
    sparse_to_dense, sparse_to_indicator as sparse_to_indicator, sparse_transpose as sparse_transpose, split as split, sqrt as sqrt,
    square as square, squared_difference as squared_difference, squeeze as squeeze, stack as stack, stop_gradient as stop_gradient,
    strided_slice as strided_slice, string as string, string_join as string_join, string_split as string_split, string_strip as
    string_strip, string_to_hash_bucket as string_to_hash_bucket, string_to_hash_bucket_fast as string_to_hash_bucket_fast,
    string_to_hash_bucket_strong as string_to_hash_bucket_strong, string_to_number as string_to_number, strings as strings, substr as
    substr, subtract as subtract, sum as sum, summary as summary, svd as svd, switch_case as switch_case, tables_initializer as
    tables_initializer, tan as tan, tanh as tanh, tensor_scatter_add as tensor_scatter_add, tensor_scatter_nd_add as
    tensor_scatter_nd_add, tensor_scatter_nd_max as tensor_scatter_nd_max, tensor_scatter_nd_min as tensor_scatter_nd_min,
    tensor_scatter_nd_sub as tensor_scatter_nd_sub, tensor_scatter_nd_update as tensor_scatter_nd_update, tensor_scatter_sub as
    tensor_scatter_sub, tensor_scatter_update as tensor_scatter_update, tensordot as tensordot, test as test, tile as tile, timeline as
    timeline, to_bfloat16 as to_bfloat16, to_double as to_double, to_float as to_float, to_int32 as to_int32, to_int64 as to_int64,
    trace as trace, train as train, trainable_variables as trainable_variables, transpose as transpose, truediv as truediv,
    truncated_normal as truncated_normal, truncated_normal_initializer as truncated_normal_initializer, truncatediv as truncatediv,
    truncatemod as truncatemod, tuple as tuple, uint16 as uint16, uint32 as uint32, uint64 as uint64, uint8 as uint8,
    uniform_unit_scaling_initializer as uniform_unit_scaling_initializer, unique as unique, unique_with_counts as unique_with_counts,
    unsorted_segment_max as unsorted_segment_max, unsorted_segment_mean as unsorted_segment_mean, unsorted_segment_min as
    unsorted_segment_min, unsorted_segment_prod as unsorted_segment_prod, unsorted_segment_sqrt_n as unsorted_segment_sqrt_n,
    unsorted_segment_sum as unsorted_segment_sum, unstack as unstack, variable_axis_size_partitioner as variable_axis_size_partitioner,
    variable_creator_scope as variable_creator_scope, variable_op_scope as variable_op_scope, variable_scope as variable_scope,
    variables_initializer as variables_initializer, variance_scaling_initializer as variance_scaling_initializer, variant as variant,
    verify_tensor_all_finite as verify_tensor_all_finite, where as where, where_v2 as where_v2, while_loop as while_loop, write_file as
    write_file, zeros as zeros, zeros_initializer as zeros_initializer, zeros_like as zeros_like,
)
