"""Reads a cluster description: numbers of tasks, mappings, YAML files, or servers that run.

`file_format.py` says what a file holds. A quantity is a number of bytes, bytes per second, floating-point operations per second or
seconds, or a text with a unit.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...graph.core.device import DeviceName, DeviceSpec, parse_strict
from ...graph.core.errors import InvalidArgumentError
from .spec import Cluster, ClusterDef, ClusterSpec, DeviceInfo, Link, masters_job, task_addresses

if TYPE_CHECKING:
    from .file_format import LinkFacts

Jobs: TypeAlias = ClusterSpec | ClusterDef | Mapping[str, Any]
Devices: TypeAlias = Mapping[str, Sequence[Any]]

MOST_TASKS = 1023  # a larger number behind a colon is a port
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15,
             "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}  # fmt: skip
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def as_cluster(given: Any, devices: Devices | None = None, master: str | None = None) -> Cluster:
    """The cluster meant by anything that `place` takes.

    Args:
        given: a `Cluster`; what runs and can tell its devices (a session, a server, a `LocalCluster`); the
            path of a YAML file, or its text; `worker=4,ps=2`; jobs as `make_cluster` takes them; None: one local task.
        devices, master: as `make_cluster` takes them; only where `given` does not say already.

    Raises:
        TypeError, ValueError, InvalidArgumentError: it describes no cluster. OSError: the file can't be read.
    """
    if given is None or isinstance(given, (ClusterSpec, ClusterDef, Mapping)):
        return make_cluster(given, devices, master)
    if isinstance(given, (str, os.PathLike)):
        if "://" in str(given):
            raise ValueError(
                f"{str(given)!r} is the target of a running cluster, which only a session can ask for its "
                "devices: pass the session, or use session.plan(fetches)"
            )
        if devices is not None:
            raise ValueError("The file says which devices there are; leave out `devices`")
        return read_cluster(given, master)
    found = given if isinstance(given, Cluster) else _running(given)
    if devices is not None:
        raise ValueError(f"{type(given).__name__} knows its own devices; leave out `devices`")
    return found if master is None else replace(found, master=_master(master, found.tasks))


def _running(given: Any) -> Cluster:
    """The cluster of something that runs: its devices, the master's first."""
    listed = given.list_devices() if hasattr(given, "list_devices") else getattr(given, "devices", None)
    infos = tuple(listed) if isinstance(listed, Sequence) else ()
    if not infos or not all(isinstance(d, DeviceInfo) for d in infos):
        raise TypeError(
            "`cluster` must be numbers of tasks ({'worker': 2} or 'worker=2'), a ClusterSpec, a path, or something that runs and lists "
            f"its devices (a session, a server), not {given!r}"
        )
    return Cluster(infos, infos[0].name.task_name)


def make_cluster(
    jobs: Jobs | None,
    devices: Devices | None = None,
    master: str | None = None,
    links: Sequence[Link] = (),
) -> Cluster:
    """A cluster that does not run.

    Args:
        jobs: as `ClusterSpec` takes them, or numbers of tasks (`{"ps": 2, "worker": 2}`); None: one local
            task.
        devices: job, or task (`/job:worker/task:1`) -> devices of each such task: names (`gpu:0`) or mappings
            with `name` and, where known, a GPU's `model`, `memory` (bytes), `flops` and `bandwidth` (per second), `emulated`.
            A task that is not named has `cpu:0`.
        master: the task that the session talks to; None: the first task of the job `chief`, `master` or
            `worker`, else of the first job by name.
        links: what is known of the links between tasks.
    """
    if devices is not None and not isinstance(devices, Mapping):
        raise TypeError(
            f"`devices` must be jobs or tasks with their devices, such as {{'worker': ['cpu:0', 'gpu:0']}}, not {devices!r}"
        )
    hosts = _hosts(jobs)
    tasks = list(hosts)
    listed = dict(devices or {})
    known = {job for job, _ in tasks} | {f"/job:{job}/task:{i}" for job, i in tasks}
    unknown = sorted(set(map(str, listed)) - known)
    if unknown:
        raise ValueError(f"devices names jobs or tasks that the cluster does not have: {', '.join(unknown)}")
    infos = []
    for job, task in tasks:
        given = listed.get(f"/job:{job}/task:{task}", listed.get(job, ("cpu:0",)))
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise TypeError(f"The devices of '{job}' must be a list such as ['cpu:0', 'gpu:0'], not {given!r}")
        infos += [_device_info(job, task, d, hosts[job, task]) for d in given]
    names = [f"/job:{job}/replica:0/task:{task}" for job, task in tasks]
    if master is not None:
        return Cluster(tuple(infos), _master(master, names), tuple(links))
    jobs_there = [job for job, _ in tasks]
    return Cluster(tuple(infos), names[jobs_there.index(masters_job(jobs_there))], tuple(links))


def _master(text: str, tasks: Sequence[str]) -> str:
    spec = parse_strict(text if text.startswith("/") else f"/{text}")
    name = f"/job:{spec.job}/replica:{spec.replica or 0}/task:{spec.task or 0}"
    if name not in tasks:
        known = ", ".join(t.replace("/replica:0", "") for t in tasks)
        raise InvalidArgumentError.of(f"The master '{text}' is no task of the cluster; its tasks: {known}")
    return name


