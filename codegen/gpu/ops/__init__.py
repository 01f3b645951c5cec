"""How ops use templates: from a node's types and attributes, then the shapes of a run, to routines, sizes and output shapes.

    products.py   matrix products; attention and its gradient
    conv.py       convolutions and their gradients
    copy.py       slices, concatenation, padding, tiling, transposes: strided copies
    rows.py       scans, top-k, gathers, scatters, segment reductions, reductions over axes known at run time

A maker raises ValueError or KeyError for types and attributes that it has no kernel for; its `choose` gives None for such shapes.
`gpu/families.py` has the table of all makers. This package imports `templates`, `emit`, `driver` and `ir`.
"""
