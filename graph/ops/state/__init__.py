"""Ops on state that outlives a step (`graph/resources`), and collectives.

variables                             reference and resource variables: read, assign, add
scatter_state                         updates of rows, elements and slices of a variable
training                              optimizers' updates: one op changes a variable and its slots atomically
queues, queue_api                     queues, and TensorFlow 1's classes for them
accumulators                          conditional accumulators
tables                                lookup tables
collectives                           all-reduce, all-gather, reduce-scatter, broadcast, barrier; checks that replicas are equal

Whatever is above `graph/ops` may import it, and other families of ops.
"""
