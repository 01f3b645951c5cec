"""The command line: what each command prints, and that mistakes end with a line, not with a traceback."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

import dovetail as tf
from dovetail.runtime.server.running_cluster import TaskStatus
from dovetail.tools.cli import app
from dovetail.tools.cli.watch import picture

ROOT = Path(__file__).resolve().parents[4]


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
    with start("--version") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, f"dovetail {tf.__version__}\n", "")


WRONG_USE = {
    "plan": ["nowhere.py:f"], "diff": ["nowhere.plan", "nowhere.plan"], "explain": ["nowhere.plan", "node"], "simulate": ["nowhere.plan"],
    "trace": ["nowhere.plan"], "ops": ["--all"], "devices": ["--target", "http://x:1"], "calibrate": ["--cluster", "http://x:1"],
    "demo": ["--strategy", "magic"], "server": ["--cluster", "{"],
    "status": ["nowhere.yaml"], "top": ["ftp://x:1"], "up": ["nowhere.yaml"], "run": ["nowhere.yaml", "x.py"], "down": ["nowhere.yaml"],
    "cluster up": ["nowhere.yaml"], "cluster down": ["nowhere.yaml"],
    "cluster restart": ["nowhere.yaml", "ps:0"],
    "slurm script": ["{", "python"], "k8s manifests": ["{", "--image", "x", "--insecure"],
    "cluster schema": ["word"], "keys new": ["x", "--client", "bob"],
    "keys allow": ["nowhere.pub"], "keys revoke": ["nobody", "--keys", "nowhere"], "keys list": [],
}  # fmt: skip


def commands(group: Any, before: str = "") -> list[str]:
    """The names of all commands, those of groups with the group's name."""
    found = []
    for name, command in group.commands.items():
        found += commands(command, f"{before}{name} ") if hasattr(command, "commands") else [before + name]
    return found


