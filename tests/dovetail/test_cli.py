"""The command line: what each command prints, and that mistakes end with a line, not with a traceback."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import dovetail as tf
from dovetail.cli import app

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`python -m dovetail` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "dovetail", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_version() -> None:
    with start("version") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, f"dovetail {tf.__version__}\n", "")


def test_help_names_the_commands() -> None:
    text = invoke("--help").output
    assert [name for name in ("demo", "devices", "server", "version") if name not in text] == []


def test_the_command_line_itself_loads_nothing_heavy() -> None:
    heavy = ("zmq", "sklearn", "scipy", "networkx")
    code = f"import dovetail.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class TestDevices:
    def test_this_machine(self) -> None:
        assert invoke("devices").output == "/job:localhost/replica:0/task:0/device:CPU:0\n"

    def test_emulated_devices_are_named_as_such(self) -> None:
        lines = invoke("devices", DOVETAIL_EMULATE_GPUS="2").output.splitlines()
        assert lines[1:] == [
            "/job:localhost/replica:0/task:0/device:GPU:0 (emulated)",
            "/job:localhost/replica:0/task:0/device:GPU:1 (emulated)",
        ]

    def test_of_a_cluster(self) -> None:
        config = tf.ConfigProto(device_count={"CPU": 2})
        with tf.train.Server({"local": ["localhost:0"]}, config=config) as server:
            lines = invoke("devices", "--target", server.target).output.splitlines()
        assert lines == [f"/job:local/replica:0/task:0/device:CPU:{i}" for i in range(2)]

    def test_a_target_of_another_form(self) -> None:
        result = invoke("devices", "--target", "http://x:1")
        assert result.exit_code == 1
        assert result.stderr.startswith("error: No session can be made for target 'http://x:1'")


class TestServer:
    @pytest.mark.slow
    def test_serves_until_ctrl_c(self) -> None:
        with start("server", "--cluster", '{"ps": ["localhost:0"]}', "--cpus", "2") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[:2] == [f"/job:ps/replica:0/task:0/device:CPU:{i}\n" for i in range(2)]
            target = lines[2].split(" at ")[1].split(";")[0]
            with tf.Graph().as_default(), tf.Session(target) as session:
                assert session.run(tf.constant(20) + 22) == 42
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "Stopped.\n", "")

    @pytest.mark.slow
    def test_finds_itself_in_tf_config(self) -> None:
        cluster = {"ps": ["localhost:0"], "worker": ["localhost:0"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
        with start("server", TF_CONFIG=config) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "/job:worker/replica:0/task:0/device:CPU:0\n"
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        assert process.returncode == 0

    @pytest.mark.parametrize(
        ("arguments", "config", "said"),
        [
            ([], "", "Give --cluster, --job and --task, or set TF_CONFIG"),
            ([], "{", "it is '{'"),
            (["--cluster", "{"], "", "--cluster='{' is no JSON"),
            (["--cluster", "[1]"], "", "`cluster` must be a dictionary"),
            (
                ["--cluster", '{"a": ["localhost:0"]}', "--job", "b"],
                "",
                "The cluster has no job 'b'; its jobs: a",
            ),
            (["--cluster", '{"a": ["localhost:0"]}', "--task", "1"], "", "Job 'a' has no task 1"),
            (["--cluster", '{"a": ["x:0"], "b": ["y:0"]}'], "", "Must specify an explicit `job_name`"),
            (["--cluster", '{"a": ["localhost"]}'], "", "has no port"),
            (["--cluster", '{"a": ["0.0.0.0:0"]}'], "", "(here: --insecure)"),
        ],
    )
    def test_mistakes(self, arguments: list[str], config: str, said: str) -> None:
        result = invoke("server", *arguments, TF_CONFIG=config)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert said in result.stderr


class TestDemo:
    def test_without_scikit_learn_it_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(sys.modules, "sklearn", None)
        result = invoke("demo", "--out", str(tmp_path))
        assert result.exit_code == 1
        assert "pip install 'dovetail[demo]'" in result.stderr
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("option", ["--steps", "--ps", "--workers"])
    def test_numbers_must_be_positive(self, option: str) -> None:
        assert invoke("demo", option, "0").exit_code == 2
