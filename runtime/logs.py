"""The log of a task's process: lines for people, or JSON lines for machines (`DOVETAIL_LOG_FORMAT`)."""

from __future__ import annotations

import json
import logging
import math
import time

from ..graph.core.settings import setting

FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """One JSON object per line: time (UTC), level, job, task, logger, message, and the traceback if there is one."""

    def __init__(self, job: str, task_index: int) -> None:
        super().__init__()
        self._place = {"job": job, "task": task_index}

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            **self._place,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class Throttle:
    """Rate limit for log lines of one kind: `most` lines per `every_s`; the others are counted. Peers cannot flood the log.

    >>> throttle = Throttle(most=1, every_s=60.0)
    >>> throttle.more(0.0), throttle.more(1.0), throttle.more(2.0), throttle.more(61.0)
    ('', None, None, ' (and 2 more like it)')
    """

    def __init__(self, most: int = 10, every_s: float = 60.0) -> None:
        self._most = most
        self._every_s = every_s
        self._began = -math.inf
        self._told = self._untold = 0

    def more(self, now: float) -> str | None:
        """The suffix for the line; None: do not write it."""
        if now - self._began >= self._every_s:
            self._began, self._told = now, 0
        self._told += 1
        if self._told > self._most:
            self._untold += 1
            return None
        untold, self._untold = self._untold, 0
        return f" (and {untold} more like it)" if untold else ""


def set_up_log(job: str, task_index: int) -> None:
    """Set up this process's log from the settings, unless the program has set it up itself.

    Raises:
        ValueError: `DOVETAIL_LOG_FORMAT` is not in `FORMATS`, or `DOVETAIL_LOG_LEVEL` is not a level.
    """
    level = setting("DOVETAIL_LOG_LEVEL")
    if level not in logging.getLevelNamesMapping():
        raise ValueError(f"DOVETAIL_LOG_LEVEL={level!r}: it must be one of {', '.join(logging.getLevelNamesMapping())}")
    form = setting("DOVETAIL_LOG_FORMAT")
    if form not in FORMATS:
        raise ValueError(f"DOVETAIL_LOG_FORMAT={form!r}: it must be one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler()
    place = f"/job:{job}/task:{task_index}".replace("%", "%%")
    handler.setFormatter(
        JsonLines(job, task_index)
        if form == "json"
        else logging.Formatter(f"%(asctime)s %(levelname)s {place} %(name)s: %(message)s")
    )
    logging.basicConfig(level=level, handlers=[handler])
