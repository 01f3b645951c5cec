"""`dovetail run`: real clusters, a program on each, and their common end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.distribute.launchers.engines import ClusterDescription, local_cluster
from dovetail.placer.cluster.file_format import ClusterFile, checked
from dovetail.runtime.server.running_cluster import ClusterMonitor
from dovetail.tools.cli import app
from dovetail.tools.cli.lock_file import read_up

ROOT = Path(__file__).resolve().parents[4]
WAIT_S = 60.0
CLIENT = """
import os, sys, dovetail as dt
with dt.device("/job:ps"):
    v = dt.get_variable("v", initializer=20.0)
with dt.device("/job:worker/task:1/gpu:0"):
    y = v + 1.0
print("to stderr", file=sys.stderr)
with dt.Session(os.environ["TARGET"]) as session:
    session.run(v.initializer)
    print(session.run(y), len(session.list_devices()), os.environ["CHECKPOINT_DIR"], *sys.argv[1:])
strategy = dt.distribute.experimental.ParameterServerStrategy(dt.distribute.cluster_resolver.TFConfigClusterResolver())
raise SystemExit(7)
"""
EACH = """
import os, pathlib, signal, dovetail as dt
resolver = dt.distribute.cluster_resolver.TFConfigClusterResolver()
server = dt.train.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id)
config = dt.ConfigProto(device_filters=["/job:ps"])  # the other worker may have finished
with dt.Session(server.target, config=config) as session:
    print(session.run(dt.constant(40) + 2))
