"""Whether a connection stands, as ZeroMQ's own threads see it: a sign of life that needs no interpreter.

Theory of operation. A kernel may hold Python's interpreter for minutes, and nothing that is written in Python answers meanwhile. So a
task that does not answer need not be dead. But ZeroMQ's threads are native, and go on exchanging heartbeats. A connection that has
stood since the task was heard last therefore says that its process runs, and has not been restarted. One that is killed, stopped or
cut off loses its connections: at once, or after the heartbeat timeout (`zmq_sockets.py`).
"""

from __future__ import annotations

import contextlib
import math
import struct
import time
from typing import Final, TypeAlias

import zmq

GRACE_S: Final = 0.75  # a break that is seen so long after a moment may have been before it: nobody looked meanwhile

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
        return self.is_up() and self._broken_at <= since + GRACE_S

    def close(self) -> None:
        """Ask no more; before the socket is closed."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)


__all__ = ["GRACE_S", "ConnectionMonitor"]
