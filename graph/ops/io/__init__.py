"""Input and output in a step.

iterators     iterators of data sets, whose position is a variable
files         reading and writing whole files on the client's machine
parsing       serialized examples and raw bytes as tensors
checkpoints   saving and restoring variables, on the task that has them
summaries     messages for TensorBoard

Whatever is above `graph/ops` may import it, and other families of ops.
"""
