"""The demo: two workers learn to read handwritten digits, over two parameter servers, on this machine.

model     the classifier and its training loop, in TF1 style; the file to read first
data      the digits, and the part of them that is never trained on
worker    what each worker process runs (between-graph replication)
replicas  the two ways to replicate: a graph per worker, or a copy of the compute per worker in one graph
watch     the workers' progress reports, and how they arrive
display   the progress display
strategies  the classifier under a distribution strategy
run       all of it in order, and the final summary

Only the command `dovetail demo` imports it.
"""