@pytest.mark.parametrize("command", [c for c in commands(typer.main.get_command(app)) if c != "tf1"])
def test_wrong_use_exits_with_2(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOVETAIL_KEYS", raising=False)
    unknown = invoke(*command.split(), "--no-such-option")
    assert unknown.exit_code == 2, unknown.output
    meant = invoke(*command.split(), *WRONG_USE[command])
    assert meant.exit_code == 2, meant.output
    assert "Traceback" not in meant.stderr and meant.stderr
    assert invoke(*command.split(), "--help").exit_code == 0


def test_wrong_use_of_tf1_is_what_python_says() -> None:
    with start("tf1", "--no-such-option") as process:
        assert "unknown option" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


def test_shells_complete_commands_options_and_their_values() -> None:
    def completed(words: str) -> str:
        environment = {"_DOVETAIL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        return CliRunner().invoke(app, [], prog_name="dovetail", env=environment).output

    assert "simulate" in completed("dovetail sim").split()
    assert {"rules", "auto"} <= set(completed("dovetail plan --strategy ").split())
    assert {"--install-completion", "--show-completion"} <= set(invoke("--help").output.split())


def test_help_names_the_commands() -> None:
    text = invoke("--help").output
    assert [name for name in ("demo", "devices", "server", "--version") if name not in text] == []


def test_help_shows_flags_without_a_type_and_arguments_as_the_documentation_does() -> None:
    text = invoke("plan", "--help").output
    assert "plan [OPTIONS] PROGRAM " in text
    assert "bool" not in text and "--check" in text
    assert "'PROGRAM'" in invoke("plan").output


class TestOps:
    def test_an_exact_name_comes_first_with_its_signature_and_other_names(self) -> None:
        text = " ".join(invoke("ops", "soft_max").output.split())
        assert text.startswith("dt.nn.softmax(logits: TensorLike, axis: int | None = None, name: str | None = None")
        assert "-> Tensor exp(x) / sum(exp(x)) along an axis" in text and "Also dt.math.softmax." in text
        assert "dt.nn.log_softmax(" in text and "dt.matmul(" not in text

    def test_all_words_must_match_in_the_name_or_the_description(self) -> None:
        assert invoke("ops", "BiasAdd").output.startswith("dt.nn.bias_add(")
        found = invoke("ops", "product", "dimensions").output
        assert "dt.matmul(a: TensorLike, b: TensorLike" in found and "dt.nn.softmax(" not in found

    def test_what_is_not_found_is_answered_with_a_close_name(self) -> None:
        lost = invoke("ops", "sofmax")
        assert (lost.exit_code, lost.stdout) == (1, "") and "did you mean dt.nn.softmax?" in lost.stderr

    def test_names_that_need_packages_which_are_not_installed_are_left_out(self) -> None:
        lacks = "import sys; sys.modules['google.protobuf'] = sys.modules['tensorboardX'] = None"
        program = f"{lacks}; from dovetail.tools.cli.ops import ops; ops(['softmax'])"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "dt.nn.softmax(" in done.stdout, done.stderr

    def test_without_words_all_are_listed(self) -> None:
        text = invoke("ops").output
        assert [
            n for n in ("dt.matmul(", "dt.losses.log_loss(", "dt.strings.split(", "dt.image.") if n not in text
        ] == []


def test_the_command_line_itself_loads_nothing_heavy() -> None:
    heavy = ("zmq", "sklearn", "scipy", "networkx")
    code = f"import dovetail.tools.cli, sys; print([m for m in {heavy} if m in sys.modules])"
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

    @pytest.mark.slow
    def test_what_was_measured_becomes_a_cluster_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from dovetail.placer.cluster.load import read_cluster
        from dovetail.runtime.session import profiling

        monkeypatch.setattr(profiling, "SIDE", 64)
        monkeypatch.setattr(profiling, "SUMMED", 1 << 20)
        monkeypatch.setattr(profiling, "LARGE", 1 << 20)
        with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster:
            found = invoke(
                "devices", "--measure", "--target", cluster.target("worker"), "--out", str(tmp_path / "c.yaml")
            )
        assert "flop/s" in found.output and "/job:worker/task:0 - /job:ps/task:0" in found.output
        read = read_cluster(tmp_path / "c.yaml")
        assert read.master == "/job:worker/replica:0/task:0" and len(read.devices) == 2
        assert all(d.flops and d.bandwidth for d in read.devices)
        link = read.link("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0")
        assert link is not None and link.latency is not None and link.latency < 1

    def test_only_what_runs_is_measured(self) -> None:
        for arguments in (["--out", "x.yaml"], ["--measure", "--cluster", "x.yaml"]):
            assert invoke("devices", *arguments).exit_code == 2

    def test_a_target_of_another_form(self) -> None:
        result = invoke("devices", "--target", "http://x:1")
        assert result.exit_code == 2
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
            ([], "", "No cluster is given. Pass --cluster, --job and --task, or set TF_CONFIG"),
            ([], "{", "TF_CONFIG is '{'"),
            (["--cluster", "{"], "", "{ is neither JSON nor YAML"),
            (["--cluster", "[1]"], "", "[1] does not describe a cluster"),
            (
                ["--cluster", '{"a": ["localhost:0"]}', "--job", "b"],
                "",
                "The cluster has no job 'b'; its jobs: a",
            ),
            (["--cluster", '{"a": ["localhost:0"]}', "--task", "1"], "", "Job 'a' has no task 1"),
            (["--cluster", '{"a": ["x:0"], "b": ["y:0"]}'], "", "Must specify an explicit `job_name`"),
            (["--cluster", '{"a": ["localhost"]}'], "", "has no port"),
            (["--cluster", '{"a": ["0.0.0.0:0"]}'], "", "(on the command line: --keys and --insecure)"),
        ],
    )
    def test_mistakes(self, arguments: list[str], config: str, said: str) -> None:
        result = invoke("server", *arguments, TF_CONFIG=config)
        assert result.exit_code == 2
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


class TestKeys:
    CLUSTER = '{"ps": ["localhost:2221"], "worker": ["localhost:2222", "localhost:2223"]}'

    def test_a_single_key(self, tmp_path: Path) -> None:
        made = invoke("keys", "new", str(tmp_path / "k"), "--name", "alice")
        assert made.exit_code == 0
        assert f"dovetail keys allow {tmp_path / 'k' / 'alice.pub'}" in made.output.replace("\n", "")
        assert "alice  " in invoke("keys", "list", DOVETAIL_KEYS=str(tmp_path / "k")).output
        again = invoke("keys", "new", str(tmp_path / "k"))
        assert again.exit_code == 1
        assert "is not overwritten" in again.output

    def test_a_cluster_lets_in_and_throws_out(self, tmp_path: Path) -> None:
        folder, alice = str(tmp_path / "c"), tmp_path / "a"
        made = invoke("keys", "new", folder, "--cluster", self.CLUSTER)
        assert "Created keys for 3 tasks and client" in made.output
        invoke("keys", "new", str(alice), "--name", "alice")
        allowed = invoke("keys", "allow", str(alice / "alice.pub"), "--keys", folder)
        assert allowed.output.count("Allowed alice") == 3
        listed = invoke("keys", "list", "--keys", folder).output
        assert listed.count("allows alice") == 3
        assert "expects worker-1" in listed and "at localhost:2223" in listed
        assert invoke("keys", "revoke", "alice", "--keys", folder).output.count("Revoked alice") == 3
        assert "alice" not in invoke("keys", "list", "--keys", folder).output
        assert "No key named 'alice'" in invoke("keys", "revoke", "alice", "--keys", folder).output

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["new"], "No folder of keys is given"),
            (["new", "x", "--client", "bob"], "--client needs --cluster"),
            (["new", "x", "--cluster", '{"ps": 2}'], "give the address of each task"),
            (["new", "x", "--cluster", "{"], "is neither JSON nor YAML"),
            (["list", "--keys", "x"], "does not exist"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str) -> None:
        monkeypatch.chdir(tmp_path)
        result = invoke("keys", *arguments)
        assert result.exit_code == 2
        assert says in result.output

    def test_a_private_key_is_not_to_be_handed_out(self, tmp_path: Path) -> None:
        invoke("keys", "new", str(tmp_path / "k"))
        result = invoke("keys", "allow", str(tmp_path / "k" / "own.key"), "--keys", str(tmp_path / "k"))
        assert result.exit_code == 2
        assert "private key, which stays where it is" in result.output


