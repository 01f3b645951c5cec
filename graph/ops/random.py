"""Random numbers: tensors drawn from Philox (`graph/philox.py`), with TensorFlow 1's rules for seeds.

Who draws is the key, made when the graph is built (a seed given or set with `set_random_seed`) or, when there
is no seed, from the session's own seed and the node's name. Which draw it is, is the node's run number in the
session. So with a seed two sessions give the same series of numbers, each step of a session gives new ones,
and neither depends on where the node runs.

The stateless forms take the seed as a tensor and give the same numbers every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..build import TensorLike, apply, convert
from ..default_graph import get_default_graph
from ..dtypes import FLOATS, NUMBERS, DType, as_dtype, int32, int64, uint32, uint64
from ..node import Node, Tensor
from ..opdef import Attrs, Cost, Output, Trait, default_cost, define
from ..philox import Stream, key_from
from ..shape import Dims
from ..state import Context
from ..static_value import static_dims
from .arithmetic import add, floormod, multiply, subtract
from .common import allowed, unary
from .operands import dims_of, index_operand, need_index, need_rank, op_scope, static_int

Array: TypeAlias = np.ndarray[Any, Any]
Draw: TypeAlias = Callable[[Stream, tuple[int, ...], "np.dtype[Any]"], Array]

_DRAWN_INTEGERS = (int32, int64, uint32, uint64)

# Of one element. Ten rounds of Philox are about 100 integer operations for four words.
_WORD_FLOPS = 25.0
_FLOPS = {
    "uniform": _WORD_FLOPS + 2,
    "normal": _WORD_FLOPS + 25,
    "truncated_normal": _WORD_FLOPS + 25,
    "integers": 2 * _WORD_FLOPS + 10,
}


# --- seeds
# ---------------------------------------------------------------------------------------------------------

_DEFAULT_GRAPH_SEED = 87654321  # TensorFlow's, for an op's seed without a graph's
_LARGEST_SEED = 2**31 - 1


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The two seeds of a random op, from its own seed and the default graph's (`set_random_seed`), as
    TensorFlow 1 has them.

    Neither: (None, None), and each session draws other numbers. Only the graph's: the op's is the number of
        nodes that exist, so every op gets another one, and the same program the same ones. Only the op's: the
        graph's is a constant.
    """
    graph = get_default_graph()
    if graph.seed is None:
        if op_seed is None:
            return None, None
        seeds = _DEFAULT_GRAPH_SEED, op_seed % _LARGEST_SEED
    else:
        seeds = graph.seed % _LARGEST_SEED, (graph.version if op_seed is None else op_seed) % _LARGEST_SEED
    return (0, _LARGEST_SEED) if seeds == (0, 0) else seeds  # two zeros mean "no seed" in a node


def _seed_attrs(seed: int | None) -> dict[str, Any]:
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


# --- rules that the ops share
# --------------------------------------------------------------------------------------


def float_attr(attrs: Attrs) -> DType:
    dtype = attrs.get("dtype")
    if not isinstance(dtype, DType):
        raise TypeError(f"attr dtype must be an element type, not {dtype!r}")
    return allowed(dtype, FLOATS)


def shape_operand(shape: Tensor) -> Dims:
    need_index(shape, "the shape")
    need_rank(shape.dims, 1, "the shape")
    if shape.op.type == "Const":
        return sizes_of(shape.op.attrs["value"])
    return static_dims(shape)


def sizes_of(shape: Array) -> tuple[int, ...]:
    sizes = tuple(dims_of(shape))
    if any(d < 0 for d in sizes):
        raise ValueError(f"a size cannot be negative: {list(sizes)}")
    return sizes


def drawing_cost(draw: str) -> Callable[[Node], Cost]:
    return lambda node: default_cost(node, _FLOPS[draw])


def _bounds(low: Array, high: Array, count: int) -> tuple[int, int]:
    a, b = int(low), int(high)
    if a >= b and count:
        raise ValueError(f"minval must be less than maxval: {a} >= {b}")
    return a, max(b, a + 1)


def _bounds_rule(inputs: Sequence[Tensor]) -> DType:
    low, high = inputs
    dtype = allowed(low.dtype.base, _DRAWN_INTEGERS)
    if high.dtype.base is not dtype:
        raise TypeError(f"minval is {dtype.name}, maxval {high.dtype.base.name}: they must have one element type")
    need_rank(low.dims, 0, "minval")
    need_rank(high.dims, 0, "maxval")
    return dtype


