"""Batch scripts for Slurm, and the environment that its tasks find. The last test needs a Slurm that runs; it is skipped without one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dovetail.distribute.launchers.slurm_script import script
from dovetail.tools.cli import app
from dovetail.tools.cli.common import from_slurm

CLUSTER = {"jobs": {"ps": 1, "worker": 2}, "resources": {"ps": {"memory": "1 GiB"}, "worker": {"cpus": 4, "gpus": 1}}}


def options(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_each_task_gets_the_most_that_any_takes() -> None:
    text = script(CLUSTER, ["python", "train.py"], options=["--time=1:00"])
    assert options(text) == [
        "--job-name=dovetail", "--ntasks=3", "--cpus-per-task=4", "--mem-per-cpu=256M", "--gpus-per-task=1", "--time=1:00",
    ]  # fmt: skip
    assert options(script({"jobs": {"worker": 2}}, ["x"])) == ["--job-name=dovetail", "--ntasks=2", "--cpus-per-task=1"]


def test_the_program_is_the_last_command_of_a_script_that_bash_reads(tmp_path: Path) -> None:
    text = script(CLUSTER, ["python", "my train.py", "--rate=$RATE"])
    assert text.splitlines()[-1] == "python 'my train.py' '--rate=$RATE'"
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


@pytest.mark.parametrize(
    ("described", "program", "text"),
    [
        ({"jobs": {"ps": ["a:1"]}}, ["x"], "must have a number of tasks"),
        ({"jobs": {"ps": 1}}, [], "Which program"),
        ({"jobs": {"ps": 1}, "resources": {"ps": {"cpus": 0}}}, ["x"], "cpus"),
    ],
)
def test_malformed_clusters(described: Any, program: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        script(described, program)


def test_options_after_the_file_are_the_programs(tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["slurm", "script", "-o", "--nodes=2", "worker=1", "python", "train.py", "-o", "x"])
    assert printed.output == script({"jobs": {"worker": 1}}, ["python", "train.py", "-o", "x"], options=["--nodes=2"])


def test_the_target_is_the_address_that_the_worker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    asked = CliRunner().invoke(app, ["slurm", "target", "ps=1,worker=2"])
    assert asked.exit_code == 2 and "no batch job of Slurm" in asked.output
    with pytest.raises(ValueError, match="srun"):
        from_slurm("ps=1,worker=2", 20_000)

    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1,2")
    printed = CliRunner().invoke(app, ["slurm", "target", "ps=1,worker=2", "--port-base", "20000"])
    assert printed.output == "zmq://n2:20000\n"

    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1,2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cluster, job, index = from_slurm("ps=1,worker=2", 20_000)
    assert (json.loads(cluster), job, index) == ({"ps": ["n1:20000"], "worker": ["n2:20000", "n2:20001"]}, "worker", 0)
    with pytest.raises(ValueError, match="must agree"):
        from_slurm("worker=2", 20_000)


def slurm_runs() -> bool:
    if shutil.which("sinfo") is None:
        return False
    listed = subprocess.run(["sinfo", "--noheader", "--format=%D", "--states=idle"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and sum(map(int, listed.stdout.split())) >= 2


@pytest.mark.slow
@pytest.mark.skipif(not slurm_runs(), reason="no Slurm with two idle nodes")
def test_a_program_runs_on_slurm(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, dovetail as dt\n"
        "with dt.device('/job:ps'):\n"
        "    v = dt.Variable(2.0)\n"
        "with dt.device('/job:worker/task:1'):\n"
        "    y = v * 3.0\n"
        "with dt.Session(os.environ['TARGET']) as session:\n"
        "    session.run(v.initializer)\n"
        "    print(session.run(y), len(session.list_devices()))\n"
        "raise SystemExit(7)\n"
    )
    options = ["--nodes=2", "--output=out.txt"]
    text = script({"jobs": {"ps": 1, "worker": 2}}, [sys.executable, "program.py"], options=options)
    (tmp_path / "job.sh").write_text(text)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "dovetail").write_text(f'#!/bin/sh\nexec {sys.executable} -m dovetail "$@"\n')
    (commands / "dovetail").chmod(0o755)
    root = str(Path(__file__).parents[4])
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": root}
    ended = subprocess.run(["sbatch", "--wait", "job.sh"], cwd=tmp_path, env=environment, check=False, timeout=200)
    said = (tmp_path / "out.txt").read_text()
    assert "6.0 3\n" in said
    assert ended.returncode == 7, said
    assert (tmp_path / "dovetail-keys" / "own.key").exists()
