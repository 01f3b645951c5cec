"""Collectives of a task: who has joined, which parts belong to what, and what happens when a member is gone.

Theory of operation. Each task has one `Collectives`, a desk at which the kernels of collective ops ask. Members of a group may
run in sessions of different clients, which know nothing of each other. So before its first collective in a group, a session says
on this task "I take part" to the group's other tasks (`join`), with a token drawn for the occasion; a membership is complete when
each task has said so. That is also how workers wait for the last one to start. A part names its sender's token, so that a part
of a session that has ended, or of a process that was restarted, is never taken for one of now.

    join    a task takes part from now on; one that had joined before has begun anew, and what still needs its parts fails
    part    a part of one exchange, for one rank
    end     a task takes part no longer: the session was closed (what has all its parts goes on), or something failed (all fails)

Within a membership, a collective is told by its instance (which op) and its run (how often that op has run in the session).
A failed membership stays failed: the members cannot know who has applied what. A new session starts a new one.

A task that is waited for is asked for signs of life (`ask`, `alive`, at each `tick`); one that gives none fails the membership,
and with it all of its members' steps. Nothing here knows sockets or clocks: messages and time are events, and `send` is given.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import AbortedError, InvalidArgumentError, OpError, ResourceExhaustedError, UnavailableError, from_code
from .exchanges import Array, Exchange, Part
from .requests import Desk, Request

logger = logging.getLogger(__name__)

MAX_EARLY = (
    4_000  # parts of one group that wait for a session of this task to join, or for it to get to their collective
)
MAX_GROUPS = 1_000  # groups of which only others have spoken
TELL_S = 5.0  # how often it is said who is missing
HEARTBEAT_S = 0.5

Key = tuple[str, int, int]
"""(instance, run, rank) of an exchange."""


class Member(Request):
    """One member's wait for its result."""

    __slots__ = ("exchange", "finish", "key", "membership", "signature")

    def __init__(
        self,
        what: str,
        membership: Membership,
        key: Key,
        exchange: Exchange,
        signature: str,
        finish: Callable[[Any], Any],
    ) -> None:
        super().__init__(what)
        self.membership, self.key, self.exchange = membership, key, exchange
        self.signature, self.finish = signature, finish

    def finished(self, value: Any) -> Any:
        """The kernel's result."""
        return self.finish(value)


class Membership:
    """What one session of this task has to do with one group.

    Attributes:
        group: the group's name. ranks: task -> its ranks. token: what tells it from all others.
        peers: other task -> its token; None until it has joined.
        error: why it has failed. left: tasks that take part no longer -> why.
    """

    def __init__(self, group: str, task_of: Sequence[str], here: str) -> None:
        self.group = group
        self.task_of = tuple(task_of)
        self.token = secrets.randbits(62)
        self.peers: dict[str, int | None] = {t: None for t in dict.fromkeys(task_of) if t != here}
        self.error: OpError | None = None
        self.left: dict[str, str] = {}
        self.waiting: dict[Key, Member] = {}
        self.early: dict[Key, list[tuple[int, int, str, Array]]] = {}
        self.begun = False

    @property
    def missing(self) -> list[str]:
        """Tasks that have not joined."""
        return [t for t, token in self.peers.items() if token is None]


class _Group:
    """What is known of a group without any session's doing."""

    def __init__(self) -> None:
        self.unused: dict[str, int] = {}  # task -> the token of its latest join that no membership has taken
        self.latest: dict[str, int] = {}  # task -> the token of its latest join
        self.memberships: weakref.WeakSet[Membership] = weakref.WeakSet()
        self.early: OrderedDict[tuple[str, int], list[dict[str, Any]]] = OrderedDict()
        self.kept = 0
        self.lost: set[tuple[str, int]] = set()  # (task, token) of which a part could not be kept


