"""Device names: the partial name that a device block requests, and the complete name that placement assigns.

A name has five fields: `/job:ps/replica:0/task:1/device:GPU:0`. Two types keep request and outcome apart:

- `DeviceSpec` is *partial*: each field may be unset. Device blocks, requests and patterns are specs.
- `DeviceName` is *complete*: one device of one task. A function that takes one needs a placed node.

There are two parsers, as in TensorFlow 1. The front end's, `DeviceSpec.from_string`, reads users' names: parts in any
order, the short `/gpu:1`, no leading slash needed. The runtime's, `parse_strict`, reads names in messages between
processes and checks their character set. A name that only the first accepts (`/job:a-b`, `/task:-1`) fails when the
graph is placed. The placer and the partitioner use the relations (`matches`, `merge`, ...).

Printing is canonical, so equal strings mean equal devices, and the graph under construction stores strings:
`canonical_name` and `merge_names` are cached, and a device block costs a dictionary look-up.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

from .errors import invalid

SHORT_TYPES = frozenset({"CPU", "GPU", "TPU", "CUSTOM", "EPU"})
"""Device types that have a short form, `/gpu:0` for `/device:GPU:0`."""

_CACHE_SIZE = 1 << 14  # room for the devices of a large cluster; made-up names can't fill the memory


class DeviceFields(Protocol):
    """Anything with the five fields: a spec of either class or a complete name."""

    @property
    def job(self) -> str | None: ...
    @property
    def replica(self) -> int | None: ...
    @property
    def task(self) -> int | None: ...
    @property
    def device_type(self) -> str | None: ...
    @property
    def device_index(self) -> int | None: ...


def _type_name(value: object) -> str:
    text = str(value)
    return text.upper() if text in ("cpu", "gpu") else text


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "job": str, "replica": int, "task": int, "device_type": _type_name, "device_index": int,
}  # fmt: skip


def _converted(name: str, value: object) -> object:
    return None if value is None else _CONVERT[name](value)


def _text(fields: DeviceFields) -> str:
    parts = []
    if fields.job is not None:
        parts.append(f"/job:{fields.job}")
    if fields.replica is not None:
        parts.append(f"/replica:{fields.replica}")
    if fields.task is not None:
        parts.append(f"/task:{fields.task}")
    if fields.device_type is not None:
        index = "*" if fields.device_index is None else fields.device_index
        parts.append(f"/device:{fields.device_type}:{index}")
    return "".join(parts)


class _Spec:
    """Common base of both spec classes; see `DeviceSpec`."""

    __slots__ = ()

    job: str | None
    replica: int | None
    task: int | None
    device_type: str | None
    device_index: int | None

    def __init__(
        self,
        job: object = None,
        replica: object = None,
        task: object = None,
        device_type: object = None,
        device_index: object = None,
    ) -> None:
        for name, value in zip(_CONVERT, (job, replica, task, device_type, device_index), strict=True):
            object.__setattr__(self, name, _converted(name, value))

    @classmethod
    def from_string(cls, spec: str | None) -> Self:
        """The spec that `spec` spells. Empty parts are skipped, so `""` and `"/"` constrain nothing; neither does None.

        Parts, in any order, split by `/`: `job:NAME`, `replica:N`, `task:N`; a device as `device:TYPE:N`,
        `device:TYPE:*`, or for the usual types short and in any case as `gpu`, `gpu:N`, `gpu:*`. `*` leaves
        the index unset. A repeated job, replica or task overrides the earlier one.

        Raises:
            ValueError: a part is unknown, there is a second device type, or a number is malformed.
            TypeError: `spec` is neither a string nor None.

        >>> DeviceSpec.from_string("gpu:1/job:ps").to_string()
        '/job:ps/device:GPU:1'
        """
        return cls(*_components(spec))

    def to_string(self) -> str:
        """The canonical spelling. A type without index prints `:*`; an index without type prints nothing."""
        return _text(self)

    def make_merged_spec(self, dev: DeviceFields) -> Self:
        """A new spec: this one, with the fields that `dev` sets taken from `dev`.

        Fields merge one by one, the index apart from the type.

        >>> DeviceSpec.from_string("/gpu:3").make_merged_spec(DeviceSpec(device_type="CPU")).to_string()
        '/device:CPU:3'
        """
        return type(self)(*_merged(self, dev))

    def replace(self, **fields: object) -> Self:
        """A new spec with some fields changed; None clears a field.

        Raises:
            TypeError: a name is not a field.
        """
        return type(self)(**{name: getattr(self, name) for name in _CONVERT} | fields)

    def __str__(self) -> str:
        return self.to_string()

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in _CONVERT if getattr(self, name) is not None)
        return f"{type(self).__name__}({', '.join(given)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Spec):
            return NotImplemented
        same_side = isinstance(other, type(self)) or isinstance(self, type(other))
        return same_side and _text(self) == _text(other)

    def __hash__(self) -> int:
        return hash(_text(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in _CONVERT)


@dataclass(slots=True, init=False, eq=False, repr=False)  # frozen, too, with an error of its own
class DeviceSpec(_Spec):
    """A partial device name, as a device block requests it. Immutable; unset fields are None.

    Arguments are converted with `str` and `int` (`task=1.7` is task 1), and the types `cpu` and `gpu` are upper-cased. Specs are equal if
    they print the same.

    Attributes:
        job: name of a job, such as `ps`.
        replica: always 0 in current clusters; part of the name for compatibility with TensorFlow.
        task: index of a task in its job.
        device_type: `CPU`, `GPU`, ...
        device_index: index among the task's devices of this type.

    Raises:
        ValueError: a numeric field is not a number.

    >>> DeviceSpec(job="ps", task=0).make_merged_spec(DeviceSpec(task=1)).to_string()
    '/job:ps/task:1'
    """

    job: str | None
    replica: int | None
    task: int | None
    device_type: str | None
    device_index: int | None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"A DeviceSpec cannot be changed (setting {name!r}): make another one with "
            "spec.replace(...) or spec.make_merged_spec(...), or use a DeviceSpecV1"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A DeviceSpec cannot be changed (deleting {name!r})")

    def parse_from_string(self, spec: str | None) -> DeviceSpec:
        """Parse a device name as a new spec. This object does not change; in TensorFlow 1's class it does."""
        return self.from_string(spec)


