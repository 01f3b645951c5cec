"""What a graph is: nodes that compute, tensors between them, and the rules that make and read both.

Packages, each of which imports only those before it:

- `core`: Graph, Node and Tensor, types, shapes and devices, the registry of ops, errors and settings.
- `formats`: bytes and files: records, checkpoints, TensorFlow's messages and tensor bundles.
- `resources`: state that outlives a step, as kernels see it.
- `tensors`: IndexedSlices and SparseTensor.
- `ops`: the ops, by family; each is defined once.
- `control_flow`: `cond`, `while_loop`, and what is built with them.
- `variables`: variables, their scopes and stores, initializers.
- `gradients`: reverse-mode differentiation.
- `io`: graphs and meta graphs as bytes, in this project's own format.
- `tensorflow`: TensorFlow's graphs, read and written.

What a lower package needs of an upper one is registered in `core/hooks.py`. All other parts of the project may import `graph`; it
imports none of them.
"""
