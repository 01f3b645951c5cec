"""The loops of matrix-vector products (GEMV): a single row by a matrix, and a matrix by a single column.

They are memory-bound: they read each element of the matrix once. A tile of several rows would pack the matrix, and compute rows
that do not exist. Here the matrix is read in place: a row times a matrix adds multiples of the matrix's rows, eight at a time,
and a matrix times a column is the dot products of its rows.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from numba import njit

from dovetail.codegen import vecmath as m


@njit(error_model="numpy")
def row_by_matrix(x, at, jump, b, source, row_jump, columns, steps, out, to):
    """out[to + j] = sum over k < steps of x[at + k * jump] * b[source + k * row_jump + j], for j < columns: each sum is one chain."""
    m.wide_vectors()
    m.stay_apart()
    for j in range(columns):
        m.store(out, 0, to + j, out.dtype.type(0))
    whole = steps // 8 * 8
    for k in range(0, whole, 8):
        of, row = at + k * jump, source + k * row_jump
        x0, x1 = m.load(x, 1, of), m.load(x, 1, of + jump)
        x2, x3 = m.load(x, 1, of + 2 * jump), m.load(x, 1, of + 3 * jump)
        x4, x5 = m.load(x, 1, of + 4 * jump), m.load(x, 1, of + 5 * jump)
        x6, x7 = m.load(x, 1, of + 6 * jump), m.load(x, 1, of + 7 * jump)
        for j in range(columns):
            total = m.fused(x0, m.load(b, 2, row + j), m.load(out, 0, to + j))
            total = m.fused(x1, m.load(b, 2, row + row_jump + j), total)
            total = m.fused(x2, m.load(b, 2, row + 2 * row_jump + j), total)
            total = m.fused(x3, m.load(b, 2, row + 3 * row_jump + j), total)
            total = m.fused(x4, m.load(b, 2, row + 4 * row_jump + j), total)
            total = m.fused(x5, m.load(b, 2, row + 5 * row_jump + j), total)
            total = m.fused(x6, m.load(b, 2, row + 6 * row_jump + j), total)
            total = m.fused(x7, m.load(b, 2, row + 7 * row_jump + j), total)
            m.store(out, 0, to + j, total)
    for k in range(whole, steps):
        of, row = at + k * jump, source + k * row_jump
        for j in range(columns):
            m.store(out, 0, to + j, m.fused(m.load(x, 1, of), m.load(b, 2, row + j), m.load(out, 0, to + j)))


@njit(error_model="numpy")
def matrix_by_column(a, at, row_jump, rows, steps, x, source, out, to):
    """out[to + i] = sum over k < steps of a[at + i * row_jump + k] * x[source + k], for i < rows: four sums at a time, of vectors."""
    m.wide_vectors()
    m.stay_apart()
    zero = out.dtype.type(0)
    whole = rows // 4 * 4
    for i in range(0, whole, 4):
        row = at + i * row_jump
        t0, t1, t2, t3 = zero, zero, zero, zero
        for k in range(steps):
            factor = m.load(x, 2, source + k)
            t0 = m.accumulate(t0, m.load(a, 1, row + k) * factor)
            t1 = m.accumulate(t1, m.load(a, 1, row + row_jump + k) * factor)
            t2 = m.accumulate(t2, m.load(a, 1, row + 2 * row_jump + k) * factor)
            t3 = m.accumulate(t3, m.load(a, 1, row + 3 * row_jump + k) * factor)
        m.store(out, 0, to + i, t0)
        m.store(out, 0, to + i + 1, t1)
        m.store(out, 0, to + i + 2, t2)
        m.store(out, 0, to + i + 3, t3)
    for i in range(whole, rows):
        total = zero
        for k in range(steps):
            total = m.accumulate(total, m.load(a, 1, at + i * row_jump + k) * m.load(x, 2, source + k))
        m.store(out, 0, to + i, total)
