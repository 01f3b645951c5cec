"""`Scaffold`: the nodes that a training program needs besides its training op: to initialise, to ask, to save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.ops.array.identity_and_placeholders import group
from ...graph.variables.collections import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)
from ...interop.tensorboard import merge_all
from ..saving.saver import Saver


class Scaffold:
    """What is not given is found in the graph's collections when the scaffold is finalised, or made and kept there.

    Args:
        init_op, init_feed_dict, init_fn: initialise the variables: a node, what to feed it, and `init_fn(scaffold, session)` after it.
        ready_op: gives the names of variables without a value.
        ready_for_local_init_op: the same for what `local_init_op` needs.
        local_init_op: initialises local variables, and whatever else each process has for itself.
        summary_op: the summaries to write, as one string tensor.
        saver: a `Saver`.
        local_init_feed_dict: what to feed `local_init_op`.
        copy_from_scaffold: another scaffold to take over what is not given.
    """

    def __init__(
        self,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Any, Any], Any] | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        local_init_op: Any = None,
        summary_op: Any = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        other = copy_from_scaffold
        if other is not None and not isinstance(other, Scaffold):
            raise TypeError("copy_from_scaffold is not a Scaffold instance.")

        def chosen(given: Any, name: str) -> Any:
            return given if given is not None or other is None else getattr(other, name)

        self._user_init_fn = chosen(init_fn, "_user_init_fn")
        self._init_op = chosen(init_op, "_init_op")
        self._init_feed_dict = chosen(init_feed_dict, "_init_feed_dict")
        self._ready_op = chosen(ready_op, "_ready_op")
        self._ready_for_local_init_op = chosen(ready_for_local_init_op, "_ready_for_local_init_op")
        self._local_init_op = chosen(local_init_op, "_local_init_op")
        self._local_init_feed_dict = chosen(local_init_feed_dict, "_local_init_feed_dict")
        self._summary_op = chosen(summary_op, "_summary_op")
        self._saver = chosen(saver, "_saver")

    def finalize(self) -> Scaffold:
        """Find or make what is missing, and finalize the default graph: nothing can be added to it any more.

        Raises:
            RuntimeError: a collection has several of what there must be one of.
        """
        keys = GraphKeys
        if self._init_op is None:
            self._init_op = self.get_or_default("init_op", keys.INIT_OP, global_variables_initializer)
        if self._ready_op is None:
            self._ready_op = self.get_or_default("ready_op", keys.READY_OP, report_uninitialized_variables)
        if self._ready_for_local_init_op is None:
            self._ready_for_local_init_op = self.get_or_default(
                "ready_for_local_init_op",
                keys.READY_FOR_LOCAL_INIT_OP,
                lambda: report_uninitialized_variables(global_variables()),
            )
        if self._local_init_op is None:
            self._local_init_op = self.get_or_default("local_init_op", keys.LOCAL_INIT_OP, self.default_local_init_op)
        if self._summary_op is None:
            self._summary_op = self.get_or_default("summary_op", keys.SUMMARY_OP, merge_all)
        if self._saver is None:
            self._saver = self.get_or_default("saver", keys.SAVERS, lambda: Saver(sharded=True, allow_empty=True))
        self._saver.build()
        get_default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """What a collection of the default graph holds; else what the function makes, which is then kept there.

        Raises:
            RuntimeError: the collection holds several.
        """
        graph = get_default_graph()
        kept = graph.get_collection(collection_key)
        if len(kept) > 1:
            raise RuntimeError(
                f"More than one item in the collection {collection_key!r}. Please indicate which one to use by passing "
                f"it to the tf.Scaffold constructor as:  tf.Scaffold({arg_name}=item to use)"
            )
        if kept:
            return kept[0]
        made = default_constructor()
        if made is not None:
            graph.add_to_collection(collection_key, made)
        return made

    @staticmethod
    def default_local_init_op() -> Any:
        """Initialises local variables, tables and data iterators."""
        tables = get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
        return group(local_variables_initializer(), *tables)

    @property
    def init_op(self) -> Any:
        """Initialises the global variables."""
        return self._init_op

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """A function of the session, called after `init_op`."""
        call = self._user_init_fn
        return None if call is None else lambda sess: call(self, sess)

    @property
    def init_feed_dict(self) -> Mapping[Any, Any] | None:
        """What to feed `init_op`."""
        return self._init_feed_dict  # type: ignore[no-any-return]

    @property
    def ready_op(self) -> Any:
        """Names of variables without a value."""
        return self._ready_op

    @property
    def ready_for_local_init_op(self) -> Any:
        """Names of what `local_init_op` needs and has no value."""
        return self._ready_for_local_init_op

    @property
    def local_init_op(self) -> Any:
        """Initialises what each process has for itself."""
        return self._local_init_op

    @property
    def local_init_feed_dict(self) -> Mapping[Any, Any] | None:
        """What to feed `local_init_op`."""
        return self._local_init_feed_dict  # type: ignore[no-any-return]

    @property
    def summary_op(self) -> Any:
        """The summaries to write; None: there are none."""
        return self._summary_op

    @property
    def saver(self) -> Any:
        """The saver."""
        return self._saver


__all__ = ["Scaffold"]
