"""Partitioning: a placed graph becomes one part per device, joined by channels (send/receive pairs).

    prune.py                    the nodes that fetches and targets need, in one global order
    control_edges.py            control-edge reduction: NoOps that only join control edges are not run
    control_flow_placement.py   `Switch`, `Merge` and the like run beside their data
    partition.py                the entry: a placed graph in, a `Partitioned` out
    partitioned_graph.py        `Channel`, `Partition`, `Partitioned`: the result
    insert_channels.py          the walk that opens a channel where an edge crosses devices
    one_sided_reads.py          variables of another task that are read in its memory
    one_sided_updates.py        parts of a parameter server that a worker runs in its memory
    one_sided_accumulates.py    gradients that a worker adds to another task's accumulators
    one_sided_access.py         which of those are done: what tasks reach of each other's memory, assumed or found

Cost, search, schedule and views may import it. It imports `cluster`. It sees a function from node to device, not the placer.
"""
