"""Variables: values that live from step to step.

- `variable`: the class that programs use. `ref_and_resource`: its two kinds, and the nodes of each.
- `scope`, `store`: `variable_scope`, `get_variable`, templates. `partitioned`: variables in slices. `initializers`: first values.
- `collections`: the lists of variables that a graph keeps, and what initializes them.

Imported by `gradients`, `io`, `tensorflow`, and by what is above `graph`.
"""
