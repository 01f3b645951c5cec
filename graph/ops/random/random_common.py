"""Seeds, operands and costs that all random ops share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import static_dims
from ...core.default_graph import get_default_graph
from ...core.dtypes import FLOATS, Array, DType, as_dtype, int32, int64, uint32, uint64
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, default_cost, typed_attr
from ...core.philox import Stream, key_from
from ...core.settings import setting
from ...core.shape import Dims
from ...resources.resource_manager import Context
from ..math.arithmetic import add, multiply, subtract
from ..math.common import allowed
from ..math.static_operands import dims_of, index_operand, need_index, need_rank, op_scope

Draw: TypeAlias = Callable[[Stream, tuple[int, ...], "np.dtype[Any]"], Array]

DRAWN_INTEGERS = (int32, int64, uint32, uint64)

# Flops per 32-bit word. Ten rounds of Philox are about 100 integer operations for four words.
WORD_FLOPS = 25.0
_FLOPS = {
    "uniform": WORD_FLOPS + 2,
    "normal": WORD_FLOPS + 25,
    "truncated_normal": WORD_FLOPS + 25,
    "integers": 2 * WORD_FLOPS + 10,
}


# --- seeds --------------------------------------------------------------------------------------------------------

_DEFAULT_GRAPH_SEED = 87654321  # TensorFlow's graph seed for ops that have a seed in a graph that has none
_LARGEST_SEED = 2**31 - 1


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The two seeds of a random op, from its own seed and that of the default graph (`set_random_seed`), as in TensorFlow 1.

    Without either seed, they are (None, None), and each session draws other numbers. If only the graph has a seed, the second seed is the
    number of nodes in the graph, so that each op gets another one. If only the op has a seed, the first seed is a constant.

    Args:
        op_seed: the seed of the op, or None.

    Raises:
        RuntimeError: neither seed is set, but determinism is required.
    """
    graph = get_default_graph()
    if graph.seed is None:
        if op_seed is None:
            if setting("DOVETAIL_DETERMINISTIC"):
                raise RuntimeError(
                    "Random ops require a seed to be set when determinism is enabled: call dt.random.set_random_seed(1) before, or give "
                    "the op a seed of its own (dt.config.experimental.enable_op_determinism, or DOVETAIL_DETERMINISTIC, asks for it)"
                )
            return None, None
        seeds = _DEFAULT_GRAPH_SEED, op_seed % _LARGEST_SEED
    else:
        seeds = graph.seed % _LARGEST_SEED, (graph.version if op_seed is None else op_seed) % _LARGEST_SEED
    return (0, _LARGEST_SEED) if seeds == (0, 0) else seeds  # two zeros mean "no seed" in a node


def seed_attrs(seed: int | None) -> dict[str, Any]:
    """The attributes `seed` and `seed2` of a random op with this seed. Two zeros mean that it has none."""
    first, second = get_seed(seed)
    return {"seed": first or 0, "seed2": second or 0}


def stream_of(context: Context, seed: int, seed2: int) -> Stream:
    """The stream of random numbers from which a node draws in this run."""
    key = (seed, seed2) if seed or seed2 else key_from(context.session.seed, context.node_name)
    return Stream(key, context.run_number())


def check_seeds(attrs: Attrs) -> None:
    """ValueError unless the attributes `seed` and `seed2` are 32-bit ints."""
    for name in ("seed", "seed2"):
        value = attrs.get(name)
        if not isinstance(value, int) or not 0 <= value < 2**32:
            raise ValueError(f"attr {name} must be an int of 32 bits, not {value!r}")


# --- rules that the ops share -------------------------------------------------------------------------------------


def float_attr(attrs: Attrs) -> DType:
    """The attribute `dtype` of an op that draws floats. TypeError unless it is a floating type."""
    return allowed(typed_attr(attrs, "dtype", DType), FLOATS)


