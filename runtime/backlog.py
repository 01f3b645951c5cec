"""How many bytes of tensors wait for each peer, and an error instead of more.

A peer that takes nothing, because it is stopped or its network is slow, must not fill this process's memory: what is sent to it
keeps its tensors until it has left. Small messages are bounded by their number; this bounds the large frames by their bytes.

Nobody has to say when a frame has left: whoever holds it, a queue or ZeroMQ, lets go of it then. Only a lane takes frames
apart, and counts for itself.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

from ..graph.core.errors import ResourceExhaustedError
from .wire import BORROW_BYTES, Frame

SETTING = "DOVETAIL_BACKLOG_MB"
MOST_IDLE = 4_096  # peers of whom is remembered how much was sent to them


class Backlog:
    """What waits for the peers of one endpoint. Any thread may use it.

    Args:
        most: bytes that may wait for one peer; 0: no limit. A message for which nobody waits may be larger.

    >>> backlog = Backlog(1 << 20)
    >>> frame = memoryview(bytes(1 << 20))
    >>> backlog.enter(b"peer", "the peer", [frame])
    >>> backlog.enter(b"peer", "the peer", [frame])
    Traceback (most recent call last):
    ...
    ResourceExhaustedError: 1048576 bytes cannot be sent to the peer: 1048576 bytes wait for it already ...
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[bytes, deque[tuple[weakref.ref[memoryview], int]]] = {}
        self._entered: dict[bytes, int] = {}  # bytes that have ever been noted
        self._lock = threading.Lock()

    def enter(self, peer: bytes, name: str, frames: Sequence[Frame], ahead: int = 0) -> None:
        """Note that frames will wait for a peer, behind so many bytes that its lane has taken.

        Raises:
            ResourceExhaustedError: it would be too much then; nothing is noted.
        """
        large = [f for f in frames if type(f) is memoryview and len(f) >= BORROW_BYTES]
        if not large:
            return
        size = sum(map(len, large))
        with self._lock:
            waiting = ahead + self._count(peer)
            if self.most and waiting and waiting + size > self.most:
                raise ResourceExhaustedError(
                    None, None,
                    f"{size} bytes cannot be sent to {name}: {waiting} bytes wait for it already, and more would be over the limit of "
                    f"{self.most} ({SETTING} of this process). It takes nothing, or too slowly for what it is sent: see whether it "
                    "runs, send less at once, or raise the limit",
                )  # fmt: skip
            self._entered[peer] = self._entered.get(peer, 0) + size
            self._waiting.setdefault(peer, deque()).extend((weakref.ref(f), len(f)) for f in large)

    def waiting(self, peer: bytes) -> int:
        """How many bytes of large frames somebody still holds for a peer."""
        with self._lock:
            return self._count(peer)

    def left(self, peer: bytes) -> int:
        """How many bytes of large frames nobody holds for a peer any more."""
        with self._lock:
            return self._entered.get(peer, 0) - self._count(peer)

    def _count(self, peer: bytes) -> int:
        frames = self._waiting.get(peer)
        if frames is None:
            return 0
        while frames and frames[0][0]() is None:  # they leave in order, mostly
            frames.popleft()
        if not frames:
            del self._waiting[peer]
        return sum(size for frame, size in frames if frame() is not None)

    def tidy(self) -> None:
        """Forget peers for whom nothing waits."""
        with self._lock:
            for peer in list(self._waiting):
                self._count(peer)
            if len(self._entered) > MOST_IDLE:
                self._entered = {peer: size for peer, size in self._entered.items() if peer in self._waiting}

    def forget(self, peer: bytes) -> None:
        """The peer has gone."""
        with self._lock:
            self._waiting.pop(peer, None)
            self._entered.pop(peer, None)
