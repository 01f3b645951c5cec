"""Control flow and per-step state.

switch_merge                   dataflow control flow: Switch, Merge, Enter, Exit, NextIteration; what a loop keeps for its gradient
tensor_array_ops, tensor_array the ops of `TensorArray`, and the class
python_function                what nodes that stay in the client's process have of it

Whatever is above `graph/ops` may import it, and other families of ops.
"""
