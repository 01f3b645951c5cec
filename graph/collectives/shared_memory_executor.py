"""Turns on boards: how the runs of one collective come to a board and take turns there, as the desk of a task sees it.

Theory of operation. Members of one machine meet on boards (`shared_buffer.py`), one for each instance, if each task has one member.
Before an instance's first run they meet: it turns out whether all can reach a board. Its runs then take turns on it, a `Turn` each,
in the order of their numbers: one that waits for others too long to hold its thread is set aside, and goes on when it is poked.
Without a board each becomes a member that sends parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import AbortedError, OpError
from ..resources.async_request import Desk
from .algorithms import Array
from .membership import MEETING, Member, Membership, Table, Turn
from .shared_buffer import Board, Layout, Machine, Meeting, label_of


class _Meeting(Member):
    """The members' way to a board. Nobody waits for it itself."""

    __slots__ = ("table",)
    table: Table

    def answer(self, value: Any = ()) -> None:
        """They have met."""
        super().answer(value)
        assert isinstance(self._desk, BoardDesk)
        self._desk._met(self, value)


class BoardDesk(Desk[Member | Turn]):
    """What a task's collectives do on boards. A subclass says how members exchange parts, and what happens when one fails.

    Args:
        task: the task's name.
        machine: what the process has to meet others in memory; None: nothing.
    """

    def __init__(self, task: str, machine: Machine | None) -> None:
        super().__init__()
        self.task = task
        self._machine = machine

    # --- what a subclass gives, under the lock ---------------------------------------------------------------------

    def _enter(self, request: Member) -> None:
        """A member comes in that exchanges parts."""
        raise NotImplementedError

    def _send(
        self, task: str, event: str, membership: Membership, tensors: Sequence[Array] = (), **fields: Any
    ) -> None:
        """Tell another task of the group."""
        raise NotImplementedError

    def _fail(self, membership: Membership, error: OpError) -> None:
        """All that waits in a membership fails."""
        raise NotImplementedError

    def _ended_early(self, request: Member | Turn) -> OpError:
        text = f"A step of {self.task or 'this process'} was ended while it took part in {request.what}"
        return AbortedError(None, None, text)

    # --- turns -----------------------------------------------------------------------------------------------------

    def _goes_first(self, turn: Turn) -> bool:
        """Give the board to a run that would get it at once if it asked: nobody is before it, and all members are well."""
        table, membership = turn.table, turn.membership
        with self._lock:
            if table.board is None or table.current is not None or table.line or membership.error or membership.left:
                return False
            table.current = turn
        return True

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
            member = Member(turn.what, membership, turn.key, turn.exchange(), turn.signature, turn.finish)
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

        with self._lock:
            table.current = None
            is_awaited = bool(table.line)
        if is_awaited:
            self._do(lambda: self._call_next(table))
        return turn.finish(sharing.result)


__all__ = ["BoardDesk"]
