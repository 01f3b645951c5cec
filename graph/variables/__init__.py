"""Variables: values that live from step to step.

- `variable`: the class that programs use. `ref_and_resource`: its two kinds, and the nodes of each.
- `scope`, `store`: `variable_scope`, `get_variable`; lists of variables. `partitioned`: variables in slices.
- `initializers`: first values. `builds`: a model that is built several times in one graph.

Imported by `gradients`, `io`, `tensorflow`, and by what is above `graph`.
"""
