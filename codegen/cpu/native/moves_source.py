"""The loops of strided copies and of checks for native plans. See `emit.instantiate` for how this text becomes a kernel."""

import numpy as np  # noqa: F401 (the text names types by it)

from dovetail.codegen import vecmath as m


def copy(x, out, sizes, jumps, out_jumps, lo, hi):
    """out[i * out_jumps] = x[i * jumps] for all five indices, of which the first goes from lo to hi."""
    for a in range(lo, hi):
        for b in range(sizes[1]):
            for c in range(sizes[2]):
                of_c = a * jumps[0] + b * jumps[1] + c * jumps[2]
                to_c = a * out_jumps[0] + b * out_jumps[1] + c * out_jumps[2]
                for d in range(sizes[3]):
                    of, to = of_c + d * jumps[3], to_c + d * out_jumps[3]
                    if jumps[4] == 1 and out_jumps[4] == 1:
                        for e in range(sizes[4]):
                            m.store(out, 1, to + e, m.load(x, 0, of + e))
                    else:
                        for e in range(sizes[4]):
                            m.store(out, 1, to + e * out_jumps[4], m.load(x, 0, of + e * jumps[4]))


def check(x, least, limit, lo, hi):
    """Fail unless all numbers are at least `least`, and below a limit."""
    for i in range(lo, hi):
        if not least <= m.load(x, 0, i) < limit:
            raise IndexError
