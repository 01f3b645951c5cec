"""Regular expressions by RE2, as in TensorFlow. The time is linear in the length of the string for every pattern.

The pattern is an attribute (`Static...`) or a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import Array, bool_, string
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ..math.static_operands import as_bytes
from ..state.queues import need_scalar
from .strings import each, need_strings

if TYPE_CHECKING:
    from re2 import _Regexp


@lru_cache(256)
def _compiled(pattern: bytes) -> _Regexp:
    import re2  # only graphs with patterns need it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as e:
        why = e.args[0]
        why = why.decode(errors="replace") if isinstance(why, bytes) else why
        raise invalid(f"Invalid pattern: {pattern.decode(errors='replace')}, error: {why}") from None


@lru_cache(256)
def _rewriter(rewrite: bytes, groups: int) -> Callable[[Any], bytes]:
    r"""A function from a match to its replacement. In `rewrite`, `\0` is the match, `\1` to `\9` are its groups, `\\` is a backslash."""
    parts: list[bytes | int] = []
    for i, piece in enumerate(rewrite.split(b"\\\\")):
        parts += [b"\\"] if i else []
        first, *others = piece.split(b"\\")
        parts.append(first)
        for other in others:
            if not other[:1].isdigit() or int(other[:1]) > groups:
                text = f"Invalid rewrite: {rewrite.decode(errors='replace')}, error: "
                raise invalid(
                    f"{text}a backslash stands before a group of the pattern, which has {groups}, or another one"
                )
            parts += [int(other[:1]), other[1:]]
    return lambda match: b"".join([part if isinstance(part, bytes) else match.group(part) or b"" for part in parts])


def _replacer(pattern: bytes, rewrite: bytes, replace_global: bool) -> Callable[[bytes], bytes]:
    compiled = _compiled(pattern)
    written = _rewriter(rewrite, compiled.groups)

    def replace(text: bytes) -> bytes:
        found: list[bytes] = []
        at, last = 0, -1
        for match in compiled.finditer(text):
            begin, end = match.span()
            if begin == end and (end == last or text[end : end + 1] and text[end] & 0xC0 == 0x80):
                continue  # an empty match directly after another match, or inside a UTF-8 character
            found += [text[at:begin], written(match)]
            at = last = end
            if not replace_global:
                break
        return b"".join([*found, text[at:]]) if found else text

    return replace


def _matcher(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = _compiled(pattern)
    return lambda text: compiled.fullmatch(text) is not None


def _infer(result: Any, *texts: str) -> Callable[[Sequence[Tensor], Attrs], Sequence[Output]]:
    """The shape rule of an op whose patterns are scalar inputs, or the attributes `texts`."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        need_strings(inputs[0])
        for tensor in inputs[1:]:
            need_scalar(tensor, (string,), "the pattern and its rewrite")
        for name in texts:
            typed_attr(attrs, name, str)
        return [(result, inputs[0].dims)]

    return infer


def _replaced(x: Array, pattern: Any, rewrite: Any, *, replace_global: bool) -> Array:
    return each(x, _replacer(_text(pattern), _text(rewrite), replace_global))


def _matched(x: Array, pattern: Any) -> Array:
    return each(x, _matcher(_text(pattern)), np.bool_)


def _replaced_by_attrs(x: Array, *, pattern: str, rewrite: str, replace_global: bool) -> Array:
    return _replaced(x, pattern, rewrite, replace_global=replace_global)


def _matched_by_attrs(x: Array, *, pattern: str) -> Array:
    return _matched(x, pattern)


def _text(scalar: Any) -> bytes:
    return scalar.encode() if isinstance(scalar, str) else as_bytes(np.asarray(scalar, object)[()])


define("RegexReplace", _infer(string), _replaced, device_types=("CPU",))
define("StaticRegexReplace", _infer(string, "pattern", "rewrite"), _replaced_by_attrs, device_types=("CPU",))
define("RegexFullMatch", _infer(bool_), _matched, device_types=("CPU",))
define("StaticRegexFullMatch", _infer(bool_, "pattern"), _matched_by_attrs, device_types=("CPU",))


def regex_replace(
    input: TensorLike, pattern: TensorLike, rewrite: TensorLike, replace_global: bool = True, name: str | None = None
) -> Tensor:
    r"""Replace the matches of a regular expression in each string.

    Args:
        input: strings.
        pattern: a pattern of [RE2](https://github.com/google/re2/wiki/Syntax), a string or a scalar tensor.
        rewrite: the replacement, a string or a scalar tensor. `\0` is the match, `\1` its first group.
        replace_global: replace all matches. Otherwise only the first.
        name: name of the node.

    Raises:
        InvalidArgumentError: in a step, the pattern or the rewrite is malformed.

    >>> regex_replace("a1b2", "[0-9]", "#")   # evaluates to b"a#b#"
    """
    x, attrs = convert(input, string, name="input"), {"replace_global": bool(replace_global)}
    if isinstance(pattern, str | bytes) and isinstance(rewrite, str | bytes):
        return apply("StaticRegexReplace", (x,), {"pattern": _str(pattern), "rewrite": _str(rewrite), **attrs}, name)
    others = convert(pattern, string, name="pattern"), convert(rewrite, string, name="rewrite")
    return apply("RegexReplace", (x, *others), attrs, name)


def regex_full_match(input: TensorLike, pattern: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether each whole string matches a pattern of RE2. The pattern is a string or a scalar tensor.

    Raises:
        InvalidArgumentError: in a step, the pattern is malformed.
    """
    x = convert(input, string, name="input")
    if isinstance(pattern, str | bytes):
        return apply("StaticRegexFullMatch", (x,), {"pattern": _str(pattern)}, name)
    return apply("RegexFullMatch", (x, convert(pattern, string, name="pattern")), None, name)


def _str(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text
