"""Attention and its gradient on CPUs: operands, blocks and units of work (`attention_source` has the loops).

They run `AttentionWithSums` and `AttentionGrad`, which `passes.attention_fusion` makes of attention that is written out. Heads are read
in place, and a result has the memory layout of its operand: a layer's output that of its queries. Gradients of queries, keys
and values that were slices of one array are slices of one array, too. So there are no copies to join them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import float32
from ....graph.core.graph import Node
from ...target import L2_BYTES
from ..emit.instantiate import text_of
from ..native.recorder import Recorder
from .gemm import NS_PER_FLOP, WORTH_HELP_NS, as_vector, is_vector

Array: TypeAlias = np.ndarray[Any, Any]
Call: TypeAlias = "Callable[..., tuple[Array, ...] | None]"

OPS = frozenset(("AttentionWithSums", "AttentionGrad"))
TYPES = (float32,)
_SCORES = L2_BYTES // 8  # float32 elements of a block's scores: half of the second cache
_TALLEST, _LEAST = 128, 32  # queries of a block
_PARTS = 8  # that a gradient is cut into where there are few matrices

_FORWARD = ("rrrrrwwwc", (5, 3, 5, 5, 5, 5, 5, 4))
_GRADIENT = ("rrrrrrrrwwwwc", (5, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6))


def attention_kernel(node: Node, threads: int) -> tuple[str, Call] | None:
    """For attention or its gradient: its source text, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work.
    """
    if node.type not in OPS or node.inputs[0].dtype.base not in TYPES:
        return None
    scale = np.full(1, node.attrs["scale"], np.float32)
    if node.type == "AttentionWithSums":
        text = text_of("kernels/attention_source", {"attention": _FORWARD}, "float32")
        return text, lambda function, recorder, *inputs: _forward(function, inputs, scale, threads, recorder)
    text = text_of("kernels/attention_source", {"attention_gradient": _GRADIENT}, "float32")
    return text, lambda function, recorder, *inputs: _gradient(function, inputs, scale, threads, recorder)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How the queries of a matrix are cut.

    Attributes:
        tall: queries of a block. wide: numbers from one query's scores to the next one's.
        panels, rows: elements of the factors that a thread packs.
        rest: elements that it needs besides these and the scores.
    """

    tall: int
    wide: int
    panels: int
    rows: int
    rest: int


