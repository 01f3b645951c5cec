"""A stand-in for `nccl.bindings.nccl`, on the stand-in for the driver: collectives that wait on the device for all members.

As with the library, each call is queued on the member's stream, and has its turn when all members have made theirs: until then the
stream does not go on, and nothing but an abort of the communicator ends that.

    log     what was called: (function, rank, ...)
    fails   (function, code): that function fails from now on, or the communicator does after it
"""

import itertools
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
from gpu_backends import RecordedDriver
from strict_driver import Touch

TYPES = {0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 6: np.float16, 7: np.float32,
         8: np.float64, 9: ml_dtypes.bfloat16}  # fmt: skip


@dataclass(eq=False)
class Call:
    """A collective, as far as the members have made it."""

    kind: tuple[Any, ...]
    made: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)  # rank -> addresses, stream, place in it
    is_done: bool = False


@dataclass(eq=False)
class Group:
    """What the communicators of one unique id have in common."""

    size: int
    ranks: set[int] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)


@dataclass(eq=False)
class Member:
    """One communicator."""

    group: Group
    rank: int
    made: int = 0
    is_aborted: bool = False
    is_finalized: bool = False


class FakeNccl:
    """The library. `version`: what it says that it is."""

    def __init__(self, driver: RecordedDriver, version: int = 23203) -> None:
        self.driver, self.version = driver, version
        self.log: list[tuple[Any, ...]] = []
        self.fails: tuple[str, int] | None = None
        self.alive: dict[int, Member] = {}
        self._groups: dict[bytes, Group] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self.UniqueId = SimpleNamespace(from_buffer=self._identity)

    # --- communicators ---------------------------------------------------------------------------------------------

    def get_version(self) -> int:
        return self.version

    def get_unique_id(self) -> Any:
        return next(self._numbers).to_bytes(128, "little")

    def _identity(self, buffer: bytes) -> Any:
        assert len(buffer) == 128
        return SimpleNamespace(ptr=bytes(buffer))  # the stand-in's pointers are what they lead to

    def Config(self) -> Any:
        made = SimpleNamespace(blocking=-1)
        made.ptr = made
        return made

    def comm_init_rank_config(self, nranks: int, comm_id: Any, rank: int, config: Any) -> int:
        assert config.blocking == 0, "a call that blocks could not be aborted"
        assert int(self.driver.cuCtxGetCurrent()[1]), "no context is current in this thread"
        with self._lock:
            group = self._groups.setdefault(comm_id, Group(nranks))
            assert group.size == nranks and rank not in group.ranks
            group.ranks.add(rank)
            handle = next(self._numbers)
            self.alive[handle] = Member(group, rank)
        self._note("comm_init_rank_config", rank, nranks)
        return handle

    def comm_get_async_error(self, comm: int) -> int:
        member = self.alive[comm]
        if self.fails is not None and self.fails[0] == "comm_get_async_error":
            return self.fails[1]
        return 0 if len(member.group.ranks) == member.group.size else 7

    def comm_finalize(self, comm: int) -> None:
        self.alive[comm].is_finalized = True
        self._note("comm_finalize", self.alive[comm].rank)

    def comm_destroy(self, comm: int) -> None:
        member = self.alive.pop(comm)
        assert member.is_finalized
        self._note("comm_destroy", member.rank)

    def comm_abort(self, comm: int) -> None:
        member = self.alive.pop(comm)
        member.is_aborted = True
        self._note("comm_abort", member.rank)

    def get_error_string(self, result: int) -> str:
        return f"fake error {result}"

    def get_last_error(self, comm: int) -> str:
        return "a cable was pulled"

    # --- collectives -----------------------------------------------------------------------------------------------

    def group_start(self) -> None:
        self._note("group_start")

    def group_end(self) -> None:
        self._note("group_end")

    def all_reduce(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, op: int, comm: int, stream: int
    ) -> None:
        self._call("all_reduce", (count, datatype, op), sendbuff, recvbuff, comm, stream)

    def reduce_scatter(
        self, sendbuff: int, recvbuff: int, recvcount: int, datatype: int, op: int, comm: int, stream: int
    ) -> None:
        self._call("reduce_scatter", (recvcount, datatype, op), sendbuff, recvbuff, comm, stream)

    def all_gather(self, sendbuff: int, recvbuff: int, sendcount: int, datatype: int, comm: int, stream: int) -> None:
        self._call("all_gather", (sendcount, datatype), sendbuff, recvbuff, comm, stream)

    def broadcast(
        self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, comm: int, stream: int
    ) -> None:
        self._call("broadcast", (count, datatype, root), sendbuff, recvbuff, comm, stream)

    def _note(self, function: str, *rest: Any) -> None:
        self.log.append((function, *rest))
        if self.fails is not None and self.fails[0] == function:
            raise RuntimeError(f"{function} failed with {self.fails[1]}")

    def _call(self, function: str, about: tuple[Any, ...], send: int, receive: int, comm: int, stream: int) -> None:
        member = self.alive[comm]
        self._note(function, member.rank, *about)
        group, strict = member.group, self.driver.strict
        with self._lock:
            if member.made == len(group.calls):
                group.calls.append(Call((function, *about)))
            call = group.calls[member.made]
            assert call.kind == (function, *about), f"members differ: {call.kind} and {(function, *about)}"
            member.made += 1
            call.made[member.rank] = send, receive, stream, strict.queued(stream)
        strict.queue(stream, lambda touch: self._has_turn(member, call, touch))

    def _has_turn(self, member: Member, call: Call, touch: Touch) -> bool:
        """A stream has come to the call; whether the call is done."""
        if member.is_aborted or not (call.is_done or self._is_done(member, call)):
            return member.is_aborted
        function, count, datatype, *rest = call.kind
        send, receive, *_ = call.made[member.rank]
        size = count * np.dtype(TYPES[datatype]).itemsize
        if function != "broadcast" or rest[0] == member.rank:
            touch(send, size * (member.group.size if function == "reduce_scatter" else 1), False)
        touch(receive, size * (member.group.size if function == "all_gather" else 1), True)
        return True

    def _is_done(self, member: Member, call: Call) -> bool:
        """Do what all have called, if they have."""
        if len(call.made) < member.group.size:
            return False
        if not all(self.driver.strict.run(stream, at) for _, _, stream, at in call.made.values()):
            return False
        call.is_done = True
        function, count, datatype, *rest = call.kind
        dtype, size = np.dtype(TYPES[datatype]), member.group.size
        long = count * size if function == "reduce_scatter" else count
        ranks = range(size)
        came = [
            self._array(call.made[r][0], long, dtype).copy() for r in ranks if function != "broadcast" or r == rest[0]
        ]
        if function in ("all_reduce", "reduce_scatter"):
            how = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum, 4: np.add}[rest[0]]
            total = came[0]
            for each in came[1:]:
                total = how(total, each)
            if rest[0] == 4:
                total = (total / size).astype(dtype)
        for r in ranks:
            if function == "all_reduce":
                result = total
            elif function == "reduce_scatter":
                result = total[r * count : (r + 1) * count]
            else:
                result = np.concatenate(came)
            self._array(call.made[r][1], len(result), dtype)[:] = result
        return True

    def _array(self, address: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        assert any(
            a <= address and address + count * dtype.itemsize <= a + n for a, (n, _) in self.driver.allocated.items()
        )
        return np.frombuffer((np.ctypeslib.ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address), dtype)
