"""Random draws in two steps: the stream that a draw reads, and the numbers at the positions of a tensor.

A random node has state: it counts its runs. But its numbers are a function of its *stream* alone, a key and the number of the draw
(`graph/core/philox.py`), and of the position. So compilers split a draw (`codegen/passes/rng.py`): the stream is two numbers, made
where the node was, and the numbers are as pure as a sum and can be part of a fused kernel. Programs are built with the whole ops
(`random.py`).

    key    the key's two words, the first in the lower half        draw    the upper half of the counter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.dtypes import Array, uint64
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, define
from ...core.philox import Stream
from ..math.static_operands import need_rank
from .random_common import Draw, check_seeds, drawing_cost, float_attr, shape_operand, sizes_of, stream_of
from .stateless_random import check_seed_operand, seeded_stream

_SCALARS: Sequence[Output] = ((uint64, ()), (uint64, ()))


def _numbers(stream: Stream) -> tuple[Any, Any]:
    low, high = stream.key
    return np.asarray(low | high << 32, np.uint64), np.asarray(stream.draw, np.uint64)


def _stream_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    return _SCALARS


def _seeded_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seed_operand(inputs[0])
    return _SCALARS


define(
    "RandomStream",
    infer=_stream_rule,
    # Its input is an input of the drawing node: if that is dead, this node is dead, too.
    reference=lambda context, *_, seed, seed2: _numbers(stream_of(context, seed, seed2)),
    traits=Trait.STATEFUL,
)
define("SeededStream", infer=_seeded_rule, reference=lambda seed: _numbers(seeded_stream(seed)))


def _draw_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    shape, key, draw = inputs
    for t, name in ((key, "the key"), (draw, "the draw")):
        need_rank(t.dims, 0, name)
        if t.dtype.base is not uint64:
            raise TypeError(f"{name} must be uint64, not {t.dtype.base.name}")
    return [(float_attr(attrs), shape_operand(shape))]


def _define_numbers(name: str, draw_of: Draw, cost: Callable[..., Any]) -> None:
    """An op that gives the numbers of a stream: a function of the shape, the key and the draw."""

    def reference(shape: Array, key: Array, draw: Array, *, dtype: Any) -> Array:
        both = int(key)
        return draw_of(Stream((both & 0xFFFFFFFF, both >> 32), int(draw)), sizes_of(shape), dtype.np)

    define(name, infer=_draw_rule, reference=reference, cost=cost)


_define_numbers("UniformOfStream", Stream.uniform, drawing_cost("uniform"))
_define_numbers("NormalOfStream", Stream.normal, drawing_cost("normal"))
