"""CurveZMQ: keys for ZeroMQ's sockets, and the thread that authenticates peers for ZeroMQ.

A server's socket requires proofs of keys. ZeroMQ checks a proof, and asks over a socket of its own (ZAP, RFC 27) whether the key is
allowed. The `ZapHandler` thread answers with `AccessControl`, and passes on the events of ZeroMQ's monitor. Source: rfc.zeromq.org,
RFC 25 (CurveZMQ 1.0) and 27 (ZAP).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

import zmq
from zmq.utils import z85

from .access_control import LOOK_EVERY_S, AccessControl
from .keys import KeyPair, Keys
from .zmq_liveness import EVENT, Context, Socket

logger = logging.getLogger(__name__)

HANDSHAKE_MS = 10_000  # limit for the proof of a key; then the connection is closed
RETRY_MS = 2_000  # a client repeats an unanswered handshake after this time

_ZAP = "inproc://zeromq.zap.01"  # ZeroMQ's address for authentication requests: RFC 27
_DOMAIN = b"dovetail"
_TOLD = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


def new_key_pair() -> KeyPair:
    """A new random key pair."""
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
    sock.set(zmq.HANDSHAKE_IVL, RETRY_MS)


class ZapHandler:
    """Authenticates the peers of a server's socket: only allowed keys are admitted.

    Create it before the socket is bound, and close it before its context is terminated.

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
        self._end_in, self._end_out = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="dovetail-door", daemon=True)
        self._thread.start()

    def admit(self, part: zmq.Frame) -> bytes | None:
        """The name of the peer that sent a message, from the message's first frame; None if the message must not be read."""
        peer = part.bytes
        if self._access.knows(peer):
            return peer
        return peer if self._access.enter(peer, str(part.get("User-Id")), int(part.get(zmq.SRCFD))) else None

    def close(self) -> None:
        """Stop admitting peers."""
        with contextlib.suppress(OSError):
            self._end_out.send(b"\0")
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        for sock in (self._questions, self._monitor):
            poller.register(sock, zmq.POLLIN)
        poller.register(self._end_in.fileno(), zmq.POLLIN)
        try:
            while True:
                for sock, _ in poller.poll(int(LOOK_EVERY_S * 1000)):
                    if isinstance(sock, int):
                        return
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
        except Exception:  # a handler that fails admits no peer
            logger.exception("the door ends")
        finally:
            self._questions.close(linger=0)
            self._monitor.close(linger=0)
            self._end_in.close()
            self._end_out.close()