# --- stateful draws
# ------------------------------------------------------------------------------------------------


def _define_draw(name: str, draw: str) -> None:
    """An op that draws floats of a given shape: `Stream.<draw>`."""
    function: Draw = getattr(Stream, draw)

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        check_seeds(attrs)
        return [(float_attr(attrs), shape_operand(inputs[0]))]

    def reference(context: Context, shape: Array, *, dtype: DType, seed: int, seed2: int) -> Array:
        return function(stream_of(context, seed, seed2), sizes_of(shape), dtype.np)

    define(name, infer=infer, reference=reference, cost=drawing_cost(draw), traits=Trait.STATEFUL)


def _uniform_int_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    return [(_bounds_rule(inputs[1:]), shape_operand(inputs[0]))]


def _uniform_int(context: Context, shape: Array, low: Array, high: Array, *, seed: int, seed2: int) -> Array:
    stream, sizes = stream_of(context, seed, seed2), sizes_of(shape)
    a, b = _bounds(low, high, int(np.prod(sizes)))
    return stream.integers(sizes, a, b, low.dtype)


def _shuffle_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    return [(inputs[0].dtype.base, inputs[0].dims)]


def _shuffle(context: Context, value: Array, *, seed: int, seed2: int) -> Array:
    stream = stream_of(context, seed, seed2)
    return value if np.ndim(value) == 0 else value[stream.permutation(len(value))]


def _multinomial_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    logits, num_samples = inputs
    allowed(logits.dtype.base, NUMBERS)
    need_rank(logits.dims, 2, "logits")
    if num_samples.dtype.base is not int32:
        raise TypeError(f"num_samples must be int32, not {num_samples.dtype.base.name}")
    need_rank(num_samples.dims, 0, "num_samples")
    dtype = attrs.get("output_dtype")
    if dtype not in (int32, int64):
        raise TypeError(f"output_dtype must be int32 or int64, not {dtype!r}")
    rows = logits.dims[0] if logits.dims is not None else None
    return [(dtype, (rows, static_int(num_samples)))]


def _multinomial(
    context: Context, logits: Array, num_samples: Array, *, seed: int, seed2: int, output_dtype: DType
) -> Array:
    rows, classes = logits.shape
    count = int(num_samples)
    if count < 0:
        raise ValueError(f"num_samples cannot be negative: {count}")
    if not classes and rows and count:
        raise ValueError("there must be at least one class to draw from")
    u = stream_of(context, seed, seed2).uniform((rows, count), np.dtype(np.float64))
    out = np.empty((rows, count), output_dtype.np)
    for row, x in enumerate(logits.astype(np.float64)):
        edges = np.cumsum(np.exp(x - x.max()))  # the class whose stretch of the line holds the number
        last = np.flatnonzero(np.diff(edges, prepend=0.0))[-1]  # a class of probability 0 is never drawn
        out[row] = np.minimum(np.searchsorted(edges, u[row] * edges[-1], side="right"), last)
    return out


def _multinomial_cost(node: Node) -> Cost:
    return default_cost(node, 2 * _WORD_FLOPS + 20)


_define_draw("RandomUniform", "uniform")
_define_draw("RandomStandardNormal", "normal")
_define_draw("TruncatedNormal", "truncated_normal")
define(
    "RandomUniformInt",
    infer=_uniform_int_rule,
    reference=_uniform_int,
    cost=drawing_cost("integers"),
    traits=Trait.STATEFUL,
)
define(
    "RandomShuffle",
    infer=_shuffle_rule,
    reference=_shuffle,
    cost=drawing_cost("integers"),
    traits=Trait.STATEFUL,
)
define(
    "Multinomial",
    infer=_multinomial_rule,
    reference=_multinomial,
    cost=_multinomial_cost,
    traits=Trait.STATEFUL,
)


def _scaled(drawn: Tensor, factor: Tensor, offset: Tensor, scope: str) -> Tensor:
    return add(multiply(drawn, factor, name="mul"), offset, name=scope)


def _interval(minval: TensorLike, maxval: TensorLike, dtype: DType) -> tuple[Tensor, Tensor]:
    if maxval is None:
        if dtype.is_integer:
            raise ValueError(f"Must specify maxval for integer dtype {dtype.name}")
        maxval = 1
    allowed(dtype, FLOATS + _DRAWN_INTEGERS)
    return convert(minval, dtype, name="min"), convert(maxval, dtype, name="max")


