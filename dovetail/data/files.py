"""Data sets from files: lines of text, rows of NumPy's own files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator as Walk, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.dtypes import as_dtype, string
from ..graph.errors import NotFoundError
from ..graph.node import Tensor
from .dataset import Dataset
from .given import Given, Seeds, Source
from .spec import Array, Component, Element


def names_of(filenames: Any) -> list[str]:
    """The files that an argument names. NotFoundError: one is not there."""
    given = [filenames] if isinstance(filenames, (str, bytes, Path)) else list(filenames)
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in given]
    for name in names:
        if not Path(name).is_file():
            raise NotFoundError(None, None, f"{name}; No such file or directory")
    return names


def files_of(filenames: Any) -> tuple[Callable[[Seeds], list[str]], Sequence[Given]]:
    """What gives the names of the files in a walk, and whose values it needs. NotFoundError: a known one is not there."""
    if not (isinstance(filenames, Tensor) or hasattr(filenames, "_as_tensor")):
        names = names_of(filenames)
        return lambda seeds: names, ()
    source = Source([filenames])
    if source.components[0].dtype is not string:
        raise TypeError(f"Names of files are text, not {source.components[0].dtype.name}")
    return lambda seeds: names_of(source.of(seeds)[0].ravel().tolist()), source.given


class TextLineDataset(Dataset):
    """The lines of text files, without their ends, as bytes: one file after the other.

    Args:
        filenames: a file, or several; also a tensor of names: see `Dataset.from_tensor_slices`.

    Raises:
        NotFoundError: a file is not there.
    """

    def __init__(self, filenames: Any) -> None:
        names, given = files_of(filenames)

        def lines(seeds: Seeds) -> Walk[Element]:
            for name in names(seeds):
                with Path(name).open("rb") as file:
                    for line in file:
                        out = np.empty((), object)
                        out[()] = line.rstrip(b"\n").removesuffix(b"\r")
                        yield [out]

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            return itertools.islice(lines(seeds), skip, None)

        super().__init__("", [Component(string, ())], walk, given=given)


class NpyDataset(Dataset):
    """The rows of `.npy` files, read as they are needed: one file after the other. TensorFlow has no such data set.

    Raises:
        NotFoundError: a file is not there. ValueError: rows of different shapes or types.
    """

    def __init__(self, filenames: str | Path | Sequence[str | Path]) -> None:
        files: list[Array] = [np.load(name, mmap_mode="r", allow_pickle=False) for name in names_of(filenames)]
        kinds = {(f.dtype, f.shape[1:]) for f in files if f.ndim}
        if len(kinds) != 1 or not all(f.ndim for f in files):
            raise ValueError(
                f"The files' rows must have one type and shape: {[(str(f.dtype), f.shape) for f in files]}"
            )
        ((dtype, dims),) = kinds
        ends = list(itertools.accumulate(len(f) for f in files))

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            for file, end in zip(files, ends, strict=True):
                for i in range(max(0, skip - (end - len(file))), len(file)):
                    yield [np.array(file[i])]

        super().__init__(0, [Component(as_dtype(dtype), dims)], walk, ends[-1])


__all__ = ["NpyDataset", "TextLineDataset"]
