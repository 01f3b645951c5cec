"""What a member of a collective does when its node runs: by messages, on a board, or by a link.

Where all members are GPUs, they first ask each other whether all have a link, such as NCCL (`device_link.py`). Kernels for GPUs bring one
along (`linked`). Kernels for CPUs (`meeting`) say that they have none, and all go on by messages then, as in any other group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from ..core.errors import FailedPreconditionError, InvalidArgumentError
from ..resources.resource_manager import Context
from . import algorithms
from .algorithms import Array, flat, unflat
from .device_link import Link, Linked, Refused, told, unlinked
from .shared_memory_algorithms import SCATTER_BYTES, Gathering, Scattering, Sharing, can_be_shared

Key: TypeAlias = tuple[str, int]
"""Instance and run."""


def meeting(what: str, context: Context, *values: Any, **attrs: Any) -> Any:
    """The reference of the collective ops: a member's value in the host's memory."""
    arrays = [np.asarray(v) for v in values]
    check(what, context, arrays, attrs)
    way = attrs.get("way", "auto")
    if way == "nccl" and not are_gpus(attrs["members"]):
        raise FailedPreconditionError(
            context.node_name,
            None,
            f"The {what} asks for NCCL, but not all of its members are GPUs: {', '.join(attrs['members'])}. "
            "Use communication 'auto' or 'ring'",
        )
    if what == "barrier" or way not in ("auto", "nccl") or not are_gpus(attrs["members"]):
        return by_messages(what, context, arrays, attrs, (_instance(context, attrs), context.run_number()))
    return linked(what, context, arrays, attrs, lambda key: by_messages(what, context, arrays, attrs, key))


def linked(
    what: str,
    context: Context,
    values: Sequence[Any],
    attrs: Mapping[str, Any],
    otherwise: Callable[[Key], Any],
    link: Link | None = None,
    job: Callable[[], Any] = lambda: None,
) -> Any:
    """A collective by a link if all members have one; else what `otherwise(key)` gives, a run by messages.

    All members of a group come through here, those without a link as well, until the group has found that it has none.

    Args:
        values: the member's, wherever they are: only shapes and types are looked at.
        link, job: the member's link, and what makes its job; None: it has none.

    Raises:
        FailedPreconditionError: the members have no link, and `attrs["way"]` asks for one.
    """
    members, instance = attrs["members"], _instance(context, attrs)
    run = context.run_number()
    # Of another instance: a part may come to a member that has not heard yet that there is no link.
    key = f"{instance} by messages", run
    without = unlinked(context.session)
    if (members, instance) in without:
        return otherwise(key)

    def ended(result: Any) -> Any:
        if not isinstance(result, Refused):
            return result
        if attrs.get("way") == "nccl":
            raise FailedPreconditionError(
                context.node_name,
                None,
                f"The {what} '{instance}' cannot go by NCCL: {told(result, members)}. Or use communication 'auto' or 'ring'",
            )
        without.add((members, instance))
        return otherwise(key)

    rows = len(values[0]) if values[0].ndim else 0
    exchange = Linked(attrs["rank"], len(members), link, None if link is None else job(), rows)
    brought = f"{what} by a link {signature(what, values, attrs)}"
    return _ask(what, context, attrs, brought, lambda: exchange, ended, (instance, run))


def are_gpus(members: Sequence[str]) -> bool:
    """Whether a group may have a link."""
    return all("/device:GPU:" in m for m in members)


def check(what: str, context: Context, values: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """InvalidArgumentError: a member cannot bring these."""
    if what == "all_gather" and values[0].ndim == 0:
        raise InvalidArgumentError(context.node_name, None, "A scalar has no first axis, along which values are joined")
    count = len(attrs["members"])
    if what == "reduce_scatter" and (values[0].ndim == 0 or len(values[0]) % count):
        raise InvalidArgumentError(
            context.node_name, None, f"A value of shape {values[0].shape} cannot be shared evenly by {count} members"
        )


def signature(what: str, values: Sequence[Any], attrs: Mapping[str, Any]) -> str:
    """What members must have in common beside the op."""
    if what == "barrier":
        return ""
    if what == "all_gather":
        return f"{values[0].dtype}{list(values[0].shape[1:])}"
    how = (attrs["root"],) if what == "broadcast" else (attrs["reduction"], attrs.get("way"))
    return _described(how, tuple([v.dtype for v in values]), tuple([tuple(v.shape) for v in values]))


@lru_cache(1_000)
def _described(how: tuple[Any, ...], dtypes: tuple[np.dtype[Any], ...], shapes: tuple[tuple[int, ...], ...]) -> str:
    words = [str(x) for x in how if x is not None]
    return " ".join(words + [f"{dtype}{list(shape)}" for dtype, shape in zip(dtypes, shapes, strict=True)])


def by_messages(what: str, context: Context, values: Sequence[Array], attrs: Mapping[str, Any], key: Key) -> Any:
    """The collective with arrays in the host's memory: a result, or a request for it."""
    exchange, sharing, finish = _WAYS[what](values, attrs)
    return _ask(what, context, attrs, f"{what} {signature(what, values, attrs)}", exchange, finish, key, sharing)


