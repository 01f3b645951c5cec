"""Settings from the environment: one registry, one table.

Each setting is a row of `SETTINGS`; `setting(name)` reads it. The documentation's table is made from the same rows. A setting that was
renamed is still read under its old name (`RENAMED`), with a warning.
"""

from __future__ import annotations

import difflib
import os
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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
            "DOVETAIL_SCHED_BATCH",
            1,
            "1: a server's threads are scheduled as SCHED_BATCH: a thread that a message wakes does not preempt its sender; 0: it may",
        ),
        Setting(
            "DOVETAIL_CACHE_DIR", "", "where compiled kernels are kept; default: dovetail in the user's cache folder"
        ),
        Setting(
            "DOVETAIL_PROFILE",
            "",
            "the machine's profile that plans predict times with: a file that `dovetail calibrate` wrote; none; default: this machine's",
        ),
        Setting(
            "DOVETAIL_CHECK",
            0,
            "1: mirrored replicas compare checksums of variables every 100 updates; 2: fused kernels are compared with NumPy, too",
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
            "1: GPUs of processes of one machine read each other's memory; 0: tensors between them are copied through the host's",
        ),
        Setting(
            "DOVETAIL_CUDA_GRAPHS",
            1,
            "1: consecutive kernel launches on a GPU become one CUDA graph; 0: they do not",
        ),
        Setting(
            "DOVETAIL_PASSES",
            0,
            "1: log what each compiler pass makes of a device's partition, and the schedule of each kernel of a GPU when it is chosen",
        ),
        Setting(
            "DOVETAIL_VERIFY_PASSES",
            0,
            "1: check after each compiler pass that what it made is well formed, as tests do",
        ),
        Setting(
            "DOVETAIL_LOG_REWRITES",
            0,
            "1: log which rewrite rules fired, and how often, when a program is compiled; 2: each match, with the user's line",
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
            "DOVETAIL_ONE_SIDED_READS",
            1,
            "1: a task reads variables of other tasks of its machine in their memory, where it can; 0: their values are sent",
        ),
        Setting(
            "DOVETAIL_ONE_SIDED_UPDATES",
            1,
            "1: a task updates variables of other tasks of its machine in their memory, where it can; 0: the owning tasks do",
        ),
        Setting(
            "DOVETAIL_PS_REPLICAS",
            1,
            "2: the variables of each parameter server (job `ps`) are kept by the next one, too; set it for all tasks of a cluster",
        ),
        Setting(
            "DOVETAIL_EMULATE_GPUS",
            0,
            "how many emulated GPUs each task has: devices with a GPU's name that run the CPU's kernels",
        ),
        Setting("DOVETAIL_GPU_MEMORY", 0, "bytes that this process may use of each GPU's memory; 0: all that is there"),
        Setting(
            "DOVETAIL_HOST_MEMORY",
            0,
            "bytes of the machine's memory that a task was given, as plans see it; 0: all of it",
        ),
        Setting(
            "DOVETAIL_AUTOTUNE",
            1,
            "1: GPUs use the fastest of several kernels, measured once and cached; 0: the one that a cost model expects to be fastest",
        ),
        Setting(
            "DOVETAIL_KEYS",
            "",
            "folder of the keys that authenticate servers and clients; default: no keys, loopback only",
        ),
        Setting(
            "DOVETAIL_LOG_LEVEL", "WARNING", "log level of a task started from the command line or by LocalCluster"
        ),
        Setting(
            "DOVETAIL_LOG_FORMAT", "text", "how such a task logs: text, or json: one object a line, with job and task"
        ),
        Setting(
            "DOVETAIL_METRICS",
            "",
            "where a server listens for Prometheus: a port of localhost, or host:port; default: nowhere",
        ),
        Setting(
            "DOVETAIL_STALL_S",
            30.0,
            "seconds without progress after which a running step is logged, with what it waits for; 0: never",
        ),
        Setting(
            "DOVETAIL_TRACEBACK",
            "user",
            "tracebacks of errors that nothing catches, and of all errors of `Session.run`, of compiled functions, of plans and of the "
            "command `dovetail`: user (without the frames of Dovetail), or full",
        ),
        Setting("DOVETAIL_REWRITE", 1, "0: no graph rewrites: nothing is folded, merged or replaced"),
        Setting(
            "DOVETAIL_FAULTS",
            "",
            "for tests: faults on purpose, such as cut:all, delay:30 or save:7; graph/core/fault_injection.py lists them",
        ),
        Setting(
            "DOVETAIL_NATIVE_REGIONS",
            1,
            "1: consecutive kernels on a CPU are called as one native region; 0: one by one",
        ),
        Setting(
            "DOVETAIL_QUEUE_MB",
            4096,
            "MiB that one queue may hold, elements that wait for space included; more is an error, 0: no limit",
        ),
        Setting(
            "DOVETAIL_SEND_QUEUE_MB",
            4096,
            "MiB of tensors that may be queued for one peer; more is an error, 0: no limit",
        ),
        Setting(
            "DOVETAIL_MAX_MESSAGE_MB",
            16384,
            "MiB of the largest message that a process accepts; the sender of a larger one gets an error; 0: no limit but its memory",
        ),
        Setting(
            "DOVETAIL_SHARED_MEMORY_MB",
            1024,
            "most MiB of shared memory that a process makes for others of its machine; 0: all tensors travel in messages",
        ),
    )
}

