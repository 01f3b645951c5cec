"""`train.Saver`: checkpoints of variables and tables. Each task writes its own variables.

For each task that has variables, a saver adds two nodes on that task's CPU: one writes the variables as a shard, and the other reads them
back. So no values are sent. One more node makes a checkpoint of the shards (graph/formats/checkpoints.py). All tasks must share a file
system with the client, which keeps the list of checkpoints and removes old ones.

The `checkpoint` file names only complete checkpoints at all times, even after any process is killed: a new checkpoint is on disk before
the file names it, and an old one is removed after the file no longer names it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...graph.core.argument_names import explains_arguments
from ...graph.core.build import convert, make
from ...graph.core.default_graph import get_default_graph
from ...graph.core.device import DeviceSpec
from ...graph.core.dtypes import DType
from ...graph.core.errors import InvalidArgumentError, NotFoundError
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.interpreter_state import collector_paused
from ...graph.core.shape import Dims
from ...graph.formats.atomic_files import is_remote, path_of
from ...graph.formats.checkpoints import CheckpointReader, Region, checkpoint_exists, remove_leftovers, save_turn
from ...graph.formats.protos import message
from ...graph.ops.array.identity_and_placeholders import group, identity, placeholder_with_default
from ...graph.ops.array.shapes import reshape as reshape_op
from ...graph.ops.io import checkpoints as _checkpoints  # noqa: F401  (defines the ops)
from ...graph.variables.variable import Variable
from ..global_step import global_step as value_of_step
from .checkpoint_state import remove_checkpoint, update_checkpoint_state
from .meta_graph import export_meta_graph
from .saved_items import Item, TablePart, by_task, check_names, cpu_of, saved_items

# The collection of savers that have nodes in a graph.
_SAVERS = "__savers"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of `Saver.restore`.

    Attributes:
        restored: names that were read.
        missing: names that the checkpoint lacks.
        mismatched: name -> how its type or shape differs.
        unused: names that only the checkpoint has.
    """

    restored: tuple[str, ...]
    missing: tuple[str, ...]
    mismatched: Mapping[str, str]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{len(self.restored)} restored", *self.problems])

    @property
    def problems(self) -> list[str]:
        """One line for each missing or mismatched name, and one for the names that only the checkpoint has."""
        lines = [f"Key {name} not found in checkpoint" for name in self.missing]
        lines += [f"{name}: {why}" for name, why in self.mismatched.items()]
        return [*lines, f"only in the checkpoint: {', '.join(self.unused)}"] if self.unused else lines


def check_exists(save_path: str) -> None:
    """Raises ValueError if there is no checkpoint of that name."""
    if not checkpoint_exists(save_path):
        raise ValueError(
            f"The passed save_path is not a valid checkpoint: {save_path}. dt.train.latest_checkpoint(FOLDER) returns the path of "
            "the newest checkpoint of a folder"
        )


