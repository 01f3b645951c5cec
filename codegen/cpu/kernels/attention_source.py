"""The loops of attention and its gradient: no matrix of scores is written to memory (Dao et al., "FlashAttention", 2022).

A unit of work is a block of queries of one matrix of the stack; for the gradient, all queries of a part. The scores of a block with all
keys stay in the thread's own memory, in the second cache, until they are used up. The gradient computes the probabilities
again, from the logarithms of the sums that the forward pass kept. Unlike in FlashAttention keys are not tiled, since a block of
some queries has room for all of them; so no online softmax is needed.

Queries, keys, values and gradients are read in place, and results are written in place, whatever the order of their
axes: the heads of a layer's output are not copied.

See `emit.instantiate` for how this text becomes a kernel.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.kernels.gemm_source import (
    INNER,
    LINE,
    NR32,
    lay_out_panels,
    lay_out_rows,
    next_unit,
    place_of,
    tiles,
    wait,
)
from dovetail.codegen.cpu.kernels.microkernel import MR
from dovetail.codegen.cpu.native.machine import count_up
from dovetail.codegen.cpu.work_ranges import FINISHED

LOG2E, LN2 = m.f32(1.4426950408889634), m.f32(0.6931471805599453)
BLOCK = 4096  # as `emit.blocks.BLOCK`


@njit(error_model="numpy")
def product(a, at, a_jumps, b, of, b_jumps, rows, steps, columns, out, to, out_jump, more, panels, block, sums):
    """out (+)= a b for two matrices, by this thread alone. Jumps: to the next row, to the next column."""
    m.stay_apart()
    m.wide_vectors()
    for k in range(0, steps, INNER):
        some = min(INNER, steps - k)
        add = more or k > 0
        lay_out_panels(b, panels, 0, of + k * b_jumps[0], b_jumps, columns, some, NR32)
        begin = at + k * a_jumps[1]
        if a_jumps[1] == 1:
            tiles(
                a, begin, a_jumps[0], a_jumps[0], 1, rows, columns, some, panels, 0, NR32, out, to, out_jump, add, sums
            )
        else:
            lay_out_rows(a, block, begin, a_jumps, rows, some)
            tiles(block, 0, some, 1, MR, rows, columns, some, panels, 0, NR32, out, to, out_jump, add, sums)


@njit(error_model="numpy")
def masked_scores(scores, at, keys, scale, mask, of, jump):
    """The scores of one query, scaled, and a mask added; `jump`: to the mask for the next key."""
    m.stay_apart()
    m.wide_vectors()
    if jump == 1:
        for j in range(keys):
            m.store(scores, 0, at + j, m.load(scores, 0, at + j) * scale + m.load(mask, 1, of + j))
    else:
        for j in range(keys):
            m.store(scores, 0, at + j, m.load(scores, 0, at + j) * scale + m.load(mask, 1, of + j * jump))


@njit(error_model="numpy")
def exponentials(scores, at, keys, scale):
    """The scores of one query become exponentials of how far they are, scaled, from the largest; that one, and their sum.

    The maximum passes over NaN, which comes back with the sum (`range_analysis`).
    """
    m.stay_apart()
    m.wide_vectors()
    for j in range(keys):
        m.store(scores, 0, at + j, m.load(scores, 0, at + j) * scale)
    most = m.f32(-np.inf)
    for j in range(keys):
        most = m.larger(most, m.load(scores, 0, at + j))
    total = m.f64(0.0)
    for begin in range(0, keys, BLOCK):
        part = m.f32(0.0)
        for j in range(begin, min(begin + BLOCK, keys)):
            e = m.exp_below32(m.load(scores, 0, at + j) - most)
            m.store(scores, 0, at + j, e)
            part = m.accumulate(part, e)
        total += m.f64(part)
    return most, m.f32(total)


@njit(error_model="numpy")
def probabilities(scores, at, keys, scale, logarithm):
    """The scores of one query become probabilities; `logarithm`: of the sum of their exponentials."""
    m.stay_apart()
    m.wide_vectors()
    for j in range(keys):
        m.store(scores, 0, at + j, m.exp_below32(m.load(scores, 0, at + j) * scale - logarithm))


@njit(error_model="numpy")
def divided(y, at, deep, total):
    """The result of one query, of exponentials so far."""
    m.stay_apart()
    m.wide_vectors()
    for j in range(deep):
        m.store(y, 0, at + j, m.load(y, 0, at + j) / total)


@njit(error_model="numpy")
def inner(x, at, x_jump, y, of, y_jump, deep):
    """The sum of x y along the values of one query."""
    m.stay_apart()
    m.wide_vectors()
    total = m.f32(0.0)
    if x_jump == 1 and y_jump == 1:
        for j in range(deep):
            total = m.accumulate(total, m.load(x, 0, at + j) * m.load(y, 1, of + j))
    else:
        for j in range(deep):
            total = m.accumulate(total, m.load(x, 0, at + j * x_jump) * m.load(y, 1, of + j * y_jump))
    return total


@njit(error_model="numpy")
def of_scores(p, at, of_p, keys, less, scale):
    """The gradient of one query's scores, from the probabilities and their gradient, which it overwrites."""
    m.stay_apart()
    m.wide_vectors()
    for j in range(keys):
        given = m.load(of_p, 1, at + j)
        m.store(of_p, 1, at + j, (given - less) * m.load(p, 0, at + j) * scale)


