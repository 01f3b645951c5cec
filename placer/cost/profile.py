"""The measured cost model: times of nodes and links from a step that ran, as a file that plans load.

    profile = dt.profile(session, train_op, feeds)        # runs steps, and measures them
    profile.save("step.profile.json")
    dt.place(graph, cluster, strategy="auto", costs=dt.Profile.load("step.profile.json"))

A node that was measured on a device costs what it took there, all iterations of a loop together. On other devices of the same kind it
costs the mean of that, on other kinds that times what the analytic costs say of the two. A node that was not measured costs what the
analytic costs say, times what the measured nodes took of theirs: an estimate that is wrong for all nodes by the same factor so does no
harm. The times form a table with a row for each kind of device, so that a million nodes on ten thousand devices fit.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...graph.core.errors import InvalidArgumentError
from ...graph.core.shape import Dims, as_dims
from ...graph.formats.atomic_files import write_bytes_durably
from ..cluster.spec import Cluster, Link

VERSION = 2
STORED = 100_000_000
"""Numbers in a table of times, at most: 800 MB. A larger table has a row for each kind of device, whatever single devices took."""
_KEYS = {"dovetail profile", "steps", "seconds", "nodes", "links"}


@dataclass(frozen=True, slots=True)
class Profile:
    """What a step took.

    Attributes:
        nodes: name -> {complete device name -> seconds in one step}; a node that needed no kernel took 0.
        links: what was measured between tasks.
        seconds: how long a step took for its client, the median.
        steps: how many were measured.
        shapes: tensor name -> shape, of what the measured steps were fed. Plans that use the profile take their sizes from it.
    """

    nodes: Mapping[str, Mapping[str, float]]
    links: tuple[Link, ...]
    seconds: float
    steps: int
    shapes: Mapping[str, Dims] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON. The file appears whole or not at all. OSError: it cannot be written."""
        write_bytes_durably(Path(path), (self.to_text() + "\n").encode())

    def to_text(self) -> str:
        """What `save` writes."""
        links = [{"between": [k.a, k.b], "latency": k.latency, "bandwidth": k.bandwidth} for k in self.links]
        nodes = {name: dict(found) for name, found in self.nodes.items()}
        data = {
            "dovetail profile": VERSION,
            "steps": self.steps,
            "seconds": self.seconds,
            "nodes": nodes,
            "links": links,
            "shapes": dict(self.shapes),
        }
        return json.dumps(data, indent=1)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Read what `save` wrote.

        Raises:
            InvalidArgumentError: the file is damaged, of another version, or no profile. OSError: it cannot be read.
        """
        return Profile.from_text(Path(path).read_bytes(), str(path))

    @staticmethod
    def from_text(text: str | bytes, source: str = "the profile") -> Profile:
        """What `to_text` gave; `source` is where an error says that it came from. InvalidArgumentError: it is no profile."""
        try:
            data = json.loads(text)
            if (
                not isinstance(data, dict)
                or data.get("dovetail profile") != VERSION
                or set(data) - {"shapes", "sizes"} != _KEYS
            ):
                raise ValueError(f"it is no profile of version {VERSION}")
            nodes = {name: {d: _seconds(s) for d, s in found.items()} for name, found in data["nodes"].items()}
            links = []
            for link in data["links"]:
                a, b = map(_text, link["between"])
                links.append(Link(a, b, _maybe(link["latency"]), _maybe(link["bandwidth"])))
            # Older files have "sizes", bytes by tensor, from which the shapes of what was fed cannot be told.
            shapes = {_text(name): as_dims(dims) for name, dims in data.get("shapes", {}).items()}
            return Profile(nodes, tuple(links), _seconds(data["seconds"]), int(data["steps"]), shapes)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise InvalidArgumentError.of(f"{source}: {e}") from None

    def __or__(self, other: Profile) -> Profile:
        """What both measured: of one step on different devices, say. Where they measured the same, the other one counts."""
        nodes = {
            name: {**self.nodes.get(name, {}), **other.nodes.get(name, {})} for name in {**self.nodes, **other.nodes}
        }
        # The first link that fits counts, and the times of a step are those of the quicker one.
        best = min(self, other, key=lambda p: p.seconds)
        return Profile(nodes, other.links + self.links, best.seconds, best.steps, {**self.shapes, **other.shapes})

    def with_links(self, cluster: Cluster) -> Profile:
        """The same, with what was measured of a cluster's links (`dovetail devices --measure`) before what it knew of them."""
        return replace(self, links=cluster.links + self.links)

    def applied(
        self,
        names: Sequence[str],
        devices: Sequence[str],
        kind: npt.NDArray[np.int32],
        analytic: npt.NDArray[np.float64],
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32]]:
        """(K', n) seconds of nodes on kinds of devices, and (D,) the kind of each device, from what was measured.

        A device that is not among `devices` stands for the first of its type: a profile of one machine serves a plan for others.

        Args:
            kind: (D,) the kind of each device. analytic: (K, n) estimates for each kind. A device on which a node took another time than
                the mean of its kind becomes a kind of its own, unless there were more than `STORED` numbers then.
        """
        stands_for, kinds = _Devices(devices), kind.tolist()
        measured = [[(stands_for[d], s) for d, s in self.nodes.get(n, {}).items() if stands_for[d] >= 0] for n in names]
        pairs = [
            (s, analytic[kinds[d], i])
            for i, found in enumerate(measured)
            for d, s in found
            if s > 0 and analytic[kinds[d], i] > 0
        ]
        out = analytic * (sum(s for s, _ in pairs) / sum(a for _, a in pairs) if pairs else 1.0)
        # Device -> nodes that took another time there than the mean of its kind.
        own: dict[int, list[tuple[int, float]]] = {}
        for i, (name, found) in enumerate(zip(names, measured, strict=True)):
            if not found:
                continue
            ratios = [s / analytic[kinds[d], i] if analytic[kinds[d], i] > 0 else math.inf for d, s in found]
            mean = sum(s for _, s in found) / len(found)
            out[:, i] = mean if math.inf in ratios else analytic[:, i] * (sum(ratios) / len(ratios))
            by_kind: dict[int, list[float]] = {}
            for d, seconds in found:
                by_kind.setdefault(kinds[d], []).append(seconds)
            for k, times in by_kind.items():
                out[k, i] = times[0] if len(set(times)) == 1 else sum(times) / len(times)
            for device, seconds in self.nodes[name].items():
                d = stands_for.number.get(device, -1)
                if d >= 0 and seconds != out[kinds[d], i]:
                    own.setdefault(d, []).append((i, seconds))
        if not own or (len(out) + len(own)) * len(names) > STORED:
            return out, kind
        alone, rows = list(own), kind.copy()
        out = np.concatenate([out, out[kind[alone]]])
        for row, (d, found) in enumerate(own.items(), len(analytic)):
            rows[d] = row
            for i, seconds in found:
                out[row, i] = seconds
        used, row_of = np.unique(rows, return_inverse=True)
        return out[used], row_of.astype(np.int32)

    def on(self, cluster: Cluster) -> Cluster:
        """A cluster with the measured links before what it knew of them."""
        return replace(cluster, links=self.links + cluster.links)

    def __str__(self) -> str:
        kernels = sum(any(s > 0 for s in found.values()) for found in self.nodes.values())
        text = f"{self.seconds * 1e3:.3f} ms per step, median of {self.steps}; {len(self.nodes)} nodes, {kernels} with time of their own"
        for link in self.links:
            latency = "-" if link.latency is None else f"{link.latency * 1e6:.0f} µs"
            rate = "-" if link.bandwidth is None else f"{link.bandwidth / 1e9:.2f} GB/s"
            text += f"\n  {link.a} - {link.b}  {latency}  {rate}"
        return text


