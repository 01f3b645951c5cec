"""Which process this is, without asking the kernel each time.

What a process shares with others is not its forked child's to change. So it is looked who this is wherever that could be, also
several times in a step; and a call of the kernel costs as much as hundreds of instructions.
"""

from __future__ import annotations

import os

_pid = os.getpid()


def process_id() -> int:
    """As `os.getpid`."""
    return _pid


def _forked() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

__all__ = ["process_id"]
