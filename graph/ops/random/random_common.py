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
from ..math.arithmetic import add, multiply
from ..math.common import allowed
from ..math.static_operands import dims_of, index_operand, need_index, need_rank, op_scope

Draw: TypeAlias = Callable[[Stream, tuple[int, ...], "np.dtype[Any]"], Array]

DRAWN_INTEGERS = (int32, int64, uint32, uint64)

# Of one element. Ten rounds of Philox are about 100 integer operations for four words.
WORD_FLOPS = 25.0
_FLOPS = {
    "uniform": WORD_FLOPS + 2,
    "normal": WORD_FLOPS + 25,
    "truncated_normal": WORD_FLOPS + 25,
    "integers": 2 * WORD_FLOPS + 10,
}


# --- seeds --------------------------------------------------------------------------------------------------------

_DEFAULT_GRAPH_SEED = 87654321  # TensorFlow's, for an op's seed without a graph's
_LARGEST_SEED = 2**31 - 1


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The two seeds of a random op, from its own seed and the default graph's (`set_random_seed`), as
    TensorFlow 1 has them.

    Neither: (None, None), and each session draws other numbers. Only the graph's: the op's is the number of
        nodes that exist, so every op gets another one, and the same program the same ones. Only the op's: the
        graph's is a constant.

    Raises:
        RuntimeError: neither seed is set, and determinism is required.
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
    first, second = get_seed(seed)
    return {"seed": first or 0, "seed2": second or 0}


def stream_of(context: Context, seed: int, seed2: int) -> Stream:
    """What a node draws from in this run."""
    key = (seed, seed2) if seed or seed2 else key_from(context.session.seed, context.node_name)
    return Stream(key, context.run_number())


def check_seeds(attrs: Attrs) -> None:
    for name in ("seed", "seed2"):
        value = attrs.get(name)
        if not isinstance(value, int) or not 0 <= value < 2**32:
            raise ValueError(f"attr {name} must be an int of 32 bits, not {value!r}")


# --- rules that the ops share -------------------------------------------------------------------------------------


def float_attr(attrs: Attrs) -> DType:
    """The floating type that an op makes."""
    return allowed(typed_attr(attrs, "dtype", DType), FLOATS)


def shape_operand(shape: Tensor) -> Dims:
    """The shape that an operand says."""
    need_index(shape, "the shape", 1)
    if shape.op.type == "Const":
        return sizes_of(shape.op.attrs["value"])
    return static_dims(shape)


def sizes_of(shape: Array) -> tuple[int, ...]:
    """The sizes that a shape operand holds."""
    sizes = tuple(dims_of(shape))
    if any(d < 0 for d in sizes):
        raise ValueError(f"a size cannot be negative: {list(sizes)}")
    return sizes


def drawing_cost(draw: str) -> Callable[[Node], Cost]:
    """What drawing costs per element."""
    return lambda node: default_cost(node, _FLOPS[draw])


def bounds(low: Array, high: Array, count: int) -> tuple[int, int]:
    """The bounds of the range of random integers; unchecked where `count` is 0."""
    a, b = int(low), int(high)
    if a >= b and count:
        raise ValueError(f"minval must be less than maxval: {a} >= {b}")
    return a, max(b, a + 1)


def bounds_rule(inputs: Sequence[Tensor]) -> DType:
    """The type of whole numbers that are drawn between two operands."""
    low, high = inputs
    dtype = allowed(low.dtype.base, DRAWN_INTEGERS)
    if high.dtype.base is not dtype:
        raise TypeError(f"minval is {dtype.name}, maxval {high.dtype.base.name}: they must have one element type")
    need_rank(low.dims, 0, "minval")
    need_rank(high.dims, 0, "maxval")
    return dtype


def scaled(drawn: Tensor, factor: Tensor, offset: Tensor, scope: str) -> Tensor:
    """Numbers with this spread around this middle."""
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
    """Normally distributed numbers, drawn by an op that takes these operands and, as attributes, the `seeds`."""
    dtype = as_dtype(dtype).base
    with op_scope(name, default, *operands.values(), mean, stddev) as scope:
        indices = [index_operand(value, label) for label, value in operands.items()]
        center = convert(mean, dtype, name="mean")
        spread = convert(stddev, dtype, name="stddev")
        return scaled(apply(op, indices, {"dtype": dtype, **seeds()}), spread, center, scope)


def interval(minval: TensorLike, maxval: TensorLike, dtype: DType) -> tuple[Tensor, Tensor]:
    """The ends of what numbers are drawn from, as tensors of their type."""
    if maxval is None:
        if dtype.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {dtype.name}")
        maxval = 1
    allowed(dtype, FLOATS + DRAWN_INTEGERS)
    return convert(minval, dtype, name="min"), convert(maxval, dtype, name="max")
