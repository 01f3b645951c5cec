"""Public modules of ops, one per family: `math`, `nn`, `linalg`, `sparse`, `strings`, `random`.

They export what `graph/ops` defines. Three also have code: `initializers` (classes), `debugging` (assertions), `lookup`
(tables from keys to values). A new op is defined in `graph/ops` and named here.
`interop` and `compat` may import from here; what lies below `dovetail/` takes the functions from `graph/ops`.
"""

from ...graph.ops import all as _all_ops  # noqa: F401  (a graph that is loaded may hold any op)
