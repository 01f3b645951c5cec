"""Branches, loops, and functions that are traced once.

- `contexts`: the branch or loop in which a node is made. `recovery` recovers them in an imported graph.
- `cond_while`: `cond`, `case`, `while_loop`. `functional`: `map_fn`, `scan`.
- `function_graph`: the graph of a function that is called many times.

`gradients`, `io`, `tensorflow` and packages outside `graph` import this package. Ops call `cond` by `core/hooks.py`.
"""