def _hosts(jobs: Jobs | None) -> dict[tuple[str, int], str]:
    """(job, task index) of every task -> the host in its address; empty where tasks are given by number."""
    if jobs is None:
        return {("localhost", 0): ""}
    found = {task: _host(address) for task, address in task_addresses(as_cluster_spec(jobs)).items()}
    if not found:
        raise ValueError("The cluster has no tasks")
    return found


def as_cluster_spec(jobs: Jobs) -> ClusterSpec:
    """The spec of jobs with their tasks; where those are given by number, all addresses are `:0`."""
    if isinstance(jobs, Mapping):
        for job, n in jobs.items():
            if isinstance(n, (bool, float, str)) or n is None or (isinstance(n, int) and n < 0):
                wrong = TypeError if isinstance(n, str) else ValueError
                raise wrong(f"Job {job!r} has a whole number of tasks from 0 on, or a list of addresses, not {n!r}")
        jobs = {job: [":0"] * n if isinstance(n, int) else n for job, n in jobs.items()}
    return ClusterSpec(jobs)


def _host(address: str) -> str:
    """The host of an address, with one name for all loopback addresses."""
    host = address.rpartition(":")[0].strip("[]")
    return "localhost" if host == "::1" or host.startswith("127.") else host


def _device_info(job: str, task: int, given: Any, host: str) -> DeviceInfo:
    if isinstance(given, str):
        return DeviceInfo(_device_name(job, task, given), None, False, 0, host=host)
    from .file_format import DeviceFacts, checked  # msgspec: most programs give names alone

    facts = given
    if not isinstance(facts, DeviceFacts):
        if not isinstance(given, Mapping):
            raise TypeError(f"A device of '{job}' is a name such as 'gpu:0' or a mapping with a `name`, not {given!r}")
        try:
            facts = checked(dict(given), DeviceFacts)
        except ValueError as e:
            raise ValueError(f"a device of '{job}', {given!r}: {e}") from None
    name, memory = _device_name(job, task, facts.name), quantity(facts.memory, "memory")
    return DeviceInfo(
        name,
        None if memory is None else round(memory),
        facts.emulated,
        0,
        bandwidth=quantity(facts.bandwidth, "bandwidth"),
        flops=quantity(facts.flops, "flops"),
        host=facts.host or host,
        model=facts.model or "",
    )


def _device_name(job: str, task: int, text: str) -> DeviceName:
    spec = DeviceSpec.from_string(text)
    if spec.device_type is None or spec.device_index is None:
        raise InvalidArgumentError.of(f"'{text}' of job '{job}' names no device; write it as 'cpu:0' or 'gpu:1'")
    return DeviceName(job, 0, task, spec.device_type, spec.device_index)


# -- files -------------------------------------------------------------------------------------------------


def read_cluster(given: str | os.PathLike[str], master: str | None = None) -> Cluster:
    """The cluster that a file or a text describes, as `described_by` reads it.

    Raises:
        ValueError: it describes no cluster; the text names the file. OSError: it cannot be read.
    """
    from .file_format import ClusterFile, checked  # msgspec

    content = described_by(given)
    try:
        file = checked(content, ClusterFile)
        return make_cluster(file.jobs, file.devices, master or file.master, [_link(link) for link in file.links or ()])
    except (ValueError, TypeError, InvalidArgumentError) as e:
        raise ValueError(f"{given}: {e}") from None


