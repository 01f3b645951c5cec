"""The reference counts of objects that have only one reference. They tell whether an object may be overwritten in place.

`sys.getrefcount(x)` also counts its own argument, and other references of the interpreter. From Python 3.14 on, a local variable that is
passed lends its reference instead of adding one. So code must not count the references of a local variable. The argument must be an item of
a list or an attribute. The result is compared with that for an object that has no other reference, which is determined when this module is
imported.

>>> from sys import getrefcount
>>> held = [bytearray(1)]
>>> getrefcount(held[0]) == ONLY_ITEM
True
>>> other = held[0]
>>> getrefcount(held[0]) == ONLY_ITEM
False
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Final


class _Holder:
    """Refers to an object in a slot, and to another in its dictionary."""

    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.slot: Any = object()
        self.attribute: Any = object()


_items, _holder = [object()], _Holder()

ONLY_ITEM: Final = getrefcount(_items[0])
"""`getrefcount(items[i])` of an object to which only the list `items` refers."""

ONLY_ATTRIBUTE: Final = getrefcount(_holder.slot)
"""`getrefcount(x.name)` of an object to which only that attribute of x refers, in a slot or in the dictionary of x."""

if getrefcount(_holder.attribute) != ONLY_ATTRIBUTE:
    raise ImportError("this Python counts references from slots and from dictionaries in different ways")