class TestWatching:
    def test_status_and_top_of_a_server(self) -> None:
        with tf.train.Server.create_local_server() as server:
            shown = invoke("status", server.target)
            assert shown.exit_code == 0
            lines = shown.output.splitlines()
            assert lines[0].split()[:4] == ["task", "at", "state", "up"]
            assert lines[1].split()[:3] == ["/job:local/task:0", server.address, "up"]
            watched = invoke("top", server.target, "--count", "2", "--interval", "0.2")
            assert watched.exit_code == 0
            assert "0.0" in watched.output  # steps per second

    @pytest.mark.slow
    def test_times_of_steps_load_and_queues(self) -> None:
        with tf.LocalCluster({"worker": 1}) as cluster, tf.Graph().as_default():
            queue = tf.FIFOQueue(5, tf.int32, shapes=[()], name="work")
            put, x = queue.enqueue(1), tf.constant(1.0) + tf.placeholder(tf.float32, [], name="x")
            with tf.Session(cluster.target()) as session:
                session.run([put])
                session.run([put])
                for _ in range(20):
                    session.run(x, {"x:0": 1.0})
                address = cluster.target().removeprefix("zmq://")  # the scheme may be left out
                lines = invoke("status", address).output.splitlines()
        head, row = (
            lines[0].split(),
            dict(zip(lines[0].split(), lines[1].replace(" µs", "µs").replace(" ms", "ms").split(), strict=False)),
        )
        assert {"load", "p50", "p90", "p99"} <= set(head)
        assert row["task"] == "/job:worker/task:0" and row["state"] == "up"
        (at,) = [i for i, line in enumerate(lines) if line.startswith("queue ")]
        assert lines[at + 1].split() == ["work", "/job:worker/task:0", "2", "5", "0"]

    def test_a_task_that_is_silent(self) -> None:
        cluster = {"a": ["localhost:0"], "b": ["localhost:9"]}
        with tf.train.Server(cluster, "a", 0) as server:
            shown = invoke("status", server.target)
        assert shown.exit_code == 1
        assert "silent" in shown.output.splitlines()[2]

    def test_nobody_there(self) -> None:
        shown = invoke("status", "zmq://localhost:9")
        assert shown.exit_code == 1
        assert shown.stderr.startswith("error: No server answers at localhost:9, within 2 s")

    def test_a_narrow_screen_gets_the_columns_that_count(self) -> None:
        figures: dict[str, Any] = {
            "up_s": 5.0, "devices": [{"name": "/job:a/replica:0/task:0/device:CPU:0"}], "memory": 1 << 28, "sessions": 1,
            "steps_started": 12345, "steps_running": 1, "steps_failed": 2, "steps_stalled": 0, "refused": 0, "links": [], "steps": [],
        }  # fmt: skip
        views = [
            TaskStatus("/job:worker/replica:0/task:0", "localhost:45031", figures, 1.0),
            TaskStatus("/job:b", "h:1", None, 1.0),
        ]
        shown = {}
        for width in (62, 80, 200):
            console = Console(width=width, file=io.StringIO())
            console.print(picture(views, {}, width))
            assert isinstance(console.file, io.StringIO)
            shown[width] = console.file.getvalue().splitlines()
        assert shown[200][0].split()[-3:] == ["failed", "stalled", "refused"]
        assert shown[80][0].split() == ["task", "at", "state", "memory", "steps", "running", "failed"]
        assert shown[62][0].split() == ["task", "state", "memory", "steps", "running", "failed"]
        assert all("12345" in lines[1] and "silent" in lines[2] for lines in shown.values())
