"""Whether a connection is up, as ZeroMQ's own threads see it: a sign of life that needs no Python interpreter.

Theory of operation. A kernel may hold the GIL for minutes, and no Python code answers meanwhile. So a task that does not answer need not
be dead. But ZeroMQ's threads are native, and go on exchanging heartbeats. A connection that has been up since the task was heard last
proves that its process runs and was not restarted. A process that is killed, stopped or cut off loses its connections: at once, or
after the heartbeat timeout (`timeouts.py`).
"""

from __future__ import annotations

import contextlib
import math
import struct
import time
from typing import Final, TypeAlias

import zmq

from ..timeouts import MONITOR_GRACE_S

_EVENT: Final = struct.Struct("<HI")  # how the monitor's messages begin: event, value
_Socket: TypeAlias = "zmq.Socket[bytes]"


class ConnectionMonitor:
    """The one connection of a client's socket: what ZeroMQ's monitor of it says. Used by one thread at a time.

    It must be made before the socket connects, and closed before that is closed: ZeroMQ's thread, which all sockets of a context share,
    waits for ever for somebody to take what it tells of a socket whose monitor has gone.
    """

    def __init__(self, sock: _Socket) -> None:
        self._socket = sock
        self._monitor = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._is_up = False
        self._broken_at = -math.inf  # when it was seen last that it had ended

    def is_up(self) -> bool:
        """Whether the connection is made, and let in, now."""
        with contextlib.suppress(zmq.Again):
            while True:
                event, _ = _EVENT.unpack_from(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
                self._is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if not self._is_up:
                    self._broken_at = time.monotonic()
        return self._is_up

    def was_up_since(self, since: float) -> bool:
        """Whether it is up and has not ended since then."""
        return self.is_up() and self._broken_at <= since + MONITOR_GRACE_S

    def close(self) -> None:
        """Ask no more; before the socket is closed."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)


__all__ = ["ConnectionMonitor"]
