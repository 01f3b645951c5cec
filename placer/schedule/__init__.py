"""In which order a device runs its nodes, and when it may send.

    critical_path.py       list scheduling by upward rank, for plans that rules placed
    from_search.py         the order in which a search starts the nodes
    pacing.py              receive scheduling: senders wait for receivers (flow control)
    pipeline_parallel.py   micro-batches through the stages of a model: GPipe and 1F1B schedules

`pipeline` and `views` may import it. It imports `search`, `cost`, `partition` and `cluster`.
"""