def random_uniform(
    shape: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Numbers evenly spread over [minval, maxval), new ones in each step.

    Args:
        shape: shape of the result.
        minval: the lower end, included; a scalar (floats: or anything that broadcasts).
        maxval: the upper end, not included; None: 1. Integers need it.
        dtype: element type, a floating type or int32, int64, uint32, uint64.
        seed: seed of this op; see `get_seed`.
        name: name of the result's node.

    Raises:
        ValueError: integers without maxval, or a bad shape. TypeError: no such element type.

    >>> random_uniform([2, 3], minval=-1, seed=7)
    """
    dtype = as_dtype(dtype).base
    with op_scope(name, "random_uniform", shape, minval, maxval) as scope:
        sizes = index_operand(shape, "shape")
        low, high = _interval(minval, maxval, dtype)
        seeds = _seed_attrs(seed)
        if dtype.is_integer:
            return apply("RandomUniformInt", (sizes, low, high), seeds, scope)
        drawn = apply("RandomUniform", (sizes,), {"dtype": dtype, **seeds})
        return _scaled(drawn, subtract(high, low, name="sub"), low, scope)


def random_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers, new ones in each step.

    `mean` and `stddev` broadcast against the result; `shape`, `dtype`, `seed`, `name` as for
    `random_uniform`.
    """
    return _gaussian("RandomStandardNormal", "random_normal", shape, mean, stddev, dtype, seed, name)


def truncated_normal(
    shape: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers no further than two standard deviations from the mean, new ones in each
    step.

    Arguments as for `random_normal`; `stddev` is that of the whole normal distribution.
    """
    return _gaussian("TruncatedNormal", "truncated_normal", shape, mean, stddev, dtype, seed, name)


def _gaussian(
    op: str,
    default: str,
    shape: TensorLike,
    mean: TensorLike,
    stddev: TensorLike,
    dtype: Any,
    seed: int | None,
    name: str | None,
) -> Tensor:
    dtype = as_dtype(dtype).base
    with op_scope(name, default, shape, mean, stddev) as scope:
        sizes = index_operand(shape, "shape")
        center = convert(mean, dtype, name="mean")
        spread = convert(stddev, dtype, name="stddev")
        drawn = apply(op, (sizes,), {"dtype": dtype, **_seed_attrs(seed)})
        return _scaled(drawn, spread, center, scope)


def random_shuffle(value: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """The rows of `value` (along its first axis) in random order, another one in each step."""
    return unary("RandomShuffle", value, name, _seed_attrs(seed))


def random_crop(value: TensorLike, size: TensorLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """A part of `value` of the given size, at a random place, another one in each step.

    Args:
        value: any tensor.
        size: sizes along each axis, none above value's.
    """
    from .shapes import shape as shape_of
    from .slicing import slice as slice_of

    with op_scope(name, "random_crop", value, size) as scope:
        tensor = convert(value, name="value")
        wanted = index_operand(size, "size")
        room = subtract(add(shape_of(tensor, out_type=wanted.dtype), 1), wanted)
        anywhere = random_uniform(shape_of(wanted), dtype=wanted.dtype, maxval=wanted.dtype.max, seed=seed)
        return slice_of(tensor, floormod(anywhere, room, name="offset"), wanted, name=scope)


def multinomial(
    logits: TensorLike,
    num_samples: TensorLike,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: Any = None,
) -> Tensor:
    """Classes drawn from unnormalised log probabilities, new ones in each step.

    Args:
        logits: `[rows, classes]`; a row's probabilities are softmax(logits).
        num_samples: how many to draw of each row, with replacement.
        seed: seed of this op.
        name: scope of the nodes.
        output_dtype: int64 (also when None) or int32.

    Returns:
        `[rows, num_samples]`.
    """
    return _draw_classes("multinomial", logits, num_samples, output_dtype, seed, name)


def categorical(
    logits: TensorLike,
    num_samples: TensorLike,
    dtype: Any = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`multinomial` under its newer name and order of arguments (`tf.random.categorical`)."""
    return _draw_classes("categorical", logits, num_samples, dtype, seed, name)


def _draw_classes(
    default: str, logits: TensorLike, num_samples: TensorLike, dtype: Any, seed: int | None, name: str | None
) -> Tensor:
    with op_scope(name, default, logits):
        inputs = convert(logits, name="logits"), convert(num_samples, int32, name="num_samples")
        attrs = {**_seed_attrs(seed), "output_dtype": int64 if dtype is None else as_dtype(dtype)}
        return apply("Multinomial", inputs, attrs)


# --- stateless draws
# -----------------------------------------------------------------------------------------------


def seeded_stream(seed: Array) -> Stream:
    """Two numbers of 64 bits fill the key (their lower words) and the upper half of the counter (their upper
    words).
    """
    a, b = (int(s) % (1 << 64) for s in seed)
    low = 0xFFFFFFFF
    return Stream((a & low, b & low), (a >> 32) | (b >> 32) << 32)


def check_seed_operand(seed: Tensor) -> None:
    need_index(seed, "the seed")
    need_rank(seed.dims, 1, "the seed")
    if seed.dims is not None and seed.dims[0] not in (None, 2):
        raise ValueError(f"the seed must hold two numbers, not {seed.dims[0]}")


def _define_stateless(name: str, draw: str) -> None:
    function: Draw = getattr(Stream, draw)

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        check_seed_operand(inputs[1])
        return [(float_attr(attrs), shape_operand(inputs[0]))]

    def reference(shape: Array, seed: Array, *, dtype: DType) -> Array:
        return function(seeded_stream(seed), sizes_of(shape), dtype.np)

    define(name, infer=infer, reference=reference, cost=drawing_cost(draw))


def _stateless_int_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seed_operand(inputs[1])
    return [(_bounds_rule(inputs[2:]), shape_operand(inputs[0]))]


def _stateless_int(shape: Array, seed: Array, low: Array, high: Array) -> Array:
    sizes = sizes_of(shape)
    a, b = _bounds(low, high, int(np.prod(sizes)))
    return seeded_stream(seed).integers(sizes, a, b, low.dtype)


_define_stateless("StatelessRandomUniform", "uniform")
_define_stateless("StatelessRandomNormal", "normal")
_define_stateless("StatelessTruncatedNormal", "truncated_normal")
define("StatelessRandomUniformInt", infer=_stateless_int_rule, reference=_stateless_int, cost=drawing_cost("integers"))


def stateless_random_uniform(
    shape: TensorLike,
    seed: TensorLike,
    minval: TensorLike = 0,
    maxval: TensorLike = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """Numbers evenly spread over [minval, maxval): a function of shape and seed alone.

    Args:
        shape: shape of the result.
        seed: two integers (int32 or int64), which may be computed by the graph.
        minval, maxval, dtype: as for `random_uniform`.

    >>> stateless_random_uniform([2], seed=[1, 2])   # the same two numbers in every step, session and place
    """
    dtype = as_dtype(dtype).base
    with op_scope(name, "stateless_random_uniform", shape, seed, minval, maxval) as scope:
        sizes, two = index_operand(shape, "shape"), index_operand(seed, "seed")
        low, high = _interval(minval, maxval, dtype)
        if dtype.is_integer:
            return apply("StatelessRandomUniformInt", (sizes, two, low, high), None, scope)
        drawn = apply("StatelessRandomUniform", (sizes, two), {"dtype": dtype})
        return _scaled(drawn, subtract(high, low, name="sub"), low, scope)


def stateless_random_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """Normally distributed numbers: a function of shape and seed alone (see `stateless_random_uniform`)."""
    return _stateless_gaussian(
        "StatelessRandomNormal", "stateless_random_normal", shape, seed, mean, stddev, dtype, name
    )


def stateless_truncated_normal(
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike = 0.0,
    stddev: TensorLike = 1.0,
    dtype: Any = "float32",
    name: str | None = None,
) -> Tensor:
    """`truncated_normal` as a function of shape and seed alone (see `stateless_random_uniform`)."""
    return _stateless_gaussian(
        "StatelessTruncatedNormal", "stateless_truncated_normal", shape, seed, mean, stddev, dtype, name
    )


def _stateless_gaussian(
    op: str,
    default: str,
    shape: TensorLike,
    seed: TensorLike,
    mean: TensorLike,
    stddev: TensorLike,
    dtype: Any,
    name: str | None,
) -> Tensor:
    dtype = as_dtype(dtype).base
    with op_scope(name, default, shape, seed, mean, stddev) as scope:
        sizes, two = index_operand(shape, "shape"), index_operand(seed, "seed")
        center = convert(mean, dtype, name="mean")
        spread = convert(stddev, dtype, name="stddev")
        return _scaled(apply(op, (sizes, two), {"dtype": dtype}), spread, center, scope)
