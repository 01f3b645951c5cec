"""Attention without its matrix of scores: softmax(scale * q kᵗ + mask) v, forward and backward.

A program holds a block of queries and goes along the keys. It keeps, for each query, the largest score so far and the sum of
exponentials relative to it; when a larger score comes, what has been added up is scaled down ("online softmax"; Milakov and
Gimelshein, 2018). So nothing of the size queries x keys is ever stored (Dao et al., FlashAttention, 2022). Beside the result it
writes `lse`, for each query log2 of the sum of 2^score: with it, the backward pass makes any block of probabilities again in one
step. Scores are kept times log2(e), since GPUs have exp2 and not exp.

Backward there are three kernels, none of which adds up across programs, so results do not depend on their order:

    delta   rowsum(result * its gradient), for each query
    keys    a block of keys along all queries:  dv = pᵗ do,  dk = dsᵗ q
    queries a block of queries along all keys:  dq = ds k          with ds = p * (do vᵗ - delta)

Exact products of float32 have no matrix instructions: each thread multiplies numbers that it reads from shared memory. A warp's
threads have neighbouring columns, so the second operand must lie there with its columns side by side; of kᵗ these are far apart, and
all threads would read the same banks. So for such products the operands that are used transposed are turned in memory first,
once, which costs little beside them.

q, `result` and their gradients are [batch, heads, queries, size], k and v [batch, kv_heads, keys, size], where heads is a
multiple of kv_heads, or with the axes heads and length exchanged (`heads_first=False`). Everything is contiguous. A query whose
scores are all -inf gets zeros.

Launch names, forward: in0 q, in1 k, in2 v, [in3 mask]; out0 result, out1 lse (float32 [batch, heads, queries]). Backward: in0 q,
in1 k, in2 v, in3 result, in4 lse, in5 gradient of the result, [in6 mask]; out0 dq, out1 dk, out2 dv. Sizes: `attention_sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ..emit.expr import stored_as
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, Target, TritonKernel, triton_type
from .attention_tiles import Blocks, blocks_for
from .text import Constants, inside, lines, make_kernel

_ROWS = ("batch", "heads", "queries")
_EVEN = 16  # rows of what is turned begin at multiples of so many numbers
_TURNED = 64  # positions that a program turns


def attention_sizes(
    q: Sequence[int], k: Sequence[int], mask: Sequence[int] | None = None, heads_first: bool = True
) -> dict[str, int]:
    """The sizes that a launch needs, from the operands' shapes.

    Args:
        mask: four sizes, (batch, heads, queries, keys), of which the first three may be 1.

    Raises:
        ValueError: the shapes do not fit.
    """
    batch, heads, queries, size = q if heads_first else (q[0], q[2], q[1], q[3])
    batch_k, kv_heads, keys, size_k = k if heads_first else (k[0], k[2], k[1], k[3])
    if batch != batch_k or size != size_k or not kv_heads or heads % kv_heads:
        raise ValueError(f"queries of shape {tuple(q)} do not go with keys of shape {tuple(k)}")
    out = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "queries": queries, "keys": keys}
    if mask is not None:
        if mask[3] != keys or any(m not in (1, n) for m, n in zip(mask, (batch, heads, queries), strict=False)):
            raise ValueError(f"a mask of shape {tuple(mask)} does not go with scores {(batch, heads, queries, keys)}")
        row = keys if mask[2] > 1 else 0
        head = mask[2] * keys if mask[1] > 1 else 0
        out |= {"mask_row": row, "mask_head": head, "mask_batch": math.prod(mask[1:]) if mask[0] > 1 else 0}
    return out


def attention(
    dtype: DType,
    size: int,
    scale: float,
    *,
    target: Target,
    causal: bool = False,
    mask: DType | None = None,
    heads_first: bool = True,
    tf32: bool = False,
    known: Mapping[str, int] | None = None,
    at: Sequence[Blocks] | None = None,
) -> list[Routine]:
    """Ways to compute attention.

    Args:
        dtype: of q, k, v and the result: float32, float16, bfloat16.
        size: of a head, 1 to 256; 16 to 128 run well.
        scale: what the scores are multiplied by.
        causal: a query sees no keys that come after it; the last query sees all keys.
        mask: element type of what is added to the scores; None: nothing is.
        heads_first: the order of axes, see above.
        tf32: products of float32 may be made from 10 bits of each factor.
        known: sizes that never change.
        at: the blocks to use instead of the usual ones.

    Raises:
        ValueError: no kernel can do this.
    """
    writer = _Attention(dtype, size, scale, causal, mask, heads_first, tf32, known or {}, _turns(dtype, tf32, target))
    choice = at or blocks_for(dtype, writer.padded, mask is not None, False, target)
    return [writer.forward(b) for b in choice]


def attention_gradient(
    dtype: DType,
    size: int,
    scale: float,
    *,
    target: Target,
    causal: bool = False,
    mask: DType | None = None,
    heads_first: bool = True,
    tf32: bool = False,
    known: Mapping[str, int] | None = None,
    at: Sequence[Blocks] | None = None,
) -> list[Routine]:
    """Ways to compute the gradients of `attention` for q, k and v; the arguments are the same. The mask gets no gradient."""
    writer = _Attention(dtype, size, scale, causal, mask, heads_first, tf32, known or {}, _turns(dtype, tf32, target))
    choice = at or blocks_for(dtype, writer.padded, mask is not None, True, target)
    return [writer.backward(b) for b in choice]


def _turns(dtype: DType, tf32: bool, target: Target) -> bool:
    """Whether operands are turned in memory first."""
    return dtype is float32 and not tf32 and target.kind == "cuda"


@dataclass(frozen=True, slots=True)
class _Attention:
    """Writes the kernels."""

    dtype: DType
    size: int
    scale: float
    causal: bool
    mask: DType | None
    heads_first: bool
    tf32: bool
    known: Mapping[str, int]
    turned: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in (float32, float16, bfloat16):
            raise ValueError(f"attention is computed in float32, float16 or bfloat16, not in {self.dtype.name}")
        if not 1 <= self.size <= 256:
            raise ValueError(f"attention takes heads of 1 to 256 numbers, not {self.size}")
        if self.mask is not None and self.mask not in (float32, float16, bfloat16):
            raise ValueError(f"an attention mask is float32, float16 or bfloat16, not {self.mask.name}")

    @property
    def padded(self) -> int:
        """The size of a head as a power of two."""
        return max(16, 1 << (self.size - 1).bit_length())

    # --- routines ----------------------------------------------------------------------------------------------------

    def forward(self, b: Blocks) -> Routine:
        """The forward kernel."""
        launch = Launch(self.forward_kernel(b), _grid("queries", b.own, "heads"))
        if not self.turned:
            return Routine((launch,))
        return Routine((self.turn("in1", "scratch0", "kv_heads", "keys"), launch), (self.scratch("scratch0", "keys"),))

    def backward(self, b: Blocks) -> Routine:
        """The three backward kernels."""
        launches = (
            Launch(self.delta_kernel(), Grid((Count(_ROWS, 32),))),
            Launch(self.keys_kernel(b), _grid("keys", b.own, "kv_heads")),
            Launch(self.queries_kernel(b), _grid("queries", b.own, "heads")),
        )
        delta = Scratch("scratch0", "fp32", (Count(_ROWS),))
        if not self.turned:
            return Routine(launches, (delta,))
        turns = [("in0", "queries"), ("in5", "queries"), ("in1", "keys"), ("in2", "keys")]
        heads = {"queries": "heads", "keys": "kv_heads"}
        first = [self.turn(name, f"scratch{i}", heads[along], along) for i, (name, along) in enumerate(turns, 1)]
        scratch = [self.scratch(f"scratch{i}", along) for i, (_, along) in enumerate(turns, 1)]
        return Routine((*first, *launches), (delta, *scratch))

    def scratch(self, name: str, length: str) -> Scratch:
        """Memory for an operand that is turned: its positions side by side, rows of them at multiples of 16."""
        heads = "heads" if length == "queries" else "kv_heads"
        return Scratch(
            name, "fp32", (Count(("batch", heads)), Count((), times=self.size), Count((length,), _EVEN, _EVEN))
        )

    def turn(self, source: str, to: str, heads: str, length: str) -> Launch:
        """From [batch, heads, length, SIZE] to [batch, heads, SIZE, length], as far as the next multiple of 16."""
        text = lines(
            f"blocks = tl.cdiv({length}, BLOCK)",
            "number = tl.program_id(0)",
            f"image = (number // blocks // {heads}).to(tl.int64)",
            f"head = number // blocks % {heads}",
            "first = number % blocks * BLOCK",
            "rows = first + tl.arange(0, BLOCK)",
            "columns = tl.arange(0, PADDED)",
            f"start = {self.start('head', heads, length, 'first')}",
            f"tile = tl.load({source} + start + {self.tile(heads, 'BLOCK')}{self.inner(f'(rows < {length})')})",
            f"there = {to} + {self.turned_start('head', heads, length)} + columns[:, None] * {_line(length)} + rows[None, :]",
            f"tl.store(there, tl.trans(tile), mask=(columns < SIZE)[:, None] & (rows < {length})[None, :])",
        )
        parameters = self.parameters([source, to], "", [heads, length])
        constants = (("BLOCK", _TURNED), ("SIZE", self.size), ("PADDED", self.padded))
        return Launch(make_kernel("attention_turned", parameters, constants, text), _grid(length, _TURNED, heads))

    # --- pieces ------------------------------------------------------------------------------------------------------

    def parameters(self, arrays: Sequence[str], mask: str = "", sizes: Sequence[str] = ()) -> tuple[Parameter, ...]:
        """Addresses of arrays of the operands' type (of float32 for those that end in `:fp32`), the mask, and sizes."""
        out = []
        for array in arrays:
            name, _, other = array.partition(":")
            out.append(Parameter(name, "*" + (other or triton_type(self.dtype.name)), True))
        strides: list[Parameter] = []
        if mask and self.mask is not None:
            out.append(Parameter(mask, "*" + triton_type(self.mask.name), True))
            aligned = self.known.get("keys", 1) % 16 == 0
            strides = [
                Parameter(n, "i32" if n == "mask_row" else "i64", aligned)
                for n in ("mask_batch", "mask_head", "mask_row")
            ]
        return (*out, *(Parameter(n, "i32", self.known.get(n, 1) % 16 == 0) for n in sizes), *strides)

    def constants(self, b: Blocks) -> Constants:
        """What all kernels but `delta` take."""
        return (("OWN", b.own), ("ALONG", b.along), ("SIZE", self.size), ("PADDED", self.padded))

    def start(self, head: str, heads: str, length: str, position: str) -> str:
        """Offset of a head's first number at a position, in int64."""
        if self.heads_first:
            return f"((image * {heads} + {head}) * {length} + {position}) * SIZE"
        return f"((image * {length} + {position}) * {heads} + {head}) * SIZE"

    def turned_start(self, head: str, heads: str, length: str) -> str:
        """Offset of a head's first number in what is turned, in int64."""
        return f"(image * {heads} + {head}) * SIZE * {_line(length)}"

    def turned_tile(self, name: str, at: str, positions: str, bound: str, length: str) -> str:
        """Load a tile of what is turned: [PADDED, positions]."""
        masks = [f"{bound}[None, :]"] if bound else []
        masks += ["(columns < SIZE)[:, None]"] if self.padded != self.size else []
        mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        return f"{name} = tl.load({at} + columns[:, None] * {_line(length)} + {positions}[None, :]{mask})"

    def step(self, heads: str) -> str:
        """Distance from one position to the next."""
        return "SIZE" if self.heads_first else f"{heads} * SIZE"

    def tile(self, heads: str, block: str) -> str:
        """Offsets of a block of positions, [block, PADDED]."""
        step = self.step(heads) if self.heads_first else f"({self.step(heads)})"
        return f"tl.arange(0, {block})[:, None] * {step} + columns[None, :]"

    def inner(self, bound: str) -> str:
        """`, mask=...` of a tile whose positions are inside where `bound` holds; empty text: all are."""
        masks = [f"{bound}[:, None]"] if bound else []
        masks += ["(columns < SIZE)[None, :]"] if self.padded != self.size else []
        return f", mask={' & '.join(masks)}, other=0.0" if masks else ""

    def dot(self, a: str, b: str, total: str = "") -> str:
        """A product of tiles."""
        accuracy = f', input_precision="{"tf32" if self.tf32 else "ieee"}"' if self.dtype is float32 else ""
        return f"tl.dot({a}, {b}{', ' + total if total else ''}{accuracy})"

    def upright(
        self, name: str, at: str, turned: str, positions: str, bound: str, length: str, again: bool = False
    ) -> list[str]:
        """Load a tile [positions, PADDED] and its transposed, `NAME_across`; of what is turned the tile itself only where `again`."""
        offsets = "k_offsets" if length == "keys" else "q_offsets"
        tile = f"{name} = tl.load({at} + {offsets}{self.inner(bound)})"
        if not self.turned:
            return [tile, f"{name}_across = tl.trans({name})"]
        return [*([tile] if again else []), self.turned_tile(f"{name}_across", turned, positions, bound, length)]

    def rounded(self, name: str) -> str:
        """Probabilities as operands of a product."""
        return name if self.dtype is float32 else f"{name}.to({stored_as(self.dtype)})"

    @property
    def factor(self) -> str:
        """From a product of query and key to a score in units of log 2."""
        return repr(self.scale * math.log2(math.e))

    def block_of_queries(self, b: Blocks) -> str:
        """Which queries a program has: those with most keys first, which evens out the load when causal."""
        return lines(
            "blocks = tl.cdiv(queries, OWN)",
            "number = tl.program_id(0)",
            "image = (number // blocks // heads).to(tl.int64)",
            "head = number // blocks % heads",
            "first = (blocks - 1 - number % blocks) * OWN",
            "rows = first + tl.arange(0, OWN)",
            "columns = tl.arange(0, PADDED)",
            "kv_head = head // (heads // kv_heads)",
        )

    def along_keys(self, b: Blocks, body: Sequence[str], masked_body: Sequence[str]) -> str:
        """Two loops: over the blocks of keys that all queries of the block see whole, and over the others."""
        if self.causal:
            whole = "whole = tl.maximum(tl.minimum(keys, first + keys - queries + 1), 0) // ALONG * ALONG"
            end = "end = tl.minimum(keys, first + keys - queries + OWN)"
        else:
            whole, end = "whole = keys // ALONG * ALONG", "end = keys"
        return lines(
            whole,
            end,
            inside("for start in range(0, whole, ALONG):", body),
            inside("for start in range(whole, end, ALONG):", masked_body),
        )

    def scores(self, masked: bool, mask_load: bool, scaled: bool = True) -> list[str]:
        """From `s`, products of queries (down) and keys (across), to scores."""
        out = [f"s *= {self.factor}"] if scaled else []
        if mask_load:
            bound = "(rows < queries)[:, None]" + (" & (below < keys - start)[None, :]" if masked else "")
            out.append(
                f"s += tl.load(mask_at + mask_offsets, mask={bound}, other=0.0).to(tl.float32) * {math.log2(math.e)!r}"
            )
        if masked:
            seen = "(below < keys - start)[None, :]"
            if self.causal:
                seen += " & (start + below[None, :] <= rows[:, None] + (keys - queries))"
            out.append(f"s = tl.where({seen}, s, float('-inf'))")
        return out

    def mask_start(self, name: str) -> list[str]:
        """Where the mask of a block of queries begins."""
        if self.mask is None:
            return []
        return [
            f"mask_at = {name} + image * mask_batch + head * mask_head + first.to(tl.int64) * mask_row",
            "mask_offsets = tl.arange(0, OWN)[:, None] * mask_row + below[None, :]",
        ]

    # --- kernels -----------------------------------------------------------------------------------------------------

    def forward_kernel(self, b: Blocks) -> TritonKernel:
        """The result, and lse."""
        has_mask = self.mask is not None
        # scaling after the maximum is one operation with the subtraction: fma(s, factor, -shift)
        later = not has_mask and self.scale > 0
        factor = f" * {self.factor}" if later else ""

        def body(masked: bool) -> list[str]:
            bound = "(below < keys - start)" if masked else ""
            return [
                *self.upright("k", "k_at", "scratch0 + k_turned + start", "below", bound, "keys"),
                f"s = {self.dot('q', 'k_across')}",
                *self.scores(masked, has_mask, scaled=not later),
                f"most = tl.maximum(largest, tl.max(s, 1){factor})",
                "shift = tl.where(most == float('-inf'), 0.0, most)",
                f"p = tl.exp2(s{factor} - shift[:, None])",
                "less = tl.exp2(largest - shift)",
                "weight = weight * less + tl.sum(p, 1)",
                f"v = tl.load(v_at + k_offsets{self.inner(bound)})",
                f"total = {self.dot(self.rounded('p'), 'v', 'total * less[:, None]')}",
                "largest = most",
                "" if self.turned else f"k_at += {self.step('kv_heads')} * ALONG",
                f"v_at += {self.step('kv_heads')} * ALONG",
                "mask_at += ALONG" if has_mask else "",
            ]

        text = lines(
            self.block_of_queries(b),
            "below = tl.arange(0, ALONG)",
            f"q_start = {self.start('head', 'heads', 'queries', 'first')}",
            f"q_offsets = {self.tile('heads', 'OWN')}",
            f"q = tl.load(in0 + q_start + q_offsets{self.inner('(rows < queries)')})",
            f"k_start = {self.start('kv_head', 'kv_heads', 'keys', '0')}",
            f"k_turned = {self.turned_start('kv_head', 'kv_heads', 'keys')}" if self.turned else "k_at = in1 + k_start",
            "v_at = in2 + k_start",
            f"k_offsets = {self.tile('kv_heads', 'ALONG')}",
            self.mask_start("in3"),
            "largest = tl.full([OWN], float('-inf'), tl.float32)",
            "weight = tl.zeros([OWN], tl.float32)",
            "total = tl.zeros([OWN, PADDED], tl.float32)",
            self.along_keys(b, body(False), body(True)),
            "empty = weight == 0.0",
            "total = total / tl.where(empty, 1.0, weight)[:, None]",
            f"inside = (rows < queries)[:, None]{' & (columns < SIZE)[None, :]' if self.padded != self.size else ''}",
            f"tl.store(out0 + q_start + q_offsets, total.to({stored_as(self.dtype)}), mask=inside)",
            "# a query that sees nothing: every probability that is made from this lse is 0",
            "lse = tl.where(empty, float('inf'), largest + tl.log2(tl.where(empty, 1.0, weight)))",
            "tl.store(out1 + (image * heads + head) * queries + rows, lse, mask=rows < queries)",
        )
        read = ["in0", "scratch0" if self.turned else "in1", "in2"]
        parameters = self.parameters(read, "in3", ["heads", "kv_heads", "queries", "keys"])
        outputs = self.parameters(["out0", "out1:fp32"])
        arrays = [p for p in parameters if p.is_address]
        sizes = [p for p in parameters if not p.is_address]
        return make_kernel("attention", (*arrays, *outputs, *sizes), self.constants(b), text, num_warps=b.warps,
                           num_stages=b.stages)  # fmt: skip

    def delta_kernel(self) -> TritonKernel:
        """For each query, the sum of its result times the result's gradient."""
        if self.heads_first:
            order = ["lse_rows = rows"]
        else:
            order = [
                "image = rows // (queries * heads)",
                "lse_rows = (image * heads + rows % heads) * queries + rows // heads % queries",
            ]
        bound = self.inner("(rows < count)")
        text = lines(
            "rows = tl.program_id(0).to(tl.int64) * 32 + tl.arange(0, 32)",
            "columns = tl.arange(0, PADDED)",
            "count = batch.to(tl.int64) * heads * queries",
            "at = rows[:, None] * SIZE + columns[None, :]",
            f"result = tl.load(in3 + at{bound}).to(tl.float32)",
            f"gradient = tl.load(in5 + at{bound}).to(tl.float32)",
            order,
            "tl.store(scratch0 + lse_rows, tl.sum(result * gradient, 1), mask=rows < count)",
        )
        parameters = self.parameters(["in3", "in5", "scratch0:fp32"], "", ["batch", "heads", "queries"])
        return make_kernel("attention_delta", parameters, (("SIZE", self.size), ("PADDED", self.padded)), text)

    def keys_kernel(self, b: Blocks) -> TritonKernel:
        """Gradients of a block of keys and values: scores are upright here, keys down and queries across."""
        bound = "(across < queries - start)"
        causal = (
            "s = tl.where(rows[:, None] <= (start + across)[None, :] + (keys - queries), s, float('-inf'))"
            if self.causal
            else ""
        )
        mask_load = mask_start = ""
        if self.mask is not None:
            mask_start = lines(
                "mask_at = in6 + image * mask_batch + head * mask_head + first + begin * mask_row.to(tl.int64)",
                "mask_offsets = tl.arange(0, OWN)[:, None] + across[None, :] * mask_row",
            )
            outside = f"(rows < keys)[:, None] & {bound}[None, :]"
            mask_load = f"s += tl.load(mask_at + mask_offsets, mask={outside}, other=0.0).to(tl.float32) * {math.log2(math.e)!r}"
        loop = inside(
            "for start in range(begin, queries, ALONG):",
            self.upright("q", "q_at", "scratch1 + q_turned + start", "across", bound, "queries", again=True),
            f"lse = tl.load(in4 + line + start + across, mask={bound}, other=float('inf'))",
            f"delta = tl.load(scratch0 + line + start + across, mask={bound}, other=0.0)",
            f"s = {self.dot('k', 'q_across')} * {self.factor}",
            mask_load,
            causal,
            "p = tl.exp2(s - lse[None, :])",
            self.upright("do", "do_at", "scratch2 + q_turned + start", "across", bound, "queries", again=True),
            f"dv = {self.dot(self.rounded('p'), 'do', 'dv')}",
            f"dp = {self.dot('v', 'do_across')}",
            "ds = p * (dp - delta[None, :])",
            f"dk = {self.dot(self.rounded('ds'), 'q', 'dk')}",
            f"q_at += {self.step('heads')} * ALONG",
            f"do_at += {self.step('heads')} * ALONG",
            "mask_at += mask_row.to(tl.int64) * ALONG" if self.mask is not None else "",
        )
        begin = "tl.maximum(first - (keys - queries), 0) // ALONG * ALONG" if self.causal else "0"
        text = lines(
            "blocks = tl.cdiv(keys, OWN)",
            "number = tl.program_id(0)",
            "image = (number // blocks // kv_heads).to(tl.int64)",
            "kv_head = number // blocks % kv_heads",
            "first = number % blocks * OWN",
            "rows = first + tl.arange(0, OWN)",
            "columns = tl.arange(0, PADDED)",
            "across = tl.arange(0, ALONG)",
            f"k_start = {self.start('kv_head', 'kv_heads', 'keys', 'first')}",
            f"k_offsets = {self.tile('kv_heads', 'OWN')}",
            f"k = tl.load(in1 + k_start + k_offsets{self.inner('(rows < keys)')})",
            f"v = tl.load(in2 + k_start + k_offsets{self.inner('(rows < keys)')})",
            "dk = tl.zeros([OWN, PADDED], tl.float32)",
            "dv = tl.zeros([OWN, PADDED], tl.float32)",
            f"q_offsets = {self.tile('heads', 'ALONG')}",
            "shared = heads // kv_heads",
            f"begin = {begin}",
            inside(
                "for head in range(kv_head * shared, kv_head * shared + shared):",
                f"q_start = {self.start('head', 'heads', 'queries', 'begin')}",
                "q_at = in0 + q_start",
                "do_at = in5 + q_start",
                f"q_turned = {self.turned_start('head', 'heads', 'queries')}" if self.turned else "",
                "line = (image * heads + head) * queries",
                mask_start,
                loop,
            ),
            f"inside = (rows < keys)[:, None]{' & (columns < SIZE)[None, :]' if self.padded != self.size else ''}",
            f"tl.store(out1 + k_start + k_offsets, (dk * {self.scale!r}).to({stored_as(self.dtype)}), mask=inside)",
            f"tl.store(out2 + k_start + k_offsets, dv.to({stored_as(self.dtype)}), mask=inside)",
        )
        names = [
            "in0",
            "in1",
            "in2",
            "in4:fp32",
            "in5",
            "scratch0:fp32",
            *(["scratch1", "scratch2"] if self.turned else []),
        ]
        names += ["out1", "out2"]
        parameters = self.parameters(names, "in6", ["heads", "kv_heads", "queries", "keys"])
        return make_kernel(
            "attention_keys", parameters, self.constants(b), text, num_warps=b.warps, num_stages=b.stages
        )

    def queries_kernel(self, b: Blocks) -> TritonKernel:
        """Gradients of a block of queries."""

        def body(masked: bool) -> list[str]:
            bound = "(below < keys - start)" if masked else ""
            return [
                *self.upright("k", "k_at", "scratch3 + k_turned + start", "below", bound, "keys", again=True),
                *self.upright("v", "v_at", "scratch4 + k_turned + start", "below", bound, "keys"),
                f"s = {self.dot('q', 'k_across')}",
                *self.scores(masked, self.mask is not None),
                "p = tl.exp2(s - lse[:, None])",
                f"dp = {self.dot('do', 'v_across')}",
                "ds = p * (dp - delta[:, None])",
                f"dq = {self.dot(self.rounded('ds'), 'k', 'dq')}",
                f"k_at += {self.step('kv_heads')} * ALONG",
                "" if self.turned else f"v_at += {self.step('kv_heads')} * ALONG",
                "mask_at += ALONG" if self.mask is not None else "",
            ]

        text = lines(
            self.block_of_queries(b),
            "below = tl.arange(0, ALONG)",
            f"q_start = {self.start('head', 'heads', 'queries', 'first')}",
            f"q_offsets = {self.tile('heads', 'OWN')}",
            f"q = tl.load(in0 + q_start + q_offsets{self.inner('(rows < queries)')})",
            f"do = tl.load(in5 + q_start + q_offsets{self.inner('(rows < queries)')})",
            "line = (image * heads + head) * queries",
            "lse = tl.load(in4 + line + rows, mask=rows < queries, other=float('inf'))",
            "delta = tl.load(scratch0 + line + rows, mask=rows < queries, other=0.0)",
            f"k_start = {self.start('kv_head', 'kv_heads', 'keys', '0')}",
            f"k_offsets = {self.tile('kv_heads', 'ALONG')}",
            "k_at = in1 + k_start",
            f"k_turned = {self.turned_start('kv_head', 'kv_heads', 'keys')}" if self.turned else "v_at = in2 + k_start",
            self.mask_start("in6"),
            "dq = tl.zeros([OWN, PADDED], tl.float32)",
            self.along_keys(b, body(False), body(True)),
            f"inside = (rows < queries)[:, None]{' & (columns < SIZE)[None, :]' if self.padded != self.size else ''}",
            f"tl.store(out0 + q_start + q_offsets, (dq * {self.scale!r}).to({stored_as(self.dtype)}), mask=inside)",
        )
        values = ["scratch3", "scratch4"] if self.turned else ["in2"]
        names = ["in0", "in1", "in4:fp32", "in5", "scratch0:fp32", *values, "out0"]
        parameters = self.parameters(names, "in6", ["heads", "kv_heads", "queries", "keys"])
        return make_kernel("attention_queries", parameters, self.constants(b), text, num_warps=b.warps,
                           num_stages=b.stages)  # fmt: skip


def _line(length: str) -> str:
    """Numbers from one row of what is turned to the next."""
    return f"(tl.cdiv({length}, {_EVEN}) * {_EVEN})"


def _grid(length: str, block: int, heads: str) -> Grid:
    """One program for each block of positions of each head."""
    return Grid((Count((length,), block), Count(("batch", heads))))
