"""Metrics of a task and traces of steps. An untraced step has no overhead.

    metrics     counters of a task, the watchdog for steps that make no progress, the Prometheus endpoint
    step_notes  what a task records of a traced step (`worker/step.py` calls it)
    trace       the records of all tasks on one clock: a `Trace`, with its critical path
    timeline    the trace in Chrome's format

It imports transport (to read the clocks of other tasks) and the placer's charts.
"""
