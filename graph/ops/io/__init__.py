"""Input and output in a step.

iterators                      iterators of data sets, whose position is a variable
readers                        records of files whose names come from a queue
parsing, sequence_parsing      examples and sequence examples as tensors, raw bytes, JSON
checkpoints                    saving and restoring variables, on the task that has them
summaries                      messages for TensorBoard
"""
