"""Settings from the environment: one registry, one table.

Each setting is a row of `SETTINGS`; `setting(name)` reads it. The documentation's table is made from the same rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
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
            "DOVETAIL_CACHE_DIR", "", "where compiled kernels are kept; default: dovetail in the user's cache folder"
        ),
        Setting(
            "DOVETAIL_CHECK",
            0,
            "2: every fused kernel runs beside the NumPy references, and the first node that differs is named",
        ),
        Setting(
            "DOVETAIL_EMULATE_GPUS",
            0,
            "how many emulated GPU devices each task has: the CPU's kernels under a GPU's name",
        ),
        Setting("DOVETAIL_LOG", "WARNING", "log level of a task started from the command line or by LocalCluster"),
    )
}


def setting(name: str) -> Any:
    """The value of a setting: from the environment, or its default.

    Raises:
        ValueError: the environment holds something of another type.
    """
    row = SETTINGS[name]
    text = os.environ.get(name)
    if text is None or text == "":
        return row.default
    if isinstance(row.default, str):
        return text
    try:
        return type(row.default)(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: {row.meaning}; it must be of type {type(row.default).__name__}") from None
