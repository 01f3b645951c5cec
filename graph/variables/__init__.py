"""Variables: values that persist between steps.

- `variable`: the class that programs use. `ref_and_resource`: reference and resource variables, and their nodes.
- `scope`, `store`: `variable_scope`, `get_variable`, and lists of variables. `partitioned`: variables in parts.
- `initializers`: initial values. `builds`: a model that is built several times in one graph.

`gradients`, `io`, `tensorflow` and packages outside `graph` import this package.
"""
