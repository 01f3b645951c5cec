"""Checkpoints on disk: shards of tensors, and a manifest that lists them.

A checkpoint `model.ckpt-10` is

    model.ckpt-10.index                                        the manifest, in JSON
    model.ckpt-10.data-00000-of-00002.3f9ac21b.safetensors     one shard per task that saved variables

Each task writes its own shard, under a unique name. When all shards are on the disk, one rename puts the manifest in place. The
checkpoint exists if and only if its manifest exists. An older checkpoint of the same name stays complete until then. A checkpoint is
removed in the opposite order, the manifest first.

The folder has two locks, for threads and processes. A save holds one from the first shard to the last removal (`save_turn`), so saves
take turns. The other is held to put a manifest in place and to remove shards. So a shard that a manifest names is never removed, even
by a save whose client was killed and whose step still runs.

The manifest has the type, the shape and the slices of each tensor. A partitioned variable is one tensor of several slices. It can be
restored with any other partitions, because a reader requests a region, which is assembled from the slices that overlap it. Each slice
has a checksum, which is compared when the slice is read.

safetensors does not have strings and bfloat16. They are stored as bytes, and the manifest has their type.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import secrets
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgpack
import numpy as np

from ..core.dtypes import Array, DType, as_dtype, text_array
from ..core.errors import DataLossError, FailedPreconditionError, NotFoundError, invalid
from ..core.shape import text
from .atomic_files import (
    PARTIAL,
    is_remote,
    locked,
    open_sink,
    path_of,
    point,
    remove,
    write_bytes_durably,
    write_durably,
)
from .protos import ENUM_NAMES
from .sstable import TableError
from .tensor_bundle import is_bundle, read_bundle, read_piece

FORMAT = "dovetail checkpoint 1"
_CHUNK_BYTES = 1 << 16  # bytes that are checked and written at a time
_REST = 3.0  # rest after a chunk while steps run, as a multiple of the time that the chunk took
_BESIDE_S = 1.0  # seconds after the start of a step in which a save rests
# Types that safetensors.numpy can read -> their names in its files. Other types are stored as bytes.
_PLAIN = {
    "float16": "F16", "float32": "F32", "float64": "F64", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Region:
    """A slice of a tensor: the shape of the tensor, and the offset and size of the slice for each axis."""

    full: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        """The slice of a whole tensor."""
        return cls(tuple(shape), (0,) * len(shape), tuple(shape))

    @classmethod
    def parse(cls, spec: str, shape: Sequence[int]) -> Region:
        """Parse text such as `10 4 0,4:0,4`. '' is the whole of a tensor of shape `shape`.

        Raises:
            ValueError: the text is malformed, or the slice is out of range.
        """
        if not spec:
            return cls.whole(shape)
        *full, axes = spec.split(" ")
        pairs = [tuple(int(n) for n in a.split(",")) for a in axes.split(":")]
        if len(pairs) != len(full) or any(len(p) != 2 for p in pairs):
            raise ValueError(f"malformed slice {spec!r}: it must be like '10 4 0,4:0,4'")
        region = cls(tuple(int(n) for n in full), tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))
        if any(o < 0 or n < 0 or o + n > f for o, n, f in zip(region.offset, region.shape, region.full, strict=True)):
            raise ValueError(f"slice {spec!r} lies outside the whole")
        return region

    def overlap(self, other: Region) -> tuple[tuple[slice, ...], tuple[slice, ...]] | None:
        """The intersection, as indices into this slice and into the other. None if it is empty."""
        mine, theirs = [], []
        for o, n, p, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True):
            start, end = max(o, p), min(o + n, p + m)
            if start >= end:
                return None
            mine.append(slice(start - o, end - o))
            theirs.append(slice(start - p, end - p))
        return tuple(mine), tuple(theirs)


# --- writing ----------------------------------------------------------------------------------------------------------


class InChunks(Protocol):
    """A value that is read in chunks. `chunks` yields its rows in order, once."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int

    def chunks(self) -> Iterator[Array]: ...


@dataclass(frozen=True, slots=True)
class _Stored:
    """A value in a safetensors file: its entry in the header, and its content."""

    kind: str
    shape: tuple[int, ...]
    nbytes: int
    itemsize: int
    chunks: Iterator[Array]