class DeviceSpecV1(_Spec):
    """TensorFlow 1's spec: the same fields and conversions as `DeviceSpec`, but they can be set.

    Never equal to a `DeviceSpec`. Its hash follows its fields: don't change one that is a dictionary's key.

    >>> spec = DeviceSpecV1(job="ps")
    >>> spec.task = "3"
    >>> spec.to_string()
    '/job:ps/task:3'
    """

    __slots__ = ("device_index", "device_type", "job", "replica", "task")

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _CONVERT:
            raise AttributeError(f"A device spec has no field {name!r}; its fields are {', '.join(_CONVERT)}")
        object.__setattr__(self, name, _converted(name, value))

    def parse_from_string(self, spec: str | None) -> DeviceSpecV1:
        """Replace all fields by those of a device name, and return this object. An invalid name changes nothing."""
        self._set(_components(spec))
        return self

    def merge_from(self, dev: DeviceFields) -> None:
        """Replace the fields that `dev` sets."""
        self._set(_merged(self, dev))

    def _set(self, values: _Components) -> None:
        for name, value in zip(_CONVERT, values, strict=True):
            setattr(self, name, value)


_Components = tuple[str | None, int | None, int | None, str | None, int | None]


def _merged(under: DeviceFields, over: DeviceFields) -> _Components:
    return (
        under.job if over.job is None else over.job,
        under.replica if over.replica is None else over.replica,
        under.task if over.task is None else over.task,
        under.device_type if over.device_type is None else over.device_type,
        under.device_index if over.device_index is None else over.device_index,
    )


