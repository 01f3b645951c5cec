"""Public modules of ops, one per family: `math`, `nn`, `linalg`, `sparse`, `strings`, `random`.

They re-export functions of `graph/ops`. A new op is defined in `graph/ops` and exported here. Only `debugging` (assertions) and `lookup`
(tables from keys to values) define functions of their own. `initializers` re-exports the initializers of variables from
`graph/variables`. `interop` and `compat` may import from here. The other packages take the functions from `graph/ops`.
"""

from ...graph.ops import all as _all_ops  # noqa: F401  (a loaded graph may contain any op)
