"""Waiting for several connections of one client at once."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING

from .wire import Message, WireError

if TYPE_CHECKING:
    from .connection import Connection

SEND_ON_MS = 1.0  # so often is seen whether more of a large message can be sent


class Watch:
    """Waits for several connections, and collects what comes.

    Attributes:
        arrived: messages, and what was none, each with its connection.
        unsettled: connections whose ZeroMQ sockets may have messages though their descriptors do not say so.
        sending: connections that have more of a large message to send.
    """

    def __init__(self) -> None:
        self.poller = select.poll()
        self.arrived: deque[tuple[Connection, Message | WireError]] = deque()
        self.unsettled: set[Connection] = set()
        self.sending: set[Connection] = set()
        self._owners: dict[int, Connection | None] = {}

    def add(self, fd: int, owner: Connection | None, events: int = select.POLLIN) -> None:
        """Watch a descriptor. One without an owner is a waker's."""
        self._owners[fd] = owner
        self.poller.register(fd, events)

    def remove(self, fd: int) -> None:
        """No longer."""
        if fd in self._owners:
            del self._owners[fd]
            self.poller.unregister(fd)

    def wait(self, deadline: float | None) -> bool:
        """Wait until something happens; False if nothing does until then. Much that happens brings no message."""
        if self.unsettled:
            self._settle()
            if self.arrived:
                return True
        patience = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        events = self._send_on(patience) if self.sending else self.poller.poll(patience)
        woken = False
        for fd, event in events:
            owner = self._owners.get(fd)
            if owner is not None:
                owner.attend(fd, event)
            elif fd in self._owners:
                woken = True
                with contextlib.suppress(OSError):
                    os.read(fd, 4_096)
        if self.unsettled:
            self._settle()
        return bool(events) and not (woken and not self.arrived)

    def _send_on(self, patience: float | None) -> list[tuple[int, int]]:
        """Wait so many milliseconds for something to happen, and send what there is room for meanwhile."""
        while True:
            for connection in list(self.sending):
                connection.pump()
            self._settle()  # what has been sent may have taken the news that something has come
            if self.arrived or not self.sending:
                return [] if self.arrived else self.poller.poll(patience)
            turn = SEND_ON_MS if patience is None else min(SEND_ON_MS, patience)
            events = self.poller.poll(turn)
            if patience is not None:
                patience -= turn
            if events or patience == 0:
                return events

    def _settle(self) -> None:
        while self.unsettled:
            self.unsettled.pop().settle()


__all__ = ["Watch"]
