"""A cluster ends with the program that started it, however that ends; else the watch sees it."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import dovetail as dt


def test_a_process_that_is_left_behind_fails_its_test(watch: Any) -> None:
    before = watch.alive()
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    deadline = time.monotonic() + 5
    while left.pid not in watch.alive():
        assert time.monotonic() < deadline
    with pytest.raises(pytest.fail.Exception, match=f"outlived their test: {{{left.pid}: "):
        watch.check(before, timeout_s=0.1)
    assert left.wait(5) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "number", "status"),
    [
        ("fails", None, 1),
        ("runs", signal.SIGINT, -signal.SIGINT),
        ("runs", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["fails", "Ctrl-C in a step", "killed in a step"],
)
def test_a_cluster_ends_with_its_program(
    watch: Any, start: Callable, how: str, number: int | None, status: int
) -> None:
    before = watch.alive()
    owner = start("cluster_owner.py", how)
    tasks = {int(pid) for pid in owner.stdout.readline().split()}
    assert len(tasks) == 2
    if number is not None:
        assert tasks <= set(watch.alive())
        owner.send_signal(number)
    _, err = owner.communicate(timeout=15)
    assert owner.returncode == status
    assert ("this program is wrong" in err) == (how == "fails")
    assert watch.wait_for_end(before, 5) == {}


@pytest.mark.slow
def test_the_end_of_a_child_is_named_by_its_parent_without_waiting_for_silence() -> None:
    """The step waits for a task that would count as silent after ten minutes."""
    config = dt.ConfigProto(peer_timeout_s=600.0)
    with dt.Graph().as_default(), dt.LocalCluster({"ps": 1, "worker": 1}) as cluster:
        with dt.device("/job:ps/task:0"):
            queue = dt.queue.FIFOQueue(1, [dt.float32])
            value, size, fill = queue.dequeue(), queue.size(), queue.enqueue(1.0)
        with dt.Session(cluster.target("worker"), config=config) as session:
            session.run(fill)
            assert session.run(value) == 1.0  # the step is prepared: a master that waits for a task is not its parent
            found: list[str] = []

            def step() -> None:
                with pytest.raises(dt.errors.UnavailableError) as error:
                    session.run(value)
                found.append(str(error.value))

            thread = threading.Thread(target=step)
            thread.start()
            cluster.kill("ps", 0)
            thread.join()
        address = cluster.cluster_spec.task_address("ps", 0)
        assert f"The process of /job:ps/replica:0/task:0 at {address} was ended by signal 9 while this " in found[0]
        assert "restore or initialise its variables" in found[0]
        cluster.start("ps", 0)
        cluster.wait_until_up()
        with dt.Session(cluster.target("worker"), config=config) as session:
            assert session.run(size) == 0