@lru_cache(_CACHE_SIZE)
def _components(spec: str | None) -> _Components:
    """The front end's parser."""
    if spec is None:
        return None, None, None, None, None
    if not isinstance(spec, str):
        raise TypeError(f"A device spec is parsed from a string such as '/job:ps/gpu:0', not from {spec!r}")
    job: str | None = None
    numbers: dict[str, str] = {}  # read at the end: only the last of a repeated part counts
    device: tuple[str, str] | None = None
    for part in spec.split("/"):
        match part.split(":"):
            case ["", *_]:
                continue
            case ["job", name]:
                job = name
                continue
            case ["replica" | "task" as name, number]:
                numbers[name] = number
                continue
            case [short] if short.upper() in SHORT_TYPES:
                found = (short.upper(), "*")
            case [short, index] if short.upper() in SHORT_TYPES:
                found = (short.upper(), index)
            case ["device", device_type, index]:
                found = (device_type, index)
            case [first, *_]:
                text = f"Unknown attribute '{first}' is encountered while parsing the device spec: '{spec}'. "
                if meant := _meant(part):
                    text += f"Write '/{'/'.join(meant if p == part else p for p in spec.split('/') if p)}'. "
                raise ValueError(f"{text}Parts are job:NAME, replica:N, task:N and device:TYPE:N (or cpu:N, gpu:N).")
        if device is not None:
            raise ValueError(f"Multiple device types are not allowed while parsing the device spec: {spec}.")
        device = found
    replica, task = (_number(numbers[n], n, spec) if n in numbers else None for n in ("replica", "task"))
    if device is None:
        return job, replica, task, None, None
    device_type, index = device
    return job, replica, task, device_type, None if index == "*" else _number(index, "device index", spec)


def _meant(part: str) -> str | None:
    """The correct spelling of a part that is misspelt, or in the style of PyTorch or JAX: `tsk:0`, `cuda:0`, `worker:1`; None: unknown."""
    match re.split("[:@]", part):
        case ["cuda", *index]:
            return ":".join(["gpu", *(index or "0")])
        case [short] if found := re.fullmatch("(cpu|gpu|cuda)([0-9]+)", short.lower()):
            return f"{found[1].replace('cuda', 'gpu')}:{found[2]}"
        case [("worker" | "ps" | "chief" | "master" | "evaluator") as job, index] if index.isdigit():
            return f"job:{job}/task:{index}"
        case [("worker" | "ps" | "chief" | "master" | "evaluator") as job]:
            return f"job:{job}"
        case ["job", job, index]:
            return f"job:{job}/task:{index}"
    name, *rest = re.split("[: ]", part)
    close = difflib.get_close_matches(name.lower(), ("job", "replica", "task", "device", "cpu", "gpu"), 1, 0.7)
    is_whole = bool(close) and close != [part] and len(rest) == (2 if close[0] == "device" else 1)
    return ":".join([*close, *rest]) if is_whole else None


def _number(text: str, what: str, spec: str) -> int:
    try:
        if text[:1].isspace():  # int() would strip it; TensorFlow takes blanks only behind the number
            raise ValueError
        return int(text)
    except ValueError:
        raise ValueError(f"The {what} in the device spec '{spec}' must be a number, not '{text}'.") from None


# -- complete names ----------------------------------------------------------------------------------------

_NAME = "[A-Za-z][A-Za-z0-9_]*"
_NUMBER = "0*[0-9]{1,9}"  # what fits into TensorFlow's int32, with a round limit
_COMPLETE = re.compile(f"/job:{_NAME}/replica:{_NUMBER}/task:{_NUMBER}/device:{_NAME}:{_NUMBER}")


