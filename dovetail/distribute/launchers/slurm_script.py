"""The batch script with which Slurm runs a cluster of Dovetail and a program as its client. It talks to no Slurm.

One job step has a task per task of the cluster; each serves (`dovetail server --from-env`). The program runs beside it, on the
first node, with the session target in `TARGET`. The job ends with the program, and with its exit status.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from ...placer.cluster.file_format import ClusterFile, TaskResources, checked
from ...placer.cluster.load import quantity

_BODY = """
set -eu
# Tasks and program prove who they are with one key. All nodes must see this folder.
export DOVETAIL_KEYS="${{DOVETAIL_KEYS:-$PWD/dovetail-keys}}"
[ -e "$DOVETAIL_KEYS/own.key" ] || dovetail keys new "$DOVETAIL_KEYS"

# Each node's tasks listen at ports from here on, which jobs that share a node must not share.
port=$((20000 + SLURM_JOB_ID % 20000))
srun --mpi=none --distribution=block dovetail server --from-env --cluster {jobs} --port-base "$port" &
servers=$!
trap 'kill "$servers" 2> /dev/null; wait "$servers" || true' EXIT

TARGET="$(dovetail slurm target {jobs} --port-base "$port")"
export TARGET
{program}
"""


def script(described: Any, program: Sequence[str], *, name: str = "dovetail", options: Sequence[str] = ()) -> str:
    """The batch script of a cluster and a program.

    Args:
        described: the content of a cluster file (`described_by`): `jobs` as numbers of tasks, and `resources`. All tasks of a step of
            Slurm get the same, so each gets the most that a task of any job takes.
        program: the command of the program, which finds the session target in the environment variable `TARGET`.
        name: the name of Slurm's job.
        options: more options of `sbatch`, such as `--time=1:00:00`.

    Raises:
        ValueError: it is no cluster file, has addresses in the place of numbers, or there is no program.
    """
    file = checked(described, ClusterFile)
    for job, tasks in file.jobs.items():
        if not isinstance(tasks, int):
            raise ValueError(f"Job {job!r} must have a number of tasks, not {tasks!r}: Slurm gives them their addresses")
    if not program:
        raise ValueError("Which program? Give its command after the cluster file, such as: python train.py")
    takes = list((file.resources or {}).values()) or [TaskResources()]
    cpus = max(1, math.ceil(max(r.cpus or 0 for r in takes)))
    gpus = max(r.gpus for r in takes)
    memory = max(quantity(r.memory, "memory") or 0.0 for r in takes)
    lines = [
        f"--job-name={name}",
        f"--ntasks={sum(n for n in file.jobs.values() if isinstance(n, int))}",
        f"--cpus-per-task={cpus}",
        *([f"--mem-per-cpu={math.ceil(memory / cpus / 2**20)}M"] if memory else []),
        *([f"--gpus-per-task={gpus}"] if gpus else []),
        *options,
    ]
    jobs = ",".join(f"{job}={n}" for job, n in file.jobs.items())
    head = "".join(f"#SBATCH {line}\n" for line in lines)
    return f"#!/bin/bash\n{head}{_BODY.format(jobs=shlex.quote(jobs), program=shlex.join(program))}"
