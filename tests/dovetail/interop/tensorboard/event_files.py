"""What event files hold, read without the library that wrote them."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.crc32c import crc32c
from tensorboardX.proto import event_pb2


def unmask(crc: int) -> int:
    crc = (crc - 0xA282EAD8) & 0xFFFFFFFF
    return (crc >> 17) | ((crc << 15) & 0xFFFFFFFF)


def events(folder: Path) -> list:
    """All events of a folder, with their checksums checked: length, its checksum, data, its checksum."""
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
            assert unmask(crc) == crc32c(data[:8])
            event, (crc,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
            assert unmask(crc) == crc32c(event)
            found.append(event_pb2.Event.FromString(event))
            data = data[16 + length :]
    return found
