"""Control flow and per-step state.

switch_merge                     dataflow control flow: Switch, Merge, Enter, Exit, NextIteration; stacks for gradients of loops
tensor_array_ops, tensor_array   the ops of `TensorArray`, and the class
python_function                  the table of Python functions that nodes call

Whatever is above `graph/ops` may import it, and other families of ops.
"""
