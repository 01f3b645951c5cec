"""Exit statuses, error messages, options and cluster names of all commands.

The exit status is 0 for success, 1 for a failure, and 2 for wrong use: an option, file, cluster or name that is unknown or malformed.
Commands that compare or check have another status, which their `--help` names.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ...graph.core.device import parse_strict
from ...graph.core.errors import InvalidArgumentError, NotFoundError, OpError, UnavailableError
from ...graph.core.settings import setting
from ...graph.core.source_location import hide_own_frames
from ...placer.cluster.load import as_cluster_spec, described_by
from ...placer.cluster.spec import masters_job, task_addresses
from .lock_file import read_up

if TYPE_CHECKING:
    from ...runtime.server.running_cluster import ClusterMonitor

_Function = TypeVar("_Function", bound=Callable[..., Any])
FAILED, MISUSED, DIFFERENT, WARNED = 1, 2, 3, 4
# The status of a program that Ctrl-C ended, as in shells: 128 + SIGINT.
INTERRUPTED = 130


class UsageError(ValueError):
    """Wrong use of a command."""


class FailedError(Exception):
    """A well-formed command that failed."""


@contextmanager
def errors_explained(*more: type[Exception]) -> Iterator[None]:
    """A block whose errors are printed as one line, without a traceback. The command then exits with a status.

    Wrong values (ValueError, TypeError, LookupError, InvalidArgumentError) are wrong use, status 2. Errors of the system or a peer, and
    those of the types `more`, are failures, status 1. Ctrl-C ends the command cleanly.
    """
    explained: tuple[type[Exception], ...] = (FailedError, OpError, ValueError, TypeError, LookupError, OSError, *more)
    try:
        yield
    except KeyboardInterrupt:
        print("\nStopped. Nothing is left running.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except explained as e:
        if setting("DOVETAIL_TRACEBACK") == "full":
            traceback.print_exc()
        else:
            print(f"error: {text_of(e)}", file=sys.stderr)
        wrong = isinstance(e, (InvalidArgumentError, ValueError, TypeError, LookupError))
        raise typer.Exit(MISUSED if wrong else FAILED) from None


def text_of(error: BaseException) -> str:
    """Returns the message of an error, without the operating system's error number."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"There is no file {str(error.filename)!r}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


@contextmanager
def program_errors() -> Iterator[None]:
    """A block whose errors are errors of the user's program. They are printed with a traceback, and the command exits with status 1."""
    try:
        yield
    except Exception as e:  # a program may raise any error
        print(user_traceback(e), end="", file=sys.stderr)
        raise typer.Exit(FAILED) from None


def user_traceback(error: BaseException) -> str:
    """Returns the traceback of an error without the frames of Dovetail and of Python's imports. DOVETAIL_TRACEBACK=full keeps these."""
    hide_own_frames(error)
    return "".join(traceback.format_exception(error))


