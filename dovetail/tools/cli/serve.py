"""`dovetail server`, `dovetail demo`, and `dovetail tf1`, which runs programs that import TensorFlow 1."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from ...runtime.logs import set_up_log
from .common import FailedError, UsageError, errors_explained, from_environment, from_slurm, read_jobs


def server(
    program: Annotated[
        list[str] | None,
        typer.Argument(
            help="After `--`: a command to run instead of the server, with TF_CONFIG set. Tasks of the job ps run the server."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help='The cluster as JSON, {"ps": ["host:2222"], "worker": ["host:2223"]}, or a file of JSON or YAML.'
        ),
    ] = None,
    job: Annotated[str | None, typer.Option("--job", "-j", help="Job of this task.")] = None,
    task: Annotated[int | None, typer.Option("--task", "-i", min=0, help="Index of this task in its job.")] = None,
    cpus: Annotated[int, typer.Option(min=1, help="Number of CPU devices of this task.")] = 1,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen without keys on an address that other machines can reach."),
    ] = False,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Folder of keys; only clients with an allowed key can connect. Default: DOVETAIL_KEYS.",
            file_okay=False,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Serve Prometheus metrics, /live and /ready on this port of localhost, or host:port. Default: DOVETAIL_METRICS."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Listen on this host:port instead of the task's address in the cluster."),
    ] = None,
    from_env: Annotated[
        bool,
        typer.Option(
            "--from-env",
            help="Read cluster, job and task from TF_CONFIG, or else from the Slurm step. In a Slurm step, --cluster gives the number of "
            "tasks of each job.",
        ),
    ] = False,
    port_base: Annotated[
        int, typer.Option(min=1, max=65_535, help="In a Slurm step: port of the first task on a node.")
    ] = 8888,
) -> None:
    """Run the server of one task of a cluster, until Ctrl-C. Without --cluster, TF_CONFIG names the cluster and the task."""
    with errors_explained():
        import dovetail as tf

        if from_env and "SLURM_PROCID" in os.environ and "TF_CONFIG" not in os.environ:
            cluster, job, task = from_slurm(cluster, port_base)
        elif from_env or cluster is None:
            cluster, job, task = from_environment(job, task)

        if metrics is not None:
            os.environ["DOVETAIL_METRICS"] = metrics
        from ...distribute.launchers.slurm_cluster import PROGRAM_ENDED  # loads ZeroMQ

        spec = read_jobs(cluster)
        if program and job != "ps":
            os.environ["TF_CONFIG"] = json.dumps({"cluster": spec, "task": {"type": job, "index": task}})
            status = subprocess.run(program, check=False).returncode
            print(f"{PROGRAM_ENDED} {status}", flush=True)  # the process that started all tasks waits for this line
            raise typer.Exit(status if status >= 0 else 128 - status)
        try:
            running = tf.train.Server(
                spec,
                job,
                task,
                config=tf.ConfigProto(device_count={"CPU": cpus}),
                start=False,
                insecure=insecure,
                keys=keys,
                listen=listen,
            )
            set_up_log(running.job_name, running.task_index)
            running.start()
        except PermissionError as e:
            raise UsageError(
                f"{e} (on the command line: --keys and --insecure)" if "insecure" in str(e) else str(e)
            ) from None
        with running:
            try:
                for device in running.devices:
                    print(device)
                print(f"Serving {running.task} at {running.target}; stop it with Ctrl-C.", flush=True)
                running.join()
            except KeyboardInterrupt:
                print("Stopped.")


def demo(
    in_graph: Annotated[
        bool,
        typer.Option(
            "--in-graph",
            help="In-graph replication: one client and one graph, with a copy of the computation for each worker.",
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Total number of updates by all workers.")] = None,
    ps: Annotated[int, typer.Option(min=1, help="Number of parameter servers.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    strategy: Annotated[
        str | None, typer.Option(help="Train with a distribution strategy: mirrored, central, multiworker or ps.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for plan.txt and graph.dtg.", file_okay=False)] = Path(),
) -> None:
    """Train a classifier of handwritten digits on several processes of this machine, and show which device ran what."""
    from rich.console import Console

    from ..demo.data import DataMissingError  # loads what the demo needs
    from ..demo.run import STEPS, Settings, run
    from ..demo.watch import DemoError

    console = Console()

    def log(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with errors_explained():
        try:
            if strategy is None:
                run(Settings(steps or STEPS, ps, workers, in_graph, out), console)
                return
            from ..demo import strategies  # loads what the demo needs

            strategies.run(strategy, steps or strategies.STEPS, workers, ps, log)
        except (DataMissingError, DemoError) as e:
            raise FailedError(str(e)) from None


PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings of a command that passes the arguments after the program's name to the program."""


def tf1(context: typer.Context) -> None:
    """Run a TensorFlow 1 program unchanged: `import tensorflow` imports Dovetail.

    Apart from that, `dovetail tf1 train.py --flags` is `python train.py --flags`. `-m module` and `-c code` work as with Python. In Python
    processes that the program starts, `import tensorflow` also imports Dovetail.
    """
    with errors_explained():
        from ...compat.tf1.importing import run  # loads the finder of TensorFlow's modules

        run(context.args)