def write_shard(
    prefix: str,
    number: int,
    count: int,
    tensors: Iterable[tuple[str, str, DType, Array | InChunks]],
    steps: Callable[[], int] = int,
) -> dict[str, Any]:
    """Write a shard with the tensors of a task, and flush it to the disk. Values are read while the file is written.

    Args:
        prefix: name of the checkpoint.
        number: number of the shard.
        count: number of shards of the checkpoint.
        tensors: (name, slice, type, value) for each tensor.
        steps: returns the number of steps that the task has started. While it grows, the save uses at most a quarter of a processor.

    Returns:
        The shard's entry in the manifest.
    """
    path = path_of(f"{prefix}.data-{number:05}-of-{count:05}.{secrets.token_hex(4)}.safetensors")
    stored: dict[str, _Stored] = {}
    entries: list[dict[str, Any]] = []
    for name, spec, dtype, value in tensors:
        region = Region.parse(spec, value.shape)
        key = f"{name} {spec}" if spec else name
        stored[key] = _stored(value, dtype)
        entries.append(
            {
                "name": name, "key": key, "dtype": dtype.name, "full": region.full, "offset": region.offset,
                "shape": region.shape,
            }
        )  # fmt: skip
    header, ordered = _layout(stored)
    checksums: dict[str, int] = {}
    pace = _Pace(steps)

    size = len(header) + sum(s.nbytes for s in stored.values())

    def write(partial: Path) -> None:
        with open_sink(partial, size) as file:
            file.write(header)
            for key in ordered:
                crc = 0
                for chunk in stored[key].chunks:
                    content = chunk.reshape(-1).view(np.uint8).data
                    crc = zlib.crc32(content, crc)
                    file.write(content)
                    pace.rest()
                checksums[key] = crc
            if is_remote(path):
                point()  # during the upload

    write_durably(path, write, size)
    for entry in entries:
        entry["crc"] = checksums[entry["key"]]
    return {"file": path.name, "bytes": path.stat().st_size, "slices": entries}


class _Pace:
    """Leaves the processors to steps: the thread of a save rests after each chunk.

    Otherwise the saves of a machine's tasks may use all processors. A step that wakes up would then wait several milliseconds for a time
    slice.
    """

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps, self._seen = steps, steps()
        self._until = 0.0
        self._worked = time.thread_time()

    def rest(self) -> None:
        """Sleep after a chunk if steps run during the save."""
        now = time.monotonic()
        if (seen := self._steps()) != self._seen:
            self._seen, self._until = seen, now + _BESIDE_S
        if now < self._until:
            time.sleep(_REST * (time.thread_time() - self._worked))
        self._worked = time.thread_time()


def _stored(value: Array | InChunks, dtype: DType) -> _Stored:
    if isinstance(value, np.ndarray):
        data = _to_plain(value, dtype)
        return _Stored(_PLAIN[data.dtype.name], data.shape, data.nbytes, data.itemsize, _chunks(data))
    plain = dtype.name in _PLAIN
    shape = value.shape if plain else (value.nbytes,)
    return _Stored(
        _PLAIN[dtype.name if plain else "uint8"],
        shape,
        value.nbytes,
        value.dtype.itemsize if plain else 1,
        value.chunks(),
    )


def _chunks(data: Array) -> Iterator[Array]:
    content = data.reshape(-1).view(np.uint8)
    for at in range(0, content.size, _CHUNK_BYTES):
        yield content[at : at + _CHUNK_BYTES]


def _layout(stored: Mapping[str, _Stored]) -> tuple[bytes, list[str]]:
    """The header of a safetensors file, and the keys of its values in order. The widest types are first, so that all are aligned."""
    ordered = sorted(stored, key=lambda key: -stored[key].itemsize)
    header, at = {}, 0
    for key in ordered:
        data = stored[key]
        header[key] = {"dtype": data.kind, "shape": data.shape, "data_offsets": (at, at + data.nbytes)}
        at += data.nbytes
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    return struct.pack("<Q", len(content)) + content, ordered


def save_turn(prefix: str) -> AbstractContextManager[None]:
    """A lock to hold during a save, so that saves into one folder take turns."""
    return locked(path_of(prefix).parent / ".saves.lock")