def attention(
    q, k, v, mask, scales, y, sums, room, counters,
    sizes, counts, q_jumps, k_jumps, v_jumps, mask_jumps, y_jumps, unit, thread, units,
):  # fmt: skip
    """Blocks of queries, shared with all threads that call this with the same counters.

    sizes: (queries, keys, their depth, the values' depth, whether there is a mask). counts: of the stack's three axes. Jumps: to the
    next matrix along each of these, then to the next row and column; those of `y` are 1 in the end. unit: (queries of a block, numbers
    from one query's scores to the next one's, numbers of a thread's panels, of its rows).
    """
    queries, keys, depth, deep, masked = sizes
    tall, wide = unit[0], unit[1]
    down = (queries + tall - 1) // tall
    mine = room.size // (counters.size // LINE - 1)
    own = room[thread * mine : (thread + 1) * mine]
    scores, totals, own = own[: tall * wide], own[tall * wide : tall * (wide + 1)], own[tall * (wide + 1) :]
    panels, block, rest = own[: unit[2]], own[unit[2] : unit[2] + unit[3]], own[unit[2] + unit[3] :]
    scale, one = scales[0], m.f32(1.0)
    while True:
        work = next_unit(counters, thread, units)
        if work < 0:
            break
        matrix, top = work // down, work % down * tall
        high = min(tall, queries - top)
        first = place_of(matrix, counts, q_jumps) + top * q_jumps[3]
        second, third = place_of(matrix, counts, k_jumps), place_of(matrix, counts, v_jumps)
        over = place_of(matrix, counts, mask_jumps) + top * mask_jumps[3]
        to = place_of(matrix, counts, y_jumps) + top * y_jumps[3]
        product(q, first, (q_jumps[3], q_jumps[4]), k, second, (k_jumps[4], k_jumps[3]), high, depth, keys,
                scores, 0, wide, False, panels, block, rest)  # fmt: skip
        for i in range(high):
            if masked:
                masked_scores(scores, i * wide, keys, scale, mask, over + i * mask_jumps[3], mask_jumps[4])
            most, total = exponentials(scores, i * wide, keys, one if masked else scale)
            sums[matrix * queries + top + i] = (most + m.log32(total)) * LOG2E
            totals[i] = total
        product(scores, 0, (wide, 1), v, third, (v_jumps[3], v_jumps[4]), high, keys, deep,
                y, to, y_jumps[3], False, panels, block, rest)  # fmt: skip
        for i in range(high):
            divided(y, to + i * y_jumps[3], deep, totals[i])
        count_up(counters, FINISHED, 1)
    if thread == 0:
        wait(counters, units)


