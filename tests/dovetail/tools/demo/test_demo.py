"""The demo, run as its users run it; and that it leaves no process behind, however it ends."""

import io
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import dovetail as tf
from dovetail.tools.demo.data import load_digits
from dovetail.tools.demo.display import LiveDisplay, PlainDisplay, Training, draw, sparkline
from dovetail.tools.demo.watch import Evaluated, Failed, Finished, Progress, Report, Said, from_line, to_line

ROOT = Path(__file__).resolve().parents[4]
MARK = "DOVETAIL_TEST_MARK"
STEPS = 500  # enough for the promised accuracy


class Demo:
    """A running demo, and the processes that it has started."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "demo", "--out", str(directory), *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, timeout_s: float = 120) -> tuple[int, str, str]:
        """Wait for the end: status, output and error output."""
        with self.process:
            out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def wait_for(self, text: str) -> str:
        """Read its output up to a line with `text`."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"the demo ended without {text!r}:\n" + "".join(lines))

    def children(self) -> dict[int, list[str]]:
        """Process id -> command of every process with this demo's mark, but the demo itself."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    if f"{MARK}={self._mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().decode().split("\0")
                except OSError:  # it has ended, or is somebody else's
                    continue
        return found

    def child(self, module: str) -> int:
        """The process id of one that runs `module`."""
        return next(pid for pid, command in self.children().items() if module in command)

    def leaves_nothing(self, within_s: float = 10) -> bool:
        """Whether all its processes are gone."""
        deadline = time.monotonic() + within_s
        while self.children():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """Kill whatever is left."""
        if self.process.poll() is None:
            self.process.kill()
        for pid in self.children():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Demo]]:
    started: list[Demo] = []

    class Started(Demo):
        def __init__(self, *arguments: str) -> None:
            super().__init__(tmp_path, *arguments)
            started.append(self)

    yield Started
    for demo in started:
        demo.kill()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["--in-graph"]], ids=["between-graph", "in-graph"])
def test_learns_and_tells(start: type[Demo], tmp_path: Path, mode: list[str]) -> None:
    demo = start("--steps", str(STEPS), *mode)
    status, out, err = demo.finish()
    assert (status, err) == (0, "")
    assert demo.leaves_nothing()

    found = re.search(r"Held-out accuracy ([\d.]+)% \((\d+) of 450 digits\), (\d+) steps", out)
    assert found is not None, out
    accuracy, right, steps = float(found[1]) / 100, int(found[2]), int(found[3])
    assert accuracy >= 0.95
    assert accuracy == pytest.approx(right / 450, abs=1e-4)
    assert STEPS <= steps <= STEPS + 2  # asynchronous workers notice the end one step late
    for worker in range(2):
        assert re.search(rf"worker {worker}: loss \d\.\d+, \d+ steps/s", out)

    assert {p.name for p in tmp_path.iterdir()} == {"plan.txt", "graph.dtg"}
    told = (tmp_path / "plan.txt").read_text(encoding="utf-8")
    assert told.strip() and all(line in out for line in told.splitlines())  # the same is shown
    workers = 2 if mode else 1
    for worker in range(workers):
        assert f"/job:worker/task:{worker}/CPU:0 -> /job:ps/task:0/CPU:0: " in told
        assert f"/job:worker/task:{worker}/CPU:0 -> /job:ps/task:1/CPU:0: " in told
        assert f"/job:ps/task:1/CPU:0 -> /job:worker/task:{worker}/CPU:0: 257.0 KiB per step" in told
    assert re.search(r"classifier/hidden_2/weights/read:0 +float32 \[256, 256\] +256.0 KiB", told)


@pytest.mark.slow
def test_the_saved_graph_is_the_one_that_was_trained(start: type[Demo], tmp_path: Path) -> None:
    assert start("--steps", "5").finish()[0] == 0
    graph = tf.load_graph(tmp_path / "graph.dtg")
    plan = tf.place(graph, {"ps": 2, "worker": 2}, fetches=["train", "loss:0"])
    assert plan.placement["classifier/hidden_1/weights"] == "/job:ps/replica:0/task:0/device:CPU:0"
    assert plan.placement["classifier/hidden_2/weights"] == "/job:ps/replica:0/task:1/device:CPU:0"
    assert plan.placement["loss"] == "/job:worker/replica:0/task:0/device:CPU:0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "module", "named"),
    [
        ([], "dovetail.tools.demo.worker", "/job:worker/task:"),
        ([], "dovetail.runtime.server.process", "/job:ps/task:"),
        (["--in-graph"], "dovetail.runtime.server.process", "/job:"),
    ],
    ids=["worker", "ps", "in-graph"],
)
def test_a_killed_process_ends_it(start: type[Demo], mode: list[str], module: str, named: str) -> None:
    demo = start("--steps", "1000000", *mode)
    demo.wait_for("held-out accuracy")
    os.kill(demo.child(module), signal.SIGKILL)
    status, _, err = demo.finish(60)
    assert status == 1
    assert err.startswith(f"error: The process of {named}") and err.endswith(" was ended by signal 9\n")
    assert demo.leaves_nothing()


@pytest.mark.slow
def test_a_silent_process_ends_it(start: type[Demo], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_ONE_SIDED_UPDATES", "0")  # else the workers need nothing of a ps, and go on without it
    demo = start("--steps", "1000000")
    demo.wait_for("held-out accuracy")
    os.kill(demo.child("dovetail.runtime.server.process"), signal.SIGSTOP)
    status, _, err = demo.finish(60)
    assert status == 1
    assert re.match(r"error: Worker \d failed: UnavailableError: /job:ps/replica:0/task:\d at localhost", err)
    assert demo.leaves_nothing()


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["--in-graph"]], ids=["between-graph", "in-graph"])
def test_ctrl_c_is_clean(start: type[Demo], mode: list[str]) -> None:
    demo = start("--steps", "1000000", *mode)
    demo.wait_for("held-out accuracy")
    assert len(demo.children()) == 4
    demo.process.send_signal(signal.SIGINT)
    status, _, err = demo.finish(60)
    assert (status, err.strip()) == (130, "Stopped. Nothing is left running.")
    assert demo.leaves_nothing(0)


@pytest.mark.slow
def test_no_process_outlives_a_killed_demo(start: type[Demo]) -> None:
    demo = start("--steps", "1000000")
    demo.wait_for("held-out accuracy")
    demo.process.kill()
    demo.finish(60)
    assert demo.leaves_nothing()


class TestData:
    def test_a_quarter_of_each_class_is_held_out(self) -> None:
        digits = load_digits()
        assert len(digits.train_labels) + len(digits.test_labels) == 1797
        for label in range(10):
            train, test = int((digits.train_labels == label).sum()), int((digits.test_labels == label).sum())
            assert test == round(0.25 * (train + test))

    def test_no_held_out_digit_is_trained_on(self) -> None:
        digits = load_digits()
        trained = {image.tobytes() for image in digits.train_images}
        assert not trained & {image.tobytes() for image in digits.test_images}
        batches = digits.batches(64, seed=0)
        for _ in range(100):
            images, _ = next(batches)
            assert {image.tobytes() for image in images} <= trained

    def test_every_process_holds_out_the_same(self) -> None:
        a, b = load_digits(), load_digits()
        assert np.array_equal(a.test_images, b.test_images) and np.array_equal(a.train_labels, b.train_labels)

    def test_images_keep_their_labels(self) -> None:
        digits = load_digits()
        pairs = zip(digits.train_images, digits.train_labels, strict=True)
        known = {image.tobytes(): label for image, label in pairs}
        images, labels = next(digits.batches(64, seed=3))
        assert [known[image.tobytes()] for image in images] == list(labels)

    def test_a_pass_takes_each_digit_at_most_once(self) -> None:
        digits = load_digits()
        batches = digits.batches(100, seed=0)
        seen = [image.tobytes() for _ in range(13) for image in next(batches)[0]]
        assert len(set(seen)) == len(seen) == 1300


class TestReports:
    @pytest.mark.parametrize("report", [Progress(1, 5, 9, 0.25, 100.0), Finished(0), Failed(1, 'no "way"\nout')])
    def test_travel_as_lines(self, report: Progress | Finished | Failed) -> None:
        line = to_line(report)
        assert "\n" not in line
        assert from_line(line, "/job:worker/task:0") == report

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "Warn",
            "3",
            "[]",
            '{"report": "Progress"}',
            '{"report": "Said"}',
            '{"worker": 1}',
            '{"report": []}',
        ],
    )
    def test_any_other_line_was_only_said(self, line: str) -> None:
        assert from_line(line, "/job:ps/task:1") == Said("/job:ps/task:1", line)


def trained(*reports: Report) -> Training:
    training = Training.of(workers=2, last_step=100)
    for report in reports:
        training.take(report)
    return training


class TestDisplay:
    def test_training_is_done_when_all_workers_are(self) -> None:
        assert not trained(Finished(0)).done
        assert trained(Finished(0), Finished(1)).done

    def test_plain_lines_tell_all(self) -> None:
        out = io.StringIO()
        with PlainDisplay(Console(file=out, width=40)) as display:
            display.show(trained())
            both = Progress(0, 5, 9, 0.25, 100.4), Progress(1, 4, 8, 0.5, 90.0)
            display.show(trained(*both, Evaluated(0.875, None)))
        assert out.getvalue() == (
            "step   9/100   worker 0: loss 0.2500, 100 steps/s   worker 1: loss 0.5000, 90 steps/s   "
            "held-out accuracy 0.8750\n"
        )

    def test_no_line_shows_a_step_beyond_the_last(self) -> None:
        out = io.StringIO()
        with PlainDisplay(Console(file=out, width=40)) as display:
            display.show(trained(Progress(0, 60, 101, 0.25, 100.4)))
        assert out.getvalue().startswith("step 100/100 ")

    def test_plain_lines_come_once_a_second_at_most(self) -> None:
        out = io.StringIO()
        with PlainDisplay(Console(file=out, width=40)) as display:
            for step in range(1, 50):
                display.show(trained(Progress(0, step, step, 0.25, 100.0)))
        assert len(out.getvalue().splitlines()) == 1

    @pytest.mark.parametrize("width", [20, 80, 200])
    def test_the_picture_fits_the_terminal(self, width: int) -> None:
        digits = load_digits()
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
        wrong = (digits.test_labels + 1) % 10
        training = trained(Progress(0, 5, 9, 0.25, 100.4), Evaluated(0.0, wrong))
        with console.capture() as capture, LiveDisplay(console, digits) as display:
            display.show(training)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get())
        assert "1 ✗" in text and "✓" not in text
        assert max(map(len, text.splitlines())) <= width

    def test_curves(self) -> None:
        assert sparkline([]) == ""
        assert sparkline([1.0, 1.0]) == "▁▁"
        assert sparkline([0.0, 1.0, 2.0], width=3) == "▁▅█"
        assert sparkline([float(i) for i in range(100)], width=8) == "▁▂▃▄▅▆▇█"

    def test_a_digit_is_drawn_two_rows_a_line(self) -> None:
        image = np.zeros((8, 8), np.float32)
        image[1, 2] = 1.0
        text = draw(image.reshape(64))
        assert text.plain == "\n".join(["▀" * 8] * 4)
        assert str(text.spans[2].style) == "rgb(0,0,0) on rgb(255,255,255)"