def _manifests(prefix: str) -> AbstractContextManager[None]:
    return locked(path_of(prefix).parent / ".manifests.lock")


def write_manifest(prefix: str, shards: Sequence[Mapping[str, Any]]) -> None:
    """Make a checkpoint of shards that are on the disk. It replaces a checkpoint of the same name.

    Args:
        prefix: name of the checkpoint.
        shards: the results of `write_shard`.

    Raises:
        InvalidArgumentError: slices of a tensor have different types or full shapes.
        FailedPreconditionError: a shard is missing, because the tasks do not share the folder or two saves have the same name.
    """
    tensors: dict[str, Any] = {}
    for number, shard in enumerate(shards):
        for entry in shard["slices"]:
            found = tensors.setdefault(
                entry["name"], {"dtype": entry["dtype"], "shape": list(entry["full"]), "slices": []}
            )
            if found["dtype"] != entry["dtype"] or found["shape"] != list(entry["full"]):
                raise invalid(f"Slices of '{entry['name']}' differ in the type or shape of the whole")
            piece = {k: entry[k] for k in ("key", "offset", "shape", "crc")}
            found["slices"].append({"shard": number, **piece})
    files = [{"file": s["file"], "bytes": s["bytes"]} for s in shards]
    manifest = {"format": FORMAT, "shards": files, "tensors": tensors}
    with _manifests(prefix):
        for shard in shards:
            path = path_of(prefix).parent / shard["file"]
            if not path.is_file() or path.stat().st_size != shard["bytes"]:
                raise FailedPreconditionError.of(
                    f"Shard {path}, which another task has just written, is not there: all tasks must share the folder, and no two "
                    "saves may run under one name at a time",
                )
        write_bytes_durably(_index(prefix), json.dumps(manifest).encode())
        _remove_shards(prefix, keep={s["file"] for s in shards})


def _index(prefix: str) -> Path:
    return path_of(f"{prefix}.index")


def _remove_shards(prefix: str, keep: Iterable[str] = ()) -> None:
    """Remove the shards of a checkpoint except `keep`, also those of killed saves."""
    base = path_of(prefix)
    kept = set(keep)
    for path in list(base.parent.iterdir()):
        if path.name.startswith(f"{base.name}.data-") and ".safetensors" in path.name and path.name not in kept:
            remove(path)


def remove_checkpoint_files(prefix: str) -> None:
    """Remove a checkpoint, the manifest first."""
    with _manifests(prefix):
        remove(_index(prefix))
        _remove_shards(prefix)


def remove_leftovers(base: str) -> None:
    """Remove the files of failed or killed saves of checkpoints `base` and `base-<step>`. The caller holds `save_turn`.

    These are incomplete files, and shards of checkpoints without a manifest.
    """
    folder, name = path_of(base).parent, re.escape(path_of(base).name)
    shard = re.compile(rf"({name}(?:-\d+)?)\.data-.*\.safetensors({PARTIAL})?")
    other = re.compile(rf"(?:checkpoint|{name}(?:-\d+)?\.(?:index|meta)){PARTIAL}")
    with _manifests(base):
        for path in list(folder.iterdir()):
            found = shard.fullmatch(path.name)
            if other.fullmatch(path.name) or (found and (found[2] or not _index(str(folder / found[1])).exists())):
                remove(path)


def checkpoint_exists(prefix: str) -> bool:
    """Whether there is a checkpoint of this name."""
    return _index(prefix).is_file()


# --- reading ----------------------------------------------------------------------------------------------------------


