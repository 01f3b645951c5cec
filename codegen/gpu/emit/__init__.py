"""Emits Triton text from loop nests (`codegen/ir/loop_nest.py`).

    launches.py       from a loop nest and schedules for its sizes to launches; reductions of long rows in several steps
    nest.py           one kernel: loops over tiles, reductions, stores
    tile.py           one tile: which elements it has, where they are in arrays, what depends on that
    expr.py           values as Triton expressions; templates write their epilogues with it, too
    device_math.py    `vecmath` translated to Triton: the polynomials of the CPU; Philox and the distributions

It knows the IR and `gpu/ir.py` only: no nodes, no devices. `ops`, `templates` and the launchers import it.
"""