mark = pathlib.Path("mark")
if resolver.task_id == 1 and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
WAITS = """
import pathlib, time
try:
    pathlib.Path("began").touch()
    time.sleep(300)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(5)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dovetail", *words]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command(*words), cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(
        "jobs: {ps: 1, worker: 2}\ndevices: {worker: [cpu:0, {name: gpu:0, emulated: true}]}\ncheckpoint: kept\nkeys: keys\n"
    )
    for name, text in (("client", CLIENT), ("each", EACH), ("waits", WAITS)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.mark.slow
def test_a_program_is_the_client_of_a_cluster_that_is_started_or_is_up(folder: Path) -> None:
    alone = run(folder, "run", "cluster.yaml", "client.py", "--rate", "1")
    said = f"21.0 5 {folder / 'kept'} --rate 1\n"
    assert (alone.returncode, alone.stdout) == (7, said), alone.stderr
    assert "to stderr" in alone.stderr and (folder / "keys" / "own.key").exists()
    assert not (folder / "cluster.yaml.up").exists()

    assert run(folder, "up", "-d", "cluster.yaml").returncode == 0
    try:
        beside = run(folder, "run", "cluster.yaml", "client.py", "--rate", "1")
        assert (beside.returncode, beside.stdout) == (7, said), beside.stderr
        assert len(read_up(folder / "cluster.yaml")["targets"]) == 3
        each = run(folder, "run", "--each", "cluster.yaml", "each.py")
        assert each.returncode == 2 and "is up, and its tasks run servers" in each.stderr
    finally:
        assert run(folder, "down", "cluster.yaml").returncode == 0


@pytest.mark.slow
def test_a_file_says_that_variables_are_kept_twice(tmp_path: Path) -> None:
    described = ClusterDescription.read("{jobs: {ps: 2, worker: 1}, ps_replicas: 2}")
    assert described.environment() == {"DOVETAIL_PS_REPLICAS": "2"}
    with local_cluster(described) as cluster, ClusterMonitor(cluster.target().removeprefix("zmq://")) as monitor:
        kept = {status.task: (status.figures or {}).get("replicated_by") for status in monitor.look()}
        assert len(kept) == 3 and [bool(by) for by in kept.values()] == ["/job:ps/" in task for task in kept]


@pytest.mark.slow
def test_each_task_runs_the_program_again_where_it_failed(folder: Path) -> None:
    found = run(folder, "run", "--each", "--restarts", "1", "cluster.yaml", "each.py")
    assert found.returncode == 0, found.stderr
    said = [line for line in found.stdout.splitlines() if line.endswith("| 42")]
    assert sorted(said) == ["worker:0 | 42", "worker:1 | 42", "worker:1 | 42"]
    assert "/job:worker/task:1 was ended by signal 9; it restarts in" in found.stderr
    (folder / "mark").unlink()
    failed = run(folder, "run", "--each", "cluster.yaml", "each.py")
    assert failed.returncode == 128 + signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
def test_an_interrupt_ends_the_program_and_then_all_tasks(folder: Path, each: bool) -> None:
    if each:  # a program without a server never answers
        (folder / "waits.py").write_text(EACH.split("mark =")[0] + WAITS)
    words = command("run", *(["--each"] if each else []), "cluster.yaml", "waits.py")
    process = subprocess.Popen(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + WAIT_S
        while not (
            (folder / "began").exists()
            and (folder / "cluster.yaml.up").exists()
            and (folder / "cluster.yaml.up").stat().st_size
        ):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        pids = read_up(folder / "cluster.yaml")["processes"].values()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "interrupted" in out
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["client.py"], "The cluster comes first: dovetail run ps=1,worker=2 client.py"),
        (
            ["client.py", "--each", "--rate", "1"],
            "The cluster comes first: dovetail run --each ps=1,worker=2 client.py --rate 1",
        ),
        (["cluster.yaml"], "There is no program: dovetail run cluster.yaml train.py"),
    ],
)
def test_a_command_without_cluster_or_program_is_corrected(words: list[str], told: str) -> None:
    found = CliRunner().invoke(app, ["run", *words])
    assert found.exit_code == 2 and found.stderr == f"error: {told}\n"


def fake(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that stands in for an engine's."""
    (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_kubectl_starts_a_cluster_runs_a_program_in_a_pod_and_deletes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    notes = f"""
        echo "$@" >> {folder}/said
        [ "$1" != get ] || exit 1
        [ "$1" = rollout ] || cat > {folder}/$1
        [ "$1" != exec ] || exit 3
    """
    fake(folder, "kubectl", notes, monkeypatch)
    ran = CliRunner().invoke(
        app, ["run", "--on", "k8s", "--image", "dovetail:1", "cluster.yaml", "client.py", "--rate", "1"]
    )
    assert ran.exit_code == 3, ran.output
    assert (folder / "exec").read_text() == CLIENT
    assert "kind: StatefulSet" in (folder / "apply").read_text() and "stringData" in (folder / "apply").read_text()
    asked, applied, *rollouts, ran_in, deleted = (folder / "said").read_text().splitlines()
    assert (asked, applied, deleted) == (
        "get statefulset/dovetail-worker",
        "apply -f -",
        "delete -f - --ignore-not-found",
    )
    assert [r.split()[2] for r in rollouts] == ["statefulset/dovetail-ps", "statefulset/dovetail-worker"]
    assert ran_in.startswith(
        "exec -i dovetail-worker-0 -c server -- env TARGET=zmq://dovetail-worker-0.dovetail-worker:2222 "
    )
    assert ran_in.endswith("CHECKPOINT_DIR=kept python - --rate 1")
    (folder / "delete").unlink()
    assert CliRunner().invoke(app, ["down", "--on", "k8s", "cluster.yaml"]).exit_code == 0
    assert "kind: StatefulSet" in (folder / "delete").read_text()


def test_outside_of_a_job_slurm_is_asked_for_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(folder, "salloc", f'printf "%s\\n" "$@" > {folder}/said\n', monkeypatch)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    words = ["run", "--on", "slurm", "-o", "--nodes=2", "cluster.yaml", "client.py"]
    assert run(folder, *words).returncode == 0
    said = (folder / "said").read_text().splitlines()
    assert said[:4] == ["--job-name=dovetail", "--ntasks=3", "--cpus-per-task=1", "--nodes=2"]
    assert said[4:] == [sys.executable, "-m", "dovetail", *words]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "ps=1", "nowhere.py"], "There is no program nowhere.py"),
        (["run", "--on", "moon", "ps=1", "x.py"], "not one of local, ray, slurm, k8s"),
        (["run", "--on", "k8s", "ps=1", "x.py"], "No container image is given"),
        (["run", "--on", "k8s", "--each", "ps=1", "x.py"], "the program is the only client"),
        (["run", "--on", "ray", "--each", "ps=1", "true"], "On Ray the program is the only client"),
    ],
)
def test_wrong_use(words: list[str], text: str) -> None:
    wrong = CliRunner().invoke(app, words)
    assert wrong.exit_code == 2
    assert text in " ".join(wrong.output.replace("│", " ").split())


def test_the_file_says_where_keys_and_checkpoints_are() -> None:
    file = checked({"jobs": {"ps": 1}, "keys": "k", "checkpoint": "s3://b/x"}, ClusterFile)
    assert (file.keys, file.checkpoint) == ("k", "s3://b/x")
    described = json.loads(CliRunner().invoke(app, ["cluster", "schema"]).output)["$defs"]["ClusterFile"]["properties"]
    assert {"jobs", "devices", "resources", "links", "master", "keys", "checkpoint", "ps_replicas"} == set(described)
