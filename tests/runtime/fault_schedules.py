"""What becomes of a cluster of real processes when something happens to one of them: the engine of the fault suite.

A schedule says what happens (`WHAT`), to which task, and what the session is doing just then (`WHEN`). Playing it holds these
promises, whatever the schedule:

- every call ends within the peer timeout and a little, with the right value or with an error of one of three classes that names a
  task and its address; but a call that goes on, since all is well again before the peer timeout, takes as long as its work takes;
- a session that does not use the task is served all the while;
- when the task is back, the same session, or a new one where its master was lost, gives right results; variables that died come
  back from the last checkpoint, all of one save;
- nothing is left: no step, descriptor, shared memory or socket in the tasks and the client, no process.

Run as a script for many random schedules: `python tests/runtime/fault_schedules.py --count 200 --seed 0`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script in a checkout


import dovetail as tf
from dovetail.runtime.shared_memory.pool import mapper

JOBS = {"a": 1, "b": 1, "c": 1, "d": 1}
WHAT = ("kill", "stop", "restart", "cut", "slow")
WHOM = ("a", "b", "c")  # "a" has the session's master; "d" serves the bystander
WHEN = ("idle", "step", "transfer", "save", "update")
PEER_TIMEOUT_S = 2.0
SLACK_S = 1.5  # threads of a busy machine
RECOVERY_S = 30.0
WORK_S = 60.0  # for the work of a call that goes on: hundreds of messages, on a busy machine
ERRORS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
LARGE = 1 << 20  # elements of a variable that is large
MOST_DESCRIPTORS = 300  # of a task: about a hundred are in use


@dataclass(frozen=True)
class Schedule:
    """One fault: what happens to whom, when, so long after the call began; `heal_s` later all is well again."""

    what: str
    whom: str
    when: str
    after_s: float = 0.1
    heal_s: float = 3.0

    @property
    def rounds(self) -> int:
        """How often a step goes round: long enough to be met."""
        return 20 if self.what == "slow" else 400

    def __str__(self) -> str:
        return f"{self.what} {self.whom} in {self.when} after {self.after_s * 1e3:.0f} ms, for {self.heal_s:.1f} s"


def schedules(count: int, seed: int) -> Iterator[Schedule]:
    """Random ones; the same seed gives the same ones."""
    rng = random.Random(seed)
    for _ in range(count):
        yield Schedule(
            rng.choice(WHAT), rng.choice(WHOM), rng.choice(WHEN), rng.choice([0.0, 0.01, 0.05, 0.2, 0.5]) * rng.random() * 2,
            rng.choice([0.3, 1.0, 3.0]),
        )  # fmt: skip


@dataclass
class Call:
    """A call in a thread of its own."""

    function: Callable[[], Any]
    value: Any = None
    error: BaseException | None = None
    took_s: float = 0.0
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self.value = self.function()
        except BaseException as e:
            self.error = e
        self.took_s = time.monotonic() - began

    def ended(self, within_s: float) -> bool:
        """Whether it ends in time."""
        self._thread.join(within_s)
        return not self._thread.is_alive()


class Model:
    """The program: variables on two tasks, a step that visits three, many times, a transfer, saves."""

    def __init__(self, folder: Path) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.variables = []
            for job in ("b", "c"):
                with tf.device(f"/job:{job}"):
                    self.variables += [
                        tf.get_variable(f"small_{job}", initializer=tf.zeros([4])),
                        tf.get_variable(f"large_{job}", initializer=tf.zeros([LARGE])),
                    ]
            self.initialise = tf.global_variables_initializer()
            self.number = tf.placeholder(tf.float32, [])
            with tf.device("/job:a"):
                given = tf.square(tf.sqrt(self.number))  # so that tensors start the parts of those who write
            values = {}
            for v in self.variables:
                with tf.colocate_with(v.op):
                    values[v] = tf.fill(v.shape, tf.round(given))
            self.write = tf.group(*[v.assign(value) for v, value in values.items()])
            self.read = tf.stack([tf.reduce_sum(v) / v.shape.num_elements() for v in self.variables])
            self.counts = []  # "a" changes them where they lie
            for job in ("b", "c"):
                with tf.device(f"/job:{job}"):
                    self.counts.append(tf.get_variable(f"count_{job}", initializer=tf.zeros([1000])))
            self.initialise = tf.group(self.initialise, *[v.initializer for v in self.counts])
            with tf.device("/job:a"):
                each = tf.fill([1000], self.number)
            self.update = tf.group(*[v.assign_add(each) for v in self.counts])
            self.rounds = tf.placeholder(tf.int32, [])

            def around(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                for job in ("b", "c", "a"):
                    with tf.device(f"/job:{job}"):
                        x = x + 1.0
                return i + 1, x

            with tf.device("/job:a"):
                self.visits = tf.while_loop(lambda i, x: i < self.rounds, around, [tf.constant(0), tf.constant(0.0)])[1]
                self.transfer = tf.stack([tf.reduce_max(tf.identity(v)) for v in self.variables[1::2]])
            self.saver = tf.train.Saver(max_to_keep=2)
        self.folder = folder
        self.saves = 0


class Suite:
    """A cluster, a session that the faults meet, and one that they must not touch."""

    def __init__(self, folder: Path, peer_timeout_s: float = PEER_TIMEOUT_S) -> None:
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.peer_timeout_s = peer_timeout_s
        environment = {"DOVETAIL_FAULTS": f"from:{self.faults}", "DOVETAIL_SHARED_MEMORY_MB": "64"}
        self.cluster = tf.LocalCluster(JOBS, environment=environment)
        self.model = Model(folder)
        self.config = tf.ConfigProto(peer_timeout_s=peer_timeout_s, wait_for_cluster_s=2.0)
        self.config.device_filters = ["/job:a", "/job:b", "/job:c"]
        self.session = self._open()
        self.session.run(self.model.initialise)
        self.value = 0.0
        self.moved = 0.0  # when a part of the work that the faults meet has last ended
        self._save(1.0)

    def close(self) -> None:
        """Take all down."""
        with contextlib.suppress(tf.errors.OpError):
            self.session.close()
        self.cluster.close()

    def __enter__(self) -> Suite:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _open(self) -> tf.Session:
        return tf.Session(self.cluster.target("a"), graph=self.model.graph, config=self.config)

    def _save(self, value: float) -> None:
        """Write a value into all variables, and save."""
        self.session.run(self.model.write, {self.model.number: value})
        self.value = value
        self.model.saves += 1
        self.model.saver.save(self.session, str(self.model.folder / "model"), global_step=self.model.saves)

    # --- the fault ---------------------------------------------------------------------------------------------------

    def _says(self, job: str, text: str) -> None:
        file = self.faults / str(self.cluster.process(job, 0).pid)
        partial = file.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(file)

    def _strike(self, schedule: Schedule) -> None:
        if schedule.what in ("kill", "restart"):
            self.cluster.kill(schedule.whom, 0)
            if schedule.what == "restart":
                self.cluster.start(schedule.whom, 0)
        elif schedule.what == "stop":
            self.cluster.kill(schedule.whom, 0, signal.SIGSTOP)
        else:
            self._says(schedule.whom, "cut:all" if schedule.what == "cut" else "delay:30,rate:8")

    def _heal(self, schedule: Schedule) -> None:
        if schedule.what in ("kill", "restart"):
            self.cluster.start(schedule.whom, 0)
            self.cluster.wait_until_up()
        elif schedule.what == "stop":
            self.cluster.kill(schedule.whom, 0, signal.SIGCONT)
        else:
            self._says(schedule.whom, "")

    # --- playing -----------------------------------------------------------------------------------------------------

    def _work(self, schedule: Schedule, saved: float) -> Callable[[], Any]:
        """What the session does when the fault comes: many short calls, or one long one, until `self._enough`."""
        model, session = self.model, self.session
        if schedule.when == "step":
            return lambda: session.run(model.visits, {model.rounds: schedule.rounds})
        if schedule.when == "transfer":
            return lambda: session.run(model.transfer)
        if schedule.when == "update":

            def update() -> None:
                for _ in range(5 if schedule.what == "slow" else 200):
                    session.run(model.update, {model.number: 1.0})
                    self.moved = time.monotonic()

            return update
        if schedule.when == "save":
            return lambda: self._save(saved)
        return lambda: session.run(model.read)

    def play(self, schedule: Schedule) -> None:
        """Play one schedule and check the promises. AssertionError: one is broken; TimeoutError: a call hangs."""
        bound = self.peer_timeout_s + SLACK_S
        before = self.value
        saved = before + 1.0
        with self._bystander() as bystander:
            if schedule.when == "transfer":  # large tensors take long enough to be met on their way
                for job in ("b", "c"):
                    self._says(job, "rate:16")
            work = self._work(schedule, saved)
            call = None if schedule.when == "idle" else Call(work)
            time.sleep(schedule.after_s)
            self._strike(schedule)
            struck = time.monotonic()
            healed = Call(lambda: (time.sleep(schedule.heal_s), self._heal(schedule)))
            calls = 0
            is_brief = schedule.what in ("stop", "cut") and schedule.heal_s < self.peer_timeout_s
            limit = WORK_S if schedule.what == "slow" or is_brief else bound
            while True:
                if call is None:
                    call = Call(work)
                since = self.moved = time.monotonic()
                # An update of many steps goes on where the fault does not reach it, as a cut does not reach shared memory.
                while not call.ended(max(0.0, self.moved + limit - time.monotonic())):
                    now = time.monotonic()
                    if now - self.moved >= limit or now - since > WORK_S:
                        raise TimeoutError(
                            f"{schedule}: call {calls} has not ended, {now - struck:.1f} s after the fault"
                        )
                waited = time.monotonic() - self.moved
                late = f"{schedule}: an error after {waited:.1f} s: {call.error}"
                assert call.error is None or not is_brief or waited < bound, late
                self._check(schedule, call, before, saved)
                calls += 1
                if call.error is not None or calls > 3 or time.monotonic() - struck > schedule.heal_s:
                    break
                call = None
            assert healed.ended(RECOVERY_S) and healed.error is None, f"{schedule}: cannot heal: {healed.error!r}"
            for job in ("b", "c"):
                self._says(job, "")
            self._recover(schedule, {before, saved})
            assert bystander.errors == [], f"{schedule}: the bystander: {bystander.errors[0]!r}"
            assert bystander.slowest_s < bound, f"{schedule}: the bystander waited {bystander.slowest_s:.1f} s"
            held = self.held()
            assert max(held[job] for job in JOBS) < MOST_DESCRIPTORS, f"{schedule}: descriptors: {held}"

    def play_one_way(self, source: str, target: str) -> None:
        """Nothing that one task sends to another one gets there, and all else does: the step ends, and the next one works again."""
        model, way = self.model, "cut:" + self.cluster.target(target).removeprefix("zmq://")
        call = Call(lambda: self.session.run(model.visits, {model.rounds: 10_000_000}))
        self._says(source, way)
        # How long the tasks wait says `runtime/rpc/failure_detection.py`; its tests look at the time.
        assert call.ended(60.0), "the step hangs"
        assert isinstance(call.error, tf.errors.UnavailableError), call.error
        assert f"/job:{source}" in str(call.error) and f"/job:{target}" in str(call.error), call.error
        self._says(source, "")
        self._recover(Schedule("cut", source, "step", 0.0, 0.0), {self.value})

    def _check(self, schedule: Schedule, call: Call, before: float, saved: float) -> None:
        """A call that ended did so rightly."""
        if call.error is not None:
            if not isinstance(call.error, ERRORS):
                raise AssertionError(f"{schedule}: {type(call.error).__name__}: {call.error}") from call.error
            text = str(call.error)
            assert "localhost:" in text or "/job:" in text, f"{schedule}: the error names nobody: {text}"
            assert schedule.what != "slow", f"{schedule}: slow is no fault: {text}"
        elif schedule.when == "step":
            assert call.value == 3 * schedule.rounds, f"{schedule}: {call.value}"
        elif schedule.when == "transfer":
            assert call.value.tolist() == [before, before], f"{schedule}: {call.value}"
        elif schedule.when == "idle":
            assert call.value.tolist() == [before] * 4, f"{schedule}: {call.value}"

    def _recover(self, schedule: Schedule, possible: set[float]) -> None:
        """The same session works again, or, if its master was lost, a new one; state comes back from the last checkpoint."""
        model = self.model
        deadline = time.monotonic() + RECOVERY_S
        restored = False
        while True:
            assert time.monotonic() < deadline, f"{schedule}: no recovery"
            try:
                values, *counts = self.session.run([model.read, *model.counts])
                break
            except tf.errors.FailedPreconditionError:
                assert not restored, f"{schedule}: restoring gave no values"
                try:
                    model.saver.restore(self.session, tf.train.latest_checkpoint(str(model.folder)))
                    restored = True
                except ERRORS as e:
                    self._again(e)
            except ERRORS as e:
                self._again(e)
        for count in counts:
            assert count.min() == count.max(), f"{schedule}: half an update: {count.min()}, {count.max()}"
        found = set(values.tolist())
        if restored or schedule.when != "save":
            assert len(found) == 1, f"{schedule}: a mixture of {found}"
        assert found <= possible, f"{schedule}: {found}, not {possible}"
        try:
            self._save(max(possible))
            assert self.session.run(model.read).tolist() == [self.value] * 4
            assert self.session.run(model.visits, {model.rounds: 3}) == 9.0
        except ERRORS as e:
            raise AssertionError(f"{schedule}: after recovery: {e}") from e

    def _again(self, error: Exception) -> None:
        if "Session" in str(error) and "not found" in str(error):
            self.session.close()
            self.session = self._open()
        else:
            time.sleep(0.05)

    # --- the bystander -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _bystander(self) -> Iterator[Bystander]:
        bystander = Bystander(self.cluster.target("d"), self.peer_timeout_s)
        try:
            yield bystander
        finally:
            bystander.stop()

    # --- what is left ------------------------------------------------------------------------------------------------

    def held(self) -> dict[str, int]:
        """How many descriptors each process has."""
        pids = {job: self.cluster.process(job, 0).pid for job in JOBS} | {"client": os.getpid()}
        return {name: sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()) for name, pid in pids.items()}


def kept_open() -> dict[str, int]:
    """What this process holds of what clusters need: sockets, shared memory of others, and child processes.

    Segments and stream sockets have no names, so none of theirs can be left in a folder.
    """
    gc.collect()
    mapper.let_go()
    kinds = {"sockets": 0, "memory": len(mapper)}
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the folder is gone
            kinds["sockets"] += str(descriptor.readlink()).startswith("socket:")
    kinds["processes"] = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            kinds["processes"] += int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid()
    return kinds


def wait_until_gone(before: dict[str, int], timeout_s: float = 60.0) -> None:
    """Wait until this process holds no more than before. AssertionError: it goes on holding it."""
    deadline = time.monotonic() + timeout_s
    while any(now > before[kind] for kind, now in kept_open().items()):
        assert time.monotonic() < deadline, f"held before: {before}; now: {kept_open()}"
        time.sleep(0.2)


class Bystander:
    """A session on the task "d" alone, that runs steps all the time."""

    def __init__(self, target: str, peer_timeout_s: float) -> None:
        self.errors: list[BaseException] = []
        self.slowest_s = 0.0
        self.steps = 0
        self._stop = threading.Event()
        graph = tf.Graph()
        with graph.as_default(), tf.device("/job:d"):
            self._x = tf.placeholder(tf.float32, [])
            self._y = self._x + 1.0
        config = tf.ConfigProto(peer_timeout_s=peer_timeout_s, device_filters=["/job:d"])
        self._session = tf.Session(target, graph=graph, config=config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.02):
                began = time.monotonic()
                assert self._session.run(self._y, {self._x: self.steps}) == self.steps + 1
                self.steps += 1
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        except BaseException as e:
            self.errors.append(e)

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        self._thread.join(10.0)
        self._session.close()


def main() -> None:
    """Play random schedules and print how each went; status 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="leave out so many")
    arguments = parser.parse_args()
    broken = 0
    before = kept_open()
    began = time.monotonic()
    folder = tempfile.TemporaryDirectory()
    suites = 0
    suite: Suite | None = None
    for number, schedule in enumerate(schedules(arguments.count, arguments.seed)):
        if number < arguments.first:
            continue
        if suite is None:
            suites += 1
            place = Path(folder.name, str(suites))
            place.mkdir()
            suite = Suite(place)
        at = time.monotonic()
        try:
            suite.play(schedule)
            print(f"{number:4} {time.monotonic() - at:5.1f} s  {schedule}", flush=True)
        except (AssertionError, TimeoutError, tf.errors.OpError) as e:
            broken += 1
            print(f"{number:4} BROKEN  {type(e).__name__}: {e}", flush=True)
            suite.close()
            suite = None
    if suite is not None:
        print(suite.held())
        suite.close()
        wait_until_gone(before)
    print(f"{arguments.count - arguments.first} schedules, {broken} broken, {time.monotonic() - began:.0f} s")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
