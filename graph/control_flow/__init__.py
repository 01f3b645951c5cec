"""Branches, loops, and functions that are traced once.

- `contexts`: the branch or loop in which a node is made. `recovery` finds them again in a graph that was read.
- `cond_while`: `cond`, `case`, `while_loop`. `functional`: `map_fn`, `scan`.
- `function_graph`: the graph of a function that is called many times.

Imported by `gradients`, `io`, `tensorflow`, and by what is above `graph`. Ops reach `cond` by `core/hooks.py`.
"""
