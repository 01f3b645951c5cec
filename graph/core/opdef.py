"""Op definitions: one `OpDef` per kind of operation, and the registry of all ops.

An op is defined once. Its `OpDef` has all facts about it: the rule for shapes and types, the NumPy reference that defines its semantics,
the scalar body from which fused kernels are generated if it is elementwise, its gradient, cost and traits, and the device types that can
run it. The shape checks, the tests' reference interpreter, the gradient tests, the placer and the code generators all read this definition.

Adding an op takes one `define(...)` next to a public function, and one row in the test table (see CONTRIBUTING.md).
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .dtypes import DType
from .hooks import hooks
from .shape import Dims, element_count, is_static

T = TypeVar("T")
Node: TypeAlias = Any  # `graph.py`, which defines both, imports this module
Tensor: TypeAlias = Any
Attrs: TypeAlias = Mapping[str, Any]
Output: TypeAlias = tuple[DType, Dims]
InferRule: TypeAlias = Callable[[Sequence[Tensor], Attrs], Sequence[Output]]
# A gradient rule gets the forward node and one gradient per output (None where nothing flows back) and returns one
# gradient per input (None where the op does not depend on it in a differentiable way). IndexedSlices are allowed.
GradientRule: TypeAlias = Callable[..., Sequence[Any]]


class Trait(enum.Flag):
    """Facts about an op that passes use."""

    NONE = 0
    STATEFUL = enum.auto()
    """Reads or changes state, or has an effect: never folded, merged or dropped. Its reference takes a `Context` first."""
    COMMUTATIVE = enum.auto()
    """Commutative: its two operands may be swapped."""
    READS_ONLY = enum.auto()
    """Stateful, but it changes nothing and does not return a handle. It may run again."""
    STATE_HANDLE = enum.auto()
    """Returns a reference or handle to state (a variable, a queue), not a value."""
    METADATA = enum.auto()
    """Uses only the shape of its input (Shape, Size, Rank): the placer colocates it with the input."""
    BLOCKING = enum.auto()
    """May have to wait for another step (a queue, an accumulator)."""
    COLLECTIVE = enum.auto()
    """Communicates with its peers in other steps, and uses no other state. It may start as soon as its inputs are ready."""
    HOST_ONLY = enum.auto()
    """Bound to the process that built the graph (a Python function)."""
    UNBOUNDED = enum.auto()
    """May run for any time, whatever the sizes of its inputs (a data set, a Python function). It runs only on threads that may block."""

    def __contains__(self, other: Trait) -> bool:
        # This runs for each node of large graphs. The inherited method takes twice as long, because it checks the type.
        return other._value_ & self._value_ == other._value_


class Cost(NamedTuple):
    """Work of one execution: arithmetic operations, and the minimal number of bytes moved through memory."""

    flops: float
    bytes: float


_STATEFUL, _BLOCKING, _COLLECTIVE = Trait.STATEFUL.value, Trait.BLOCKING.value, Trait.COLLECTIVE.value
_LOOKS = Trait.READS_ONLY.value | Trait.STATE_HANDLE.value


ANY = 1 << 62
"""A number larger than any number of inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class OpDef:
    """The one definition of an op.

    Attributes:
        name: the op's type, TensorFlow's spelling (`MatMul`).
        infer: (inputs, attrs) -> [(dtype, dims)], one per output. Raises TypeError for a wrong dtype and ValueError for a wrong
            shape or attribute, with a short text: the graph adds the node, its operands and the user's source line.
        reference: the op's semantics in NumPy: `reference(*inputs, **attrs)` -> array, or a tuple of arrays if the op
            does not have exactly one output. A stateful op gets the running step's `Context` before the inputs.
        scalar: the body for one element, `scalar(m, x, y, ..., **attrs)` over the math namespace `m`; elementwise ops only.
        gradient: the rule, or None if no gradient flows (comparisons, integer ops, state). A rule that needs ops of modules above is
            defined there, and added by `set_gradient`.
        cost: node -> Cost. By default one flop per output element, and each input and output moved once.
        places: for an op that only moves elements, node -> the places in each input that it moves (`places.py`), or None if they are not
            known. Ranks must be known. The moved inputs come first. Elements outside all of them are the op's last input, or 0.
        traits: facts for the passes.
        device_types: types of devices that have a kernel, the best first.
        ref_inputs: positions of inputs that take a reference to a variable instead of its value. `range(ANY)`: all inputs.
        internal_attrs: attributes that only the graph reads (such as `dtype` of a Placeholder). They are not passed to `reference`.
    """

    name: str
    infer: InferRule
    reference: Callable[..., Any]
    scalar: Callable[..., Any] | None = None
    gradient: GradientRule | None = None
    cost: Callable[[Node], Cost] | None = None
    places: Callable[[Node], Sequence[Any] | None] | None = None
    traits: Trait = Trait.NONE
    device_types: tuple[str, ...] = ("GPU", "CPU")
    ref_inputs: tuple[int, ...] | range = ()
    internal_attrs: tuple[str, ...] = ()

    @property
    def is_stateful(self) -> bool:
        """Whether the op has the trait STATEFUL."""
        # This runs for each node of large graphs. `in` takes five times as long.
        return self.traits._value_ & _STATEFUL != 0

    @property
    def changes_state(self) -> bool:
        """Whether it is stateful and does more than read state or return a handle."""
        return self.traits._value_ & (_STATEFUL | _LOOKS) == _STATEFUL

    @property
    def is_blocking(self) -> bool:
        """Whether the op has the trait BLOCKING."""
        return self.traits._value_ & _BLOCKING != 0

    @property
    def is_collective(self) -> bool:
        """Whether the op has the trait COLLECTIVE."""
        return self.traits._value_ & _COLLECTIVE != 0

    def kernel_attrs(self, attrs: Attrs) -> dict[str, Any]:
        """The attributes that `reference` and `scalar` take as keywords."""
        return {k: v for k, v in attrs.items() if k not in self.internal_attrs}

    def cost_of(self, node: Node) -> Cost:
        """The work of one execution of a node. Unknown sizes count as 1."""
        return self.cost(node) if self.cost is not None else default_cost(node)


