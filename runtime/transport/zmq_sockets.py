"""What ZeroMQ's sockets share: contexts, keys, and whether a connection is up. `zmq_links.py` has the sockets themselves.

**Keys** (CurveZMQ). A server's socket requires proofs of keys. ZeroMQ checks a proof, and asks over a socket of its own (ZAP) whether the
key is allowed. The `ZapHandler` thread answers with `AccessControl`, and passes on the events of ZeroMQ's monitor. Source:
rfc.zeromq.org, RFC 25 (CurveZMQ 1.0) and 27 (ZAP).

**Liveness** (`ConnectionMonitor`). A kernel may hold the GIL for minutes, so that no Python code answers. A task that does not answer is
not necessarily dead. ZeroMQ's threads are native and keep exchanging heartbeats. A connection that has stayed up since the task's last
message proves that its process runs and was not restarted. A process that is killed, stopped or cut off loses its connections: at
once, or after the heartbeat timeout (`timeouts.py`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import struct
import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import zmq
from zmq.utils import z85

from ..timeouts import MONITOR_GRACE_S
from .access_control import LOOK_EVERY_S, AccessControl
from .address import location_of, split_address
from .keys import KeyPair, Keys

HIGH_WATER = 128  # messages to one peer, or chunks of large ones, that ZeroMQ keeps before `MAX_BACKLOG` starts to fill
LINGER_MS = 1_000  # how long a closed socket may go on sending
RETRY_MS = 5  # retry interval while messages wait for a slow peer


def new_context() -> Context:
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 16_384)
    return context


def dialled_host(address: str) -> str:
    host = split_address(location_of(address))[0]
    return "127.0.0.1" if host == "localhost" else host


logger = logging.getLogger(__name__)

HANDSHAKE_MS = 10_000  # limit for the proof of a key; then the connection is closed
HANDSHAKE_RETRY_MS = 2_000  # a client repeats an unanswered handshake after this time

_ZAP = "inproc://zeromq.zap.01"  # ZeroMQ's address for authentication requests: RFC 27
_DOMAIN = b"dovetail"
_TOLD = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def new_key_pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public).hex(), z85.decode(secret).hex())


def prove(sock: Socket, keys: Keys, address: str) -> None:
    """Set a client socket's key and the key that the server at an address must prove. Call it before connecting.

    Raises:
        PermissionError: the server's key is not known.
    """
    sock.set(zmq.CURVE_SERVERKEY, bytes.fromhex(keys.server(address).key))
    sock.set(zmq.CURVE_PUBLICKEY, bytes.fromhex(keys.pair.public))
    sock.set(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.pair.secret))
    sock.set(zmq.HANDSHAKE_IVL, HANDSHAKE_RETRY_MS)


class ZapHandler:
    """Authenticates the peers of a server's socket: only allowed keys are admitted.

    Create it before the socket is bound. It ends when its context is terminated.

    Args:
        context: the socket's own context: ZAP allows one handler per context.
        leave: called with the names of peers whose connections were ended, on the handler's thread.
    """

    def __init__(
        self, context: Context, sock: Socket, access: AccessControl, leave: Callable[[list[bytes]], None]
    ) -> None:
        self._access = access
        self._leave = leave
        self._questions = context.socket(zmq.REP)
        self._questions.bind(_ZAP)
        sock.set(zmq.CURVE_SERVER, 1)
        sock.set(zmq.CURVE_SECRETKEY, bytes.fromhex(access.keys.pair.secret))
        sock.set(zmq.ZAP_DOMAIN, _DOMAIN)
        sock.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no answer means a refusal
        sock.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._monitor = sock.get_monitor_socket(_TOLD)
        threading.Thread(target=self._run, name="dovetail-door", daemon=True).start()

    def admit(self, part: zmq.Frame) -> bytes | None:
        """The name of the peer that sent a message, from the message's first frame; None if the message must not be read."""
        peer = part.bytes
        known = self._access.owner(peer)
        return peer if known or self._access.enter(peer, str(part.get("User-Id")), int(part.get(zmq.SRCFD))) else None

    def _run(self) -> None:
        poller = zmq.Poller()
        for sock in (self._questions, self._monitor):
            poller.register(sock, zmq.POLLIN)
        try:
            while True:
                for sock, _ in poller.poll(int(LOOK_EVERY_S * 1000)):
                    frames = sock.recv_multipart()
                    if sock is self._questions:
                        sock.send_multipart(self._access.answer(frames))
                    else:
                        event, value = EVENT.unpack_from(frames[0])
                        self._access.happened(zmq.Event(event).name or "", value)
                self._access.look()
                expelled = self._access.expel()
                if expelled:
                    self._leave(expelled)
        except zmq.ContextTerminated:
            pass
        except Exception:  # a handler that fails admits no peer
            logger.exception("the door ends")
        finally:
            self._questions.close(linger=0)
            self._monitor.close(linger=0)


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
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._is_up = True
                elif event == zmq.EVENT_DISCONNECTED:
                    self._is_up, self._broken_at = False, time.monotonic()
        return self._is_up

    def has_ended(self) -> bool:
        """Whether the connection was up, and is not any more."""
        return not self.is_up() and self._broken_at > -math.inf

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
