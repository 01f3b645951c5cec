"""What compiled sums over segments do, as functions that Numba compiles; see `image_loops` for how this is used."""

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
