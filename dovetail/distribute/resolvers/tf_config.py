"""The environment variable TF_CONFIG, in which launchers give a process its cluster and its task, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

_LOOKS_SO = '{"cluster": {"ps": ["host:2222"], "worker": ["host:2223"]}, "task": {"type": "worker", "index": 0}}'


def tf_config() -> dict[str, Any]:
    """The current content of TF_CONFIG; empty where it is not set.

    Raises:
        ValueError: it is not valid JSON, or not of the form `{"cluster": {...}, "task": {...}}`.
    """
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ValueError(f"TF_CONFIG is not valid JSON: {e}. It is {text!r}, and should look like {_LOOKS_SO}") from None
    if not isinstance(found, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object, not {found!r}; it should look like {_LOOKS_SO}")
    for part in ("cluster", "task"):
        if not isinstance(found.get(part, {}), dict):
            raise ValueError(
                f"'{part}' in TF_CONFIG must be a JSON object, not {found[part]!r}; TF_CONFIG should look like {_LOOKS_SO}"
            )
    return found


def task_index(given: Any) -> int:
    """The index of a task as TF_CONFIG has it, which may be text. ValueError: it is no whole number."""
    try:
        return int(given)
    except (TypeError, ValueError):
        raise ValueError(f"The task's index in TF_CONFIG must be a whole number, not {given!r}") from None


__all__ = ["task_index", "tf_config"]
