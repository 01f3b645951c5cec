"""`Scaffold`: the nodes of a training program for initialization, readiness checks, summaries and saving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.ops.array.identity_and_placeholders import group
from ...graph.variables.store import (
    global_variables,
    global_variables_initializer,
    local_variables_initializer,
    report_uninitialized_variables,
)
from ...interop.tensorboard import merge_all
from ..saving.saver import Saver


class Scaffold:
    """The nodes that a `MonitoredTrainingSession` needs: initialization, readiness checks, summaries and the saver.

    Arguments that are not given are found in the graph's collections by `finalize`, or created and added to them.

    Args:
        init_op: initializes the variables.
        init_feed_dict: feeds of `init_op`.
        init_fn: called as `init_fn(scaffold, session)` after `init_op`.
        ready_op: returns the names of variables without a value; training starts when there are none.
        ready_for_local_init_op: returns the names of variables without a value; `local_init_op` runs when there are none.
        local_init_op: initializes local variables and other state of each process.
        summary_op: a string tensor with the serialized summaries to write.
        saver: a `Saver`.
        local_init_feed_dict: feeds of `local_init_op`.
        copy_from_scaffold: another scaffold, whose values replace arguments that are not given.

    Attributes:
        init_op: as in the arguments or, after `finalize`, the node that was found or created. This holds for all attributes.
        init_feed_dict: feeds of `init_op`.
        ready_op: as in the arguments.
        ready_for_local_init_op: as in the arguments.
        local_init_op: as in the arguments.
        local_init_feed_dict: feeds of `local_init_op`.
        summary_op: None: there are no summaries.
        saver: the `Saver`.
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
        self.init_op = chosen(init_op, "init_op")
        self.init_feed_dict = chosen(init_feed_dict, "init_feed_dict")
        self.ready_op = chosen(ready_op, "ready_op")
        self.ready_for_local_init_op = chosen(ready_for_local_init_op, "ready_for_local_init_op")
        self.local_init_op = chosen(local_init_op, "local_init_op")
        self.local_init_feed_dict = chosen(local_init_feed_dict, "local_init_feed_dict")
        self.summary_op = chosen(summary_op, "summary_op")
        self.saver = chosen(saver, "saver")

    def finalize(self) -> Scaffold:
        """Find or create missing nodes, and finalize the default graph. No node can be added after this.

        Raises:
            RuntimeError: a collection has several elements where there must be one.
        """
        for name, key, make in (
            ("init_op", GraphKeys.INIT_OP, global_variables_initializer),
            ("ready_op", GraphKeys.READY_OP, report_uninitialized_variables),
            (
                "ready_for_local_init_op",
                GraphKeys.READY_FOR_LOCAL_INIT_OP,
                lambda: report_uninitialized_variables(global_variables()),
            ),
            ("local_init_op", GraphKeys.LOCAL_INIT_OP, self.default_local_init_op),
            ("summary_op", GraphKeys.SUMMARY_OP, merge_all),
            ("saver", GraphKeys.SAVERS, lambda: Saver(sharded=True, allow_empty=True)),
        ):
            if getattr(self, name) is None:
                setattr(self, name, self.get_or_default(name, key, make))
        self.saver.build()
        get_default_graph().finalize()
        return self

    @staticmethod
    def get_or_default(arg_name: str, collection_key: str, default_constructor: Callable[[], Any]) -> Any:
        """Returns the element of a collection of the default graph. If there is none, calls a function and adds its result.

        Args:
            arg_name: name of the argument of `Scaffold`, for the error message.
            collection_key: name of the collection.
            default_constructor: the function.

        Raises:
            RuntimeError: the collection has several elements.
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
        """A node that initializes local variables, tables and data iterators."""
        tables = get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
        return group(local_variables_initializer(), *tables)

    @property
    def init_fn(self) -> Callable[[Any], Any] | None:
        """The function of a session that is called after `init_op`."""
        call = self._user_init_fn
        return None if call is None else lambda sess: call(self, sess)
