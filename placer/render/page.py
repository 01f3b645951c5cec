"""The page: one self-contained HTML file with a content security policy, written in `page_assets/`.

It shows what it is given, each in a tab: a plan (`views/page_data.py`), charts of time (`timeline.py`), or both. A skeleton, a style
sheet, scripts that are joined in the order of `SCRIPTS`, and compressed data become one file. A content security policy holds the
browser to what is hashed here: it runs and styles by nothing else, and connects to nowhere.

    data = gzip(length of the head, 4 bytes | head, JSON, padded | columns one after the other)

All numbers are little-endian. The head holds texts and small things, and where each column lies. A column is an array of the smallest
integers that hold it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

LIBRARY = "dagre.min.js"  # lays out graphs; MIT licence
SCRIPTS = (
    "data", "words", "tree", "edges", "layout", "routes", "paint", "draw", "map", "detail", "tips", "table", "timeline", "search", "app",
)  # fmt: skip

Columns = dict[str, Sequence[float] | npt.NDArray[Any]]


def page(title: str, head: dict[str, Any], columns: Columns) -> str:
    """The page as text.

    Args:
        title: of the browser's tab.
        head, columns: what it shows; `charts` and, of a plan, all that `page_data.py` writes.
    """
    own = "\n".join(page_file(f"{name}.js") for name in SCRIPTS)
    style = page_file("page.css")
    # The library puts itself into the window; the page's own names stay inside a function.
    script = f'"use strict";\n{page_file(LIBRARY)}\n(() => {{\n{own}\n}})();\n'
    parts = {
        "title": html.escape(title),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "style": style,
        "script": script,
        "data": base64.b64encode(packed(head, columns)).decode("ascii"),
        "licence": html.escape(page_file("dagre.LICENSE.txt").strip().replace("--", "- -")),
    }
    text, *rest = page_file("page.html").split("{{")
    for piece in rest:  # one pass: what was put in is never searched for marks
        name, _, after = piece.partition("}}")
        text += parts[name] + after
    return text


def page_file(name: str) -> str:
    """A file of `page_assets/`."""
    return (files(__package__) / "page_assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    """What a content security policy calls a source: the browser runs no other text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def packed(head: dict[str, Any], columns: Columns) -> bytes:
    """Head and columns, compressed."""
    pieces: list[bytes] = []
    where: dict[str, list[int | str]] = {}
    offset = 0
    for name, values in columns.items():
        array = _smallest(values)
        where[name] = [_TYPES[array.dtype.str[1:]], offset, len(array)]
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        data += bytes(-len(data) % 8)  # typed arrays must start at a multiple of their element's size
        pieces.append(data)
        offset += len(data)
    # ensure_ascii also keeps lone surrogates, which a name may hold and UTF-8 cannot.
    text = json.dumps({**head, "columns": where}, separators=(",", ":")).encode("ascii")
    text += b" " * (-(len(text) + 4) % 8)
    # mtime=0: the same plan gives the same page.
    return gzip.compress(b"".join([len(text).to_bytes(4, "little"), text, *pieces]), 6, mtime=0)


_TYPES = {"u1": "Uint8", "u2": "Uint16", "u4": "Uint32", "i1": "Int8", "i2": "Int16", "i4": "Int32",
          "f8": "Float64"}  # fmt: skip


def _smallest(values: Sequence[float] | npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values as an array of the smallest type that JavaScript can look at."""
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.uint8)
    if array.dtype.kind in "iu":
        low, high = int(array.min()), int(array.max())
        kinds: tuple[type[np.integer[Any]], ...] = (
            (np.uint8, np.uint16, np.uint32) if low >= 0 else (np.int8, np.int16, np.int32)
        )
        for kind in kinds:
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return array.astype(kind)
    return array.astype(np.float64)  # byte counts beyond 32 bits are exact up to 2^53
