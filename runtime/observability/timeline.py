"""A trace in TensorFlow 1's shape: `run_metadata.step_stats`, and `timeline.Timeline`, which turns it into Chrome's trace format.

    from dovetail import timeline            # TensorFlow: from tensorflow.python.client import timeline
    text = timeline.Timeline(run_metadata.step_stats).generate_chrome_trace_format()

chrome://tracing and Perfetto read the format. Each device is a "process" in it, with the threads that ran kernels,
and separate threads for received values.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

RECEIVED = 1000  # threads from this number on show what a device received


@dataclass(slots=True)
class NodeExecStats:
    """One run of a kernel, or one transfer of a value (`node_name` is then "RecvTensor"). Times are in microseconds.

    Attributes:
        node_name: the node; the last node of a fused kernel.
        all_start_micros: start, since 1970.
        op_start_rel_micros: start and end of the work, relative to that.
        op_end_rel_micros: start and end of the work, relative to that.
        all_end_rel_micros: start and end of the work, relative to that.
        timeline_label: `name = Op(input, ...)`, or `[1.0KiB] x:0 from DEVICE to DEVICE`.
        scheduled_micros: as `all_start_micros`.
        thread_id: number of the thread in its task.
        output_bytes: size of the outputs.
    """

    node_name: str
    all_start_micros: int
    op_start_rel_micros: int
    op_end_rel_micros: int
    all_end_rel_micros: int
    timeline_label: str
    scheduled_micros: int
    thread_id: int
    output_bytes: int = 0
    all_start_nanos: int = 0
    all_end_rel_nanos: int = 0
    memory: list[Any] = field(default_factory=list)
    output: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class DeviceStepStats:
    """What one device did: `device` is its complete name."""

    device: str
    node_stats: list[NodeExecStats] = field(default_factory=list)


@dataclass(slots=True)
class StepStats:
    """What all devices did in one step."""

    dev_stats: list[DeviceStepStats] = field(default_factory=list)


class Timeline:
    """Step statistics as a chart for chrome://tracing or Perfetto.

    >>> with open("timeline.json", "w") as f:
    ...     f.write(Timeline(run_metadata.step_stats).generate_chrome_trace_format())
    """

    def __init__(self, step_stats: StepStats, graph: Any = None) -> None:
        self._stats = step_stats

    def generate_chrome_trace_format(
        self, show_dataflow: bool = True, show_memory: bool = False, op_time: str = "schedule"
    ) -> str:
        """The JSON text. TensorFlow's arguments have no effect: it shows what was measured, and nothing else."""
        events: list[dict[str, Any]] = []
        for pid, device in enumerate(self._stats.dev_stats):
            events.append(_named("process", pid, 0, device.device))
            events.append({"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
            for tid in sorted({n.thread_id for n in device.node_stats}):
                events.append(_named("thread", pid, tid, "received" if tid >= RECEIVED else f"kernels, thread {tid}"))
            events += [_event(n, pid) for n in device.node_stats]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": f"{what}_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _event(n: NodeExecStats, pid: int) -> dict[str, Any]:
    label = re.fullmatch(r"(.*) = (.*)\((.*)\)", n.timeline_label)
    op = n.node_name if label is None else label[2]
    args: dict[str, Any] = {"name": n.node_name, "op": op, "bytes": n.output_bytes}
    if label is None:
        args["value"] = n.timeline_label
    elif label[3]:
        args |= {f"input{i}": name for i, name in enumerate(label[3].split(", "))}
    return {
        "name": op, "cat": "Op", "ph": "X", "pid": pid, "tid": n.thread_id,
        "ts": n.all_start_nanos / 1e3, "dur": n.all_end_rel_nanos / 1e3, "args": args,
    }  # fmt: skip


__all__ = ["DeviceStepStats", "NodeExecStats", "StepStats", "Timeline"]
