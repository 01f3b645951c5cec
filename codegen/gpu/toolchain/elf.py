"""What a compiled GPU kernel says about itself: its parameters, registers and stack, read from the ELF file.

A compiler adds parameters of its own and lays all of them out. The launch of a kernel must agree with it to the byte, and no
driver checks that; so the layout is read back from the binary. It needs neither a GPU nor the vendor's tools.

A cubin has a section `.nv.info.<function>` of attributes, one per parameter, and a section `.nv.info` with registers and frame
sizes (the attributes' numbers are those that `cuobjdump -elf` prints).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_KPARAM_INFO, _REGCOUNT, _FRAME_SIZE = 0x17, 0x2F, 0x11
_SIZED = 4  # the format of an attribute whose value is as many bytes as its header says


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """One function of a binary. Functions that it calls, which Triton inlines, would count for registers and stack.

    Attributes:
        parameters: offset and size of each, in bytes, the compiler's own included.
        registers: 32-bit registers of a thread.
        stack: bytes of a thread's stack: what did not fit into registers.
    """

    parameters: tuple[tuple[int, int], ...]
    registers: int
    stack: int


def facts_of(image: bytes, entry: str) -> ImageFacts:
    """Read a cubin.

    Raises:
        ValueError: it is none, or has no such function.
    """
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("a GPU binary is an ELF file of 64 bits")
    sections = dict(_sections(image))
    if f".nv.info.{entry}" not in sections:
        raise ValueError(f"the binary has no function {entry!r}")
    parameters: dict[int, tuple[int, int]] = {}
    for kind, body in _attributes(sections[f".nv.info.{entry}"]):
        if kind == _KPARAM_INFO:
            _, ordinal, offset, flags = struct.unpack("<IHHI", body)
            parameters[ordinal] = (offset, flags >> 18)
    # Each of these is of one function: its symbol, and the number.
    of_all = [(kind, struct.unpack("<II", body)[1]) for kind, body in _attributes(sections.get(".nv.info", b""))
              if kind in (_REGCOUNT, _FRAME_SIZE)]  # fmt: skip
    registers, stack = (max((n for k, n in of_all if k == kind), default=0) for kind in (_REGCOUNT, _FRAME_SIZE))
    return ImageFacts(tuple(parameters[i] for i in sorted(parameters)), registers, stack)


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    (table,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * size) for i in range(count)]
    start = headers[names][4]
    for h in headers:
        at = start + h[0]
        yield image[at : image.index(b"\0", at)].decode(), image[h[4] : h[4] + h[5]]


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, kind, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _SIZED:
            yield kind, info[at : at + value]
            at += value