class DeviceName(str):
    """The complete name of one device: a string with its parts as attributes.

    Raises:
        InvalidArgumentError: a field is unset or malformed.

    >>> DeviceName("ps", 0, 0, "GPU", 1)
    '/job:ps/replica:0/task:0/device:GPU:1'
    """

    __slots__ = ("job", "replica", "task", "device_type", "device_index")

    job: str
    replica: int
    task: int
    device_type: str
    device_index: int

    def __new__(cls, job: str, replica: int, task: int, device_type: str, device_index: int) -> DeviceName:
        text = f"/job:{job}/replica:{replica}/task:{task}/device:{device_type}:{device_index}"
        fields = job, replica, task, device_type, device_index
        if None in fields or not _COMPLETE.fullmatch(text):
            raise invalid(
                f"'{text}' is not a complete device name; one looks like /job:ps/replica:0/task:0/device:GPU:1"
            )
        made = super().__new__(cls, text)
        for name, value in zip(cls.__slots__, fields, strict=True):
            object.__setattr__(made, name, value)
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a device's name cannot be changed: {name}")

    def __reduce__(self) -> tuple[object, ...]:
        return DeviceName, tuple(getattr(self, name) for name in self.__slots__)

    @classmethod
    def parse(cls, name: str) -> DeviceName:
        """Parse a complete device name (`parse_strict`'s grammar, all five fields set).

        Raises:
            InvalidArgumentError: `name` is malformed or leaves a field unset.
        """
        return _parse_complete(name)

    @classmethod
    def of(cls, spec: DeviceFields) -> DeviceName:
        """The device of a spec with all five fields set.

        Raises:
            InvalidArgumentError: a field is unset.
        """
        values = (spec.job, spec.replica, spec.task, spec.device_type, spec.device_index)
        if None in values:
            missing = ", ".join(name for name, value in zip(_CONVERT, values, strict=True) if value is None)
            raise invalid(f"'{_text(spec)}' does not name a single device: {missing} unset")
        return cls(*values)  # type: ignore[arg-type]  # None was ruled out

    @property
    def spec(self) -> DeviceSpec:
        """The same name as a spec."""
        return DeviceSpec(self.job, self.replica, self.task, self.device_type, self.device_index)

    @property
    def task_name(self) -> str:
        """The task that owns the device: `/job:ps/replica:0/task:0`."""
        return f"/job:{self.job}/replica:{self.replica}/task:{self.task}"


# -- the runtime's parser ----------------------------------------------------------------------------------

_DEVICE_FIELDS = ("device_type", "device_index")
_STRICT_PARTS = tuple(
    (re.compile(pattern), names)
    for pattern, names in (
        (rf"/job:(?:\*|({_NAME}))", ("job",)),
        (rf"/replica:(?:\*|({_NUMBER}))", ("replica",)),
        (rf"/task:(?:\*|({_NUMBER}))", ("task",)),
        (rf"/device:(?:\*|({_NAME}))(?::(?:\*|({_NUMBER})))?", _DEVICE_FIELDS),
        (rf"/(cpu|CPU|gpu|GPU):(?:\*|({_NUMBER}))", _DEVICE_FIELDS),
    )
)


@lru_cache(_CACHE_SIZE)
def parse_strict(name: str) -> DeviceSpec:
    """Parse a device name in the runtime's grammar, with a slash before each part and checked names.

    Parts: `/job:NAME`, `/replica:N`, `/task:N`, `/device:TYPE`, `/device:TYPE:N`, and `/cpu:N`, `/CPU:N`,
    `/gpu:N`, `/GPU:N`; NAME and TYPE are a letter and then letters, digits and `_`; `*` in place of a value
    leaves it unset. Any order; of a repeated part, the last one counts. `""` and `"/"` constrain nothing.

    Raises:
        InvalidArgumentError: "Malformed device specification ...".
    """
    found: dict[str, str | None] = {}
    position = 0 if name != "/" else 1
    while position < len(name):
        for pattern, names in _STRICT_PARTS:
            if part := pattern.match(name, position):
                found.update(zip(names, part.groups(), strict=True))
                position = part.end()
                break
        else:
            raise invalid(
                f"Malformed device specification '{name}': cannot read '{name[position:]}'. "
                f"A full specification looks like /job:ps/replica:0/task:0/device:GPU:1"
            )
    return DeviceSpec(**found)


