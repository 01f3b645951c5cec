"""Collectives of a task: who has joined, which parts belong to what, and what happens when a member is gone.

Theory of operation. Each task has one `Collectives`, a desk at which the kernels of collective ops ask. Members of a group may
run in sessions of different clients, which know nothing of each other. So before its first collective in a group, a session says
on this task "I take part" to the group's other tasks (`join`), with a token drawn for the occasion; a membership is complete when
each task has said so. That is also how workers wait for the last one to start. A part names its sender's token, so that a part
of a session that has ended, or of a process that was restarted, is never taken for one of now.

    join    a task takes part from now on; one that had joined before has begun anew, and what still needs its parts fails
    part    a part of one exchange, for one rank
    poke    there is something to do on a board
    end     a task takes part no longer: the session was closed (what has all its parts goes on), or something failed (all fails)
    count   how much was sent (`membership.py`)
    counted so much

Members of one machine take turns on boards (`shared_memory_executor.py`).

Within a membership, a collective is told by its instance (which op) and its run (how often that op has run in the session).
A failed membership stays failed: the members cannot know who has applied what. A new session starts a new one.

A task that is waited for is asked for signs of life (`ask`, `alive`, at each `tick`); one that gives none fails the membership,
and with it all of its members' steps. Who hears none says so when he asks: the way may be cut in his direction alone, and the asked one
be who can tell the others. Nothing here knows sockets or clocks: messages and time are events, and `send` is given.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..core.errors import AbortedError, InvalidArgumentError, OpError, UnavailableError, from_code
from .algorithms import Array, Exchange
from .membership import COUNT_S, COUNTED, MOST_KNOWN, Group, Member, Membership, Signs, Table, Turn
from .message_executor import MAX_EARLY, PartDesk, too_far_ahead
from .shared_buffer import Machine
from .shared_memory_algorithms import Sharing

logger = logging.getLogger(__name__)

MAX_GROUPS = 1_000  # groups of which only others have spoken
TELL_S = 5.0  # how often it is said who is missing


class Collectives(PartDesk):
    """The collectives of one task.

    Args:
        task: the task's name; '' in a process without servers, where all members are.
        send: (task, message fields, tensors): sends to another task; None: there are no others.
        patience_s: a task that gives no sign of life for so long is taken for dead.
        incarnation: what tells this process from those that ran the task before.
        machine: what the process has to meet others in memory; None: nothing.
        lives: whether a task's process has run since then, though it does not answer.
    """

    def __init__(
        self,
        task: str = "",
        send: Callable[[str, dict[str, Any], Sequence[Array]], None] | None = None,
        patience_s: float = 5.0,
        incarnation: int = 0,
        machine: Machine | None = None,
        lives: Callable[[str, float], bool] = lambda task, since: False,
    ) -> None:
        super().__init__(task, send, machine)
        self._incarnation = incarnation
        self._names: dict[Sequence[str], tuple[str, tuple[str, ...]]] = {}  # members -> the group's name, task of each
        self._groups: dict[str, Group] = {}
        self._sessions: weakref.WeakKeyDictionary[Any, dict[str, Membership]] = weakref.WeakKeyDictionary()
        self._signs = Signs(patience_s, lives)
        self._said = 0.0  # when it was said last who is missing
        self._ended: deque[dict[str, Membership]] = deque()  # what sessions that are gone had to do with groups

    # --- kernels ---------------------------------------------------------------------------------------------------

    def take_part(
        self, session: Any, members: Sequence[str], rank: int, key: tuple[str, int], signature: str, what: str,
        exchange: Callable[[], Exchange], finish: Callable[[Any], Any], sharing: Sharing | None = None,
    ) -> Any:  # fmt: skip
        """Take part in a collective as member `rank`; gives the result, or a request for it.

        Args:
            session: what stands for the session of the step: any object that lives as long.
            members: device of each rank. key: instance and run.
            signature: what must be the same for all members: the op, types, shapes.
            exchange: makes this member's share of what is done by messages.
            sharing: the same on a board, for where there is one.

        Raises:
            InvalidArgumentError: this is not the member's task, or two members differ. OpError: the membership has failed.
        """
        name, task_of = self._group_of(members)
        if task_of[rank] != self.task:
            raise InvalidArgumentError(
                None,
                None,
                f"Member {rank} of the group is {members[rank]}, but its op runs on {self.task or 'this process'}",
            )
        membership = self._membership(session, name, task_of)
        if sharing is None or not membership.is_spread:
            return self.ask(Member(what, membership, (*key, rank), exchange(), signature, finish))
        table = membership.tables.get(key[0]) or membership.tables.setdefault(key[0], Table())
        turn = Turn(what, membership, (*key, rank), exchange, signature, finish, sharing, table, self._go_on)
        return self._go_on(turn) if self._goes_first(turn) else self.ask(turn)

    def _group_of(self, members: Sequence[str]) -> tuple[str, tuple[str, ...]]:
        """A group's name, and the task of each rank."""
        members = tuple(members)
        found = self._names.get(members)
        if found is None:
            task_of = tuple(self._task_of(m) for m in members)
            if self._send_out is None and set(task_of) != {self.task}:
                others = ", ".join(sorted(set(task_of) - {self.task}))
                raise InvalidArgumentError(
                    None,
                    None,
                    f"{others}: a session without servers reaches no other task; give the session a server's target",
                )
            name = hashlib.blake2s("\n".join(members).encode(), digest_size=12).hexdigest()
            if len(self._names) >= MAX_GROUPS:
                self._names.clear()
            found = self._names[members] = name, task_of
        return found

    def _task_of(self, member: str) -> str:
        """The task of a device; one that names none is this task's."""
        task = member.partition("/device:")[0]
        return task or self.task

    def _membership(self, session: Any, name: str, task_of: tuple[str, ...]) -> Membership:
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
                group = self._groups.setdefault(name, Group())
                group.memberships.add(membership)
                for task in membership.peers:
                    self._send(task, "join", membership)
                    token = group.unused.pop(task, None)
                    if token is not None:
                        self._bind(group, membership, task, token)
        return membership

    def _waiting(self) -> Iterator[Member | Turn]:
        for group in self._groups.values():
            for membership in group.memberships:
                yield from membership.requests

    # --- events from other tasks -----------------------------------------------------------------------------------

    def message(self, fields: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        """A message of another task."""
        self._do(lambda: self._message(fields, tensors))

    def _message(self, fields: Mapping[str, Any], tensors: Sequence[Array]) -> None:
        task, token = fields["task"], fields["token"]
        if fields["event"] in ("ask", "alive"):
            self._sign_of_life(fields["event"], task, token)
            self._note_deaf(task, bool(fields.get("tag")))
            return
        group = self._groups.get(fields["group"])
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._forget_groups()
            group = self._groups[fields["group"]] = Group()
        self._signs.heard(task)
        if fields["event"] == "join":
            self._joined(group, task, token)
            return
        if fields["event"] == "count":
            self._count(group, fields["group"], task, token, fields.get("run") or 0)
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
        if fields["event"] == "counted":
            self._counted(membership, task, fields.get("tag") or 0)
            return
        membership.tallies[task].came += fields["event"] in COUNTED
        if fields["event"] == "end":
            if fields.get("code"):
                self._fail(membership, from_code(fields["code"], f"{task}: {fields.get('reason')}", None))
            else:
                membership.left[task] = f"{task} {fields.get('reason')}"
                membership.closed.add(task)
                self._check_left(membership)
            return
        if fields["event"] == "poke":
            table = membership.tables.get(str(fields.get("instance")))
            turn = table.current if table is not None else None
            if turn is not None and turn.key in membership.turns:
                self._look(turn)
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

    def _joined(self, group: Group, task: str, token: int) -> None:
        if group.latest.get(task) == token:
            return
        before = group.latest.get(task)
        group.latest[task] = token
        group.known.setdefault(task, deque(maxlen=MOST_KNOWN)).append(token)
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

    def _bind(self, group: Group, membership: Membership, task: str, token: int) -> None:
        """From now on, these two belong together."""
        membership.peers[task] = token
        early = group.early.pop((task, token), [])
        group.kept -= len(early)
        if (task, token) in group.lost:
            self._fail(membership, too_far_ahead(task))
        for fields in early:
            self._told_by(membership, fields, fields["tensors"])

    # --- what was lost ---------------------------------------------------------------------------------------------

    def _ask_to_count(self, membership: Membership, tasks: Iterable[str]) -> None:
        """Ask those who are waited for, have been heard, and may go on, how much they have sent."""
        signs = self._signs
        for task in tasks:
            tally = membership.tallies[task]
            since = max(signs.awaited.get(task, signs.now), tally.asked)
            if signs.has_heard(task) and task not in membership.left and signs.now - since >= COUNT_S:
                tally.asked = signs.now
                self._send(task, "count", membership, run=membership.peers[task] or 0)

    def _count(self, group: Group, name: str, task: str, token: int, meant: int) -> None:
        """Another task asks how much was sent to it; `meant` is the token of ours, 0 if it does not know that."""
        if not group.knows(task, token):
            self._joined(group, task, token)  # its `join` was lost
        membership = next((m for m in group.memberships if m.peers.get(task) == token), None)
        if membership is None:
            if meant:  # it is gone, and the `end` that said so was lost
                head = {"event": "end", "task": self.task, "group": name, "token": meant}
                self._say(task, head | {"reason": "takes part no longer", "code": "ABORTED"})
        elif membership.error is not None:
            self._send(task, "end", membership, reason=membership.error.summary, code=membership.error.code)
        elif meant != membership.token:
            self._send(task, "join", membership)
        else:
            self._send(task, "counted", membership, tag=membership.tallies[task].sent)

    def _counted(self, membership: Membership, task: str, sent: int) -> None:
        """Another task says how much it has sent."""
        if membership.requests and membership.tallies[task].lacks(sent):
            what = membership.requests[0].what
            text = (
                f"{what}: something that {task} has sent never came: the connection between it and {self.task} broke meanwhile. All "
                "workers go on from the last checkpoint, in new sessions."
            )
            self._fail(membership, UnavailableError(None, None, text))

    def _forget_groups(self) -> None:
        """Forget what was only said by others: there is too much of it. Whoever means it says it again."""
        for name in [n for n, g in self._groups.items() if not g.memberships]:
            del self._groups[name]

    # --- time ------------------------------------------------------------------------------------------------------

    def _sign_of_life(self, event: str, task: str, incarnation: int) -> None:
        """A task asks for a sign of life, or gives one."""
        restarted = self._signs.gave_sign(task, incarnation)
        if event == "ask":
            self._give_sign("alive", task)
        if restarted:
            for m in self._memberships():
                if m.peers.get(task) is not None and m.requests:
                    self._fail(m, AbortedError(None, None, f"{task} was restarted in the middle of a collective"))

    def _note_deaf(self, task: str, is_deaf: bool) -> None:
        """A task says whether it has heard anything of this one lately. One that goes on saying no, though it is answered, is cut off."""
        if self._signs.is_cut_off(task, is_deaf):
            for m in self._memberships():
                if m.peers.get(task) is not None:  # whatever it does now: the other one cannot go on with it
                    text = (
                        f"{task} hears nothing of {self.task}, though it is heard: the way there is cut. All "
                        "workers go on from the last checkpoint, in new sessions, when it is open."
                    )
                    self._fail(m, UnavailableError(None, None, text))

    def _give_sign(self, event: str, task: str, is_deaf: bool = False) -> None:
        head = {"event": event, "task": self.task, "group": "", "token": self._incarnation}
        self._say(task, head | {"tag": 1} if is_deaf else head)

    def _say(self, task: str, fields: dict[str, Any]) -> None:
        """Say something to another task that it may miss."""
        assert self._send_out is not None
        try:
            self._send_out(task, fields, ())
        except (KeyError, OSError, OpError) as e:
            logger.info("%s cannot be reached: %s", task, e)

    def tick(self, now: float) -> None:
        """Time has passed: ask for signs of life, and look for who gives none."""
        self._do(lambda: self._tick(now))

    def _tick(self, now: float) -> None:
        signs = self._signs
        signs.tick(now)
        while self._ended:
            for membership in self._ended.popleft().values():
                membership.tables = {}
                for task in membership.peers:
                    if membership.error is None and task not in membership.left:
                        self._send(task, "end", membership, reason="has closed its session", code="")
        awaited: set[str] = set()
        waits: list[tuple[Membership, list[str]]] = []
        for membership in self._memberships():
            requests = membership.requests
            if not requests:
                continue
            for turn in list(membership.turns.values()):
                if turn.has_begun:  # it is poked when there is something to do; if that was lost, not much time is
                    self._look(turn)
            expected = {membership.task_of[r] for w in requests for r in w.expects()}
            expected = (expected | set(membership.missing)) - {self.task}
            awaited |= expected
            waits.append((membership, sorted(expected)))
            since = min((signs.awaited.get(t, now) for t in membership.missing), default=now)
            if now - max(since, self._said) > TELL_S:
                self._said = now
                logger.warning(
                    "%s waits at %s for %s to start and get there",
                    self.task, requests[0].what, ", ".join(membership.missing),
                )  # fmt: skip
        signs.wait_for(awaited)
        for task, is_deaf in signs.to_ask():
            self._give_sign("ask", task, is_deaf)
        for membership, tasks in waits:
            self._ask_to_count(membership, tasks)
        for task, seconds in signs.silent():
            for m in self._memberships():
                if task in m.peers and m.requests:
                    text = (
                        f"{m.requests[0].what}: {task} has given no sign of life for {seconds:.1f} s: it is dead, stopped or cut off. "
                        "Start it again; all workers then go on from the last checkpoint, in new sessions."
                    )
                    self._fail(m, UnavailableError(None, None, text))

    def _memberships(self) -> list[Membership]:
        return [m for g in self._groups.values() for m in g.memberships if m.error is None]


__all__ = ["Collectives", "Member", "Membership", "Turn"]
