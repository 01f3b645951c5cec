"""The format of cluster files: the types that `load.py` checks a file against, and the JSON schema that editors use.

A cluster file is YAML (JSON is YAML, too):

    jobs:                                    # as ClusterSpec: numbers of tasks, or addresses
      ps: 2
      worker: ["w0:2222", "w1:2222"]
    master: /job:worker/task:0               # the task that the session talks to
    devices:                                 # of each task of a job, or of one task; else cpu:0
      worker: [cpu:0, {name: gpu:0, model: H100, memory: 80 GiB}]   # or flops: 67 Tflop/s, bandwidth: 3.35 TB/s
      /job:worker/task:1: [cpu:0]
    resources:                               # what each task of a job takes of its machine, or of an engine
      worker: {cpus: 4, gpus: 1, memory: 8 GiB}
    links:                                   # between tasks; the first that fits a pair counts
      - {between: [/job:ps, /job:worker], latency: 50 us, bandwidth: 25 Gbit/s}

    keys: keys                               # folder of the key with which tasks and clients prove who they are
    checkpoint: s3://bucket/digits           # where programs keep their state; they find it in CHECKPOINT_DIR
    ps_replicas: 2                           # in how many tasks each variable of the job ps is kept

Folders are relative to the file. `dovetail cluster schema` prints the schema; docs/guides/plans.md shows how an editor finds it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ...graph.core.gpu_models import GPU_MODELS
from .spec import check_ps_replicas

T = TypeVar("T")


def _quantity(what: str, example: str) -> Any:
    return Meta(description=f"{what}: a number, or a text with a unit such as '{example}'", examples=[example])


Bytes = Annotated[float | str | None, _quantity("Memory in bytes", "80 GiB")]
Flops = Annotated[float | str | None, _quantity("Floating-point operations per second", "67 Tflop/s")]
Bandwidth = Annotated[float | str | None, _quantity("Bytes per second", "25 Gbit/s")]
Latency = Annotated[float | str | None, _quantity("Seconds", "50 us")]
Task = Annotated[str, Meta(description="A task or a job, such as /job:worker/task:0 or /job:worker")]


class DeviceFacts(Struct, forbid_unknown_fields=True):
    """A device of a task, with what is known of it."""

    name: Annotated[str, Meta(description="The device's type and index, such as gpu:0")]
    memory: Bytes = None
    flops: Flops = None
    bandwidth: Bandwidth = None
    emulated: Annotated[bool, Meta(description="Whether the CPU stands in for this device")] = False
    host: Annotated[str | None, Meta(description="The machine of its task; else the host in the task's address")] = None
    model: Annotated[
        Annotated[str, Meta(pattern=f"^({'|'.join(GPU_MODELS)})$")] | None,
        Meta(
            description="A GPU's product: its published figures count where flops and bandwidth are not given; else H100"
        ),
    ] = None


class LinkFacts(Struct, forbid_unknown_fields=True):
    """What is known of the links between two jobs or tasks."""

    between: Annotated[tuple[Task, Task], Meta(description="The two ends, such as [/job:ps, /job:worker]")]
    latency: Latency = None
    bandwidth: Bandwidth = None


class TaskResources(Struct, forbid_unknown_fields=True):
    """What each task of a job takes of the machine that an engine runs it on."""

    cpus: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Processors, such as 4 or 0.5")] = None
    gpus: Annotated[int, Meta(description="Whole NVIDIA GPUs", ge=0)] = 0
    memory: Bytes = None


DeviceList = list[str | DeviceFacts]


class ClusterFile(Struct, forbid_unknown_fields=True):
    """A cluster: its jobs, and what is known of devices and links."""

    jobs: Annotated[
        dict[str, int | list[str] | dict[int | str, str]],
        Meta(description="Job name -> number of tasks, addresses, or task index -> address"),
    ]
    master: Annotated[str | None, Meta(description="The task that the session talks to; else the first worker")] = None
    devices: Annotated[
        dict[str, DeviceList] | None,
        Meta(description="Job or task -> the devices of each such task, as names or with facts; else cpu:0"),
    ] = None
    resources: Annotated[
        dict[str, TaskResources] | None,
        Meta(
            description="Job -> what each of its tasks takes of its machine, or of Ray, Slurm or Kubernetes; plans do not read it"
        ),
    ] = None
    keys: Annotated[
        str | None,
        Meta(description="Folder of the key of all tasks and clients (dovetail keys new), relative to this file"),
    ] = None
    checkpoint: Annotated[
        str | None,
        Meta(
            description="Folder or address (s3://...) of checkpoints, relative to this file; programs find it in CHECKPOINT_DIR"
        ),
    ] = None
    ps_replicas: Annotated[
        Annotated[int, Meta(ge=1, le=2)],
        Meta(description="In how many tasks of the job ps each variable is kept; 2: none is lost with one of them"),
    ] = 1
    links: Annotated[list[LinkFacts] | None, Meta(description="The first that fits a pair of tasks counts")] = None

    def __post_init__(self) -> None:
        servers = self.jobs.get("ps", 0)
        count = servers if isinstance(servers, int) else len(servers)
        check_ps_replicas(self.ps_replicas, count)


def checked(content: object, kind: type[T]) -> T:
    """The content as a value of a type of this module.

    Raises:
        ValueError: it does not fit; the text says where, as a path from `$`, and what is expected there.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as e:
        expected, _, where = _located(content, kind, str(e)).partition(" - at ")
        for json_word, yaml_word in (("Object contains", "there is an"), ("object", "mapping"), ("array", "list")):
            expected = expected.replace(json_word, yaml_word)
        raise ValueError(f"at {where or '`$`'}: {expected}{_known_fields(kind, str(e))}") from None


def _located(content: object, kind: Any, text: str) -> str:
    """The error's text, with the key of `devices`, `resources` or `jobs` that the library leaves out of its path (`[...]`)."""
    for part, inner in (
        ("devices", DeviceList),
        ("resources", TaskResources),
        ("jobs", int | list[str] | dict[int | str, str]),
    ):
        values = content.get(part) if kind is ClusterFile and isinstance(content, dict) else None
        if not isinstance(values, dict) or f"$.{part}[...]" not in text:
            continue
        for key, value in values.items():
            try:
                msgspec.convert(value, inner)
            except msgspec.ValidationError:
                return text.replace("[...]", f"[{key}]", 1)
    return text


def _known_fields(kind: Any, text: str) -> str:
    """The fields that are known where an unknown one stands."""
    if "unknown field" not in text:
        return ""
    parts = {"$.links": LinkFacts, "$.devices": DeviceFacts, "$.resources": TaskResources}
    where = next((found for part, found in parts.items() if part in text), kind)
    return f"; known are: {', '.join(where.__struct_fields__)}"


def schema() -> dict[str, Any]:
    """The JSON schema of cluster files, for editors: completion, explanations, and errors while one writes."""
    found = msgspec.json.schema(ClusterFile)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A cluster of Dovetail", **found}
