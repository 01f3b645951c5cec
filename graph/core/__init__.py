"""The graph and its parts. `core` imports no other package of Dovetail.

- `graph`: Tensor, Node and Graph. `node_table`, `node_insertion`, `flow_table`, `scopes`, `operators` and `hooks` are parts of it or
  serve it.
- `opdef`: what an op is, and the registry of ops. `build`: from Python values to tensors and nodes. `default_graph`: the graph and session
  of a thread.
- `dtypes`, `shape`, `device`: element types, static shapes, device names. `constant_value`: constant values at graph construction.
- `frames`: the loop of each node, and the order of nodes. `verify`: invariants of every graph. `printing`: graphs as text.
- `gpu_models`: published figures of GPUs, and which of them count for a node.
- `errors`, `settings`, `source_location`, `fault_injection`, `nest`, `philox`, `farmhash`: used everywhere.
"""
