"""Whether a connection is up, according to ZeroMQ's native threads: liveness without the Python interpreter.

Theory of operation. A kernel may hold the GIL for minutes, so that no Python code answers. A task that does not answer is not
necessarily dead. ZeroMQ's threads are native and keep exchanging heartbeats. A connection that has stayed up since the task's last
message proves that its process runs and was not restarted. A process that is killed, stopped or cut off loses its connections: at once, or
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

EVENT: Final = struct.Struct("<HI")  # the prefix of a monitor message: event, value
Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[Socket]"


class ConnectionMonitor:
    """The state of the one connection of a client's socket, from ZeroMQ's monitor. One thread uses it at a time.

    Create it before the socket connects, and close it before the socket closes. All sockets of a context share ZeroMQ's thread, which
    blocks forever on the events of a socket whose monitor is gone.
    """

    def __init__(self, sock: Socket) -> None:
        self._socket = sock
        self._monitor = sock.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._is_up = False
        self._seen = 0  # the events so far
        self._broken_at = -math.inf  # when its end was last seen

    def is_up(self) -> bool:
        """Whether the connection is up and admitted now."""
        with contextlib.suppress(zmq.Again):
            while True:
                event, _ = EVENT.unpack_from(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
                self._seen |= event
                if event == zmq.EVENT_CONNECTED:
                    continue
                self._is_up = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                if not self._is_up:
                    self._broken_at = time.monotonic()
        return self._is_up

    def was_up_since(self, since: float) -> bool:
        """Whether the connection is up and has not ended since then."""
        return self.is_up() and self._broken_at <= since + MONITOR_GRACE_S

    def awaits_admission(self) -> bool:
        """Whether the server has accepted the connection, and has not yet admitted it."""
        both = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        return not self.is_up() and self._seen & both == zmq.EVENT_CONNECTED

    def close(self) -> None:
        """Stop monitoring. Call it before the socket is closed."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)
