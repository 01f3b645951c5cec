"""The items that a saver saves: variables, parts of variables, and the keys and values of tables. Each has a name in the checkpoint.

A table has two entries, with TensorFlow's names: `<table>-keys` and `<table>-values`. They are saved and restored together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...graph.core.build import make
from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.device import DeviceSpec
from ...graph.core.dtypes import DType
from ...graph.core.graph import Graph, Tensor
from ...graph.variables.partitioned import PartitionedVariable
from ...graph.variables.variable import Variable

# The type of tables that can be saved.
TABLE = "MutableDenseHashTableV2"


@dataclass(frozen=True, slots=True)
class TablePart:
    """The keys or the values of a table.

    Attributes:
        table: the table's handle.
        base: the table's name in the checkpoint.
        part: 0: the keys, 1: the values.
    """

    table: Tensor
    base: str
    part: int

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""
        return f"{self.base}-{('keys', 'values')[self.part]}"

    @property
    def graph(self) -> Graph:
        """The table's graph."""
        return self.table.graph

    @property
    def device(self) -> str:
        """The requested device of the table."""
        return self.table.op.device

    @property
    def dtype(self) -> DType:
        """Element type."""
        dtype: DType = self.table.op.attrs[("key_dtype", "value_dtype")[self.part]]
        return dtype

    @property
    def dims(self) -> tuple[int | None, ...]:
        """Static shape. The size of the first axis is the number of keys."""
        return (None, *self.table.op.attrs[("key_shape", "value_shape")[self.part]])

    def _as_tensor(self) -> Tensor:
        attrs = {name: self.table.op.attrs[name] for name in ("key_dtype", "value_dtype", "key_shape", "value_shape")}
        return make("LookupTableExportV2", (self.table,), attrs).outputs[self.part]


@dataclass(frozen=True, slots=True)
class Item:
    """A variable, a part of a variable, or a part of a table, with its name and slice in the checkpoint."""

    name: str
    spec: str
    variable: Variable | TablePart

    @property
    def dims(self) -> tuple[int | None, ...] | None:
        """Its static shape."""
        return self.variable.dims if isinstance(self.variable, TablePart) else self.variable.shape.dims_tuple

    @property
    def needs(self) -> tuple[str, ...]:
        """The names that a checkpoint must have to restore this item."""
        if isinstance(self.variable, TablePart):
            return tuple(TablePart(self.variable.table, self.variable.base, i).name for i in (0, 1))
        return (self.name,)


def saved_items(var_list: Any) -> Iterator[Item]:
    """Yields the items of a `var_list` of `Saver`. TypeError: an element is neither a variable nor a table."""
    if var_list is None:
        graph = get_default_graph()
        var_list = [
            *graph.get_collection(GraphKeys.GLOBAL_VARIABLES),
            *graph.get_collection(GraphKeys.SAVEABLE_OBJECTS),
        ]
    if isinstance(var_list, Mapping):
        for name, what in var_list.items():
            for part in list(what) if isinstance(what, (PartitionedVariable, list, tuple)) else [what]:
                yield from _items(part, str(name))
        return
    for what in dict.fromkeys(var_list):
        for part in what if isinstance(what, PartitionedVariable) else [what]:
            yield from _items(part, None)


def _items(what: Any, name: str | None) -> Iterator[Item]:
    handle = getattr(what, "resource_handle", what)
    if isinstance(handle, Tensor) and handle.op.type == TABLE:
        for half in (TablePart(handle, name or handle.op.name, i) for i in (0, 1)):
            yield Item(half.name, "", half)
        return
    if not isinstance(what, Variable):
        raise TypeError(f"Variable to save is not a Variable: {what!r}")
    part = what.save_slice_info
    own = what.op.name if part is None else part.full_name
    yield Item(name or own, "" if part is None else part.spec, what)


def check_names(items: Iterable[Item]) -> None:
    """Raises ValueError if two items have the same name."""
    seen: set[tuple[str, str]] = set()
    for i in items:
        if (i.name, i.spec) in seen:
            raise ValueError(f"At least two variables have the same name: {i.name}")
        seen.add((i.name, i.spec))


def cpu_of(variable: Variable | TablePart) -> str:
    """Returns the CPU device of the task of a variable or table."""
    spec = DeviceSpec.from_string(variable.device or "")
    return DeviceSpec(spec.job, spec.replica, spec.task, "CPU", 0).to_string()


def by_task(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Groups items by the CPU device of their task."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(cpu_of(item.variable), []).append(item)
    return dict(sorted(found.items()))
