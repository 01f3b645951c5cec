"""What compiled sums over segments and running sums do, as functions that Numba compiles; see `image_loops` for how this is used."""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m


def segment_sum(x, ids, out, sizes, lo, hi):
    """out[ids[i], j] += x[i, j] for columns lo to hi; rows with a negative id are left out. sizes: (rows, columns)."""
    for i in range(sizes[0]):
        if ids[i] >= 0:
            to, of = ids[i] * sizes[1], i * sizes[1]
            for j in range(lo, hi):
                m.store(out, 2, to + j, m.load(out, 2, to + j) + m.load(x, 0, of + j))


def scan(x, out, sizes, flags, lo, hi):
    """Running sums along the axis in the middle, for parts lo to hi. sizes: (along, behind). flags: reverse, exclusive, product."""
    along, behind = sizes
    number = x.dtype.type
    for part in range(lo, hi):
        first, step = part * along * behind, behind
        if flags[0]:
            first, step = first + (along - 1) * behind, -behind
        if behind == 1:
            total = number(1) if flags[2] else number(0)
            for k in range(along):
                at = first + k * step
                value = x[at]
                if flags[1]:
                    out[at] = total
                total = number(total * value) if flags[2] else number(total + value)
                if not flags[1]:
                    out[at] = total
            continue
        for k in range(along):
            at = first + k * step
            before = at - step
            of = before if flags[1] else at
            if k == 0:
                for j in range(behind):
                    m.store(
                        out, 1, at + j, (number(1) if flags[2] else number(0)) if flags[1] else m.load(x, 0, at + j)
                    )
            elif flags[2]:
                for j in range(behind):
                    m.store(out, 1, at + j, number(m.load(out, 1, before + j) * m.load(x, 0, of + j)))
            else:
                for j in range(behind):
                    m.store(out, 1, at + j, number(m.load(out, 1, before + j) + m.load(x, 0, of + j)))
