"""The graph and what it is made of. Core imports no other package of ours.

- `graph`: Tensor, Node and Graph. `node_table`, `scopes`, `operators` and `hooks` are parts of it or serve it.
- `opdef`: what an op is, and the registry of ops. `build`: from Python values to tensors and nodes. `default_graph`: the graph and session
  of a thread.
- `dtypes`, `shape`, `device`: element types, static shapes, device names. `constant_value`: what is known when the graph is built.
- `frames`: which nodes run in which loop, and in what order. `verify`: what holds of every graph. `printing`: graphs as text.
- `errors`, `settings`, `source_location`, `fault_injection`, `nest`, `philox`, `farmhash`: used everywhere.
"""
