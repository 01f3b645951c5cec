"""Calls that take a while: they are answered by a pool, and counted for whoever makes them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..graph.core.errors import InternalError, OpError, UnavailableError
from ..graph.core.settings import setting
from .mail import Mail
from .quota import Limit, Quota
from .wire import Message

logger = logging.getLogger(__name__)


class Calls:
    """The calls that a server is answering.

    There are two pools, because a master waits for workers, also of other servers, and must never take the last thread from the
    worker that it waits for.

    Attributes:
        master: the pool for the work of a master.
        worker: the one for the work of a worker that is no step: compiling.
    """

    def __init__(self, mail: Mail) -> None:
        self.master = ThreadPoolExecutor(8, thread_name_prefix="dovetail-master")
        self.worker = ThreadPoolExecutor(2, thread_name_prefix="dovetail-compile")
        self._mail = mail
        self._quota = Quota(Limit(setting("DOVETAIL_CLIENT_STEPS"), "unanswered calls", "DOVETAIL_CLIENT_STEPS"))
        self._open: set[tuple[bytes, int]] = set()  # (connection, request)

    def answer(
        self,
        pool: ThreadPoolExecutor,
        peer: bytes,
        message: Message,
        work: Callable[[Message], Message],
        client: str = "",
    ) -> None:
        """Answer a request with what `work` gives, computed in a pool; errors become error messages.

        It counts as the `client`'s, whose connection `peer` is; of a server's calls, each connection is counted by itself.
        """
        mail, request, owner = self._mail, message.fields["request"], client or peer
        try:
            self._quota.take(owner, 1)
        except OpError as e:
            mail.refuse(peer, request, e)
            return

        def answer() -> None:
            try:
                reply = work(message)
            except OpError as e:
                reply = mail.error(request, e)
            except Exception as e:
                logger.exception("%s: while serving %s", mail.task, message.kind)
                reply = mail.error(request, InternalError(None, None, f"{type(e).__name__}: {e}"))
            self._quota.give_back(owner, 1)
            mail.reply(peer, reply)
            self._open.discard((peer, request))

        self._open.add((peer, request))
        try:
            pool.submit(answer)
        except RuntimeError:  # the pool is shut down: the server is stopping
            self._quota.give_back(owner, 1)
            self._open.discard((peer, request))
            mail.refuse(peer, request, UnavailableError(None, None, f"The server of {mail.task} is stopping"))

    def works_on(self, peer: bytes, request: int) -> bool:
        """Whether a call has not been answered yet."""
        return (peer, request) in self._open

    def close(self) -> None:
        """Take no more."""
        self.master.shutdown(wait=False, cancel_futures=True)
        self.worker.shutdown(wait=False, cancel_futures=True)


__all__ = ["Calls"]
