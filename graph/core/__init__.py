"""The graph and its parts. `core` imports no other package of Dovetail.

- `graph`: Tensor, Node and Graph. `node_table`, `node_insertion`, `flow_table`, `scopes`, `operators` and `hooks` are parts of it or
  serve it.
- `opdef`: what an op is, and the registry of ops. `places`: from where an op moves elements. `build`: from Python values to tensors and
  nodes. `default_graph`: the graph and session of a thread.
- `dtypes`, `shape`, `device`: element types, static shapes, device names. `constant_value`: constant values at graph construction.
- `frames`: the loop of each node, and the order of nodes. `verify`: invariants of every graph. `printing`: graphs as text.
- `gpu_models`: published figures of GPUs, and which of them count for a node.
- `scalar_math`: the functions of ops' scalar bodies. `rows`: rows of arrays that are combined by their numbers.
  `argument_names`: errors of wrong keywords name the right ones.
- `interpreter_state`, `reference_counts`: Python's collector and process id; whether an object may be overwritten in place.
- `errors`, `settings`, `source_location`, `fault_injection`, `nest`, `repeated_field`, `philox`, `farmhash`: used everywhere.

Every part of the project may import it.
"""
