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
    count   how much was sent (`tallies.py`)
    counted so much

Members of one machine meet on boards (`boards.py`), one for each instance, if each task has one member. Before an instance's first
run they meet: it turns out whether all can reach a board. Its runs then take turns on it, a `Turn` each: one that waits for
others too long to hold its thread is set aside, and goes on when it is poked.

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

from .boards import Board, Layout, Machine, Meeting, label_of
from .errors import AbortedError, InvalidArgumentError, OpError, ResourceExhaustedError, UnavailableError, from_code
from .exchanges import Array, Exchange, Part
from .links import Linked
from .memberships import MEETING, MOST_KNOWN, Group, Key, Member, Membership, Table, Turn
from .requests import Desk
from .sharing import Sharing
from .tallies import COUNT_S, COUNTED

logger = logging.getLogger(__name__)

MAX_EARLY = (
    4_000  # parts of one group that wait for a session of this task to join, or for it to get to their collective
)
MAX_GROUPS = 1_000  # groups of which only others have spoken
TELL_S = 5.0  # how often it is said who is missing
HEARTBEAT_S = 0.5
DEAF_S = 2.0  # a task that says for so long that it hears nothing is cut off in that direction


class _Meeting(Member):
    """The members' way to a board. Nobody waits for it itself."""

    __slots__ = ("table",)
    table: Table

    def answer(self, value: Any = ()) -> None:
        """They have met."""
        super().answer(value)
        assert isinstance(self._desk, Collectives)
        self._desk._met(self, value)


