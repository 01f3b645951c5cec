"""Which tensors may wait for later ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from dovetail.placer.partition.partitioned_graph import Channel, Partition, Partitioned
from dovetail.runtime.master.lowering import coalesce_receives, coalesced_sends

A, B = (f"/job:w/replica:0/task:{i}/device:CPU:0" for i in range(2))
A2 = "/job:w/replica:0/task:0/device:GPU:0"


def channel(number: int, source: str, destination: str, loop: str | None = None) -> Channel:
    return Channel(number, f"t{number}:0", source, destination, 4, False, None, (), loop=loop)


def cut(sends: str, takes: str, *, source: str = A, destination: str = B, loops: str = "") -> Partitioned:
    """One device sends channels in one order, the other takes them in another; each channel is a letter."""
    made = {x: channel(ord(x), source, destination, "loop" if x in loops else None) for x in sends}
    there = Partition(source, tuple(("send", made[x]) for x in sends))
    here = Partition(destination, tuple(("recv", made[x]) for x in takes))
    return Partitioned({source: there, destination: here}, list(made.values()))


@pytest.mark.parametrize(
    ("sends", "takes", "held_back"),
    [
        ("", "", ""),
        ("abc", "abc", ""),
        ("cba", "abc", "cb"),
        ("cbad", "abcd", "cb"),
        ("bacd", "abdc", "bc"),
        ("bdac", "abcd", "bd"),
    ],
)
def test_what_is_taken_later_waits(sends: str, takes: str, held_back: str) -> None:
    assert coalesced_sends(cut(sends, takes)).keys() == {ord(x) for x in held_back}


def test_what_stays_in_the_task_or_crosses_in_a_loop_never_waits() -> None:
    assert coalesced_sends(cut("cba", "abc", destination=A2)) == {}
    assert coalesced_sends(cut("cba", "abc", loops="abc")) == {}


def _used_at_once(takes: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Each channel is received, and used at once."""
    for x in takes:
        yield "recv", channel(ord(x), A, B)
        yield "use", x


@pytest.mark.parametrize(
    ("sends", "takes", "order"),
    [
        ("cba", "abc", "a b c A B C"),
        ("abc", "abc", "a A b B c C"),
        ("bdac", "abcd", "a b d A B c C D"),
    ],
)
def test_what_comes_together_is_received_together(sends: str, takes: str, order: str) -> None:
    steps = coalesce_receives(_used_at_once(takes), coalesced_sends(cut(sends, takes)))
    said = [chr(what.id) if kind == "recv" else str(what).upper() for kind, what in steps]
    assert " ".join(said) == order


@pytest.mark.parametrize("seed", range(50))
def test_the_receiver_never_waits_for_what_was_put_out(seed: int) -> None:
    """Played through: after every send, the receiver has got as far as with everything sent at once."""
    rng = random.Random(seed)
    letters = [chr(97 + i) for i in range(rng.randint(1, 12))]
    sends, takes = rng.sample(letters, len(letters)), rng.sample(letters, len(letters))
    waiting = coalesced_sends(cut("".join(sends), "".join(takes)))

    def reach(arrived: set[str]) -> int:
        return next((i for i, x in enumerate(takes) if x not in arrived), len(takes))

    here = [*_used_at_once(takes)]
    moved = coalesce_receives(here, waiting)
    assert sorted(map(str, moved)) == sorted(map(str, here))

    def done(steps: list[Any]) -> int:
        """How many uses there are before the first receive of what has not arrived."""
        uses = 0
        for kind, what in steps:
            if kind == "recv" and chr(what.id) not in arrived:
                break
            uses += kind == "use"
        return uses

    put_out: set[str] = set()
    arrived: set[str] = set()
    messages = 0
    for x in sends:
        put_out.add(x)
        if ord(x) not in waiting:
            messages += 1
            before = reach(arrived)
            arrived = set(put_out)
            assert reach(arrived) > before  # no message is for nothing
            assert done(moved) == done(here)  # to receive some earlier delays nothing
        assert reach(arrived) == reach(put_out)
    assert arrived == put_out
