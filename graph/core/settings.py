"""Settings from the environment: one registry, one table.

Each setting is a row of `SETTINGS`; `setting(name)` reads it. The documentation's table is made from the same rows.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable: its name, default (whose type is the setting's type) and meaning."""

    name: str
    default: Any
    meaning: str


SETTINGS = {
    s.name: s
    for s in (
        Setting(
            "DOVETAIL_BACKEND",
            "auto",
            "kernels of CPUs: auto (fused, compiled once it pays), numba (compiled before the first step), numpy",
        ),
        Setting(
            "DOVETAIL_BATCH",
            1,
            "1: Linux schedules a server's threads as batch work: who is woken by a message does not displace who has sent it; 0: it does",
        ),
        Setting(
            "DOVETAIL_CACHE_DIR", "", "where compiled kernels are kept; default: dovetail in the user's cache folder"
        ),
        Setting(
            "DOVETAIL_CHECK",
            0,
            "1: mirrored replicas compare checksums of variables every 100 updates; 2: fused kernels run beside NumPy references, too",
        ),
        Setting(
            "DOVETAIL_CLIENT_MB", 16384, "MiB that one client may feed to a server's running steps at once; 0: no limit"
        ),
        Setting("DOVETAIL_CLIENT_SESSIONS", 1000, "sessions that one client may have open at a server; 0: no limit"),
        Setting(
            "DOVETAIL_CLIENT_STEPS", 1000, "running steps, and unanswered calls, of one client of a server; 0: no limit"
        ),
        Setting(
            "DOVETAIL_DATA_FILES",
            "",
            "folders, separated by colons, whose files a server without keys reads and caches for data sets of other processes; '': none",
        ),
        Setting(
            "DOVETAIL_CUDA_IPC",
            1,
            "1: GPUs of processes of one machine read each other's memory; 0: tensors between them go by the host's",
        ),
        Setting(
            "DOVETAIL_CUDA_GRAPHS",
            1,
            "1: launches that follow one another on a GPU become one CUDA graph; 0: they do not",
        ),
        Setting(
            "DOVETAIL_DEBUG",
            0,
            "1: log which rewrite rules fired, and how often, when a program is made; 2: each place, with the user's line",
        ),
        Setting(
            "DOVETAIL_DETERMINISTIC",
            0,
            "1: kernels are compiled before they run, none is chosen by measuring: the same bits in every run; 0: mirrored replicas only",
        ),
        Setting(
            "DOVETAIL_CHECKPOINT_DIR",
            "",
            "the only folder in which this process writes and reads checkpoints for steps; default: anywhere",
        ),
        Setting(
            "DOVETAIL_DIRECT_READS",
            1,
            "1: a task reads variables of others of its machine in their memory, where it can; 0: their values are sent",
        ),
        Setting(
            "DOVETAIL_DIRECT_UPDATES",
            1,
            "1: a task changes variables of others of its machine in their memory, where it can (and reads them there); 0: their tasks do",
        ),
        Setting(
            "DOVETAIL_EMULATE_GPUS",
            0,
            "how many emulated GPU devices each task has: the CPU's kernels under a GPU's name",
        ),
        Setting("DOVETAIL_GPU_MEMORY", 0, "bytes that this process may use of each GPU's memory; 0: all that is there"),
        Setting(
            "DOVETAIL_TUNE",
            1,
            "0: GPUs take the likely best of several kernels; 1: the fastest, measured once and kept",
        ),
        Setting(
            "DOVETAIL_KEYS",
            "",
            "folder of keys with which servers and clients prove who they are; default: no keys, loopback only",
        ),
        Setting("DOVETAIL_LOG", "WARNING", "log level of a task started from the command line or by LocalCluster"),
        Setting(
            "DOVETAIL_LOG_FORMAT", "text", "how such a task logs: text, or json: one object a line, with job and task"
        ),
        Setting(
            "DOVETAIL_METRICS",
            "",
            "where a server tells its figures to Prometheus: a port of localhost, or host:port; default: nowhere",
        ),
        Setting(
            "DOVETAIL_STALL_S", 30.0, "seconds after which a step that waits for the same things is reported; 0: never"
        ),
        Setting("DOVETAIL_REWRITE", 1, "0: graphs are run as they were written: nothing is folded, merged or replaced"),
        Setting(
            "DOVETAIL_FAULTS",
            "",
            "for tests: faults on purpose, such as cut:all, delay:30 or save:7; graph/core/fault_injection.py lists them",
        ),
        Setting(
            "DOVETAIL_NATIVE_STRETCHES",
            1,
            "1: launches that follow one another on a CPU become one call; 0: they do not",
        ),
        Setting(
            "DOVETAIL_QUEUE_MB",
            4096,
            "MiB that one queue may hold, elements that wait for room included; more is an error, 0: no limit",
        ),
        Setting(
            "DOVETAIL_BACKLOG_MB",
            4096,
            "MiB of tensors that may wait for one peer that does not take them; more is an error, 0: no limit",
        ),
        Setting(
            "DOVETAIL_MESSAGE_MB",
            16384,
            "MiB of the largest message that a process takes; the sender of a larger one gets an error; 0: no limit but its memory",
        ),
        Setting(
            "DOVETAIL_SHARED_MEMORY",
            1024,
            "most MiB that a process lends to others of its machine, its large variables included; 0: all tensors travel in messages",
        ),
    )
}


@cache
def _warn_of_misspelt() -> None:
    """Once: a variable that is nearly a setting's name changes nothing, which its owner should hear."""
    import difflib

    for name in os.environ:
        if name.startswith("DOVETAIL_") and name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.9)
            if close:
                warnings.warn(
                    f"{name} is no setting of Dovetail, and changes nothing: did you mean {close[0]}?", stacklevel=3
                )


def setting(name: str) -> Any:
    """The value of a setting: from the environment, or its default.

    Raises:
        ValueError: the environment holds something of another type.
    """
    _warn_of_misspelt()
    row = SETTINGS[name]
    text = os.environ.get(name)
    if text is None or text == "":
        return row.default
    if isinstance(row.default, str):
        return text
    try:
        return type(row.default)(text)
    except ValueError:
        wanted = "a whole number" if isinstance(row.default, int) else "a number"
        raise ValueError(f"The setting {name}={text!r} must be {wanted}. It means: {row.meaning}") from None