def default_cost(node: Node, flops_per_element: float = 1.0) -> Cost:
    """The cost of one pass over inputs and outputs, with `flops_per_element` flops per output element."""
    moved = sum(nbytes(t) for t in (*node.inputs, *node.outputs))
    return Cost(flops_per_element * sum(size(t) for t in node.outputs), moved)


def size(tensor: Tensor) -> int:
    """The number of elements. Unknown sizes count as 1."""
    known = element_count(tensor.dims)
    if known is not None:
        return known
    count = 1
    for d in tensor.dims or ():
        count *= d if d is not None else 1
    return count


def nbytes(tensor: Tensor) -> int:
    """The bytes of a tensor. Unknown sizes count as 1, and a string as the reference to it."""
    return size(tensor) * int(tensor.dtype.size)


def has_known_bytes(dtype: DType, dims: Dims) -> bool:
    """Whether a shape and an element type tell the bytes of a tensor. Strings may have any length."""
    return dtype.np.kind != "O" and is_static(dims)


_REGISTRY: dict[str, OpDef] = {}


_KINDS: dict[type, str] = {
    bool: "a bool",
    int: "an int",
    float: "a float",
    str: "text",
    bytes: "bytes",
    DType: "an element type",
}


def typed_attr(attrs: Attrs, name: str, kind: type[T]) -> T:
    """The value of an attribute. TypeError if it is of another type, because graphs also come from messages."""
    value = attrs.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"attr {name} must be {_KINDS[kind]}, not {value!r}")
    return value


def tuple_attr(attrs: Attrs, name: str, kind: type[T], count: int | None = None) -> tuple[T, ...]:
    """The value of an attribute. TypeError unless it is a tuple of elements of this type, and of this length."""
    value = attrs.get(name)
    if not isinstance(value, tuple) or not all(isinstance(v, kind) for v in value):
        raise TypeError(f"attr {name} must be a tuple whose elements are each {_KINDS[kind]}, not {value!r}")
    if count is not None and len(value) != count:
        raise TypeError(f"attr {name} must have {count} elements, not {len(value)}")
    return value


def choice_attr(attrs: Attrs, name: str, choices: Iterable[str]) -> str:
    """The value of an attribute. ValueError unless it is one of these strings."""
    value = attrs.get(name)
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def define(name: str, infer: InferRule, reference: Any, **parts: Any) -> OpDef:
    """Define an op. `parts` are further attributes of its `OpDef`. `reference` is None for an op that must be fed.

    Raises:
        ValueError: an op of that name is defined already.
    """
    if name in _REGISTRY:
        raise ValueError(f"Op {name} is defined twice")
    _REGISTRY[name] = opdef = OpDef(name, infer, reference, **parts)
    return opdef


def define_on_host(
    name: str, infer: InferRule, reference: Callable[..., Any], traits: Trait = Trait.NONE, **parts: Any
) -> OpDef:
    """`define` for an op that has state or a side effect and runs on CPUs: queues, tables, files, Python functions."""
    return define(name, infer, reference, traits=Trait.STATEFUL | traits, device_types=("CPU",), **parts)


def set_gradient(name: str, rule: GradientRule) -> None:
    """Set an op's gradient rule from a module that the op's module must not import. ValueError if the op has a rule."""
    found = opdef(name)
    if found.gradient is not None:
        raise ValueError(f"The gradient of {name} is defined twice")
    object.__setattr__(found, "gradient", rule)


def opdef(name: str) -> OpDef:
    """The definition of an op.

    Raises:
        KeyError: there is no such op; the message lists similar names.
    """
    found = _REGISTRY.get(name)
    if found is None:
        hooks.define_old_ops()
        found = _REGISTRY.get(name)
    if found is None:
        close = difflib.get_close_matches(name, _REGISTRY, n=3)
        raise KeyError(f"No op is called {name!r}" + (f"; did you mean {', '.join(close)}?" if close else ""))
    return found


def registered() -> Mapping[str, OpDef]:
    """All ops, by name."""
    hooks.define_old_ops()
    return MappingProxyType(_REGISTRY)


named_gradients: dict[str, GradientRule | None] = {}
"""Name -> the gradient rule that a program has registered (`RegisterGradient`). None if no gradient passes."""


@dataclass(slots=True)
class NodeDef:
    """A node in plain data, as TensorFlow 1's device functions read it.

    Attributes:
        name: its name.
        op: its op, such as `MatMul`.
        device: the requested device.
        input: its input tensors (`a`, `b:1`), then its control inputs (`^c`).
        attr: its constants. They are Python values, not messages as in TensorFlow.
    """

    name: str = ""
    op: str = ""
    input: tuple[str, ...] = ()
    device: str = ""
    attr: Mapping[str, Any] = field(default_factory=dict)
