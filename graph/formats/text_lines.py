r"""The lines of a text file, as TensorFlow's vocabularies and `TextLineReader` define them.

A line ends with `\n` or `\r\n`. The last line may end with `\r` or nothing, and is omitted if it is empty. `str.splitlines` would also
end lines at a single `\r`, `\v`, `\f` and other separators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .atomic_files import path_of


def lines_of(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file that is open for reading bytes, without their line ends."""
    for line in file:
        if text := line.removesuffix(b"\n").removesuffix(b"\r"):
            yield text
        elif line.endswith(b"\n"):
            yield b""


def vocabulary_of(name: str) -> list[str]:
    """The lines of a file of UTF-8 text."""
    with path_of(name).open("rb") as file:
        return [line.decode() for line in lines_of(file)]