def shape_operand(shape: Tensor) -> Dims:
    """The static shape in a shape operand."""
    need_index(shape, "the shape", 1)
    if shape.op.type == "Const":
        return sizes_of(shape.op.attrs["value"])
    return static_dims(shape)


def sizes_of(shape: Array) -> tuple[int, ...]:
    """The sizes in the array of a shape operand. ValueError if one is negative."""
    sizes = tuple(dims_of(shape))
    if any(d < 0 for d in sizes):
        raise ValueError(f"a size cannot be negative: {list(sizes)}")
    return sizes


def drawing_cost(draw: str) -> Callable[[Node], Cost]:
    """The cost of a node that draws its elements by `Stream.<draw>`."""
    return lambda node: default_cost(node, _FLOPS[draw])


def bounds(low: Array, high: Array, count: int) -> tuple[int, int]:
    """The bounds of `count` random integers. ValueError if the range is empty, unless `count` is 0."""
    a, b = int(low), int(high)
    if a >= b and count:
        raise ValueError(f"minval must be less than maxval: {a} >= {b}")
    return a, max(b, a + 1)


def bounds_rule(inputs: Sequence[Tensor]) -> DType:
    """The element type of random integers between two operands. TypeError or ValueError unless they are scalars of one type."""
    low, high = inputs
    dtype = allowed(low.dtype.base, DRAWN_INTEGERS)
    if high.dtype.base is not dtype:
        raise TypeError(f"minval is {dtype.name}, maxval {high.dtype.base.name}: they must have one element type")
    need_rank(low.dims, 0, "minval")
    need_rank(high.dims, 0, "maxval")
    return dtype


def scaled(drawn: Tensor, factor: Tensor, offset: Tensor, scope: str) -> Tensor:
    """`drawn * factor + offset`."""
    return add(multiply(drawn, factor, name="mul"), offset, name=scope)


def gaussian(
    op: str,
    default: str,
    operands: dict[str, TensorLike],
    mean: TensorLike,
    stddev: TensorLike,
    dtype: Any,
    seeds: Callable[[], dict[str, Any]],
    name: str | None,
) -> Tensor:
    """Normally distributed numbers, drawn by `op`.

    Args:
        op: an op of standard normal numbers.
        default: default name scope.
        operands: its operands by name, the shape first.
        mean: the mean, which broadcasts to the shape.
        stddev: the standard deviation, which broadcasts to the shape.
        dtype: element type.
        seeds: makes its attributes for seeds.
        name: name of the result's node.
    """
    dtype = as_dtype(dtype).base
    with op_scope(name, default, *operands.values(), mean, stddev) as scope:
        indices = [index_operand(value, label) for label, value in operands.items()]
        center = convert(mean, dtype, name="mean")
        spread = convert(stddev, dtype, name="stddev")
        return scaled(apply(op, indices, {"dtype": dtype, **seeds()}), spread, center, scope)


def uniform(
    op: str,
    default: str,
    operands: dict[str, TensorLike],
    minval: TensorLike,
    maxval: TensorLike,
    dtype: Any,
    seeds: Callable[[], dict[str, Any]],
    name: str | None,
) -> Tensor:
    """Uniformly distributed numbers in [minval, maxval), floats by `op`, integers by `<op>Int`. Other arguments as for `gaussian`."""
    dtype = as_dtype(dtype).base
    with op_scope(name, default, *operands.values(), minval, maxval) as scope:
        indices = [index_operand(value, label) for label, value in operands.items()]
        if maxval is None and dtype.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {dtype.name}")
        allowed(dtype, FLOATS + DRAWN_INTEGERS)
        low, high = convert(minval, dtype, name="min"), convert(1 if maxval is None else maxval, dtype, name="max")
        if dtype.is_integer:
            return apply(f"{op}Int", (*indices, low, high), seeds(), scope)
        drawn = apply(op, indices, {"dtype": dtype, **seeds()})
        return scaled(drawn, subtract(high, low, name="sub"), low, scope)
