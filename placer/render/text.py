"""Numbers, names and tables as text for people: what reports, pages and errors share. It knows no plan."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence

ROWS = 24
"""Rows of a table, besides its head: three tables then fit on one screen of a large terminal."""
WIDTH = 100
AT_LEAST = "≥ "
"""Before a number that depends on an unknown size, which counts as 1."""
WHERE = 60  # columns of a text that lists two devices
NARROW = 16  # columns that a text column keeps at least


def short(device: str) -> str:
    """A complete device name without the parts that are the same in every cluster of today.

    >>> short("/job:ps/replica:0/task:1/device:GPU:0")
    '/job:ps/task:1/GPU:0'
    """
    return device.replace("/replica:0", "").replace("/device:", "/")


UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size_text(count: float, exact: bool = True) -> str:
    """Bytes for people: `3.2 MiB`; after `≥` where some sizes are unknown."""
    return ("" if exact else AT_LEAST) + _size_in(float(count), _unit_of(count))


def sum_texts(*counts: float) -> list[str]:
    """The terms and the result of a sum of bytes, as `size_text`; all in the smallest one's unit where rounded texts would not add up."""
    units = [_unit_of(count) for count in counts]
    if any(round(count / 1024**u, 1) * 1024**u != count for count, u in zip(counts, units, strict=True)):
        units = [min(units)] * len(units)
    return [_size_in(count, unit) for count, unit in zip(counts, units, strict=True)]


def _unit_of(count: float) -> int:
    """The number in `UNITS` of the largest unit of which there is one."""
    unit = 0
    while count >= 1024 ** (unit + 1) and unit + 1 < len(UNITS):
        unit += 1
    return unit


def _size_in(count: float, unit: int) -> str:
    return f"{count / 1024**unit:.{1 if unit else 0}f} {UNITS[unit]}"


def number_text(count: float, exact: bool = True) -> str:
    """A number for people: `950`, `1.2 M`, `3.4 G`; after `≥` where it is only a lower bound."""
    if not exact:
        return AT_LEAST + number_text(count)
    value = float(count)
    for unit in ("", " k", " M", " G", " T"):
        if value < 1000 or unit == " T":
            return f"{value:.0f}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    raise AssertionError


def time_text(seconds: float, exact: bool = True) -> str:
    """A time for people: `12.3 µs`, `1.25 ms`, `98.7 s`: three digits in the unit that suits it; after `≥` where it is only a lower bound.

    The page writes times in the same way (`page_assets/words.js`).
    """
    if not exact:
        return AT_LEAST + time_text(seconds)
    if abs(seconds) >= 999.5:
        return f"{seconds:.0f} s"
    rounded = float(f"{seconds:.3g}")
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if abs(rounded) >= s), ("ns", 1e-9))
    return f"{rounded / size:.3g} {unit}" if rounded else "0"


def count_text(number: int, word: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def filled(text: str, indent: str = "", further: str = "") -> str:
    """A paragraph in lines of at most WIDTH columns, but for longer names: a number stays with its unit, and `8 B per step` together.

    Args:
        indent, further: before the first line, and before each other one.
    """
    kept = _AMOUNT.sub(lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    lines = textwrap.fill(
        kept, WIDTH, initial_indent=indent, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ")


_AMOUNT = re.compile(r"(≥ )?[0-9.]+ (B|[KMGT]iB|ns|µs|us|ms|s)\b( per step)?|\b[0-9]+ [a-z]+")


def listed(names: Iterable[str], most: int) -> str:
    """`a, b and 3 more`: names with commas between them, at most `most`."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    rest: str = "",
    limit: int | None = ROWS,
    whole: int | None = None,
    indent: str = "",
) -> str:
    """Columns of text, each line behind `indent`: words to the left, numbers to the right; '' when there are no rows.

    A list of more than `limit` rows is cut, and the others are counted, unless `rest` tells what the table leaves out. Texts that are
    too long lose their middle, the widest first, until the table fits; those of the column `whole` only when the others are as narrow as
    can be.
    """
    if not rows:
        return ""
    shown = [list(r) for r in rows[:limit]]
    numeric = [all(r[i].lstrip(AT_LEAST)[:1].isdigit() or not r[i] for r in shown) for i in range(len(header))]
    widths = [max(len(r[i]) for r in [header, *shown]) for i in range(len(header))]
    while len(indent) + sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        narrowable = [i for i in range(len(widths)) if not numeric[i] and widths[i] > NARROW]
        if not narrowable:
            break
        widest = max(narrowable, key=lambda i: (i != whole, widths[i]))
        widths[widest] -= 1
    lines = []
    for row in [header, *shown]:
        cells = [fitted(c, w) for c, w in zip(row, widths, strict=True)]
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(cells, widths, numeric, strict=True)]
        lines.append(f"{indent}{'  '.join(cells)}".rstrip())
    if rest or len(rows) > len(shown):
        lines.append(indent + (rest or f"... and {len(rows) - len(shown)} more"))
    return "\n".join(lines)


def fitted(text: str, width: int) -> str:
    """A text that may lose its middle: names differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 3) * 2 // 3
    return f"{text[: width - 3 - tail]}...{text[len(text) - tail :]}"


def where(devices: Counter[str], word: str = "device") -> str:
    """Devices (or whatever `word` names) with their numbers of nodes, the most first."""
    ordered = sorted(devices.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) == 1:
        return short(ordered[0][0])
    listed = [f"{short(d)} ({n})" for d, n in ordered[:2]]
    listed = listed if len(", ".join(listed)) <= WHERE else listed[:1]
    left = len(ordered) - len(listed)
    return ", ".join(listed) + (f" and {count_text(left, word)} more" if left else "")