class Saver:
    """Saves variables and tables to checkpoints, and restores them. Each task reads and writes its own variables.

    Args:
        var_list: variables, partitioned variables and mutable tables (`DenseHashTable`), or a dictionary from their names in the
            checkpoint. A value of the dictionary may be a list of the parts of a variable. None: all global variables, and the tables
            created with `checkpoint=True`.
        reshape: allow a value of another shape with the same number of elements.
        sharded: accepted without effect; each task always writes its own shard.
        max_to_keep: number of recent checkpoints to keep; older ones are deleted. None or 0: keep all.
        keep_checkpoint_every_n_hours: of the checkpoints that would be deleted, keep one per this many hours.
        name: scope of its nodes.
        defer_build: add its nodes to the graph in `build()`, which must be called before `save`.
        allow_empty: allow a saver without variables, which saves and restores nothing.
        pad_step_number: write the step with leading zeros, so that names sort by step.
        save_relative_paths: write paths relative to the folder into the `checkpoint` file, so that the folder can be moved.
        filename: default value of the file name tensor in the graph.
        consistent: save between steps (`Session.between_steps`), so that all values are of the same step even if several threads
            train in the session. If other sessions also train, only the values of each server are of one step. TensorFlow has no such
            argument.
        saver_def: the result of `as_saver_def` of a saver of the default graph. This saver then uses its nodes.
        restore_sequentially: accepted without effect.
        write_version: accepted without effect; there is one format.
        builder: must be None.

    Raises:
        ValueError: there are no variables, two have the same name, or an argument is not supported.
        TypeError: an item is neither a variable nor a table.

    >>> saver = train.Saver()
    >>> path = saver.save(session, "/tmp/model.ckpt", global_step=10)
    >>> saver.restore(session, path)
    """

    @explains_arguments
    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: None = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = 2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
        *,
        consistent: bool = False,
    ) -> None:
        if builder is not None:
            raise ValueError("builder must be None: Dovetail does not support BaseSaverBuilder")
        if defer_build and var_list is not None:
            raise ValueError(
                "If `var_list` is provided then build cannot be deferred. Either set defer_build=False or var_list=None."
            )
        self._var_list = var_list
        self._reshape = reshape
        self._max_to_keep = max_to_keep or 0
        self._every_s = keep_checkpoint_every_n_hours * 3600
        self._name = name
        self._allow_empty = allow_empty
        self._pad = pad_step_number
        self._relative = save_relative_paths
        self._filename = filename
        self._sharded = sharded
        self._consistent = consistent
        self._kept: list[tuple[str, float]] = []  # checkpoints that it may delete, with their times; oldest first
        self._keep_next = time.time() + self._every_s
        self._preserved = time.time()
        self._built = False
        self._items: list[Item] = []
        self._subsets: dict[tuple[str, ...], Node] = {}
        if saver_def is not None:
            self._share_nodes(saver_def)
        elif not defer_build:
            self.build()

    # --- the graph -------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Add the saver's nodes to the graph, unless it has them already.

        Raises:
            ValueError: there are no variables.
        """
        if self._built:
            return
        self._items = list(saved_items(self._var_list))
        if not self._items and not self._allow_empty:
            raise ValueError(
                "No variables to save: the graph has no variables yet. Create the Saver after the variables"
            )
        check_names(self._items)
        self._built = True
        if not self._items:
            return
        graph = self._items[0].variable.graph
        with graph.as_default(), graph.name_scope(self._name or "save") as scope:
            self._scope = scope
            with graph.device("/device:CPU:*"):
                self._prefix = placeholder_with_default(
                    convert(self._filename or "model", name="filename"), [], name="Const"
                )
            groups = by_task(self._items)
            shards = []
            for number, (device, items) in enumerate(groups.items()):
                values = self._values(graph, items)
                with graph.device(None), graph.device(device):
                    attrs = {
                        "tensor_names": tuple(i.name for i in items),
                        "shape_and_slices": tuple(i.spec for i in items),
                        "shard": number,
                        "num_shards": len(groups),
                    }
                    shards.append(make("SaveV2", (self._prefix, *values), attrs, "SaveV2").outputs[0])
            with graph.device(None), graph.device(next(iter(groups))):
                merged = make("MergeV2Checkpoints", (self._prefix, *shards), None, "MergeV2Checkpoints")
                with graph.control_dependencies([merged]):
                    self._saved = identity(self._prefix, name="control_dependency")
            self._restore_all = self._restore_nodes(graph, self._items, "restore_all")
        graph.add_to_collection(_SAVERS, self)

    def _values(self, graph: Graph, items: Sequence[Item]) -> list[Tensor]:
        """Returns the values of one task's items. With `consistent`, the variables of a device are read atomically."""
        beside: dict[str, dict[int, Tensor]] = {}
        for n, item in enumerate(items):
            spec = DeviceSpec.from_string(item.variable.device or "")
            if self._consistent and spec.job and spec.device_type != "GPU" and isinstance(item.variable, Variable):
                beside.setdefault(item.variable.device, {})[n] = item.variable._ref_or_handle()
        read: dict[int, Tensor] = {}
        for places in beside.values():
            values = make("ReadTogether", list(places.values()), None, "ReadTogether").outputs
            read.update(zip(places, values, strict=True))
        found = []
        for n, item in enumerate(items):
            with graph.device(None), graph.device(cpu_of(item.variable)):
                found.append(read[n] if n in read else item.variable._as_tensor())
        return found

    def _share_nodes(self, saver_def: Any) -> None:
        """Uses the nodes of the saver in the default graph that `saver_def` describes."""
        name = saver_def.filename_tensor_name
        other = next((s for s in get_default_graph().get_collection(_SAVERS) if s._prefix.name == name), None)
        if other is None:
            raise ValueError(
                f"The default graph has no saver whose file name tensor is {name!r}. Use train.import_meta_graph for the saver of another "
                "program"
            )
        self._items, self._scope, self._reshape = other._items, other._scope, other._reshape
        self._prefix, self._saved, self._restore_all = other._prefix, other._saved, other._restore_all
        self._max_to_keep = saver_def.max_to_keep
        self._every_s = saver_def.keep_checkpoint_every_n_hours * 3600
        self._keep_next = time.time() + self._every_s
        self._sharded = saver_def.sharded
        self._built = True

    def as_saver_def(self) -> Any:
        """Returns the saver's nodes and settings as TensorFlow's `SaverDef`. UnimplementedError: protobuf is not installed."""
        self.build()
        names: dict[str, str] = {}
        if self._items:
            names = {
                "filename_tensor_name": self._prefix.name,
                "save_tensor_name": self._saved.name,
                "restore_op_name": self._restore_all.name,
            }
        return message("SaverDef")(
            **names, max_to_keep=self._max_to_keep, sharded=self._sharded,
            keep_checkpoint_every_n_hours=self._every_s / 3600, version=2,
        )  # fmt: skip

    @property
    def saver_def(self) -> Any:
        """See `as_saver_def`."""
        return self.as_saver_def()

    to_proto = as_saver_def

    def _restore_nodes(self, graph: Graph, items: Sequence[Item], name: str) -> Node:
        """Returns a node that restores these items, each in its own task."""
        assigns = []
        for device, group_ in by_task(items).items():
            with graph.device(None), graph.device(device):
                attrs = {
                    "tensor_names": tuple(i.name for i in group_),
                    "shape_and_slices": tuple(i.spec for i in group_),
                    "dtypes": tuple(i.variable.dtype.base for i in group_),
                    "shapes": tuple(None if self._reshape else i.dims for i in group_),
                }
                values = make("RestoreV2", (self._prefix,), attrs, "RestoreV2").outputs
            tables: dict[Tensor, list[Tensor]] = {}
            for item, value in zip(group_, values, strict=True):
                if isinstance(item.variable, TablePart):
                    tables.setdefault(item.variable.table, []).append(value)
                    continue
                with graph.colocate_with(item.variable._colocation_node()):
                    if self._reshape:
                        value = reshape_op(value, item.variable.shape.as_list())
                    change = item.variable.assign(value)
                    assigns.append(change.op if not isinstance(change, Node) else change)
            for table, parts in tables.items():
                with graph.colocate_with(table.op):
                    assigns.append(make("LookupTableImportV2", (table, *parts)))
        done = group(*assigns, name=name)
        assert isinstance(done, Node)
        return done

    # --- saving ----------------------------------------------------------------------------------------------------

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Write a checkpoint. The `checkpoint` file names it only when it is complete.

        Args:
            sess: the session whose values are saved.
            save_path: path prefix of the checkpoint. Its folder is created if the parent folder exists.
            global_step: a number, tensor or variable. Its value is appended to the path: `save_path-10`.
            latest_filename: name of the `checkpoint` file in the same folder.
            meta_graph_suffix: suffix of the file with the graph.
            write_meta_graph: also write the graph, for `train.import_meta_graph`.
            write_state: update the `checkpoint` file, and delete old checkpoints.
            strip_default_attrs: accepted without effect.
            save_debug_info: accepted without effect.

        Returns:
            The path of the checkpoint, for `restore`; None if there is nothing to save.

        Raises:
            ValueError: the parent folder does not exist, or `save_path` is the `checkpoint` file.
            RuntimeError: `build` was deferred and not called.
            OpError: saving failed; earlier checkpoints are unchanged.
        """
        if not self._built:
            raise RuntimeError("`build()` should be called before save if defer_build==True")
        if not self._items:
            return None
        path = path_of(save_path)
        if path.name == (latest_filename or "checkpoint") and global_step is None:
            raise ValueError(f"'{save_path}' collides with the file that lists the checkpoints. Use another name")
        if not path.name or str(save_path).endswith("/"):
            raise ValueError(f"'{save_path}' names a folder, not a checkpoint")
        try:
            path.parent.mkdir(parents=is_remote(path), exist_ok=True)
        except (FileNotFoundError, FileExistsError):
            raise ValueError(f"Parent directory of {save_path} doesn't exist, can't save.") from None
        with save_turn(str(save_path)):
            try:
                with sess.between_steps() if self._consistent else contextlib.nullcontext():
                    prefix = self._path_of(sess, str(save_path), global_step)
                    sess.run(self._saved, {self._prefix: _absolute(prefix)})
            except BaseException:
                with contextlib.suppress(OSError):
                    remove_leftovers(str(save_path))
                raise
            if write_meta_graph:
                self.export_meta_graph(f"{prefix}.{meta_graph_suffix}")
            if write_state:
                removed = self._record(prefix)
                update_checkpoint_state(
                    str(path.parent), prefix, self.last_checkpoints, latest_filename, [t for _, t in self._kept] or None,
                    self._preserved, save_relative_paths=self._relative,
                )  # fmt: skip
                for old in removed:
                    remove_checkpoint(old, meta_graph_suffix=meta_graph_suffix)
                remove_leftovers(str(save_path))
        return prefix

    def _path_of(self, sess: Any, path: str, global_step: Any) -> str:
        """Returns the checkpoint's path, with the number of the step if there is one."""
        if global_step is None:
            return path
        step = global_step if isinstance(global_step, Integral) else value_of_step(sess, _tensor_of(global_step))
        return f"{path}-{int(step):08d}" if self._pad else f"{path}-{int(step)}"

    def _record(self, prefix: str) -> list[str]:
        """Adds a checkpoint to the list. Returns the checkpoints to delete."""
        if not self._max_to_keep:
            return []
        self._kept = [(p, t) for p, t in self._kept if p != prefix] + [(prefix, time.time())]
        removed = []
        while len(self._kept) > self._max_to_keep:
            old, made = self._kept.pop(0)
            if made > self._keep_next:
                self._keep_next += self._every_s
                self._preserved = made
            else:
                removed.append(old)
        return removed

    def export_meta_graph(
        self, filename: str | None = None, collection_list: Any = None, as_text: bool = False, **_: Any
    ) -> Any:
        """Write the graph with this saver. The arguments are those of `train.export_meta_graph`."""
        self.build()
        graph = self._items[0].variable.graph if self._items else get_default_graph()
        return export_meta_graph(filename, graph, collection_list, as_text, self)

    @property
    def variables(self) -> list[Variable]:
        """The variables that it saves, without duplicates."""
        self.build()
        return list(dict.fromkeys(i.variable._single() for i in self._items if isinstance(i.variable, Variable)))

    def to_plain(self) -> dict[str, Any]:
        """Returns the saver's arguments as plain values, for `saver_arguments`. Variables become indices into `variables`."""
        numbers = {v: i for i, v in enumerate(self.variables)}
        return {
            "items": [(i.name, numbers[i.variable._single()]) for i in self._items if isinstance(i.variable, Variable)],
            "tables": [
                (i.variable.base, i.variable.table.name) for i in self._items if isinstance(i.variable, TablePart)
            ],
            "reshape": self._reshape,
            "max_to_keep": self._max_to_keep,
            "keep_checkpoint_every_n_hours": self._every_s / 3600,
            "pad_step_number": self._pad,
            "save_relative_paths": self._relative,
        }

    # --- restoring -------------------------------------------------------------------------------------------------

    def restore(self, sess: Any, save_path: str | None, *, partial: bool = False) -> RestoreReport:
        """Assign the values of a checkpoint to the variables. They need not be initialized.

        A checkpoint can be restored on any number of tasks, and a partitioned variable into any other partitioning.

        Args:
            sess: the session in which the variables get values.
            save_path: the result of `save` or `latest_checkpoint`.
            partial: restore the variables that match, and leave the others unchanged.

        Returns:
            The restored names, and the others with the reason.

        Raises:
            ValueError: there is no checkpoint of that name.
            NotFoundError: it lacks variables. The message lists all of them, and no variable has changed.
            InvalidArgumentError: types or shapes differ. The message lists all of them, and no variable has changed.
            DataLossError: a file is damaged.
        """
        self.build()
        if not self._items:
            return RestoreReport((), (), {}, ())
        if save_path is None:
            raise ValueError(
                "Can't load save_path when it is None. latest_checkpoint returns None for a folder without checkpoints"
            )
        check_exists(save_path)
        with collector_paused():
            report = self._compare(CheckpointReader(save_path))
        if not partial:
            head = f"Checkpoint '{save_path}' does not fit the graph (restore(..., partial=True) restores what fits):"
            text = "\n  ".join([head, *report.problems])
            if report.missing:
                raise NotFoundError.of(text)
            if report.mismatched:
                raise InvalidArgumentError.of(text)
        names = frozenset(report.restored)
        items = [i for i in self._items if names.issuperset(i.needs)]
        if items:
            sess.run(self._restorer(items), {self._prefix: _absolute(save_path)})
        return report

    def _restorer(self, items: list[Item]) -> Node:
        if len(items) == len(self._items):
            return self._restore_all
        key = tuple(i.name for i in items)
        if key not in self._subsets:
            graph = items[0].variable.graph
            with graph.as_default(), graph.name_scope(self._scope):
                self._subsets[key] = self._restore_nodes(graph, items, "restore_some")
        return self._subsets[key]

    def _compare(self, reader: CheckpointReader) -> RestoreReport:
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        missing, mismatched = [], {}
        for item in self._items:
            if item.name not in shapes:
                missing.append(item.name)
                continue
            have, mine = tuple(shapes[item.name]), item.dims
            dtype = item.variable.dtype.base
            expected = Region.parse(item.spec, ()).full if item.spec else mine
            if dtypes[item.name] is not dtype:
                mismatched[item.name] = f"the variable holds {dtype.name}, the checkpoint {dtypes[item.name].name}"
            elif not self._fits(have, expected):
                mismatched[item.name] = f"the variable has shape {expected}, the checkpoint {have}"
        names, bad = dict.fromkeys(i.name for i in self._items), {*missing, *mismatched}
        good = tuple(dict.fromkeys(i.name for i in self._items if bad.isdisjoint(i.needs)))
        return RestoreReport(good, tuple(dict.fromkeys(missing)), mismatched, tuple(sorted(set(shapes) - set(names))))

    def _fits(self, have: tuple[int, ...], expected: tuple[int | None, ...] | None) -> bool:
        if expected is None or None in expected:
            return True
        if self._reshape:
            return math.prod(have) == math.prod(n for n in expected if n is not None)
        return have == expected

    # --- the list of checkpoints -----------------------------------------------------------------------------------

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that this saver wrote and may delete, oldest first."""
        return [path for path, _ in self._kept]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Set the checkpoints that this saver may delete, oldest first."""
        self.set_last_checkpoints_with_time([(p, time.time()) for p in last_checkpoints])

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None:
        """Like `set_last_checkpoints`, with the time of each in seconds since 1970."""
        self._kept = [(str(p), float(t)) for p, t in last_checkpoints_with_time]

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """After a restart, set the checkpoints that this saver may delete to those of `checkpoint_paths` that exist."""
        found = [p for p in checkpoint_paths if checkpoint_exists(p)]
        self.set_last_checkpoints_with_time([(p, path_of(f"{p}.index").stat().st_mtime) for p in found])

    def __repr__(self) -> str:
        return f"<dt.train.Saver of {len(self._items)} variables>"


