"""All orders of events of small scenarios, without processes: see `interleavings.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from interleavings import Choices, Step, World, explore, is_expected

import dovetail as tf
from dovetail.codegen.ir.program import Await, Begin
from dovetail.graph.core.errors import CancelledError, OpError
from dovetail.graph.ops.state import collectives
from dovetail.runtime.master.lowering import LEAST_WORK


def names(*tensors: tf.Tensor) -> list[str]:
    return [t.name for t in tensors]


def there_and_back() -> tf.Tensor:
    with tf.device("/job:a"):
        x = tf.random_uniform([]) * 0.0 + 1.0
    with tf.device("/job:b"):
        y = x + 2.0
    with tf.device("/job:a"):
        return x + y  # 4


def diamond() -> tf.Tensor:
    with tf.device("/job:a"):
        x = tf.random_uniform([]) * 0.0 + 1.0
    with tf.device("/job:b"):
        y = x + 1.0
    with tf.device("/job:c"):
        z = x - 1.0
    with tf.device("/job:a"):
        return y + z + 2.0  # 4


def loop() -> tf.Tensor:
    def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device("/job:b"):
            x = x + 2.0
        return i + 1, x

    with tf.device("/job:a"):
        return tf.while_loop(lambda i, x: i < 2, body, [tf.constant(0), tf.random_uniform([]) * 0.0])[1]  # 4


def branches() -> tf.Tensor:
    with tf.device("/job:a"):
        x = tf.random_uniform([]) * 0.0 + 1.0

    def yes() -> tf.Tensor:
        with tf.device("/job:b"):
            return x + 3.0

    def no() -> tf.Tensor:
        with tf.device("/job:b"):
            return x - 3.0

    with tf.device("/job:a"):
        return tf.cond(x > 0.0, yes, no) + 0.0  # 4


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels together depends on how long programs take; here, the same choices must give the same events."""
    monkeypatch.setattr("dovetail.runtime.worker.step_scheduler.perf_counter", lambda: 0.0)