@lru_cache(maxsize=256)
def _blocks(queries: int, keys: int, depth: int, deep: int) -> _Blocks:
    from .gemm_source import INNER  # loads numba
    from .microkernel import MR, NR  # which only load with Numba

    lanes = NR["float32"]

    def padded(n: int, to: int = lanes) -> int:
        return -(-n // to) * to

    wide = padded(keys)
    tall = padded(min(queries, _TALLEST, max(_LEAST, _SCORES // wide // MR * MR)), MR)
    steps, deepest = min(INNER, max(depth, deep)), padded(max(depth, deep))
    panels = max(steps * wide, min(INNER, max(keys, tall)) * deepest)
    rows = max(min(INNER, tall) * padded(keys, MR), tall * min(INNER, max(keys, depth, deep)))
    return _Blocks(tall, wide, panels, padded(rows), MR * lanes)


@dataclass(frozen=True, slots=True)
class _Operands:
    """The operands of both kernels, with their strides."""

    stack: tuple[int, ...]
    queries: int
    keys: int
    depth: int
    deep: int
    arrays: tuple[Array, ...]  # queries, keys, values, mask
    jumps: tuple[tuple[int, ...], ...]
    masked: bool

    @property
    def matrices(self) -> int:
        return math.prod(self.stack)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.queries, self.keys, self.depth, self.deep, int(self.masked)

    @property
    def counts(self) -> tuple[int, ...]:
        return (*(1,) * (3 - len(self.stack)), *self.stack)

    def time(self, products: int) -> float:
        """An estimate, in nanoseconds, for that many products of this size."""
        pairs = self.matrices * self.queries * self.keys
        return pairs * (products * (self.depth + self.deep) * NS_PER_FLOP + 1.0)


_NO_MASK = np.zeros(1, np.float32)


def _operands(recorder: Recorder, q: Array, k: Array, v: Array, mask: Array | None) -> _Operands | None:
    """The operands, if the kernels support them."""
    if not 3 <= q.ndim <= 5 or not q.ndim == k.ndim == v.ndim or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        return None
    (queries, depth), (keys, deep), stack = q.shape[-2:], v.shape[-2:], q.shape[:-2]
    if k.shape[-2:] != (keys, depth) or 0 in (*stack, queries, keys, depth, deep):
        return None
    arrays, jumps = zip(*(_vector(recorder, x) for x in (q, k, v)), strict=True)
    over: Array = recorder.fixed(_NO_MASK)
    over_jumps: tuple[int, ...] = (0,) * 5
    if mask is not None:
        scores = (*stack, queries, keys)
        try:
            fits = np.broadcast_shapes(mask.shape, scores) == scores
        except ValueError:
            return None
        if not fits:
            return None
        mask = recorder.ordered(mask)
        strides = np.broadcast_to(mask, scores).strides
        over, over_jumps = mask.reshape(-1), (*(0,) * (5 - q.ndim), *(s // mask.itemsize for s in strides))
    return _Operands(stack, queries, keys, depth, deep, (*arrays, over), (*jumps, over_jumps), mask is not None)


def _vector(recorder: Recorder, x: Array) -> tuple[Array, tuple[int, ...]]:
    """`as_vector`; `recorder` makes the copy if one is needed."""
    return as_vector(x if is_vector(x) else recorder.ordered(x))


def _forward(
    function: Any, inputs: Sequence[Array], scale: Array, threads: int, recorder: Recorder
) -> tuple[Array, ...] | None:
    q, k, v = inputs[:3]
    given = _operands(recorder, q, k, v, inputs[3] if len(inputs) > 3 else None)
    if given is None:
        return None
    cut = _blocks(given.queries, given.keys, given.depth, given.deep)
    units = given.matrices * -(-given.queries // cut.tall)
    threads = min(threads, units) if given.time(1) >= WORTH_HELP_NS else 1
    y = _in_order_of(recorder, q, (*given.stack, given.queries, given.deep))
    sums = recorder.empty((*given.stack, given.queries), np.dtype(np.float32))
    room = _room(recorder, threads, cut.tall * (cut.wide + 1), cut)
    into, y_jumps = as_vector(y)
    unit = cut.tall, cut.wide, cut.panels, cut.rows
    arrays = (*given.arrays, recorder.fixed(scale), into, sums.reshape(-1), room)
    recorder.share_units(function, arrays, (given.sizes, given.counts, *given.jumps, y_jumps, unit), units, threads)
    return y, sums


def _gradient(
    function: Any, inputs: Sequence[Array], scale: Array, threads: int, recorder: Recorder
) -> tuple[Array, ...] | None:
    q, k, v, y, sums, grad = inputs[:6]
    given = _operands(recorder, q, k, v, inputs[6] if len(inputs) > 6 else None)
    if given is None or y.shape != grad.shape or y.shape != (*given.stack, given.queries, given.deep):
        return None
    cut = _blocks(given.queries, given.keys, given.depth, given.deep)
    blocks = -(-given.queries // cut.tall)
    parts = min(blocks, -(-_PARTS // given.matrices))  # not more for more threads: sums would differ
    high = -(-blocks // parts) * cut.tall
    parts = -(-given.queries // high)
    units = given.matrices * parts
    threads = min(threads, units) if given.time(3) >= WORTH_HELP_NS else 1
    made = _in_one(recorder, q, k, v) if parts == 1 else None
    if made is None:
        most = (*given.stack[:-1], given.stack[-1] * parts)
        made = tuple(
            _in_order_of(recorder, x, x.shape if i == 0 or parts == 1 else (*most, *x.shape[-2:]))
            for i, x in enumerate((q, k, v))  # which may be one array
        )
    room = _room(recorder, threads, 2 * cut.tall * cut.wide, cut)
    flats = [_vector(recorder, x) for x in (y, grad, *made)]
    (old, y_jumps), (slopes, grad_jumps) = flats[:2]
    unit = cut.tall, cut.wide, cut.panels, cut.rows, parts, high
    q_array, k_array, v_array, mask = given.arrays
    arrays = (q_array, k_array, v_array, mask, old, recorder.ordered(sums).reshape(-1), slopes, recorder.fixed(scale))
    results = (*(x for x, _ in flats[2:]), room)
    numbers = (given.sizes, given.counts, *given.jumps, y_jumps, grad_jumps, *(jumps for _, jumps in flats[2:]), unit)
    recorder.share_units(function, (*arrays, *results), numbers, units, threads)
    if parts == 1:
        return made
    return made[0], *(
        recorder.added(recorder.ordered(x).reshape(*given.stack, parts, *x.shape[-2:]), -3) for x in made[1:]
    )


def _room(recorder: Recorder, threads: int, scores: int, cut: _Blocks) -> Array:
    """Memory for the threads' scores and packed factors."""
    each = -(-(scores + cut.panels + cut.rows + cut.rest) // 16) * 16  # whole lines
    return recorder.empty((threads * each,), np.dtype(np.float32))


def _in_order_of(recorder: Recorder, model: Array, shape: tuple[int, ...]) -> Array:
    """Memory for an array with the axis order of a model array, if the model's last axis is the innermost."""
    order = sorted(range(model.ndim), key=lambda axis: -model.strides[axis])
    if order[-1] != model.ndim - 1 or 0 in model.strides:
        order = list(range(model.ndim))
    out = recorder.empty(tuple(shape[axis] for axis in order), model.dtype)
    return out.transpose(np.argsort(order))


def _in_one(recorder: Recorder, *models: Array) -> tuple[Array, ...] | None:
    """Memory for arrays with the layout of these, if these are equally spaced slices that together fill one array."""
    first, second = models[:2]
    size = first.itemsize
    apart = second.ctypes.data - first.ctypes.data
    for a, b in zip(models, models[1:], strict=False):
        if b.ctypes.data - a.ctypes.data != apart or a.shape != b.shape or a.strides != b.strides:
            return None
    if apart <= 0 or first.strides[-1] != size:
        return None
    reach = size
    for stride, count in sorted([*zip(first.strides, first.shape, strict=True), (apart, len(models))]):
        if count > 1:
            if stride != reach:
                return None
            reach *= count
    memory = recorder.empty((reach // size,), first.dtype)
    return tuple(np.ndarray(first.shape, first.dtype, memory, i * apart, first.strides) for i in range(len(models)))