def _absolute(path: str) -> str:
    """Returns an absolute path: tasks may run in other working directories."""
    return str(path_of(path).absolute())


def saver_arguments(plain: Mapping[str, Any], variables: Sequence[Variable]) -> dict[str, Any]:
    """Returns the arguments of the saver that `plain` describes. KeyError and other errors: it does not describe a saver."""
    var_list: dict[str, Any] = {}
    for name, number in plain["items"]:
        var_list.setdefault(str(name), []).append(variables[number])
    kept = {"max_to_keep": int, "keep_checkpoint_every_n_hours": float}
    switches = ("reshape", "pad_step_number", "save_relative_paths")
    found = {k: kind(plain[k]) for k, kind in kept.items()} | {k: bool(plain[k]) for k in switches}
    return {"var_list": var_list, "allow_empty": not var_list, **found}


def _tensor_of(step: Any) -> Any:
    return step if isinstance(step, (Tensor, Variable)) else convert(step)


def stored_value(path: str, name: str, dtype: DType, dims: Dims, spec: str = "") -> Tensor:
    """Returns a tensor, or a slice of one, that a step reads from a checkpoint."""
    attrs = {"tensor_names": (name,), "shape_and_slices": (spec,), "dtypes": (dtype.base,), "shapes": (dims,)}
    return make("RestoreV2", (convert(_absolute(path)),), attrs, "RestoreV2").outputs[0]
