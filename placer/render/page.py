"""Self-contained HTML pages: a skeleton, a style sheet, scripts and compressed data become one file.

A content security policy holds the browser to what is hashed here: it runs and styles by nothing else, and connects to nowhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files


def filled(skeleton: str, title: str, style: str, script: str, data: bytes, **more: str) -> str:
    """A page: a skeleton of `page_assets/` with what belongs into it; `more` is HTML."""
    parts = {
        "title": html.escape(title),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "style": style,
        "script": script,
        "data": base64.b64encode(data).decode("ascii"),
        **more,
    }
    page, *rest = page_file(skeleton).split("{{")
    for piece in rest:  # one pass: what was put in is never searched for marks
        name, _, after = piece.partition("}}")
        page += parts[name] + after
    return page


def page_file(name: str) -> str:
    """A file of `page_assets/`."""
    return (files(__package__) / "page_assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    """What a content security policy calls a source: the browser runs no other text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
