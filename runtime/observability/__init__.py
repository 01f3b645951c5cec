"""What a task and a step tell about themselves. A step that nobody traces pays nothing.

    metrics     counters of a task, the watchdog for steps that make no progress, the Prometheus endpoint
    step_notes  the notes that a task takes of a traced step (`worker/traced_step.py` takes them)
    trace       the notes of all tasks on one clock: a `Trace`, with its critical path
    timeline    the trace in Chrome's format

It imports transport (to read the clocks of other tasks) and the placer's charts.
"""