RENAMED = {
    "DOVETAIL_BACKLOG_MB": "DOVETAIL_SEND_QUEUE_MB",
    "DOVETAIL_BATCH": "DOVETAIL_SCHED_BATCH",
    "DOVETAIL_DEBUG": "DOVETAIL_LOG_REWRITES",
    "DOVETAIL_DIRECT_READS": "DOVETAIL_ONE_SIDED_READS",
    "DOVETAIL_DIRECT_UPDATES": "DOVETAIL_ONE_SIDED_UPDATES",
    "DOVETAIL_LOG": "DOVETAIL_LOG_LEVEL",
    "DOVETAIL_LOG_PASSES": "DOVETAIL_PASSES",
    "DOVETAIL_MESSAGE_MB": "DOVETAIL_MAX_MESSAGE_MB",
    "DOVETAIL_NATIVE_STRETCHES": "DOVETAIL_NATIVE_REGIONS",
    "DOVETAIL_SHARED_MEMORY": "DOVETAIL_SHARED_MEMORY_MB",
    "DOVETAIL_TUNE": "DOVETAIL_AUTOTUNE",
}
"""Old name -> new name of settings that were renamed. Where both are set, the new one counts."""

_OLD_NAME = {new: old for old, new in RENAMED.items()}


def cache_folder() -> Path:
    """The folder of cached kernels and measurements: DOVETAIL_CACHE_DIR, or `dovetail` in the user's cache folder."""
    named = str(setting("DOVETAIL_CACHE_DIR"))
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail"


@cache
def _warn_of_misspelt() -> None:
    """Warn once about environment variables whose names nearly match a setting, since they have no effect."""

    for name in os.environ:
        if name.startswith("DOVETAIL_") and name not in SETTINGS and name not in RENAMED:
            close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.9)
            if close:
                warnings.warn(
                    f"{name} is not a setting of Dovetail, and has no effect: did you mean {close[0]}?", stacklevel=3
                )


@cache
def _warn_of_old_name(old: str, new: str) -> None:
    """Warn once for each setting that was renamed."""
    warnings.warn(f"The setting {old} is now called {new}; the old name is still read", FutureWarning, stacklevel=3)


def setting(name: str) -> Any:
    """The value of a setting: from the environment, or its default.

    Raises:
        ValueError: the value in the environment has another type.
    """
    _warn_of_misspelt()
    row = SETTINGS[name]
    text = os.environ.get(name)
    if not text and name in _OLD_NAME:
        text = os.environ.get(_OLD_NAME[name])
        if text:
            _warn_of_old_name(_OLD_NAME[name], name)
    if not text:
        return row.default
    if isinstance(row.default, str):
        return text
    try:
        return type(row.default)(text)
    except ValueError:
        expected = "a whole number" if isinstance(row.default, int) else "a number"
        raise ValueError(f"The setting {name}={text!r} must be {expected}. It means: {row.meaning}") from None
