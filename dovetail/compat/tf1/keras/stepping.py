"""How a model takes batches: the step for a batch's shapes, the workers that take part, the metrics in between.

A step is built for each kind of batch (`steps.py`): mode, element types, shapes. A size that varies is left open from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ....graph.core.build import convert, placeholder
from ....graph.core.nest import flatten, pack
from ....graph.ops.array.creation import zeros
from ....graph.ops.array.identity_and_placeholders import group
from . import data
from .backend import GraphState, session_of
from .callback import is_chief
from .compiled import Compiled
from .coordinated import Hands, is_client, plain
from .layers.passes import passing
from .steps import Spec, Step, needs_filling, spec_of


class Stepper:
    """The part of a model that has its steps."""

    name: str
    optimizer: Any
    _network: Any
    _takes: Any
    _strategy: Any
    _graph: Any

    def _init_steps(self) -> None:
        self.optimizer = None
        self._compiled = Compiled(None, None, None, None)
        self._steps: dict[Any, Step] = {}
        self._hands: Hands | None = None
        self._specs: dict[str, list[Spec]] = {}
        self._reset: Any = None
        self._totals: Any = None

    def _scope(self) -> Any:
        return nullcontext() if self._strategy is None else self._strategy.scope()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _workers_of(self) -> Hands | None:
        """The workers to whom batches are handed out; None: this process takes them itself."""
        if not is_client(self._strategy):
            return None
        if self._hands is None:
            with self._graph.as_default():
                self._hands = Hands(self)
        return self._hands

    def _run(self, mode: str, batch: data.Batch) -> Any:
        x, y, w = batch
        hands = None if mode == "predict" else self._workers_of()
        xs = self._as_list(x) if self._network is not None else flatten(x)  # type: ignore[attr-defined]
        ranks = [t.shape.rank for t in self._network.inputs] if self._network is not None else [2] * len(xs)
        xs = [a[:, None] if a.ndim == 1 and rank == 2 else a for a, rank in zip(xs, ranks, strict=True)]
        self._x_structure = x
        ys = [] if y is None or mode == "predict" else self._ordered(y)
        ws = [] if w is None or mode == "predict" else self._ordered(w)
        if hands is not None:
            self._ensure_built(xs)
            xs = [np.asarray(a, dtype.np) for a, (dtype, _) in zip(xs, self._specs_for("x", mode, xs), strict=True)]
            hands.do(mode, xs, ys, ws)
            return {}
        step = self._step(mode, xs, ys, ws)
        found = step(xs, ys, ws)
        return found if mode == "predict" else plain(found)

    def _ordered(self, structure: Any) -> list[Any]:
        if isinstance(structure, Mapping):
            names = self._names_of(None)
            if names and set(structure) != set(names):
                raise ValueError(f"Targets (or weights) are given for {sorted(structure)}, and the outputs are {names}")
            return [structure[n] for n in names or sorted(structure)]
        return flatten(structure)

    def _step(self, mode: str, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]) -> Step:
        self._ensure_built(xs)
        in_step = 1 if self._strategy is None else self._strategy.num_replicas_in_sync
        if mode == "predict" and self._strategy is not None:
            in_step = len(self._strategy.extended.worker_devices)
        fills = needs_filling(len(xs[0]), in_step)
        wanted = [self._specs_for(kind, mode, arrays) for kind, arrays in (("x", xs), ("y", ys), ("w", ws))]
        key = mode, fills, *map(tuple, wanted)
        if key not in self._steps:
            self._steps[key] = Step(self, mode, (wanted[0], wanted[1], wanted[2]), fills)
        return self._steps[key]

    def _specs_for(self, kind: str, mode: str, arrays: Sequence[Any]) -> list[Spec]:
        """Element types and shapes of placeholders; a size that has varied is unknown from then on."""
        found = [spec_of(a) for a in arrays]
        if kind == "x" and self._network is not None:
            for t, a in zip(self._network.inputs, arrays, strict=True):
                if not t.shape.is_compatible_with([t.shape.as_list()[0], *a.shape[1:]]):
                    raise ValueError(
                        f"'{self.name}' takes {t.name} of shape {t.shape}, and got an array of shape {a.shape}; a size that varies is "
                        "None in the shape of a keras.Input"
                    )
            return [(t.dtype.base, (None, *t.shape.as_list()[1:])) for t in self._network.inputs]
        known = self._specs.get(kind, [])
        if len(known) == len(found):
            for i, ((dtype, dims), (_, before)) in enumerate(zip(found, known, strict=True)):
                if len(dims) == len(before):
                    found[i] = dtype, tuple(a if a == b else None for a, b in zip(dims, before, strict=True))
        self._specs[kind] = found
        return found

    def _ensure_built(self, xs: Sequence[Any]) -> None:
        """Make the weights, if they are not there yet."""
        if self.built:  # type: ignore[attr-defined]
            return
        with self._graph.as_default(), self._scope(), self._graph.name_scope(None), passing(False):
            self(self._packed_inputs([placeholder(d, list(s)) for d, s in map(spec_of, xs)]))  # type: ignore[operator]

    def _packed_inputs(self, tensors: Sequence[Any]) -> Any:
        """Placeholders in the structure in which the model takes its inputs."""
        if self._network is not None:
            return pack(self._takes, tensors)
        given = self._x_structure
        return pack(given, tensors) if isinstance(given, (list, tuple, Mapping)) else tensors[0]

    def _names_of(self, outputs: Any) -> list[str]:
        """What the outputs are called."""
        names: list[str] = self.output_names  # type: ignore[attr-defined]
        if names or outputs is None:
            return names
        if isinstance(outputs, Mapping):
            return sorted(outputs)
        return [f"output_{i + 1}" for i in range(len(flatten(outputs)))]

    def _given_structure(self) -> Any:
        if self._network is not None:
            return self._gives  # type: ignore[attr-defined]
        step = next(s for k, s in self._steps.items() if k[0] == "predict")
        return step._fetches[0]

    # --- metrics ------------------------------------------------------------------------------------------------------

    def _reset_metrics(self) -> None:
        if not self._compiled.ready:
            return
        with self._graph.as_default():
            if self._reset is None:
                with self._scope(), self._graph.name_scope(None):
                    nodes = [n for m in self._compiled.labelled().values() for n in m._reset_nodes()]
                    self._reset = group(*nodes)
            hands = self._workers_of()
            if hands is None:
                session_of(self._strategy).run(self._reset)
            else:
                hands.finish()
                hands.run(self._reset)

    def _read_totals(self, logs: dict[str, float]) -> dict[str, float]:
        """The logs of an epoch: those of all workers, where several take part."""
        hands = self._workers_of()
        if hands is not None:
            hands.finish()
        elif self._workers() == 1:
            return logs
        with self._graph.as_default():
            if self._totals is None:
                with self._scope(), self._graph.name_scope(None):
                    self._totals = {k: m.result() for k, m in self._compiled.labelled().items()}
            found = session_of(self._strategy).run(self._totals) if hands is None else hands.run(self._totals)
        return plain(found)

    def _workers(self) -> int:
        """How many processes go in step."""
        if self._strategy is None:
            return 1
        here = len(self._strategy.extended.worker_devices)
        return int(self._strategy.num_replicas_in_sync // here)

    def _meet(self) -> None:
        """Wait for the other workers: none may leave while another one still needs it."""
        if self._workers() > 1:
            with self._graph.as_default():
                with self._scope():
                    end = self._strategy.barrier()
                session_of(self._strategy).run(end)

    def _of_first(self, value: Any) -> Any:
        """What the first worker gives for this value, whose type and shape are the same for all; all call it."""
        if self._workers() == 1:
            return value
        with self._graph.as_default():
            with self._scope():
                found = self._strategy._broadcast_first(convert(value))
            return session_of(self._strategy).run(found)

    def _take_first(self, variables: Sequence[Any]) -> None:
        """Give variables the values that the first worker has for them; all call it. Those of the others may have none yet."""
        if self._workers() == 1:
            return
        with self._graph.as_default():
            has = is_chief(self)
            with self._scope():
                taken = [
                    v.assign(
                        self._strategy._broadcast_first(v.value() if has else zeros(v.shape, v.dtype.base)),
                        read_value=False,
                    )
                    for v in variables
                ]
            session = session_of(self._strategy)
            session.run(group(*taken))
            GraphState.of(session.graph).initialized(session).update(variables)

    # --- variables ----------------------------------------------------------------------------------------------------

    def _all_variables(self) -> list[Any]:
        """Everything that a step may read or write."""
        own = [*self.weights]  # type: ignore[attr-defined]
        own += [v for m in self._compiled.labelled().values() for v in m.weights]
        if self.optimizer is not None:
            own += self.optimizer.variables()
        return own


__all__ = ["Stepper"]