class CheckpointReader:
    """Reads a checkpoint in Dovetail's or TensorFlow's format (`tensor_bundle`).

    Args:
        prefix: name of the checkpoint.

    Raises:
        NotFoundError: there is no checkpoint of this name.
        DataLossError: the manifest is damaged.

    >>> reader = CheckpointReader("/tmp/model.ckpt-10")
    >>> reader.get_variable_to_shape_map()
    {'v': [2, 3]}
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        index = _index(prefix)
        try:
            data = index.read_bytes()
            manifest = self._foreign(data) if is_bundle(data) else json.loads(data)
            if manifest["format"] != FORMAT:
                raise ValueError(f"its format is {manifest['format']!r}, not {FORMAT!r}")
            self._shards: list[dict[str, Any]] = manifest["shards"]
            self._tensors: dict[str, dict[str, Any]] = manifest["tensors"]
            self._dtypes = {name: as_dtype(t["dtype"]) for name, t in self._tensors.items()}
            self._check()
        except FileNotFoundError:
            raise NotFoundError.of(f"There is no checkpoint '{prefix}': {index} does not exist") from None
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError, struct.error) as e:
            raise DataLossError.of(f"The manifest {index} is damaged: {e!r}") from None
        self._opened: dict[int, tuple[Path, Any]] = {}

    def _check(self) -> None:
        """Check all fields that `region` uses. Raises ValueError, or the error of an operation on a wrong type."""
        for shard in self._shards:
            if Path(shard["file"]).name != shard["file"] or "\0" in shard["file"] or type(shard["bytes"]) is not int:
                raise ValueError(f"{shard['file']!r} is no shard beside it")
        for name, tensor in self._tensors.items():
            shape = tensor["shape"]
            _count(shape)
            for piece in tensor["slices"]:
                number, offset, sizes = piece["shard"], piece["offset"], piece["shape"]
                if type(number) is not int or not 0 <= number < len(self._shards):
                    raise ValueError(f"'{name}' lies in shard {number!r}, which is not there")
                room = self._shards[number]["bytes"]
                _count(offset)
                if 0 <= room < _count(sizes) or any(o + n > f for o, n, f in zip(offset, sizes, shape, strict=True)):
                    raise ValueError(f"a slice of '{name}' is larger than its shard, or than the whole")
                if type(piece["crc"]) is not int or ("at" not in piece and not isinstance(piece["key"], str)):
                    raise ValueError(f"a slice of '{name}' has no key or no checksum")

    def _foreign(self, index: bytes) -> dict[str, Any]:
        """The manifest of a checkpoint of TensorFlow."""
        files, tensors = read_bundle(self._prefix, index)
        folder = path_of(self._prefix).parent
        shards = [{"file": f, "bytes": (folder / f).stat().st_size if (folder / f).exists() else -1} for f in files]
        return {"format": FORMAT, "shards": shards, "tensors": tensors}

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Name -> shape of each tensor."""
        return {name: list(t["shape"]) for name, t in self._tensors.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """Name -> element type of each tensor."""
        return dict(self._dtypes)

    def has_tensor(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of this name."""
        return name in self._tensors

    def get_tensor(self, name: str) -> Array:
        """Read a tensor. Errors are as for `region`."""
        return self.region(name)

    def region(self, name: str, spec: str = "") -> Array:
        """Read a slice of a tensor.

        Args:
            name: name of the tensor.
            spec: the slice, such as `10 4 0,4:0,4`. '' means the whole tensor.

        Raises:
            NotFoundError: there is no tensor of this name.
            InvalidArgumentError: the slice is malformed, or does not fit the tensor.
            DataLossError: a shard is missing or damaged. The message names the file and the tensor.
        """
        found = self._tensors.get(name)
        if found is None:
            close = difflib.get_close_matches(name, self._tensors, n=3) or sorted(self._tensors)[:5]
            raise NotFoundError.of(
                f"Key {name} not found in checkpoint '{self._prefix}'; it has {', '.join(close) or 'nothing'}",
            )
        try:
            wanted = Region.parse(spec, found["shape"])
        except ValueError as e:
            raise invalid(f"'{name}': {e}") from None
        if wanted.full != tuple(found["shape"]):
            raise invalid(
                f"'{name}' has shape {text(tuple(found['shape']))} in checkpoint '{self._prefix}', "
                f"not {text(wanted.full)}"
            )
        dtype = self._dtypes[name]
        pieces = [(Region(wanted.full, tuple(s["offset"]), tuple(s["shape"])), s) for s in found["slices"]]
        for region, piece in pieces:
            if region == wanted:
                return self._read(name, piece, dtype)
        parts = [(place, piece) for region, piece in pieces if (place := wanted.overlap(region)) is not None]
        missing = math.prod(wanted.shape) - sum(math.prod(s.stop - s.start for s in mine) for (mine, _), _ in parts)
        if missing:
            raise DataLossError.of(f"Checkpoint '{self._prefix}' lacks {missing} elements of '{name}'")
        out = np.zeros(wanted.shape, dtype.np)
        for (mine, theirs), piece in parts:
            out[mine] = self._read(name, piece, dtype)[theirs]
        return out

    def _read(self, name: str, piece: Mapping[str, Any], dtype: DType) -> Array:
        from safetensors import SafetensorError

        number = piece["shard"]
        path, file = self._opened.get(number) or self._open(number, "at" in piece)
        try:
            if "at" in piece:
                return read_piece(path, piece, dtype)
            data = file.get_tensor(piece["key"])
        except (OSError, SafetensorError, TableError) as e:
            raise DataLossError.of(f"Shard {path}, which holds '{name}', cannot be read: {e}") from None
        if _checksum(data) != piece["crc"]:
            raise DataLossError.of(
                f"Shard {path} is damaged: the checksum of '{name}' differs. Restore another checkpoint "
                "(dt.train.get_checkpoint_state lists those that were kept).",
            )
        try:
            found = _from_plain(data, dtype, piece["shape"])
        except (ValueError, msgpack.UnpackException) as e:
            raise DataLossError.of(f"Shard {path} is damaged at '{name}': {e}") from None
        return found

    def _open(self, number: int, foreign: bool) -> tuple[Path, Any]:
        """A shard's path and file. The file is opened once, because its header lists all its tensors."""
        from safetensors import SafetensorError, safe_open

        shard = self._shards[number]
        path = path_of(self._prefix).parent / shard["file"]
        try:
            size = path.stat().st_size
            if size != shard["bytes"]:
                raise DataLossError.of(f"Shard {path} has {size} bytes, not {shard['bytes']}: it is damaged")
            found = path, None if foreign else _Loaded(path) if is_remote(path) else safe_open(path, framework="numpy")
        except (OSError, ValueError, SafetensorError) as e:
            raise DataLossError.of(f"Shard {path} cannot be read: {e}") from None
        self._opened[number] = found
        return found

    def debug_string(self) -> bytes:
        """A line per tensor with name, type and shape, in TensorFlow's form."""
        lines = [
            f"{name} (DT_{ENUM_NAMES.get(kind := self._dtypes[name].name, kind.upper())}) [{','.join(map(str, t['shape']))}]"
            for name, t in sorted(self._tensors.items())
        ]
        return "\n".join(lines).encode()

    def __repr__(self) -> str:
        return f"<dt.train.CheckpointReader '{self._prefix}', {len(self._tensors)} tensors>"


class _Loaded:
    """A remote shard, read as a whole, with the interface of an opened safetensors file."""

    def __init__(self, path: Path) -> None:
        from safetensors.numpy import load

        self._tensors = load(path.read_bytes())

    def get_tensor(self, key: str) -> Array:
        return self._tensors[key]


def _to_plain(value: Array, dtype: DType) -> Array:
    """A value in a type that safetensors has. Bytes for other types."""
    if dtype.np == np.dtype(object):
        return np.frombuffer(msgpack.packb([bytes(v) for v in value.ravel()]), np.uint8)
    value = np.ascontiguousarray(value).reshape(value.shape)
    return value if dtype.name in _PLAIN else value.reshape(-1).view(np.uint8)


def _from_plain(data: Array, dtype: DType, shape: Sequence[int]) -> Array:
    if dtype.np == np.dtype(object):
        return text_array(msgpack.unpackb(data.tobytes()), tuple(shape))
    if dtype.name not in _PLAIN:
        return data.view(dtype.np).reshape(shape)
    if data.dtype != dtype.np or data.shape != tuple(shape):
        raise ValueError(f"it holds {data.dtype.name} {data.shape}, not {dtype.name} {tuple(shape)}")
    return data


def _count(dims: Sequence[int]) -> int:
    """The number of elements of a shape. ValueError if it is not a shape."""
    if not all(type(n) is int and n >= 0 for n in dims):
        raise ValueError(f"{dims!r} is not a shape")
    return math.prod(dims)


def _checksum(data: Array) -> int:
    return zlib.crc32(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
