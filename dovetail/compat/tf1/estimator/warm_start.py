"""First values of variables from a checkpoint of another model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.formats.atomic_files import path_of
from ....graph.variables.partitioned import PartitionedVariable
from ....graph.variables.variable import Variable
from ....train.loops.scaffold import Scaffold
from ....train.saving.checkpoint_state import latest_checkpoint
from ....train.saving.saver import Saver
from ..training.warm_starting import by_name


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Where variables get their first values from, when training starts without a checkpoint of its own.

    Attributes:
        ckpt_to_initialize_from: a checkpoint, or a folder with checkpoints: its newest.
        vars_to_warm_start: which variables: a regular expression for trainable ones; a list of such for all global ones; a list of
            variables; None: no variables.
        var_name_to_prev_var_name: the checkpoint's name for a variable, where it has another one there.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_prev_var_name: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(given: Any) -> WarmStartSettings | None:
        """The settings that an argument stands for.

        Raises:
            ValueError: an argument of another type.
        """
        if given is None or isinstance(given, WarmStartSettings):
            return given
        if isinstance(given, (str, Path)):
            return WarmStartSettings(str(given))
        raise ValueError(f"warm_start_from must be a string or a WarmStartSettings, instead got {type(given)}")

    @property
    def checkpoint(self) -> str:
        """The checkpoint. ValueError: the folder has none."""
        path = path_of(self.ckpt_to_initialize_from)
        if not path.is_dir():
            return str(path)
        found = latest_checkpoint(str(path))
        if found is None:
            raise ValueError(f"There is no checkpoint in {path} from which to start")
        return found


def warm_started(scaffold: Scaffold, settings: WarmStartSettings) -> Scaffold:
    """A scaffold that initializes, and then takes values from the checkpoint, before its `init_fn`."""
    chosen = {settings.var_name_to_prev_var_name.get(n, n): parts for n, parts in by_name(_variables(settings)).items()}
    checkpoint = settings.checkpoint
    saver = Saver(chosen, name="warm_start", allow_empty=True)
    before = scaffold.init_fn

    def start(_: Any, session: Any) -> None:
        saver.restore(session, checkpoint)
        if before is not None:  # it may set variables that the checkpoint has, too
            before(session)

    return Scaffold(init_fn=start, copy_from_scaffold=scaffold)


def _variables(settings: WarmStartSettings) -> list[Any]:
    wanted = settings.vars_to_warm_start
    if wanted is None:
        return []
    graph = get_default_graph()
    if isinstance(wanted, str):
        return [v for v in graph.get_collection(GraphKeys.TRAINABLE_VARIABLES) if re.match(wanted, v.op.name)]
    if all(isinstance(w, str) for w in wanted):
        found = [v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES) if _matches(wanted, v.op.name)]
        if not found:
            raise ValueError(f"No variable's name fits any of {list(wanted)}")
        return found
    if all(isinstance(w, (Variable, PartitionedVariable)) for w in wanted):
        return list(wanted)
    raise ValueError(
        f"vars_to_warm_start must be a regular expression, a list of them, or a list of variables: {wanted!r}"
    )


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.match(p, name) for p in patterns)


__all__ = ["WarmStartSettings", "warm_started"]