@lru_cache(_CACHE_SIZE)
def _parse_complete(name: str) -> DeviceName:
    return DeviceName.of(parse_strict(name))


# -- relations ---------------------------------------------------------------------------------------------


def is_specialization(less: DeviceFields, more: DeviceFields) -> bool:
    """Whether `more` sets every field that `less` sets, to the same value."""
    return (
        (less.job is None or less.job == more.job)
        and (less.replica is None or less.replica == more.replica)
        and (less.task is None or less.task == more.task)
        and (less.device_type is None or less.device_type == more.device_type)
        and (less.device_index is None or less.device_index == more.device_index)
    )


def matches(pattern: DeviceFields, device: DeviceName) -> bool:
    """Whether every field that `pattern` sets equals the device's: whether the request admits the device."""
    return is_specialization(pattern, device)


def is_compatible(a: DeviceFields, b: DeviceFields) -> bool:
    """Whether no field is set in both with different values. Symmetric."""
    return _merged(a, b) == _merged(b, a)


_PLURALS = {
    "job": "jobs", "replica": "replicas", "task": "tasks", "device_type": "types", "device_index": "ids",
}  # fmt: skip


def merge(target: DeviceFields, other: DeviceFields, *, soft: bool = False) -> DeviceSpec:
    """`target` with the fields of `other` added; neither argument changes.

    With `soft`, a conflicting type is dropped together with the index, or a conflicting index alone, instead of failing. Job, replica and
    task are never dropped.

    Raises:
        InvalidArgumentError: "Cannot merge devices with incompatible jobs: 'a' and 'b'", likewise for
            replicas, tasks, types and ids.

    >>> merge(parse_strict("/job:ps/gpu:0"), parse_strict("/task:1/gpu:1"), soft=True).to_string()
    '/job:ps/task:1/device:GPU:*'
    """
    for name, plural in _PLURALS.items():
        mine, theirs = getattr(target, name), getattr(other, name)
        if mine is None or theirs is None or mine == theirs:
            continue
        if soft and name in _DEVICE_FIELDS:
            job, replica, task, device_type, _ = _merged(target, other)
            return DeviceSpec(job, replica, task, device_type if name == "device_index" else None)
        raise invalid(f"Cannot merge devices with incompatible {plural}: '{_text(target)}' and '{_text(other)}'")
    return DeviceSpec(*_merged(target, other))


def override(target: DeviceFields, other: DeviceFields) -> DeviceSpec:
    """`target` with the fields of `other`, which take precedence. Never fails."""
    return DeviceSpec(*_merged(target, other))


def task_name(fields: DeviceFields) -> str:
    """The task that a name belongs to: `/job:J/replica:R/task:T`.

    Raises:
        InvalidArgumentError: job, replica or task is unset.
    """
    if fields.job is None or fields.replica is None or fields.task is None:
        raise invalid(f"'{_text(fields)}' does not name a task: job, replica and task must be set")
    return f"/job:{fields.job}/replica:{fields.replica}/task:{fields.task}"


# -- canonical strings, for building graphs ----------------------------------------------------------------


@lru_cache(_CACHE_SIZE)
def canonical_name(name: str | None) -> str:
    """The canonical spelling of a device as a user writes it. Raises like `DeviceSpec.from_string`.

    >>> canonical_name("gpu:1/job:ps")
    '/job:ps/device:GPU:1'
    """
    return DeviceSpec.from_string(name).to_string()


@lru_cache(_CACHE_SIZE)
def merge_names(outer: str, inner: str) -> str:
    """The canonical name of an inner request inside an outer one; the inner one's fields take precedence.

    Raises like `DeviceSpec.from_string`.

    >>> merge_names("/job:ps/device:GPU:7", "/device:CPU:*")
    '/job:ps/device:CPU:7'
    """
    return DeviceSpec.from_string(outer).make_merged_spec(DeviceSpec.from_string(inner)).to_string()