def described_by(given: str | os.PathLike[str]) -> Any:
    """The description of a cluster: a file of YAML or JSON, such text itself, or numbers of tasks, `worker=4,ps=2`.

    Jobs alone are a description too: `{"worker": 4}` stands for `{"jobs": {"worker": 4}}`.

    Raises:
        ValueError: it is neither JSON nor YAML. OSError: the file cannot be read.

    >>> described_by("worker=4,ps=2")
    {'jobs': {'worker': 4, 'ps': 2}}
    """
    import yaml  # most programs never read a description

    text = str(given)
    if re.fullmatch(r"\s*\w+=\d+(\s*,\s*\w+=\d+)*\s*", text) and not Path(text).exists():
        return {"jobs": {job.strip(): int(n) for job, _, n in (part.partition("=") for part in text.split(","))}}
    is_text = (
        isinstance(given, str)
        and (text.lstrip()[:1] in ("{", "[") or "\n" in text or ": " in text)
        and not _is_file(text)
    )
    if not is_text and not _is_file(text) and (meant := _counts_meant(text)):
        raise ValueError(meant)
    try:
        content = yaml.safe_load(text if is_text else Path(given).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ValueError(f"{text} is neither JSON nor YAML: {e}") from None
    if not isinstance(content, dict):
        return content
    if isinstance(content.get("cluster"), dict):  # TF_CONFIG
        content = content["cluster"]
    return (
        {"jobs": content}
        if content and not content.keys() & {"jobs", "devices", "links", "master", "resources"}
        else content
    )


def _counts_meant(text: str) -> str:
    """How to write numbers of tasks that are written as `ps:1,worker:2`, `worker=two`, `2 workers` or `worker4`; '' if not like these."""
    parts = [part.strip() for part in text.split(",")]
    if all(words := [re.fullmatch(r"(\d+)\s+([A-Za-z]\w*)", part) for part in parts]):  # `2 workers`
        jobs = [(m[2] if m[2] == "ps" else m[2].removesuffix("s"), m[1]) for m in words if m is not None]
        return f"{text!r} is no cluster; write {','.join(f'{job}={number}' for job, number in jobs)}"
    found = [re.fullmatch(r"(\w+)\s*[=:]\s*([\w.+-]*)", part) for part in parts]
    pairs = [(m[1], m[2]) for m in found if m is not None]
    if len(pairs) != len(parts):
        if re.fullmatch(r"\w+", text):
            return f"There is no file {text!r}; numbers of tasks are written worker=4,ps=2"
        bare = next(part for part, m in zip(parts, found, strict=True) if m is None)
        return (
            f"{bare!r} has no number of tasks; write {bare}=2" if pairs and re.fullmatch(r"[A-Za-z]\w*", bare) else ""
        )
    for job, number in pairs:
        if not number.isdecimal():
            return f"{number!r} is not a number of tasks; write {job}=2"
    if len(pairs) == 1 and "=" not in text and int(pairs[0][1]) > MOST_TASKS:
        return f"{text!r} is no cluster; if it is a running one, write zmq://{text}"
    return f"{text!r} is no cluster; write {','.join(f'{job}={number}' for job, number in pairs)}"


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a character that none has
        return False


def _link(facts: LinkFacts) -> Link:
    for task in facts.between:
        parse_strict(task)
    return Link(*facts.between, quantity(facts.latency, "latency"), quantity(facts.bandwidth, "bandwidth"))


def quantity(given: Any, what: str) -> float | None:
    """A number in plain units, from a number or a text such as `80 GiB`, `25 Gbit/s`, `50 us`, `67 Tflop/s`; None for None.

    Args:
        given: the number or the text.
        what: "memory", "bandwidth", "flops" or "latency".

    Raises:
        ValueError: it is neither.
    """
    if given is None:
        return None
    value = None
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        value = float(given)
    elif isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?\d+)?)\s*([^\d\s]*)\s*", given)
        factor = _unit(found[2], what) if found else None
        if found and factor is not None:
            value = float(found[1]) * factor
    if value is None or not math.isfinite(value) or value < 0:
        example = {"latency": "50 us", "memory": "80 GiB", "flops": "67 Tflop/s"}.get(what, "25 Gbit/s")
        raise ValueError(f"{what} is a number or a text such as '{example}', not {given!r}")
    return value


def _unit(text: str, what: str) -> float | None:
    if what == "latency":
        return _SECONDS.get(text or "s")
    per_second = "" if what == "memory" else r"(?:/s)?"
    unit = r"(?:flops?)?" if what == "flops" else r"(b|bits?)?"
    found = re.fullmatch(rf"([kmgtp]i?)?{unit}{per_second}", text.lower())
    if found is None or (found[1] or "") not in _PREFIXES:
        return None
    bits = what != "flops" and (found[2] or "").startswith("bit")
    return _PREFIXES[found[1] or ""] / (8 if bits else 1)


def cluster_text(cluster: Cluster) -> str:
    """The YAML file that describes a cluster, for `read_cluster`; addresses, which a cluster does not know, are left out."""
    import yaml

    indices: dict[str, list[int]] = {}
    devices: dict[str, list[dict[str, Any]]] = {}
    for info in cluster.devices:
        name = info.name
        if name.task not in indices.setdefault(name.job, []):
            indices[name.job].append(name.task)
        known = {
            "memory": info.memory_bytes, "flops": info.flops, "bandwidth": info.bandwidth, "emulated": info.emulated or None,
            "host": info.host or None, "model": info.model or None,
        }  # fmt: skip
        facts = {key: value for key, value in known.items() if value is not None}
        devices.setdefault(f"/job:{name.job}/task:{name.task}", []).append(
            {"name": f"{name.device_type.lower()}:{name.device_index}", **facts}
        )
    links = []
    for link in cluster.links:
        between = [end.replace("/replica:0", "") for end in (link.a, link.b)]
        facts = {key: v for key, v in (("latency", link.latency), ("bandwidth", link.bandwidth)) if v is not None}
        links.append({"between": between, **facts})
    jobs: dict[str, Any] = {}
    for job, tasks in sorted(indices.items()):
        without_gaps = sorted(tasks) == list(range(len(tasks)))
        jobs[job] = len(tasks) if without_gaps else {i: f"{job}{i}:0" for i in sorted(tasks)}
    described: dict[str, Any] = {"jobs": jobs, "master": cluster.master.replace("/replica:0", ""), "devices": devices}
    if links:
        described["links"] = links
    text: str = yaml.safe_dump(described, sort_keys=False, default_flow_style=None, width=120)
    return text