def print_text(text: str) -> None:
    """Prints a text. If the reader has closed the pipe (`| head`), the command continues without output."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _in_words(parameters: list[Any]) -> list[Any]:
    """Sets how `--help` shows parameters: flags without a type, arguments in capitals. Returns the parameters."""
    for p in parameters:
        if p.param_type_name == "argument" and p.metavar is None:
            name = p.name.upper() + "..." * (p.nargs != 1)
            p.metavar = name if p.required else f"[{name}]"
        elif p.param_type_name == "option" and p.is_flag:
            p.metavar = ""
    return parameters


class Command(TyperCommand):
    """A command whose `--help` shows flags without a type, and arguments in capitals: `[OPTIONS] FILE [PROGRAM...]`."""

    def __init__(self, name: str | None, *, help: str | None = None, **options: Any) -> None:
        paragraphs = inspect.cleandoc(help or "").split("\n\n")
        # The terminal wraps lines.
        super().__init__(name, help="\n\n".join(" ".join(p.split()) for p in paragraphs), **options)

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the command's parameters."""
        return _in_words(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Returns the words of the usage line."""
        return [
            self.options_metavar or "",
            *(p.metavar for p in self.get_params(ctx) if p.param_type_name == "argument"),
        ]


class Group(TyperGroup):
    """A group of such commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the group's parameters."""
        return _in_words(super().get_params(ctx))


class Commands(typer.Typer):
    """A typer app of such commands and groups.

    Args:
        about: the first line of the app's `--help`.
    """

    def __init__(self, about: str) -> None:
        super().__init__(cls=Group, help=about, no_args_is_help=True, pretty_exceptions_enable=False)

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """Registers a command, as `typer.Typer.command` does."""
        return super().command(name, cls=Command, **options)


def one_of(names: Sequence[str], about: str) -> Any:
    """Returns an option whose value must be one of `names`. Shells complete it."""

    def checked(value: str | None) -> str | None:
        if value is not None and value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return typer.Option(help=about, callback=checked, autocompletion=lambda: list(names))


def output_file(text: str) -> Any:
    """Returns an option that names an output file, in a folder that exists. `text`: its help."""
    return typer.Option(help=text, dir_okay=False, callback=_in_a_folder)


def _in_a_folder(path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")
    return path


def from_environment(job: str | None, task: int | None) -> tuple[str, str, int]:
    """Returns cluster, job and task from TF_CONFIG. `job` and `task`, from the command line, take precedence."""
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        place = config.get("task", {})
        index = int(place["index"]) if task is None else task
        return json.dumps(config["cluster"]), job or str(place["type"]), index
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            "No cluster is given. Pass --cluster, --job and --task, or set TF_CONFIG to JSON such as "
            '{"cluster": {"ps": ["localhost:2222"]}, "task": {"type": "ps", "index": 0}}'
            + (f". TF_CONFIG is {text!r}" if text else "")
        ) from None


def from_slurm(counts: str | None, port_base: int) -> tuple[str, str, int]:
    """Returns cluster, job and task of this task of a Slurm step. `counts` describes the jobs; None: all tasks are workers.

    Raises:
        ValueError: this is not a Slurm step, the step has another number of tasks, or a job has addresses.
    """
    from ...distribute.launchers.engines import ClusterDescription  # loads ZeroMQ
    from ...distribute.launchers.slurm_cluster import counts as counts_of  # loads ZeroMQ
    from ...distribute.resolvers.cluster_resolver import SlurmClusterResolver  # loads the strategies

    jobs = None if counts is None else counts_of(ClusterDescription.read(counts).file)
    try:
        found = SlurmClusterResolver(jobs, port_base)
    except RuntimeError as e:
        raise ValueError(str(e)) from None
    job, index = found.get_task_info()
    return json.dumps(found.cluster_spec().as_dict()), str(job), int(index or 0)


def read_jobs(text: str) -> dict[str, Any]:
    """Returns the jobs of the cluster that an option names, in any form that `dovetail plan` accepts.

    Raises:
        UsageError: the text does not describe a cluster, or the file cannot be read.
    """
    try:
        found = described_by(text)
    except (ValueError, OSError) as e:
        raise UsageError(text_of(e)) from None
    jobs = found.get("jobs") if isinstance(found, dict) else None
    if not isinstance(jobs, dict) or not all(isinstance(v, (int, list, dict)) for v in jobs.values()):
        raise UsageError(
            f'{text} does not describe a cluster. Expected jobs with addresses, such as {{"ps": ["host:2222"]}}, or numbers of tasks, ps=1'
        )
    return jobs


def addresses(cluster: str) -> list[str]:
    """Returns the addresses `host:port` of a running cluster. The task that sessions connect to comes first.

    Args:
        cluster: the address of one of its tasks (`zmq://host:port` or `host:port`), the file of a cluster that is up, or a description
            with addresses.

    Raises:
        UsageError: the text does not name a running cluster.
    """
    if "://" in cluster:
        from ...runtime.session.prepared_steps import address_of  # loads the sessions

        try:
            return [address_of(cluster)]
        except NotFoundError as e:
            raise UsageError(str(e)) from None
    host, _, port = cluster.rpartition(":")
    if host and port.isdigit() and not Path(cluster).exists():
        return [cluster]
    up = f"{cluster}.up"
    if len(up) < 256 and Path(up).is_file():
        with suppress(FileNotFoundError):  # the cluster was killed, and left the file behind
            up_at = {name: target.removeprefix("zmq://") for name, target in read_up(Path(cluster))["targets"].items()}
            return _masters_first({(parse_strict(name).job or "", name): address for name, address in up_at.items()})
    tasks = task_addresses(as_cluster_spec(read_jobs(cluster)))
    found = _masters_first({(job, str(i)): address for (job, i), address in tasks.items()})
    if any(address.startswith(":") for address in found):
        raise UsageError(
            f"{cluster} has numbers of tasks instead of addresses, and is not up. Start it with `dovetail up {cluster}`, or pass the "
            "address of a task, zmq://host:port"
        )
    return found


def _masters_first(tasks: Mapping[tuple[str, str], str]) -> list[str]:
    """Returns the addresses of tasks. Those of the job that sessions connect to come first."""
    first = masters_job([job for job, _ in tasks])
    return [at for (_, _), at in sorted(tasks.items(), key=lambda item: item[0][0] != first)]


def monitor(cluster: str) -> ClusterMonitor:
    """Returns a monitor of a running cluster, which is connected to the first task that answers.

    Raises:
        UsageError: the text does not name a running cluster.
        UnavailableError: no task answers.
    """
    from ...runtime.server.running_cluster import ClusterMonitor  # loads ZeroMQ

    *others, last = addresses(cluster)
    for address in others:
        try:
            return ClusterMonitor(address)
        except UnavailableError:
            continue
    return ClusterMonitor(last)
