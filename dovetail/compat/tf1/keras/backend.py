"""What Keras keeps beside a graph: where its tensors come from, its names, its session.

Models are built in the default graph, as in TensorFlow 1. Each graph has one `GraphState`; it lives and dies with the graph.
"""

from __future__ import annotations

import contextlib
import re
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ....distribute.context import get_replica_context, has_strategy
from ....distribute.values import DistributedVariable
from ....graph.core.default_graph import get_default_graph, get_default_session, reset_default_graph
from ....graph.core.device import DeviceSpec
from ....graph.core.errors import DeadlineExceededError
from ....graph.core.graph import Graph
from ....graph.core.operators import names_in_trace
from ....runtime.config import ConfigProto
from ....runtime.session.session import Session

_KEY = "__keras"  # the collection that holds a graph's GraphState
_POLL_S = 0.05  # how often a worker looks whether the chief has initialized the variables
_WAIT_S = 600.0  # for how long: a chief may load its data first, and will not come if it takes longer
_settings = {"epsilon": 1e-7, "floatx": "float32", "image_data_format": "channels_last"}


class GraphState:
    """What belongs to one graph.

    Attributes:
        calls: tensor -> the call of a layer that made it.
        masks: tensor -> the mask of its time steps.
        weights: those that layers have made.
        sessions: (session target, CPU devices) -> the session that runs the models of this graph with such needs.
        chosen: the session of `set_session`.
    """

    def __init__(self) -> None:
        self.calls: dict[Any, Any] = {}
        self.masks: dict[Any, Any] = {}
        self.weights: list[Any] = []
        self.sessions: dict[tuple[str, int], Session] = {}
        self.chosen: Session | None = None
        self._initialized: weakref.WeakKeyDictionary[Session, set[Any]] = weakref.WeakKeyDictionary()
        self._names: dict[str, int] = {}

    @staticmethod
    def of(graph: Graph) -> GraphState:
        """The state of a graph, made when it is asked for first."""
        kept = graph.get_collection_ref(_KEY)
        if not kept:
            kept.append(GraphState())
        found: GraphState = kept[0]
        return found

    def initialized(self, session: Session) -> set[Any]:
        """The variables that are known to have a value in a session."""
        return self._initialized.setdefault(session, set())

    def unique_name(self, kind: str) -> str:
        """A name for another layer of a kind: `dense`, `dense_1`, … Each trace of a compiled function counts anew."""
        replica = get_replica_context() if has_strategy() else None
        in_trace = names_in_trace.get()
        names = self._names if in_trace is None else in_trace
        names = names if replica is None else replica.counts(names)
        count = names[kind] = names.get(kind, -1) + 1
        return f"{kind}_{count}" if count else kind


def snake_case(name: str) -> str:
    """`LayerNormalization` -> `layer_normalization`."""
    parts = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", parts).lower().lstrip("_")


# --- sessions ---------------------------------------------------------------------------------------------------------


def get_session(strategy: Any = None) -> Session:
    """The session that runs the models of the default graph, as `session_of` finds it. Weights without a value get their first one."""
    session = session_of(strategy)
    initialize(session, [v for v in GraphState.of(session.graph).weights if not isinstance(v, DistributedVariable)])
    return session


def session_of(strategy: Any) -> Session:
    """The session that runs the models of the default graph: the open one (`with session:`), the one of `set_session`, that of the
    strategy's coordinator, or one of Keras' own, which has as many CPU devices as the strategy names."""
    graph = get_default_graph()
    state = GraphState.of(graph)
    opened = get_default_session()
    if opened is not None and opened.graph is graph:
        found: Session = opened
        return found
    if state.chosen is not None:
        return state.chosen
    coordinator = getattr(strategy, "_coordinator", None)
    # A new session would wait for all workers, dead ones, too.
    if coordinator is not None and coordinator.serves(graph):
        of_workers: Session = coordinator.session
        return of_workers
    needs = ("" if strategy is None else strategy.session_target, _cpus(strategy))
    if needs not in state.sessions:
        config = ConfigProto(device_count={"CPU": needs[1]})
        config.graph_options.place_pruned_graph = not needs[0]  # models of other strategies may be in the graph
        if strategy is not None:
            config = strategy.update_config_proto(config)
        state.sessions[needs] = Session(needs[0], graph=graph, config=config)
    return state.sessions[needs]


def set_session(session: Session) -> None:
    """Have the models of the session's graph run in it."""
    GraphState.of(session.graph).chosen = session


def clear_session() -> None:
    """Forget all models: a new default graph, and new names. Inside a `with graph.as_default()` only the names and the session."""
    state = GraphState.of(get_default_graph())
    for session in state.sessions.values():
        session.close()
    get_default_graph().clear_collection(_KEY)
    with contextlib.suppress(AssertionError):  # somebody holds the graph open
        reset_default_graph()