_Way: TypeAlias = tuple[Callable[[], algorithms.Exchange], Sharing | None, Callable[[Any], Any]]
"""What makes that which is done by messages, what is done on a board, and what makes the kernel's result of either."""


def _all_reduce(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    reduction, way = attrs["reduction"], attrs["way"]
    shapes = [v.shape for v in values]

    def finish(result: Array) -> Any:
        result = _frozen(result)
        return result.reshape(shapes[0]) if len(shapes) == 1 else tuple(unflat(result, shapes))

    def exchange() -> algorithms.Exchange:
        return algorithms.all_reduce(attrs["rank"], len(attrs["members"]), flat(values), reduction, way)

    return exchange, Sharing(values, reduction) if way == "auto" else None, finish


def _all_gather(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    (value,) = values
    return (
        lambda: algorithms.all_gather(attrs["rank"], len(attrs["members"]), value),
        Gathering(value) if can_be_shared(value) else None,
        _frozen,
    )


def _reduce_scatter(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    (value,) = values
    reduction, count = attrs["reduction"], len(attrs["members"])
    return (
        lambda: algorithms.reduce_scatter(attrs["rank"], count, value, reduction),
        Scattering(value, reduction, count) if value.nbytes <= SCATTER_BYTES else None,
        _frozen,
    )


def _broadcast(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    return lambda: algorithms.Tree(attrs["rank"], len(attrs["members"]), values[0], attrs["root"]), None, np.array


def _barrier(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    nothing = np.zeros(1, np.int8)
    exchange = partial(algorithms.Doubling, attrs["rank"], len(attrs["members"]), nothing, "max")
    return exchange, Sharing((nothing,), "max"), lambda _: ()


_WAYS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], _Way]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "barrier": _barrier,
}


def _ask(
    what: str,
    context: Context,
    attrs: Mapping[str, Any],
    brought: str,
    exchange: Callable[[], algorithms.Exchange],
    finish: Callable[[Any], Any],
    key: Key,
    sharing: Sharing | None = None,
) -> Any:
    members = attrs["members"]
    text = _told(what, _instance(context, attrs), len(members))
    return context.resources.collectives.take_part(
        context.session, members, attrs["rank"], key, brought, text, exchange, finish, sharing
    )


@lru_cache(1_000)
def _told(what: str, instance: str, members: int) -> str:
    return f"the {what} '{instance}' of {members} members"


def _instance(context: Context, attrs: Mapping[str, Any]) -> str:
    return attrs["instance"] or context.node_name


def _frozen(array: Array) -> Array:
    """The same, for reading; it may be another's array."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


__all__ = ["are_gpus", "by_messages", "check", "linked", "meeting", "signature"]