class _Devices:
    """Numbers of devices; a foreign one has that of the first of its type, or -1."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.number = {name: i for i, name in enumerate(devices)}
        self._of_type: dict[str, int] = {}
        for i, name in enumerate(devices):
            self._of_type.setdefault(_type_of(name), i)

    def __getitem__(self, name: str) -> int:
        return self.number.get(name, self._of_type.get(_type_of(name), -1))


def _type_of(device: str) -> str:
    return device.rpartition("/device:")[2].partition(":")[0]


def as_profile(given: Profile | str | os.PathLike[str] | None) -> Profile | None:
    """What `place` and `simulate` take as costs: a profile, or the path of one.

    Raises:
        TypeError: something else. InvalidArgumentError, OSError: as `Profile.load`.
    """
    if given is None or isinstance(given, Profile):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Profile.load(given)
    raise TypeError(f"costs must be a dt.Profile or the path of one, not {given!r}")


def fitted_link(a: str, b: str, points: Sequence[tuple[float, float]]) -> Link:
    """A link between two tasks, from (bytes, seconds) of what crossed it: latency and bandwidth, none negative.

    Errors count by their share of the time, so that small values tell the latency and large ones the bandwidth.
    """
    from scipy.optimize import nnls

    size, seconds = np.array(points, float).T
    seconds = np.maximum(seconds, 1e-9)
    (latency, per_byte), _ = nnls(np.stack([1 / seconds, size / seconds], 1), np.ones(len(points)))
    differ = size.max() >= 1024 and len(np.unique(size)) > 1
    if not differ:  # one size alone does not tell the two apart
        return (
            Link(a, b, float(np.median(seconds)), None)
            if size.max() < 1024
            else Link(a, b, None, float(size[0] / np.median(seconds)))
        )
    return Link(a, b, float(latency), float(1 / per_byte) if per_byte > 0 else None)


def measured_nodes(
    spans: Sequence[Any], device_of: Callable[[Any], str], share_of: Callable[[str], float]
) -> dict[tuple[str, str], float]:
    """(node, device) -> seconds of one step: a fused kernel's time goes to its nodes by their shares."""
    out: dict[tuple[str, str], float] = {}
    for span in spans:
        names = span.nodes or (span.name,)
        shares = [share_of(name) for name in names]
        whole = sum(shares)
        for name, share in zip(names, shares, strict=True):
            key = name, device_of(span)
            part = share / whole if whole > 0 else 1 / len(names)
            out[key] = out.get(key, 0.0) + (span.finish - span.start) * part
    return out


def _seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no time or rate")
    return float(value)


def _maybe(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