def _cpus(strategy: Any) -> int:
    """How many CPU devices of this process a strategy names."""
    named: list[Any] = []
    if strategy is not None:
        named = [*strategy.extended.worker_devices, *strategy.extended.parameter_devices]
    numbers = [0]
    for text in named:
        if text.startswith("/"):
            spec = DeviceSpec.from_string(text)
            if spec.device_type == "CPU" and spec.device_index is not None:
                numbers.append(spec.device_index)
    return max(numbers) + 1


def initialize(session: Session, variables: Iterable[Any], strategy: Any = None) -> None:
    """Give a first value to those variables that have none.

    On parameter servers the chief does so; the other workers wait for it.

    Raises:
        DeadlineExceededError: the chief has not come in ten minutes.
    """
    known = GraphState.of(session.graph).initialized(session)
    new = [v for v in variables if v not in known]
    if not new:
        return
    there = [[c._is_initialized for c in copies(v)] for v in new]
    mine = [strategy is None or strategy.extended.experimental_should_init or "/job:ps" not in v.device for v in new]
    deadline = time.monotonic() + _WAIT_S
    while True:
        missing = [v for v, found in zip(new, session.run(there), strict=True) if not all(found)]
        session.run([v.initializer for v, own in zip(new, mine, strict=True) if own and v in missing])
        if all(own or v not in missing for v, own in zip(new, mine, strict=True)):
            break
        if time.monotonic() > deadline:
            raise DeadlineExceededError(
                None, None,
                f"The chief has not initialized {missing[0].name} on the parameter servers within {_WAIT_S:.0f} s: does it run, and does "
                "it make the same model?",
            )  # fmt: skip
        time.sleep(_POLL_S)
    known.update(new)


def copies(variable: Any) -> Sequence[Any]:
    """The copies that a strategy keeps of a variable; a plain one is its own only copy."""
    return variable.values if isinstance(variable, DistributedVariable) else (variable,)


# --- values -----------------------------------------------------------------------------------------------------------


def get_value(x: Any) -> Any:
    """The value of a variable, as an array."""
    return batch_get_value([x])[0]


def batch_get_value(variables: Sequence[Any]) -> list[Any]:
    """The values of variables, as arrays."""
    if not variables:
        return []
    with variables[0].graph.as_default():
        strategy = _strategy_of(variables)
        session = session_of(strategy)
        initialize(session, variables, strategy)
        found: list[Any] = session.run([copies(v)[0] for v in variables])
        return found


def set_value(x: Any, value: Any) -> None:
    """Give a variable, all its copies, a value.

    Raises:
        ValueError: the value has another shape.
    """
    batch_set_value([(x, value)])


def batch_set_value(tuples: Sequence[tuple[Any, Any]]) -> None:
    """Give variables values. Errors as of `set_value`."""
    if not tuples:
        return
    variables = [v for v, _ in tuples]
    feeds, nodes = {}, []
    for variable, value in tuples:
        array = np.asarray(value)
        if not variable.shape.is_compatible_with(array.shape):
            raise ValueError(f"'{variable.name}' has shape {variable.shape}, the value {array.shape}")
        for copy in copies(variable):
            nodes.append(copy.initializer)
            feeds[copy.initializer.inputs[1]] = array
    with variables[0].graph.as_default():
        session = session_of(_strategy_of(variables))
        session.run(nodes, feeds)
        GraphState.of(session.graph).initialized(session).update(variables)


def _strategy_of(variables: Sequence[Any]) -> Any:
    for v in variables:
        if isinstance(v, DistributedVariable):
            return v.distribute_strategy
    return None


# --- settings ---------------------------------------------------------------------------------------------------------


def epsilon() -> float:
    """The small number that keeps logarithms and roots from zero."""
    return float(str(_settings["epsilon"]))


def set_epsilon(value: float) -> None:
    """Set what `epsilon` gives."""
    _settings["epsilon"] = value


def floatx() -> str:
    """The element type of weights where none is said."""
    return str(_settings["floatx"])


def set_floatx(value: str) -> None:
    """Set what `floatx` gives: 'float16', 'bfloat16', 'float32' or 'float64'."""
    if value not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"Unknown floatx: {value!r}")
    _settings["floatx"] = value


def image_data_format() -> str:
    """'channels_last' or 'channels_first': how images lie where a layer does not say."""
    return str(_settings["image_data_format"])


def set_image_data_format(data_format: str) -> None:
    """Set what `image_data_format` gives."""
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f"Unknown data_format: {data_format!r}; 'channels_last' or 'channels_first'")
    _settings["image_data_format"] = data_format


__all__ = [
    "batch_get_value",
    "batch_set_value",
    "clear_session",
    "epsilon",
    "floatx",
    "get_session",
    "get_value",
    "image_data_format",
    "initialize",
    "set_epsilon",
    "set_floatx",
    "set_image_data_format",
    "set_session",
    "set_value",
]
