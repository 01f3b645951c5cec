"""Handlers of clients' requests to a server's master: sessions, graphs, plans. A pool answers them, since they may take long.

A client ends its session by a message. A killed client sends none, and its session would stay forever. So a session has a lease, which
each message that names the session renews. When the lease has expired, the connection of the last such message is checked. While it is up,
the client lives, and the lease is renewed as well. A client that runs steps without the master renews the lease every `TOUCH_S` (`touch`).
C. Gray, D. Cheriton: Leases, an efficient fault-tolerant mechanism for distributed file cache consistency, 1989.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from ...graph.core.errors import invalid
from ...graph.core.settings import setting
from ...graph.io.serialization import extend_from_bytes
from ...placer.cluster.spec import ClusterSpec, addresses_of
from ...placer.serialize.write import plan_lines
from .. import timeouts
from ..config import ConfigProto
from ..rpc.dispatch import NAME_CHARS, Limit, RequestExecutor, Responder
from ..wire.messages import Message
from ..worker.registration import device_fields
from .master import Master, Signature

logger = logging.getLogger(__name__)


class MasterHandlers:
    """The requests to one master, and the leases of its sessions."""

    def __init__(self, master: Master, executor: RequestExecutor, responder: Responder, defaults: ConfigProto) -> None:
        self._defaults = defaults  # session options
        self._master = master
        self._executor = executor
        self._responder = responder
        name = "DOVETAIL_CLIENT_SESSIONS"
        self._limit = Limit(setting(name), "sessions open", name, "Close some")
        # Call that opens a session: (connection, request) -> the client's key.
        self._opening: dict[tuple[bytes, int], str] = {}
        self._lock = threading.Lock()  # guards the limit while calls are added

    def on_call(self, peer: bytes, message: Message) -> None:
        """Handle a client's request about a session, by the method of its kind."""
        self.on_touch(peer, message)
        session = self._master.find(message.fields.get("session"))
        client = self._responder.endpoint.owner(peer) or (session.client if session is not None else "")
        self._executor.answer(self._executor.master, peer, message, getattr(self, f"_{message.kind}"), client)

    on_extend = on_prepare = on_plan = on_close_session = on_reset = on_call

    def on_create_session(self, peer: bytes, message: Message) -> None:
        self._responder.heard[peer] = time.monotonic()
        owner = self._responder.endpoint.owner(peer)
        create = partial(self._create_session, peer=peer, owner=owner)
        self._executor.answer(self._executor.master, peer, message, create, owner or _client_of(message))

    def on_touch(self, peer: bytes, message: Message) -> None:
        """A client renews the lease of its session."""
        if (session := self._master.find(message.fields.get("session"))) is not None:
            session.heard = peer, time.monotonic()

    def tidy(self, now: float) -> None:
        """Close sessions whose clients have gone, and stop waiting for the cluster for such clients."""
        for session in self._master.sessions():
            client, since = session.heard
            if now - since >= timeouts.LEASE_S:
                session.heard = client, now
                if self._responder.endpoint.is_gone(client):
                    logger.warning("%s: closing session %s: its client has gone", self._responder.task, session.handle)
                    self._executor.master.submit(self._master.close_session, session.handle)
        for call in list(self._opening):
            if self._responder.is_silent(call[0], now) or self._responder.endpoint.is_gone(call[0]):
                self._opening.pop(call, None)

    def _create_session(self, message: Message, peer: bytes, owner: str) -> Message:
        """Open a session for a client. Its key identifies it; all clients without keys count as one."""
        config = _config_of(message).over(self._defaults)
        if config.cluster_def is not None:
            self._check_cluster(ClusterSpec(config.cluster_def))
            config.isolate_session_state = True
        call = peer, message.fields["request"]

        def on_missing(missing: Sequence[str]) -> None:
            self._responder.reply(peer, Message("waiting", {"request": call[1], "tasks": list(missing)}))

        with self._lock:
            opened = [session.owner for session in self._master.sessions() if session.heard[0]]
            self._limit.check([*opened, *self._opening.values()].count(owner), 1)
            self._opening[call] = owner
        try:
            session = self._master.create_session(
                config,
                on_missing=on_missing,
                is_abandoned=lambda: call not in self._opening,
                client=_client_of(message),
                owner=owner,
            )
        finally:
            self._opening.pop(call, None)
        session.heard = peer, time.monotonic()
        return message.reply(
            session=session.handle, devices=[device_fields(d) for d in session.cluster.devices],
            limit_ms=config.operation_timeout_in_ms, peer_timeout_s=config.peer_timeout_s,
            is_replicated=setting("DOVETAIL_PS_REPLICAS") > 1,
        )  # fmt: skip

    def _check_cluster(self, said: ClusterSpec) -> None:
        """InvalidArgumentError unless the client's cluster is the server's."""
        ours, theirs = self._responder.addresses, addresses_of(said)
        for task in sorted({*ours, *theirs}):
            here, there = ours.get(task, "no task of the server's"), theirs.get(task, "not there")
            if here != there:
                raise invalid(
                    f"ConfigProto.cluster_def is not the cluster of the server of {self._responder.task}: {task} is {there} in "
                    f"cluster_def, and {here} in the server's cluster. Start servers with that cluster, or leave it out; a session "
                    "that is to see some tasks only says so with device_filters",
                )  # fmt: skip

    def _extend(self, message: Message) -> Message:
        fields = message.fields
        session = self._master.session(fields["session"])
        with session.lock:
            if session.graph.version == fields["from_version"]:  # else the answer to an earlier request was lost
                extend_from_bytes(session.graph, fields["graph"])
            return message.reply(version=session.graph.version)

    def _prepare(self, message: Message) -> Message:
        fields = message.fields
        how = bool(fields.get("warm")), bool(fields.get("deterministic"))
        parts = self._master.prepare(fields["session"], _signature(message), *how)
        address = self._responder.addresses
        return message.reply(parts=[asdict(p) | {"address": address[p.task]} for p in parts])

    def _plan(self, message: Message) -> Message:
        fields = message.fields
        plan = self._master.plan(fields["session"], _signature(message), fields["program"])
        text = "\n".join(plan_lines(plan, with_graph=False))
        return message.reply(plan=text.encode())

    def _close_session(self, message: Message) -> Message:
        self._master.close_session(message.fields["session"])
        return message.reply()

    def _reset(self, message: Message) -> Message:
        self._master.reset(message.fields["containers"], _config_of(message))
        return message.reply()


def _signature(message: Message) -> Signature:
    fetches, targets, feeds = (tuple(message.fields[what]) for what in ("fetches", "targets", "feeds"))
    return fetches, targets, feeds


def _config_of(message: Message) -> ConfigProto:
    try:
        return ConfigProto.from_fields(message.fields.get("config") or {})
    except TypeError as e:
        raise invalid(f"Malformed config: {e}") from None


def _client_of(message: Message) -> str:
    """The name of the process that asks for a session."""
    return (message.fields.get("client") or "")[:NAME_CHARS]
