"""Batch scripts for Slurm, and the environment that its tasks find. The last test needs a Slurm that runs; it is skipped without one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dovetail.distribute.launchers.slurm_cluster import SlurmCluster, script
from dovetail.placer.cluster.file_format import ClusterFile, checked
from dovetail.tools.cli import app
from dovetail.tools.cli.common import from_slurm

CLUSTER = {"jobs": {"ps": 1, "worker": 2}, "resources": {"ps": {"memory": "1 GiB"}, "worker": {"cpus": 4, "gpus": 1}}}


def options(described: Any, **more: Any) -> list[str]:
    text = script(checked(described, ClusterFile), ["true"], **more)
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_each_task_gets_the_most_that_any_takes() -> None:
    assert options(CLUSTER, options=["--time=1:00"]) == [
        "--job-name=dovetail", "--ntasks=3", "--cpus-per-task=4", "--mem-per-cpu=256M", "--gpus-per-task=1", "--time=1:00",
    ]  # fmt: skip
    assert options({"jobs": {"worker": 2}}) == ["--job-name=dovetail", "--ntasks=2", "--cpus-per-task=1"]


def test_the_program_is_the_last_command_of_a_script_that_bash_reads() -> None:
    text = script(checked(CLUSTER, ClusterFile), ["python", "my train.py", "--rate=$RATE"])
    assert text.splitlines()[-1] == "exec python 'my train.py' '--rate=$RATE'"
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


def test_options_after_the_file_are_the_programs() -> None:
    printed = CliRunner().invoke(
        app, ["slurm", "script", "-o", "--nodes=2", "--each", "worker=1", "train.py", "-o", "x"]
    )
    assert printed.output.splitlines()[-2:] == [
        "#SBATCH --nodes=2",
        "exec dovetail run --on slurm --each worker=1 train.py -o x",
    ]
    wrong = CliRunner().invoke(app, ["slurm", "script", "{jobs: {ps: ['a:1']}}", "train.py"])
    assert wrong.exit_code == 2 and "must have a number of tasks" in wrong.output


def test_tasks_and_clients_take_the_same_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match="not in a Slurm job"):
        SlurmCluster({"ps": 1, "worker": 2})
    with pytest.raises(ValueError, match="srun"):
        from_slurm("ps=1,worker=2", 20_000)

    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1,2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cluster, job, index = from_slurm("ps=1,worker=2", 20_000)
    assert (json.loads(cluster), job, index) == ({"ps": ["n1:20000"], "worker": ["n2:20000", "n2:20001"]}, "worker", 0)
    with pytest.raises(ValueError, match="must be equal"):
        from_slurm("worker=2", 20_000)


def slurm_runs() -> bool:
    if shutil.which("sinfo") is None:
        return False
    listed = subprocess.run(
        ["sinfo", "--noheader", "--format=%D", "--states=idle"], capture_output=True, text=True, check=False
    )
    return listed.returncode == 0 and sum(map(int, listed.stdout.split())) >= 2


needs_slurm = pytest.mark.skipif(not slurm_runs(), reason="no Slurm with two idle nodes")


@pytest.mark.slow
@needs_slurm
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
    (tmp_path / "cluster.yaml").write_text("jobs: {ps: 1, worker: 2}\n")
    words = [
        "slurm",
        "script",
        "-o",
        "--nodes=2",
        "-o",
        "--output=out.txt",
        str(tmp_path / "cluster.yaml"),
        "program.py",
    ]
    (tmp_path / "job.sh").write_text(CliRunner().invoke(app, words).output)
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

    interactive = [
        sys.executable,
        "-m",
        "dovetail",
        "run",
        "--on",
        "slurm",
        "-o",
        "--nodes=2",
        "--each",
        "cluster.yaml",
    ]
    each = subprocess.run(
        [*interactive, "sh", "-c", "echo $SLURM_PROCID; cat"], cwd=tmp_path, env=environment, check=False, timeout=200,
        capture_output=True, text=True,
    )  # fmt: skip
    assert each.returncode == 0, each.stderr
    assert {"worker:0 | 1", "worker:1 | 2"} <= set(each.stdout.splitlines())


@pytest.mark.slow
@needs_slurm
def test_each_task_finds_its_place_by_srun_alone(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    page = (root / "docs/guides/running-on-slurm.md").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(page.partition("```py\n# train.py\n")[2].partition("```")[0])
    ended = subprocess.run(
        ["srun", "--nodes=2", "--ntasks=3", "--label", sys.executable, "train.py"], cwd=tmp_path, check=False, timeout=200,
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for label, worker in (("1", 0), ("2", 1)):
        said = rf"^{label}: worker {worker} on zmq://n\d:\d+: loss 0.00\d+ at step 20[01]$"
        assert re.search(said, ended.stdout, re.MULTILINE), ended.stdout
