"""The demo: two workers and two parameter servers on this machine train a classifier of handwritten digits.

model       the classifier and its training loop, in TensorFlow 1's style; the file to read first
data        the digits, with a training and a test part
worker      the program of a worker process (between-graph replication)
replicas    between-graph replication (a graph per worker) and in-graph replication (a copy of the computation per worker)
watch       the progress reports of workers, and the evaluation
display     the progress display
strategies  the classifier under a distribution strategy
run         the whole demo, and the final summary

Only the command `dovetail demo` imports it.
"""
