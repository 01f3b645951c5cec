"""CurveZMQ: keys for ZeroMQ's sockets, and the thread that answers ZeroMQ's questions about them.

A server's socket requires proofs of keys. ZeroMQ checks a proof, and asks over a socket of its own (ZAP, RFC 27) whether the key may
come in. The `ZapHandler`, a thread, answers by `AccessControl`, and passes it the events of ZeroMQ's monitor. Source: rfc.zeromq.org,
RFC 25 (CurveZMQ 1.0) and 27 (ZAP).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeAlias

import zmq
from zmq.utils import z85

from .access_control import LOOK_EVERY_S, AccessControl
from .keys import KeyPair, Keys

logger = logging.getLogger(__name__)

HANDSHAKE_MS = 10_000  # who has not proved a key by then is cut off
RETRY_MS = 2_000  # a client whose proof is not answered tries again after so long

_ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks: RFC 27
_DOMAIN = b"dovetail"
_EVENT = struct.Struct("<HI")  # how the monitor's messages begin: event, value
_TOLD = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

_Socket: TypeAlias = "zmq.Socket[bytes]"


def new_key_pair() -> KeyPair:
    """A key that nobody has yet."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public).hex(), z85.decode(secret).hex())


def prove(sock: _Socket, keys: Keys, address: str) -> None:
    """Let a client's socket, not connected yet, prove its key, and insist on that of the server at an address.

    Raises:
        PermissionError: that server's key is not known.
    """
    sock.set(zmq.CURVE_SERVERKEY, bytes.fromhex(keys.server(address).key))
    sock.set(zmq.CURVE_PUBLICKEY, bytes.fromhex(keys.pair.public))
    sock.set(zmq.CURVE_SECRETKEY, bytes.fromhex(keys.pair.secret))
    sock.set(zmq.HANDSHAKE_IVL, RETRY_MS)


class ZapHandler:
    """The door of a server's socket: only who proves a key that the access knows comes in.

    It must be made before the socket is bound, and closed before its context is ended.

    Args:
        context: the socket's, and nobody else's: there is one door per context.
        sock: the server's socket.
        access: decides.
        leave: called with the names of peers whose connections have been ended, on a thread of the door.
    """

    def __init__(
        self, context: zmq.Context[_Socket], sock: _Socket, access: AccessControl, leave: Callable[[list[bytes]], None]
    ) -> None:
        self._access = access
        self._leave = leave
        self._questions = context.socket(zmq.REP)
        self._questions.bind(_ZAP)
        sock.set(zmq.CURVE_SERVER, 1)
        sock.set(zmq.CURVE_SECRETKEY, bytes.fromhex(access.keys.pair.secret))
        sock.set(zmq.ZAP_DOMAIN, _DOMAIN)
        sock.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no answer means no
        sock.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._monitor = sock.get_monitor_socket(_TOLD)
        self._end_in, self._end_out = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="dovetail-door", daemon=True)
        self._thread.start()

    def admit(self, part: zmq.Frame) -> bytes | None:
        """The name of the peer from which a message has come, whose first frame is given; None if it must not be read."""
        peer = part.bytes
        if self._access.knows(peer):
            return peer
        return peer if self._access.enter(peer, str(part.get("User-Id")), int(part.get(zmq.SRCFD))) else None

    def close(self) -> None:
        """Let nobody in any more."""
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
                        event, value = _EVENT.unpack_from(frames[0])
                        self._access.happened(zmq.Event(event).name or "", value)
                self._access.look()
                gone = self._access.expel()
                if gone:
                    self._leave(gone)
        except Exception:  # who cannot be asked lets nobody in
            logger.exception("the door ends")
        finally:
            self._questions.close(linger=0)
            self._monitor.close(linger=0)
            self._end_in.close()
            self._end_out.close()
