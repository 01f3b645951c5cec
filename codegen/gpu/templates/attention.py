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

q, `result` and their gradients are [batch, heads, queries, size], k and v [batch, heads, keys, size]. Everything is contiguous. A
query whose scores are all -inf gets zeros.

Launch names, forward: in0 q, in1 k, in2 v, [in3 mask]; out0 result, out1 lse (float32 [batch, heads, queries]). Backward: in0 q,
in1 k, in2 v, in3 result, in4 lse, in5 gradient of the result, [in6 mask]; out0 dq, out1 dk, out2 dv. Sizes: `attention_sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ...ir.schedule import GpuProductSchedule, GpuSchedule
from ..emit.expr import stored_as
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, triton_type
from ..schedule import TURNED, attention_schedules
from .text import dot, inside, lines, make_launch

_ROWS = ("batch", "heads", "queries")
_DELTAS = 32  # queries of a block that sums their results times the gradients
_EVEN = 16  # rows of what is turned begin at multiples of so many numbers


def attention_sizes(q: Sequence[int], k: Sequence[int], mask: Sequence[int] | None = None) -> dict[str, int] | None:
    """The sizes that a launch needs, from the operands' shapes, which fit together; None: the mask does not.

    `mask`: four sizes, (batch, heads, queries, keys), of which the first three may be 1.
    """
    batch, heads, queries, _ = q
    keys = k[2]
    out = {"batch": batch, "heads": heads, "queries": queries, "keys": keys}
    if mask is not None:
        if mask[3] != keys or any(m not in (1, n) for m, n in zip(mask, (batch, heads, queries), strict=False)):
            return None
        row = keys if mask[2] > 1 else 0
        head = mask[2] * keys if mask[1] > 1 else 0
        out |= {"mask_row": row, "mask_head": head, "mask_batch": math.prod(mask[1:]) if mask[0] > 1 else 0}
    return out


def attention(
    dtype: DType,
    size: int,
    scale: float,
    *,
    backward: bool = False,
    mask: DType | None = None,
    tf32: bool = False,
    known: Mapping[str, int] | None = None,
    at: Sequence[GpuProductSchedule] | None = None,
) -> list[Routine]:
    """Ways to compute attention, or its gradients for q, k and v. The mask gets no gradient.

    Args:
        dtype: of q, k, v and the result: float32, float16, bfloat16.
        size: of a head, 1 to 256; 16 to 128 run well.
        scale: what the scores are multiplied by.
        mask: element type of what is added to the scores; None: nothing is.
        tf32: products of float32 may be made from 10 bits of each factor.
        known: sizes that never change.
        at: the schedules to use instead of the usual ones.

    Raises:
        ValueError: no kernel can do this.
    """
    writer = _Attention(dtype, size, scale, mask, tf32, known or {}, dtype is float32 and not tf32)
    choice = at or attention_schedules(dtype, writer.padded, masked=mask is not None, backward=backward)
    return [writer.backward(b) if backward else writer.forward(b) for b in choice]


@dataclass(frozen=True, slots=True)
class _Attention:
    """Writes the kernels."""

    dtype: DType
    size: int
    scale: float
    mask: DType | None
    tf32: bool
    known: Mapping[str, int]
    turned: bool = False  # whether operands are turned in memory first

    def __post_init__(self) -> None:
        if self.dtype not in (float32, float16, bfloat16):
            raise ValueError(f"attention is computed in float32, float16 or bfloat16, not in {self.dtype.name}")
        if self.mask is not None and self.mask not in (float32, float16, bfloat16):
            raise ValueError(f"an attention mask is float32, float16 or bfloat16, not {self.mask.name}")

    @property
    def padded(self) -> int:
        """The size of a head as a power of two."""
        return max(16, 1 << (self.size - 1).bit_length())

    # --- routines ----------------------------------------------------------------------------------------------------

    def forward(self, b: GpuProductSchedule) -> Routine:
        launch = self.forward_kernel(b)
        if not self.turned:
            return Routine((launch,))
        return Routine((self.turn("in1", "scratch0", "keys"), launch), (self.scratch("scratch0", "keys"),))

    def backward(self, b: GpuProductSchedule) -> Routine:
        launches = self.delta_kernel(), self.keys_kernel(b), self.queries_kernel(b)
        delta = Scratch("scratch0", "fp32", (Count(_ROWS),))
        if not self.turned:
            return Routine(launches, (delta,))
        turns = [("in0", "queries"), ("in5", "queries"), ("in1", "keys"), ("in2", "keys")]
        first = [self.turn(name, f"scratch{i}", along) for i, (name, along) in enumerate(turns, 1)]
        scratch = [self.scratch(f"scratch{i}", along) for i, (_, along) in enumerate(turns, 1)]
        return Routine((*first, *launches), (delta, *scratch))

    def scratch(self, name: str, length: str) -> Scratch:
        """Memory for an operand that is turned: its positions side by side, rows of them at multiples of 16."""
        count = Count(("batch", "heads")), Count((), times=self.size), Count((length,), _EVEN, _EVEN)
        return Scratch(name, "fp32", count)

    def turn(self, source: str, to: str, length: str) -> Launch:
        """From [batch, heads, length, SIZE] to [batch, heads, SIZE, length], as far as the next multiple of 16."""
        text = lines(
            self.block_of(length, "BLOCK"),
            f"start = {self.start(length, 'first')}",
            f"tile = tl.load({source} + start + {self.tile('BLOCK')}{self.inner(f'(rows < {length})')})",
            f"there = {to} + {self.turned_start(length)} + columns[:, None] * {_line(length)} + rows[None, :]",
            f"tl.store(there, tl.trans(tile), mask=(columns < SIZE)[:, None] & (rows < {length})[None, :])",
        )
        parameters = self.parameters([source, to], "", ["heads", length])
        constants = (("BLOCK", TURNED), ("SIZE", self.size), ("PADDED", self.padded))
        schedule = GpuSchedule(TURNED, self.padded, spans=True)
        return make_launch("attention_turned", text, parameters, constants, _grid(length, TURNED), schedule)

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
            types = {"mask_batch": "i64", "mask_head": "i64", "mask_row": "i32"}
            strides = [Parameter(n, t, aligned) for n, t in types.items()]
        return (*out, *(Parameter(n, "i32", self.known.get(n, 1) % 16 == 0) for n in sizes), *strides)

    def start(self, length: str, position: str) -> str:
        """Offset of a head's first number at a position, in int64."""
        return f"((image * heads + head) * {length} + {position}) * SIZE"

    def turned_start(self, length: str) -> str:
        """Offset of a head's first number in what is turned, in int64."""
        return f"(image * heads + head) * SIZE * {_line(length)}"

    def tile(self, block: str) -> str:
        """Offsets of a block of positions, [block, PADDED]."""
        return f"tl.arange(0, {block})[:, None] * SIZE + columns[None, :]"

    def inner(self, bound: str, down: str = "[:, None]", across: str = "[None, :]") -> str:
        """`, mask=...` of a tile of positions (`down`) and columns (`across`). Positions are inside where `bound` holds; empty: all are."""
        masks = [f"{bound}{down}"] if bound else []
        masks += [f"(columns < SIZE){across}"] if self.padded != self.size else []
        return f", mask={' & '.join(masks)}, other=0.0" if masks else ""

    def dot(self, a: str, b: str, total: str = "") -> str:
        return dot(a, b, total, self.dtype, self.tf32)

    def upright(
        self, name: str, at: str, turned: str, positions: str, bound: str, length: str, again: bool = False
    ) -> list[str]:
        """Load a tile [positions, PADDED] and its transposed, `NAME_across`; of what is turned the tile itself only where `again`."""
        offsets = "k_offsets" if length == "keys" else "q_offsets"
        tile = f"{name} = tl.load({at} + {offsets}{self.inner(bound)})"
        if not self.turned:
            return [tile, f"{name}_across = tl.trans({name})"]
        where = f"{turned} + columns[:, None] * {_line(length)} + {positions}[None, :]"
        mask = self.inner(bound, "[None, :]", "[:, None]")
        return [*([tile] if again else []), f"{name}_across = tl.load({where}{mask})"]

    def rounded(self, name: str) -> str:
        return name if self.dtype is float32 else f"{name}.to({stored_as(self.dtype)})"

    @property
    def factor(self) -> str:
        """From a product of query and key to a score in units of log 2."""
        return repr(self.scale * math.log2(math.e))

    def block_of(self, length: str, block: str = "OWN") -> str:
        """Which queries, or keys, a program has."""
        return lines(
            f"blocks = tl.cdiv({length}, {block})",
            "number = tl.program_id(0)",
            "image = (number // blocks // heads).to(tl.int64)",
            "head = number // blocks % heads",
            f"first = number % blocks * {block}",
            f"rows = first + tl.arange(0, {block})",
            "columns = tl.arange(0, PADDED)",
        )

    def stored(self, bound: str, **values: str) -> list[str]:
        """Write values to arrays, by name, where the program's block of `queries` or of keys (`keys`) lies."""
        across = " & (columns < SIZE)[None, :]" if self.padded != self.size else ""
        at = f"{bound[0]}_start + {bound[0]}_offsets"
        return [
            f"inside = (rows < {bound})[:, None]{across}",
            *(f"tl.store({to} + {at}, {v}.to({stored_as(self.dtype)}), mask=inside)" for to, v in values.items()),
        ]

    def kernel(
        self, name: str, b: GpuProductSchedule, length: str, text: str, arrays: Sequence[str], mask: str
    ) -> Launch:
        """A kernel that has a block of queries or keys (`length`) and goes along the others."""
        parameters = self.parameters(arrays, mask, ["heads", "queries", "keys"])
        constants = (("OWN", b.m), ("ALONG", b.n), ("SIZE", self.size), ("PADDED", self.padded))
        return make_launch(name, text, parameters, constants, _grid(length, b.m), b)

    def along_keys(self, body: Sequence[str], masked_body: Sequence[str]) -> str:
        """Two loops: over the whole blocks of keys, and over the last one."""
        return lines(
            "whole = keys // ALONG * ALONG",
            inside("for start in range(0, whole, ALONG):", body),
            inside("for start in range(whole, keys, ALONG):", masked_body),
        )

    def scores(self, masked: bool, scaled: bool = True) -> list[str]:
        """From `s`, products of queries (down) and keys (across), to scores."""
        out = [f"s *= {self.factor}"] if scaled else []
        if self.mask is not None:
            bound = "(rows < queries)[:, None]" + (" & (below < keys - start)[None, :]" if masked else "")
            out.append(
                f"s += tl.load(mask_at + mask_offsets, mask={bound}, other=0.0).to(tl.float32) * {math.log2(math.e)!r}"
            )
        if masked:
            out.append("s = tl.where((below < keys - start)[None, :], s, float('-inf'))")
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

    def forward_kernel(self, b: GpuProductSchedule) -> Launch:
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
                *self.scores(masked, scaled=not later),
                f"most = tl.maximum(largest, tl.max(s, 1){factor})",
                "shift = tl.where(most == float('-inf'), 0.0, most)",
                f"p = tl.exp2(s{factor} - shift[:, None])",
                "less = tl.exp2(largest - shift)",
                "weight = weight * less + tl.sum(p, 1)",
                f"v = tl.load(v_at + k_offsets{self.inner(bound)})",
                f"total = {self.dot(self.rounded('p'), 'v', 'total * less[:, None]')}",
                "largest = most",
                "" if self.turned else "k_at += SIZE * ALONG",
                "v_at += SIZE * ALONG",
                "mask_at += ALONG" if has_mask else "",
            ]

        text = lines(
            self.block_of("queries"),
            "below = tl.arange(0, ALONG)",
            f"q_start = {self.start('queries', 'first')}",
            f"q_offsets = {self.tile('OWN')}",
            f"q = tl.load(in0 + q_start + q_offsets{self.inner('(rows < queries)')})",
            f"k_start = {self.start('keys', '0')}",
            f"k_turned = {self.turned_start('keys')}" if self.turned else "k_at = in1 + k_start",
            "v_at = in2 + k_start",
            f"k_offsets = {self.tile('ALONG')}",
            self.mask_start("in3"),
            "largest = tl.full([OWN], float('-inf'), tl.float32)",
            "weight = tl.zeros([OWN], tl.float32)",
            "total = tl.zeros([OWN, PADDED], tl.float32)",
            self.along_keys(body(False), body(True)),
            "empty = weight == 0.0",
            "total = total / tl.where(empty, 1.0, weight)[:, None]",
            self.stored("queries", out0="total"),
            "# a query that sees nothing: every probability that is made from this lse is 0",
            "lse = tl.where(empty, float('inf'), largest + tl.log2(tl.where(empty, 1.0, weight)))",
            "tl.store(out1 + (image * heads + head) * queries + rows, lse, mask=rows < queries)",
        )
        read = ["in0", "scratch0" if self.turned else "in1", "in2"]
        return self.kernel("attention", b, "queries", text, [*read, "out0", "out1:fp32"], "in3")

    def delta_kernel(self) -> Launch:
        """For each query, the sum of its result times the result's gradient."""
        bound = self.inner("(rows < count)")
        text = lines(
            f"rows = tl.program_id(0).to(tl.int64) * {_DELTAS} + tl.arange(0, {_DELTAS})",
            "columns = tl.arange(0, PADDED)",
            "count = batch.to(tl.int64) * heads * queries",
            "at = rows[:, None] * SIZE + columns[None, :]",
            f"result = tl.load(in3 + at{bound}).to(tl.float32)",
            f"gradient = tl.load(in5 + at{bound}).to(tl.float32)",
            "tl.store(scratch0 + rows, tl.sum(result * gradient, 1), mask=rows < count)",
        )
        parameters = self.parameters(["in3", "in5", "scratch0:fp32"], "", ["batch", "heads", "queries"])
        constants = (("SIZE", self.size), ("PADDED", self.padded))
        schedule = GpuSchedule(_DELTAS, self.padded, spans=True)
        return make_launch("attention_delta", text, parameters, constants, Grid((Count(_ROWS, _DELTAS),)), schedule)

    def keys_kernel(self, b: GpuProductSchedule) -> Launch:
        """Gradients of a block of keys and values: scores are upright here, keys down and queries across."""
        bound = "(across < queries - start)"
        mask_load = mask_start = ""
        if self.mask is not None:
            mask_start = lines(
                "mask_at = in6 + image * mask_batch + head * mask_head + first",
                "mask_offsets = tl.arange(0, OWN)[:, None] + across[None, :] * mask_row",
            )
            outside = f"(rows < keys)[:, None] & {bound}[None, :]"
            mask_load = f"s += tl.load(mask_at + mask_offsets, mask={outside}, other=0.0).to(tl.float32) * {math.log2(math.e)!r}"
        loop = inside(
            "for start in range(0, queries, ALONG):",
            self.upright("q", "q_at", "scratch1 + q_turned + start", "across", bound, "queries", again=True),
            f"lse = tl.load(in4 + line + start + across, mask={bound}, other=float('inf'))",
            f"delta = tl.load(scratch0 + line + start + across, mask={bound}, other=0.0)",
            f"s = {self.dot('k', 'q_across')} * {self.factor}",
            mask_load,
            "p = tl.exp2(s - lse[None, :])",
            self.upright("do", "do_at", "scratch2 + q_turned + start", "across", bound, "queries", again=True),
            f"dv = {self.dot(self.rounded('p'), 'do', 'dv')}",
            f"dp = {self.dot('v', 'do_across')}",
            "ds = p * (dp - delta[None, :])",
            f"dk = {self.dot(self.rounded('ds'), 'q', 'dk')}",
            "q_at += SIZE * ALONG",
            "do_at += SIZE * ALONG",
            "mask_at += mask_row.to(tl.int64) * ALONG" if self.mask is not None else "",
        )
        text = lines(
            self.block_of("keys"),
            "across = tl.arange(0, ALONG)",
            f"k_start = {self.start('keys', 'first')}",
            f"k_offsets = {self.tile('OWN')}",
            f"k = tl.load(in1 + k_start + k_offsets{self.inner('(rows < keys)')})",
            f"v = tl.load(in2 + k_start + k_offsets{self.inner('(rows < keys)')})",
            "dk = tl.zeros([OWN, PADDED], tl.float32)",
            "dv = tl.zeros([OWN, PADDED], tl.float32)",
            f"q_offsets = {self.tile('ALONG')}",
            f"q_start = {self.start('queries', '0')}",
            "q_at = in0 + q_start",
            "do_at = in5 + q_start",
            f"q_turned = {self.turned_start('queries')}" if self.turned else "",
            "line = (image * heads + head) * queries",
            mask_start,
            loop,
            self.stored("keys", out1=f"(dk * {self.scale!r})", out2="dv"),
        )
        turned = ["scratch1", "scratch2"] if self.turned else []
        arrays = ["in0", "in1", "in2", "in4:fp32", "in5", "scratch0:fp32", *turned, "out1", "out2"]
        return self.kernel("attention_keys", b, "keys", text, arrays, "in6")

    def queries_kernel(self, b: GpuProductSchedule) -> Launch:
        def body(masked: bool) -> list[str]:
            bound = "(below < keys - start)" if masked else ""
            return [
                *self.upright("k", "k_at", "scratch3 + k_turned + start", "below", bound, "keys", again=True),
                *self.upright("v", "v_at", "scratch4 + k_turned + start", "below", bound, "keys"),
                f"s = {self.dot('q', 'k_across')}",
                *self.scores(masked),
                "p = tl.exp2(s - lse[:, None])",
                f"dp = {self.dot('do', 'v_across')}",
                "ds = p * (dp - delta[:, None])",
                f"dq = {self.dot(self.rounded('ds'), 'k', 'dq')}",
                "k_at += SIZE * ALONG",
                "" if self.turned else "v_at += SIZE * ALONG",
                "mask_at += ALONG" if self.mask is not None else "",
            ]

        text = lines(
            self.block_of("queries"),
            "below = tl.arange(0, ALONG)",
            f"q_start = {self.start('queries', 'first')}",
            f"q_offsets = {self.tile('OWN')}",
            f"q = tl.load(in0 + q_start + q_offsets{self.inner('(rows < queries)')})",
            f"do = tl.load(in5 + q_start + q_offsets{self.inner('(rows < queries)')})",
            "line = (image * heads + head) * queries",
            "lse = tl.load(in4 + line + rows, mask=rows < queries, other=float('inf'))",
            "delta = tl.load(scratch0 + line + rows, mask=rows < queries, other=0.0)",
            f"k_start = {self.start('keys', '0')}",
            f"k_offsets = {self.tile('ALONG')}",
            "k_at = in1 + k_start",
            f"k_turned = {self.turned_start('keys')}" if self.turned else "v_at = in2 + k_start",
            self.mask_start("in6"),
            "dq = tl.zeros([OWN, PADDED], tl.float32)",
            self.along_keys(body(False), body(True)),
            self.stored("queries", out0=f"(dq * {self.scale!r})"),
        )
        values = ["scratch3", "scratch4"] if self.turned else ["in2"]
        arrays = ["in0", "in1", "in4:fp32", "in5", "scratch0:fp32", *values, "out0"]
        return self.kernel("attention_queries", b, "queries", text, arrays, "in6")


def _line(length: str) -> str:
    """Numbers from one row of what is turned to the next."""
    return f"(tl.cdiv({length}, {_EVEN}) * {_EVEN})"


def _grid(length: str, block: int) -> Grid:
    """One program for each block of positions of each head."""
    return Grid((Count((length,), block), Count(("batch", "heads"))))