class Collectives(Desk[Member | Turn]):
    """The collectives of one task.

    Args:
        task: the task's name; '' in a process without servers, where all members are.
        send: (task, message fields, tensors): sends to another task; None: there are no others.
        patience_s: a task that gives no sign of life for so long is taken for dead.
        incarnation: what tells this process from those that ran the task before.
        machine: what the process has to meet others in memory; None: nothing.
    """

    def __init__(
        self,
        task: str = "",
        send: Callable[[str, dict[str, Any], Sequence[Array]], None] | None = None,
        patience_s: float = 5.0,
        incarnation: int = 0,
        machine: Machine | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        self._send_out, self._patience_s, self._incarnation = send, patience_s, incarnation
        self._machine = machine
        self._names: dict[Sequence[str], tuple[str, tuple[str, ...]]] = {}  # members -> the group's name, task of each
        self._groups: dict[str, Group] = {}
        self._sessions: weakref.WeakKeyDictionary[Any, dict[str, Membership]] = weakref.WeakKeyDictionary()
        self._heard: dict[str, tuple[float, int]] = {}  # task -> when it was last heard, and its incarnation
        self._deaf: dict[str, float] = {}  # task -> since when it says that it hears nothing of this one
        self._awaited: dict[str, float] = {}  # task -> since when it is waited for
        self._now = self._said = self._asked = 0.0
        self._broken: list[tuple[Membership, OpError]] = []  # those of which a message could not be sent
        self._ended: deque[dict[str, Membership]] = deque()  # what sessions that are gone had to do with groups

    # --- kernels ---------------------------------------------------------------------------------------------------

    def take_part(
        self, session: Any, members: Sequence[str], rank: int, key: tuple[str, int], signature: str, what: str,
        exchange: Exchange, finish: Callable[[Any], Any], sharing: Sharing | None = None,
    ) -> Any:  # fmt: skip
        """Take part in a collective as member `rank`; gives the result, or a request for it.

        Args:
            session: what stands for the session of the step: any object that lives as long.
            members: device of each rank. key: instance and run.
            signature: what must be the same for all members: the op, types, shapes.
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
            return self.ask(Member(what, membership, (*key, rank), exchange, signature, finish))
        table = membership.tables.get(key[0]) or membership.tables.setdefault(key[0], Table())
        return self.ask(Turn(what, membership, (*key, rank), exchange, signature, finish, sharing, table, self._go_on))

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

    def _do(self, event: Callable[[], None]) -> None:
        def whole() -> None:
            event()
            while self._broken:
                self._fail(*self._broken.pop())

        super()._do(whole)

    # --- the rules of the desk -------------------------------------------------------------------------------------

    def _admit(self, request: Member | Turn) -> None:
        membership = request.membership
        if membership.error is not None:
            raise type(membership.error)(None, None, membership.error.message)
        if request.key in membership.waiting or request.key in membership.turns:
            raise InvalidArgumentError(None, None, f"{request.what}: member {request.key[2]} takes part twice at once")
        if isinstance(request, Turn):
            self._line_up(request)
        else:
            self._enter(request)
        self._check_left(membership)

    def _enter(self, request: Member) -> None:
        membership = request.membership
        membership.waiting[request.key] = request
        if isinstance(request.exchange, Linked):
            request.exchange.tell = lambda result: self._do(lambda: self._link_ended(request, result))
        self._route(request, request.exchange.begin())
        for sender, tag, signature, array in membership.early.pop(request.key, ()):
            self._receive(request, sender, tag, signature, array)

    def _serve(self) -> None:
        """Nothing: what can be settled is settled where its last part comes in."""

    def _withdraw(self, request: Member | Turn) -> None:
        membership = request.membership
        (membership.turns if isinstance(request, Turn) else membership.waiting).pop(request.key, None)
        if isinstance(request.exchange, Linked):
            request.exchange.stop()
        self._fail(membership, self._ended_early(request))

    def _take_back(self, request: Member | Turn, value: Any) -> None:
        if isinstance(request, Turn):  # it could have gone on; a Member has done its part
            self._fail(request.membership, self._ended_early(request))

    def _ended_early(self, request: Member | Turn) -> OpError:
        text = f"A step of {self.task or 'this process'} was ended while it took part in {request.what}"
        return AbortedError(None, None, text)

    def _waiting(self) -> Iterator[Member | Turn]:
        for group in self._groups.values():
            for membership in group.memberships:
                yield from membership.requests

    def _link_ended(self, request: Member, result: Any) -> None:
        """A run on a link has ended: with its result, or an error."""
        membership = request.membership
        if membership.waiting.get(request.key) is not request:
            return  # the step is over
        if isinstance(result, OpError):
            self._fail(membership, type(result)(None, None, f"{request.what}: {result.message}"))
            return
        assert isinstance(request.exchange, Linked)
        request.exchange.ended(result)
        self._route(request, ())
        self._check_left(membership)

    # --- boards ----------------------------------------------------------------------------------------------------

    def _line_up(self, turn: Turn) -> None:
        """A run comes to its table, or goes on waiting there for the others."""
        membership, table = turn.membership, turn.table
        membership.turns[turn.key] = turn
        if turn.has_begun:
            table.current = turn
            self._look(turn)
            return
        table.line.append(turn)
        if (
            len(table.line) == 1
            and not table.is_known
            and (turn.key[0], MEETING, turn.key[2]) not in membership.waiting
        ):
            rank, size = turn.key[2], len(membership.task_of)
            exchange = Meeting(rank, size, self._machine, turn.sharing.nbytes, turn.sharing.makes_areas)
            key = turn.key[0], MEETING, rank
            meeting = _Meeting(turn.what, membership, key, exchange, "board", turn.finish)
            meeting.table, meeting._desk = table, self
            self._enter(meeting)
        self._call_next(table)

    def _met(self, meeting: _Meeting, found: tuple[memoryview, Layout] | None) -> None:
        """The members have come to a board, or know that they have none."""
        table, membership, (instance, _, rank) = meeting.table, meeting.membership, meeting.key
        if found is not None:
            assert self._machine is not None

            def poke(to: int) -> None:
                task = membership.task_of[to]
                self._do(lambda: self._send(task, "poke", membership, instance=instance))

            table.board = Board(self._machine, *found, rank, poke)
        table.is_known = True
        self._call_next(table)

    def _call_next(self, table: Table) -> None:
        """Give the turn to the earliest run; without a board, to all."""
        while table.is_known and table.current is None and table.line:
            turn = min(table.line, key=lambda t: t.key[1])
            table.line.remove(turn)
            if table.board is not None:
                table.current = turn
            self._let_go_on(turn)

    def _let_go_on(self, turn: Turn) -> None:
        del turn.membership.turns[turn.key]
        turn.answer()

    def _look(self, turn: Turn) -> None:
        """Let a turn go on if it can."""
        if turn.sharing.look():
            self._let_go_on(turn)

    def _go_on(self, turn: Turn) -> Any:
        """Run a turn as far as it goes; gives the result, or what to wait for. Without the lock."""
        membership, table, sharing = turn.membership, turn.table, turn.sharing
        board = table.board
        if board is None:
            member = Member(turn.what, membership, turn.key, turn.exchange, turn.signature, turn.finish)
            return self.ask(member)
        try:
            if turn.has_begun:
                is_done = sharing.resume(lambda: membership.error is not None)
            else:
                turn.has_begun = True
                sharing.start(board, turn.key[1], label_of(turn.signature))
                is_done = sharing.drive(lambda: membership.error is not None)
        except BaseException as e:  # also Ctrl-C: the others must not wait for what will not come
            error = self._ended_early(turn)
            if isinstance(e, OpError):
                error = type(e)(None, None, f"{turn.what}: {e.message}")
            self._do(lambda: self._fail(membership, error))
            if isinstance(e, OpError):
                raise error from None
            raise
        if not is_done:
            return self.ask(turn.again())

        def end() -> None:
            table.current = None
            self._call_next(table)

        self._do(end)
        return turn.finish(sharing.result)

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
        turn = membership.turns.get(key)
        if turn is not None and turn.signature != signature:
            self._fail(membership, _differ(turn, sender, signature))
        elif request is None:
            membership.early.setdefault(key, []).append((sender, tag, signature, array))
            if len(membership.early) > MAX_EARLY:
                self._fail(membership, _too_far_ahead(membership.task_of[sender]))
        else:
            self._receive(request, sender, tag, signature, array)

    def _receive(self, request: Member, sender: int, tag: int, signature: str, array: Array) -> None:
        if signature != request.signature:
            self._fail(request.membership, _differ(request, sender, signature))
        elif request.key in request.membership.waiting:
            self._route(request, request.exchange.receive(sender, tag, array))

    def _send(
        self, task: str, event: str, membership: Membership, tensors: Sequence[Array] = (), **fields: Any
    ) -> None:
        assert self._send_out is not None
        head = {"event": event, "task": self.task, "group": membership.group, "token": membership.token}
        if event in COUNTED:
            membership.tallies[task].sent += 1
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
            self._note_deaf(task, bool(fields.get("tag")))
            return
        group = self._groups.get(fields["group"])
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._forget_groups()
            group = self._groups[fields["group"]] = Group()
        self._heard[task] = self._now, self._heard.get(task, (0.0, 0))[1]
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
            self._fail(membership, _too_far_ahead(task))
        for fields in early:
            self._told_by(membership, fields, fields["tensors"])

    # --- what was lost ---------------------------------------------------------------------------------------------

    def _ask_to_count(self, membership: Membership, tasks: Iterable[str]) -> None:
        """Ask those who are waited for, have been heard, and may go on, how much they have sent."""
        for task in tasks:
            tally = membership.tallies[task]
            since = max(self._awaited.get(task, self._now), tally.asked)
            if task in self._heard and task not in membership.left and self._now - since >= COUNT_S:
                tally.asked = self._now
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
            self._send(task, "end", membership, reason=membership.error.message, code=membership.error.code)
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

    # --- failing ---------------------------------------------------------------------------------------------------

    def _check_left(self, membership: Membership) -> None:
        """Fail when something still needs parts of a task that takes part no longer."""
        for request in membership.requests:
            for rank in request.expects():
                task = membership.task_of[rank]
                reason = membership.left.get(task)
                if reason is not None and not (task in membership.closed and _is_under_way(request)):
                    self._fail(membership, AbortedError(None, None, f"{request.what}: {reason}"))
                    return

    def _fail(self, membership: Membership, error: OpError) -> None:
        """All that waits in a membership fails, here and in the other tasks."""
        if membership.error is not None:
            return
        membership.error = error
        for task in membership.peers:
            self._send(task, "end", membership, reason=error.message, code=error.code)
        requests, membership.waiting, membership.turns = membership.requests, {}, {}
        membership.early.clear()
        membership.tables = {}
        for request in requests:
            if isinstance(request.exchange, Linked):
                request.exchange.stop()
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
                if m.peers.get(task) is not None and m.requests:
                    self._fail(m, AbortedError(None, None, f"{task} was restarted in the middle of a collective"))

    def _note_deaf(self, task: str, is_deaf: bool) -> None:
        """A task says whether it has heard anything of this one lately. One that goes on saying no, though it is answered, is cut off."""
        if not is_deaf:
            self._deaf.pop(task, None)
        elif self._now - self._deaf.setdefault(task, self._now) >= DEAF_S:
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
        if now - self._now > DEAF_S / 2:
            self._deaf.clear()  # this process was stopped: who heard nothing meanwhile was right
        self._now = now
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
            since = min((self._awaited.get(t, now) for t in membership.missing), default=now)
            if now - max(since, self._said) > TELL_S:
                self._said = now
                logger.warning(
                    "%s waits at %s for %s to start and get there",
                    self.task, requests[0].what, ", ".join(membership.missing),
                )  # fmt: skip
        self._awaited = {t: self._awaited.get(t, now) for t in awaited}
        if awaited and now - self._asked >= HEARTBEAT_S:
            self._asked = now
            for task in awaited:
                last, _ = self._heard.get(task, (0.0, 0))
                self._give_sign("ask", task, now - max(last, self._awaited[task]) > self._patience_s)
        for membership, tasks in waits:
            self._ask_to_count(membership, tasks)
        for task, since in self._awaited.items():
            last = self._heard.get(task)
            if last is not None and now - max(last[0], since) > self._patience_s:
                silent = now - max(last[0], since)
                for m in self._memberships():
                    if task in m.peers and m.requests:
                        what = m.requests[0].what
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


def _is_under_way(request: Member | Turn) -> bool:
    """Whether it runs on a link: who has done his part of that may leave before the others have noticed that they are done."""
    return isinstance(request.exchange, Linked) and request.exchange.is_under_way


def _differ(request: Member | Turn, sender: int, signature: str) -> OpError:
    text = (
        f"{request.what}: member {request.key[2]} brings {request.signature}, but member {sender} {signature}; "
        "all members must run the same program"
    )
    return InvalidArgumentError(None, None, text)


def _too_far_ahead(task: str) -> OpError:
    return ResourceExhaustedError(
        None, None,
        f"More than {MAX_EARLY} parts of {task} wait for this task to get to their collectives: {task} runs too far ahead. Let "
        "it take something back from the others, such as an all_reduce or a barrier.",
    )  # fmt: skip


__all__ = ["Collectives", "Member", "Membership", "Turn"]