class Collectives(Desk[Member]):
    """The collectives of one task.

    Args:
        task: the task's name; '' in a process without servers, where all members are.
        send: (task, message fields, tensors): sends to another task; None: there are no others.
        patience_s: a task that gives no sign of life for so long is taken for dead.
        incarnation: what tells this process from those that ran the task before.
    """

    def __init__(
        self,
        task: str = "",
        send: Callable[[str, dict[str, Any], Sequence[Array]], None] | None = None,
        patience_s: float = 5.0,
        incarnation: int = 0,
    ) -> None:
        super().__init__()
        self.task = task
        self._send_out, self._patience_s, self._incarnation = send, patience_s, incarnation
        self._groups: dict[str, _Group] = {}
        self._sessions: weakref.WeakKeyDictionary[Any, dict[str, Membership]] = weakref.WeakKeyDictionary()
        self._heard: dict[str, tuple[float, int]] = {}  # task -> when it was last heard, and its incarnation
        self._awaited: dict[str, float] = {}  # task -> since when it is waited for
        self._now = self._said = self._asked = 0.0
        self._broken: list[tuple[Membership, OpError]] = []  # those of which a message could not be sent
        self._ended: deque[dict[str, Membership]] = deque()  # what sessions that are gone had to do with groups

    # --- kernels ---------------------------------------------------------------------------------------------------

    def take_part(
        self, session: Any, members: Sequence[str], rank: int, key: tuple[str, int], signature: str, what: str,
        exchange: Exchange, finish: Callable[[Any], Any],
    ) -> Any:  # fmt: skip
        """Take part in a collective as member `rank`; gives the result, or a request for it.

        Args:
            session: what stands for the session of the step: any object that lives as long.
            members: device of each rank. key: instance and run.
            signature: what must be the same for all members: the op, types, shapes.

        Raises:
            InvalidArgumentError: this is not the member's task, or two members differ. OpError: the membership has failed.
        """
        task_of = [self._task_of(m) for m in members]
        if task_of[rank] != self.task:
            raise InvalidArgumentError(
                None,
                None,
                f"Member {rank} of the group is {members[rank]}, but its op runs on {self.task or 'this process'}",
            )
        if self._send_out is None and set(task_of) != {self.task}:
            others = ", ".join(sorted(set(task_of) - {self.task}))
            raise InvalidArgumentError(
                None,
                None,
                f"{others}: a session without servers reaches no other task; give the session a server's target",
            )
        membership = self._membership(session, members, task_of)
        return self.ask(Member(what, membership, (*key, rank), exchange, signature, finish))

    def _task_of(self, member: str) -> str:
        """The task of a device; one that names none is this task's."""
        task = member.partition("/device:")[0]
        return task or self.task

    def _membership(self, session: Any, members: Sequence[str], task_of: Sequence[str]) -> Membership:
        name = hashlib.blake2s("\n".join(members).encode(), digest_size=12).hexdigest()
        with self._lock:
            kept = self._sessions.get(session)
            if kept is None:
                kept = self._sessions[session] = {}
                weakref.finalize(
                    session, self._ended.append, kept
                )  # in any thread, at any time: the next tick sees to it
            membership = kept.get(name)
            if membership is None:
                membership = kept[name] = Membership(name, task_of, self.task)
                group = self._groups.setdefault(name, _Group())
                group.memberships.add(membership)
                for task in membership.peers:
                    self._send(task, "join", membership)
                    token = group.unused.pop(task, None)
                    if token is not None:
                        self._bind(group, membership, task, token)
        return membership

    def _do(self, event: Callable[[], None]) -> None:
        def whole() -> None:
            event()
            while self._broken:
                self._fail(*self._broken.pop())

        super()._do(whole)

    # --- the rules of the desk -------------------------------------------------------------------------------------

    def _admit(self, request: Member) -> None:
        membership = request.membership
        if membership.error is not None:
            raise type(membership.error)(None, None, membership.error.message)
        if request.key in membership.waiting:
            raise InvalidArgumentError(None, None, f"{request.what}: member {request.key[2]} takes part twice at once")
        membership.waiting[request.key] = request
        self._route(request, request.exchange.begin())
        for sender, tag, signature, array in membership.early.pop(request.key, ()):
            self._receive(request, sender, tag, signature, array)
        self._check_left(membership)

    def _serve(self) -> None:
        """Nothing: what can be settled is settled where its last part comes in."""

    def _withdraw(self, request: Member) -> None:
        membership = request.membership
        membership.waiting.pop(request.key, None)
        self._fail(
            membership,
            AbortedError(
                None, None, f"A step of {self.task or 'this process'} was ended while it took part in {request.what}"
            ),
        )

    def _waiting(self) -> Iterator[Member]:
        for group in self._groups.values():
            for membership in group.memberships:
                yield from membership.waiting.values()

    # --- parts -----------------------------------------------------------------------------------------------------

    def _route(self, request: Member, parts: Sequence[Part]) -> None:
        """Send parts to their ranks, in this task or another."""
        membership, (instance, run, rank) = request.membership, request.key
        here: list[tuple[int, int, Array]] = []
        for to, tag, array in parts:
            task = membership.task_of[to]
            if task == self.task:
                here.append((to, tag, array))
            else:
                fields = {
                    "instance": instance, "run": run, "sender": rank, "to": to, "tag": tag, "what": request.signature,
                }  # fmt: skip
                self._send(task, "part", membership, (array,), **fields)
        if request.exchange.is_done and request.key in membership.waiting:
            del membership.waiting[request.key]
            request.answer(request.exchange.result)
        for to, tag, array in here:
            self._arrive(membership, (instance, run, to), rank, tag, request.signature, array)

    def _arrive(self, membership: Membership, key: Key, sender: int, tag: int, signature: str, array: Array) -> None:
        request = membership.waiting.get(key)
        if request is None:
            membership.early.setdefault(key, []).append((sender, tag, signature, array))
            if len(membership.early) > MAX_EARLY:
                self._fail(membership, _too_far_ahead(membership.task_of[sender]))
        else:
            self._receive(request, sender, tag, signature, array)

    def _receive(self, request: Member, sender: int, tag: int, signature: str, array: Array) -> None:
        if signature != request.signature:
            text = (
                f"{request.what}: member {request.key[2]} brings {request.signature}, but member {sender} {signature}; "
                "all members must run the same program"
            )
            self._fail(request.membership, InvalidArgumentError(None, None, text))
        elif request.key in request.membership.waiting:
            self._route(request, request.exchange.receive(sender, tag, array))

    def _send(
        self, task: str, event: str, membership: Membership, tensors: Sequence[Array] = (), **fields: Any
    ) -> None:
        assert self._send_out is not None
        head = {"event": event, "task": self.task, "group": membership.group, "token": membership.token}
        try:
            self._send_out(task, head | fields, tensors)
        except KeyError:
            text = f"{task} is a member of the group, but no task of the server's cluster"
            self._broken.append((membership, InvalidArgumentError(None, None, text)))
        except (OSError, OpError) as e:  # a host that nobody knows, a server that is stopping
            self._broken.append((membership, UnavailableError(None, None, f"{task} cannot be reached: {e}")))

    # --- events from other tasks -----------------------------------------------------------------------------------

    def message(self, fields: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        """A message of another task."""
        self._do(lambda: self._message(fields, tensors))

    def _message(self, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        task, token = fields["task"], fields["token"]
        if fields["event"] in ("ask", "alive"):
            self._sign_of_life(fields["event"], task, token)
            return
        group = self._groups.get(fields["group"])
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._forget_groups()
            group = self._groups[fields["group"]] = _Group()
        self._heard[task] = self._now, self._heard.get(task, (0.0, 0))[1]
        if fields["event"] == "join":
            self._joined(group, task, token)
            return
        membership = next((m for m in group.memberships if m.peers.get(task) == token), None)
        if membership is None:
            if fields["event"] == "end" and fields.get("code"):  # over before it began for us
                group.kept -= len(group.early.pop((task, token), ()))
                if group.unused.get(task) == token:
                    del group.unused[task]
            elif group.kept < MAX_EARLY:
                group.kept += 1
                group.early.setdefault((task, token), []).append({**fields, "tensors": tensors})
            elif len(group.lost) < MAX_EARLY:
                group.lost.add((task, token))
            return
        self._told_by(membership, fields, tensors)

    def _told_by(self, membership: Membership, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        """A part or an end, from a task that has joined."""
        if membership.error is not None:
            return
        task = fields["task"]
        if fields["event"] == "end":
            if fields.get("code"):
                self._fail(membership, from_code(fields["code"], f"{task}: {fields.get('reason')}", None))
            else:
                membership.left[task] = f"{task} {fields.get('reason')}"
                self._check_left(membership)
            return
        instance, run, sender, to, tag, what = (
            fields.get(k) for k in ("instance", "run", "sender", "to", "tag", "what")
        )
        task_of = membership.task_of
        if not (isinstance(run, int) and isinstance(sender, int) and isinstance(to, int) and isinstance(tag, int)):
            return  # no message that this version makes, nor are the others
        if not (0 <= sender < len(task_of) and 0 <= to < len(task_of) and len(tensors) == 1):
            return
        if task_of[to] == self.task and task_of[sender] == task:
            self._arrive(membership, (str(instance), run, to), sender, tag, str(what), tensors[0])

    def _joined(self, group: _Group, task: str, token: int) -> None:
        if group.latest.get(task) == token:
            return
        before = group.latest.get(task)
        group.latest[task] = token
        for key in [k for k in group.early if k == (task, before)]:
            group.kept -= len(group.early.pop(key))
        waiting = None
        for membership in list(group.memberships):
            if membership.error is not None or task not in membership.peers:
                continue
            if membership.peers[task] is None:
                waiting = membership
            else:
                membership.left.setdefault(task, f"{task} has begun anew: it was restarted, or has made a new session")
                self._check_left(membership)
        if waiting is None:
            group.unused[task] = token
        else:
            self._send(task, "join", waiting)  # it may have started after it was told
            self._bind(group, waiting, task, token)

    def _bind(self, group: _Group, membership: Membership, task: str, token: int) -> None:
        """From now on, these two belong together."""
        membership.peers[task] = token
        early = group.early.pop((task, token), [])
        group.kept -= len(early)
        if (task, token) in group.lost:
            self._fail(membership, _too_far_ahead(task))
        for fields in early:
            self._told_by(membership, fields, fields["tensors"])

    def _forget_groups(self) -> None:
        """Forget what was only said by others: there is too much of it. Whoever means it says it again."""
        for name in [n for n, g in self._groups.items() if not g.memberships]:
            del self._groups[name]

    # --- failing ---------------------------------------------------------------------------------------------------

    def _check_left(self, membership: Membership) -> None:
        """Fail when something still needs parts of a task that takes part no longer."""
        for request in membership.waiting.values():
            for rank in request.exchange.expects():
                reason = membership.left.get(membership.task_of[rank])
                if reason is not None:
                    self._fail(membership, AbortedError(None, None, f"{request.what}: {reason}"))
                    return

    def _fail(self, membership: Membership, error: OpError) -> None:
        """All that waits in a membership fails, here and in the other tasks."""
        if membership.error is not None:
            return
        membership.error = error
        for task in membership.peers:
            self._send(task, "end", membership, reason=error.message, code=error.code)
        requests, membership.waiting = list(membership.waiting.values()), {}
        membership.early.clear()
        for request in requests:
            request.refuse(type(error)(None, None, error.message))

    # --- time ------------------------------------------------------------------------------------------------------

    def _sign_of_life(self, event: str, task: str, incarnation: int) -> None:
        """A task asks for a sign of life, or gives one."""
        before = self._heard.get(task, (0.0, 0))[1]
        self._heard[task] = self._now, incarnation
        if event == "ask":
            self._give_sign("alive", task)
        if before not in (0, incarnation):
            for m in self._memberships():
                if m.peers.get(task) is not None and m.waiting:
                    self._fail(m, AbortedError(None, None, f"{task} was restarted in the middle of a collective"))

    def _give_sign(self, event: str, task: str) -> None:
        assert self._send_out is not None
        try:
            self._send_out(task, {"event": event, "task": self.task, "group": "", "token": self._incarnation}, ())
        except (KeyError, OSError, OpError) as e:
            logger.info("%s cannot be reached: %s", task, e)

    def tick(self, now: float) -> None:
        """Time has passed: ask for signs of life, and look for who gives none."""
        self._do(lambda: self._tick(now))

    def _tick(self, now: float) -> None:
        self._now = now
        while self._ended:
            for membership in self._ended.popleft().values():
                for task in membership.peers:
                    if membership.error is None and task not in membership.left:
                        self._send(task, "end", membership, reason="has closed its session", code="")
        awaited: set[str] = set()
        for membership in self._memberships():
            if not membership.waiting:
                continue
            expected = {membership.task_of[r] for w in membership.waiting.values() for r in w.exchange.expects()}
            awaited |= (expected | set(membership.missing)) - {self.task}
            since = min((self._awaited.get(t, now) for t in membership.missing), default=now)
            if now - max(since, self._said) > TELL_S:
                self._said = now
                logger.warning(
                    "%s waits at %s for %s to start and get there",
                    self.task, next(iter(membership.waiting.values())).what, ", ".join(membership.missing),
                )  # fmt: skip
        self._awaited = {t: self._awaited.get(t, now) for t in awaited}
        if awaited and now - self._asked >= HEARTBEAT_S:
            self._asked = now
            for task in awaited:
                self._give_sign("ask", task)
        for task, since in self._awaited.items():
            last = self._heard.get(task)
            if last is not None and now - max(last[0], since) > self._patience_s:
                silent = now - max(last[0], since)
                for m in self._memberships():
                    if task in m.peers and m.waiting:
                        what = next(iter(m.waiting.values())).what
                        self._fail(
                            m,
                            UnavailableError(
                                None, None,
                                f"{what}: {task} has given no sign of life for {silent:.1f} s: it is dead, stopped or cut off. "
                                "Start it again; all workers then go on from the last checkpoint, in new sessions.",
                            ),
                        )  # fmt: skip

    def _memberships(self) -> list[Membership]:
        return [m for g in self._groups.values() for m in g.memberships if m.error is None]


def _too_far_ahead(task: str) -> OpError:
    return ResourceExhaustedError(
        None, None,
        f"More than {MAX_EARLY} parts of {task} wait for this task to get to their collectives: {task} runs too far ahead. Let "
        "it take something back from the others, such as an all_reduce or a barrier.",
    )  # fmt: skip


def flat(values: Sequence[Array]) -> Array:
    """Several arrays of one type as a flat one; a single one is not copied."""
    if len(values) == 1:
        return np.ascontiguousarray(values[0]).reshape(-1)
    return np.concatenate([np.asarray(v).reshape(-1) for v in values]) if values else np.zeros(0, np.float32)


def unflat(array: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """The arrays of these shapes that `flat` made one of: views of it."""
    out, at = [], 0
    for shape in shapes:
        count = int(np.prod(shape, dtype=np.int64))
        out.append(array[at : at + count].reshape(shape))
        at += count
    return out


__all__ = ["Collectives", "Member", "Membership", "flat", "unflat"]
