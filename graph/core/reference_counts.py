"""How many references there are to an object that only one place refers to: what may be overwritten in place is decided by that.

`sys.getrefcount(x)` counts the call's own argument, too, and what else the interpreter holds at that moment. From Python 3.14 on,
a local variable that is passed lends its reference instead of adding one. So this module never counts the references of a local variable,
and has no such number: the argument is the place itself, an item of a list or an attribute, and the result is compared with
what this interpreter gives for an object that has no other reference. It is found once, when this module is imported.

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


class _Place:
    """A place for an object: an attribute in a slot, or in a dictionary."""

    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.slot: Any = object()
        self.attribute: Any = object()


_items, _place = [object()], _Place()

ONLY_ITEM: Final = getrefcount(_items[0])
"""What `getrefcount(items[i])` gives for an object to which only the list `items` refers."""

ONLY_ATTRIBUTE: Final = getrefcount(_place.slot)
"""What `getrefcount(x.name)` gives for an object to which only that attribute of x refers, in a slot or in the dictionary of x."""

if getrefcount(_place.attribute) != ONLY_ATTRIBUTE:
    raise ImportError("this Python counts references from slots and from dictionaries in different ways")