def attention_gradient(
    q, k, v, mask, y, sums, grad, scales, dq, dk, dv, room, counters,
    sizes, counts, q_jumps, k_jumps, v_jumps, mask_jumps, y_jumps, grad_jumps, dq_jumps, dk_jumps, dv_jumps, unit, thread, units,
):  # fmt: skip
    """Parts of the queries of each matrix, shared with all threads that call this with the same counters.

    As `attention`; unit: (queries of a block, numbers from one query's scores to the next one's, numbers of a thread's panels, of its
    rows, parts of a matrix, queries of a part). Each part has gradients of keys and values of its own, `parts` times as many matrices.
    """
    queries, keys, depth, deep, masked = sizes
    tall, wide, parts = unit[0], unit[1], unit[4]
    mine = room.size // (counters.size // LINE - 1)
    own = room[thread * mine : (thread + 1) * mine]
    scores, slopes, own = own[: tall * wide], own[tall * wide : 2 * tall * wide], own[2 * tall * wide :]
    panels, block, rest = own[: unit[2]], own[unit[2] : unit[2] + unit[3]], own[unit[2] + unit[3] :]
    scale, one = scales[0], m.f32(1.0)
    while True:
        work = next_unit(counters, thread, units)
        if work < 0:
            break
        matrix, part = work // parts, work % parts
        at_q, at_k, at_v = (
            place_of(matrix, counts, q_jumps),
            place_of(matrix, counts, k_jumps),
            place_of(matrix, counts, v_jumps),
        )
        at_y, at_grad = place_of(matrix, counts, y_jumps), place_of(matrix, counts, grad_jumps)
        at_mask, to_q = place_of(matrix, counts, mask_jumps), place_of(matrix, counts, dq_jumps)
        cut = (counts[0], counts[1], counts[2] * parts)
        to_k, to_v = place_of(work, cut, dk_jumps), place_of(work, cut, dv_jumps)
        begin, end = part * unit[5], min(queries, (part + 1) * unit[5])
        for top in range(begin, end, tall):
            high, more = min(tall, end - top), top > begin
            given = at_grad + top * grad_jumps[3]
            product(q, at_q + top * q_jumps[3], (q_jumps[3], q_jumps[4]), k, at_k, (k_jumps[4], k_jumps[3]), high, depth, keys,
                    scores, 0, wide, False, panels, block, rest)  # fmt: skip
            product(grad, given, (grad_jumps[3], grad_jumps[4]), v, at_v, (v_jumps[4], v_jumps[3]), high, deep, keys,
                    slopes, 0, wide, False, panels, block, rest)  # fmt: skip
            for i in range(high):
                if masked:
                    masked_scores(
                        scores, i * wide, keys, scale, mask, at_mask + (top + i) * mask_jumps[3], mask_jumps[4]
                    )
                logarithm = sums[matrix * queries + top + i] * LN2
                probabilities(scores, i * wide, keys, one if masked else scale, logarithm)
                less = inner(
                    grad, given + i * grad_jumps[3], grad_jumps[4], y, at_y + (top + i) * y_jumps[3], y_jumps[4], deep
                )
                of_scores(scores, i * wide, slopes, keys, less, scale)
            product(scores, 0, (1, wide), grad, given, (grad_jumps[3], grad_jumps[4]), keys, high, deep,
                    dv, to_v, dv_jumps[3], more, panels, block, rest)  # fmt: skip
            product(slopes, 0, (1, wide), q, at_q + top * q_jumps[3], (q_jumps[3], q_jumps[4]), keys, high, depth,
                    dk, to_k, dk_jumps[3], more, panels, block, rest)  # fmt: skip
            product(slopes, 0, (wide, 1), k, at_k, (k_jumps[3], k_jumps[4]), high, keys, depth,
                    dq, to_q + top * dq_jumps[3], dq_jumps[3], False, panels, block, rest)  # fmt: skip
        count_up(counters, FINISHED, 1)
    if thread == 0:
        wait(counters, units)