def all_reduce() -> list[tf.Tensor]:
    """Each task begins a collective, and makes something else meanwhile."""
    tasks = [f"/job:{job}/replica:0/task:0/device:CPU:0" for job in "ab"]
    fetches = []
    for rank, task in enumerate(tasks):
        with tf.device(task):
            x = tf.random_uniform([1 << 14]) * 0.0 + 1.0
            total = collectives.all_reduce(x, tasks, rank, instance="g")
            meanwhile = tf.reduce_sum(tf.random_uniform([LEAST_WORK // 4]) * 0.0)
            fetches.append(total[0] + meanwhile + 2.0)  # 4
    return fetches


PROGRAMS = [there_and_back, diamond, loop, branches]


def right(step: Step) -> bool:
    return step.error is None and [float(v) for v in step.values.values()] == [4.0]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_every_order_gives_the_same(program: Callable[[], tf.Tensor]) -> None:
    graph = tf.get_default_graph()
    fetch = program()

    def play(choices: Choices) -> None:
        world = World("abc", graph)
        step = world.start(world.prepare(names(fetch)))
        world.drain(choices)
        assert right(step), step
        world.check_nothing_is_left()

    assert explore(play) >= 3


FAULTS = ["a dies", "b dies", "the client gives up", "a message is lost", "a cannot reach b", "b cannot reach a"]


@pytest.mark.slow
@pytest.mark.parametrize("program", [there_and_back, loop, branches], ids=lambda p: p.__name__)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_moment_of_any_order(fault: str, program: Callable[[], tf.Tensor]) -> None:
    graph = tf.get_default_graph()
    fetch = program()
    seen = set()

    def play(choices: Choices) -> None:
        world = World("abc", graph)
        step = world.start(world.prepare(names(fetch)))
        strike = {
            "a dies": lambda: world.kill(world.tasks[0]),
            "b dies": lambda: world.kill(world.tasks[1]),
            "the client gives up": lambda: world.give_up(step, CancelledError(None, None, "Ctrl-C")),
            "a cannot reach b": lambda: world.cut_way(*world.tasks[:2]),
            "b cannot reach a": lambda: world.cut_way(*world.tasks[1::-1]),
        }.get(fault)
        world.drain(choices, [] if strike is None else [(fault, strike)], losses=int(strike is None))
        world.settle()
        assert right(step) or is_expected(step.error), step
        world.check_nothing_is_left()
        seen.add(right(step))

    assert explore(play) >= 10
    assert False in seen


def test_collectives_that_run_beside_their_programs() -> None:
    graph = tf.get_default_graph()
    fetches = all_reduce()

    def play(choices: Choices) -> None:
        world = World("ab", graph)
        parts = world.prepare(names(*fetches))
        for worker in world.workers.values():
            (loaded,) = worker._registered.values()
            assert {Begin, Await} <= {type(i) for i in loaded.programs[0].instructions}
        step = world.start(parts)
        world.drain(choices)
        assert step.error is None and list(map(float, step.values.values())) == [4.0, 4.0], step
        world.check_nothing_is_left()

    assert explore(play) >= 2


def test_a_client_gives_up_at_any_moment_of_a_collective() -> None:
    graph = tf.get_default_graph()
    fetches = all_reduce()
    seen = []

    class Then(Choices):
        """Events in order, but for one moment: then the fault, which is the last choice."""

        def __init__(self, moment: int) -> None:
            super().__init__(())
            self.left = moment

        def choose(self, count: int) -> int:
            self.left -= 1
            return count - 1 if self.left == -1 else 0

    for moment in range(20):
        world = World("ab", graph)
        step = world.start(world.prepare(names(*fetches)))
        give_up = partial(world.give_up, step, CancelledError(None, None, "Ctrl-C"))
        world.drain(Then(moment), [("give up", give_up)])
        assert step.is_over
        assert list(map(float, step.values.values())) == [4.0, 4.0] if step.error is None else is_expected(step.error)
        world.check_nothing_is_left()
        seen.append(step.error is None)
    assert not seen[0] and seen[-1]


def test_two_steps_update_a_variable_and_neither_update_is_lost() -> None:
    graph = tf.get_default_graph()
    with tf.device("/job:b"):
        v = tf.get_variable("v", initializer=0.0)
    with tf.device("/job:a"):
        one = tf.random_uniform([]) * 0.0 + 1.0
    with tf.device("/job:b"):
        up = v.assign_add(one)

    def play(choices: Choices) -> None:
        world = World("ab", graph)
        assert world.run_now([], [v.initializer.name]).error is None
        parts = world.prepare([], [up.op.name])
        steps = [world.start(parts), world.start(parts)]
        world.drain(choices)
        assert all(s.is_over and s.error is None for s in steps)
        (value,) = world.run_now(names(v.value())).values.values()
        assert float(value) == 2.0
        world.check_nothing_is_left()

    assert explore(play) >= 20


def test_an_element_is_taken_once_or_still_there_whatever_ends_the_step_that_wants_it() -> None:
    graph = tf.get_default_graph()
    with tf.device("/job:b"):
        q = tf.FIFOQueue(3, tf.float32, shapes=[[]], name="q")
        put, size = q.enqueue(4.0), q.size()
    with tf.device("/job:b"):
        element = q.dequeue()
    with tf.device("/job:a"):
        taken = element + 0.0
    seen = set()

    def play(choices: Choices) -> None:
        world = World("ab", graph)
        take = world.start(world.prepare(names(taken)))
        puts = world.start(world.prepare([], [put.name]), "another client")
        ended = CancelledError(None, None, "Ctrl-C")
        world.drain(choices, [("give up", lambda: world.give_up(take, ended))])
        assert take.is_over
        assert puts.is_over and puts.error is None
        (left,) = world.run_now(names(size)).values.values()
        got = int(right(take))
        # An answer that comes when the client has given up is lost with its step: TensorFlow's are, too.
        assert got + int(left) <= 1
        seen.add((got, int(left)))
        world.check_nothing_is_left()

    assert explore(play) >= 10
    assert {(1, 0), (0, 1)} <= seen


def test_an_error_in_one_part_ends_the_others() -> None:
    graph = tf.get_default_graph()
    with tf.device("/job:b"):
        broken = tf.gather(tf.random_uniform([2]), tf.cast(tf.random_uniform([]) * 0.0 + 3.0, tf.int32))
    with tf.device("/job:a"):
        waits = broken + 1.0

    def play(choices: Choices) -> None:
        world = World("ab", graph)
        step = world.start(world.prepare(names(waits)))
        world.drain(choices)
        assert isinstance(step.error, OpError) and step.error.code == "INVALID_ARGUMENT"
        world.check_nothing_is_left()

    assert explore(play) >= 1
