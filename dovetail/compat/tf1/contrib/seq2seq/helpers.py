"""What a decoder is given at each step: the true word, the word that it has just chosen, or one that was drawn.

A helper has `initialize() -> (finished, inputs)`, `sample(time, outputs, state) -> ids` and `next_inputs(time, outputs, state, sample_ids)
-> (finished, inputs, state)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....graph.control_flow.cond_while import cond
from .....graph.core.build import convert
from .....graph.core.default_graph import name_scope
from .....graph.core.dtypes import as_dtype, int32
from .....graph.core.graph import Tensor
from .....graph.core.nest import flatten, pack
from .....graph.core.shape import TensorShape
from .....graph.ops.array.creation import zeros_like
from .....graph.ops.array.embedding import embedding_lookup
from .....graph.ops.array.padding import tile
from .....graph.ops.array.shapes import reshape, shape, size, transpose
from .....graph.ops.control.tensor_array import TensorArray
from .....graph.ops.math.arithmetic import maximum
from .....graph.ops.math.cast import cast
from .....graph.ops.math.compare import equal, greater_equal, less, where
from .....graph.ops.math.reduce import reduce_all
from .....graph.ops.math.scan import argmax
from .....graph.ops.random.random import multinomial, random_uniform

Function = Callable[..., Any]


class Helper:
    """What a decoder is given; subclasses say how."""

    @property
    def batch_size(self) -> Any:
        """How many sequences there are."""
        raise NotImplementedError

    @property
    def sample_ids_shape(self) -> TensorShape:
        """Shape of what `sample` gives for one sequence."""
        return TensorShape([])

    @property
    def sample_ids_dtype(self) -> Any:
        """Its element type."""
        return int32

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Which sequences have ended already, `[batch]`, and the first inputs."""
        raise NotImplementedError

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """What is chosen from a step's outputs."""
        raise NotImplementedError

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """Which sequences end with this step, the next step's inputs, and its state."""
        raise NotImplementedError


class TrainingHelper(Helper):
    """Gives the true inputs: teacher forcing.

    Args:
        inputs: `[batch, steps, ...]`, or `[steps, batch, ...]` with `time_major`; or a structure of such tensors.
        sequence_length: `[batch]`.

    Raises:
        ValueError: `sequence_length` is no vector.
    """

    def __init__(self, inputs: Any, sequence_length: Any, time_major: bool = False, name: str | None = None) -> None:
        with name_scope(name or "TrainingHelper"):
            leaves = [convert(x, name="inputs") for x in flatten(inputs)]
            self._inputs = pack(inputs, leaves)
            if not time_major:
                leaves = [transpose(x, [1, 0, *range(2, _rank(x))]) for x in leaves]
            self._steps = [_unstacked(x) for x in leaves]
            self._sequence_length = convert(sequence_length, name="sequence_length")
            if self._sequence_length.shape.rank != 1:
                raise ValueError(
                    f"Expected sequence_length to be a vector, but received shape: {self._sequence_length.shape}"
                )
            self._zeros = pack(inputs, [zeros_like(x[0]) for x in leaves])
            self._batch_size = size(self._sequence_length)

    @property
    def inputs(self) -> Any:
        """As given."""
        return self._inputs

    @property
    def sequence_length(self) -> Tensor:
        """As given."""
        return self._sequence_length

    @property
    def batch_size(self) -> Any:
        """See `Helper`."""
        return self._batch_size

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See `Helper`."""
        with name_scope(name or "TrainingHelperInitialize"):
            finished = equal(0, self._sequence_length)
            return finished, self._read(0, finished)

    def sample(self, time: Any, outputs: Any, state: Any = None, name: str | None = None) -> Any:
        """The likeliest class of each row."""
        return cast(argmax(outputs, -1), int32, name=name or "TrainingHelperSample")

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any = None, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See `Helper`."""
        with name_scope(name or "TrainingHelperNextInputs"):
            after = time + 1
            finished = greater_equal(after, self._sequence_length)
            return finished, self._read(after, finished), state

    def _read(self, time: Any, finished: Tensor) -> Any:
        """The inputs of a step; zeros when all sequences have ended, since there may be none."""
        return cond(
            reduce_all(finished), lambda: self._zeros, lambda: pack(self._zeros, [s.read(time) for s in self._steps])
        )


class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """As `TrainingHelper`, but with a probability the embedding of a word drawn from the outputs (Bengio and others, 2015).

    Args:
        embedding: a table, or a function of ids. sampling_probability: a scalar, 0 to 1. seed, scheduling_seed: of the words, and of when.
    """

    def __init__(
        self,
        inputs: Any,
        sequence_length: Any,
        embedding: Any,
        sampling_probability: Any,
        time_major: bool = False,
        seed: int | None = None,
        scheduling_seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(inputs, sequence_length, time_major, name)
        self._embed = _embedding(embedding)
        self._probability = convert(sampling_probability, name="sampling_probability")
        self._seed, self._scheduling_seed = seed, scheduling_seed

    def sample(self, time: Any, outputs: Any, state: Any = None, name: str | None = None) -> Any:
        """A word that is drawn, or -1 where the true one is taken."""
        with name_scope(name or "ScheduledEmbeddingTrainingHelperSample"):
            drawn = _drawn(outputs, None, self._seed)
            chance = random_uniform(shape(drawn), seed=self._scheduling_seed, dtype=self._probability.dtype.base)
            return where(less(chance, self._probability), drawn, zeros_like(drawn) - 1)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any = None, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See `Helper`."""
        with name_scope(name or "ScheduledEmbeddingTrainingHelperNextInputs"):
            finished, true, state = super().next_inputs(time, outputs, state)
            found = where(greater_equal(sample_ids, 0), self._embed(maximum(sample_ids, 0)), true)
            return finished, found, state


class GreedyEmbeddingHelper(Helper):
    """Gives the embedding of the likeliest word.

    Args:
        embedding: a table `[words, depth]`, or a function of ids. start_tokens: `[batch]`, int32. end_token: the word that ends a sequence.

    Raises:
        ValueError: `start_tokens` is no vector, or `end_token` no scalar.
    """

    def __init__(self, embedding: Any, start_tokens: Any, end_token: Any) -> None:
        self._embed = _embedding(embedding)
        self._start_tokens = convert(start_tokens, int32, name="start_tokens")
        self._end_token = convert(end_token, int32, name="end_token")
        if self._start_tokens.shape.rank != 1:
            raise ValueError("start_tokens must be a vector")
        if self._end_token.shape.rank != 0:
            raise ValueError("end_token must be a scalar")
        self._batch_size = size(self._start_tokens)
        self._start_inputs = self._embed(self._start_tokens)

    @property
    def batch_size(self) -> Any:
        """See `Helper`."""
        return self._batch_size

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See `Helper`."""
        return tile(convert([False]), [self._batch_size]), self._start_inputs

    def sample(self, time: Any, outputs: Any, state: Any = None, name: str | None = None) -> Any:
        """The likeliest word of each row."""
        return cast(argmax(outputs, -1), int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See `Helper`."""
        finished = equal(sample_ids, self._end_token)
        chosen = cond(reduce_all(finished), lambda: self._start_inputs, lambda: self._embed(sample_ids))
        return finished, chosen, state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Gives the embedding of a word that is drawn.

    Args:
        softmax_temperature: what the logits are divided by; None: 1. seed: of the draws.
    """

    def __init__(
        self,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        softmax_temperature: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time: Any, outputs: Any, state: Any = None, name: str | None = None) -> Any:
        """A word of each row."""
        return _drawn(outputs, self._temperature, self._seed)


class InferenceHelper(Helper):
    """Gives what functions say.

    Args:
        sample_fn: of a step's outputs. sample_shape, sample_dtype: of what it gives for one sequence.
        start_inputs: the first inputs. end_fn: of what was chosen; which sequences end.
        next_inputs_fn: of what was chosen; the next inputs. None: what was chosen.
    """

    def __init__(
        self,
        sample_fn: Function,
        sample_shape: Any,
        sample_dtype: Any,
        start_inputs: Any,
        end_fn: Function,
        next_inputs_fn: Function | None = None,
    ) -> None:
        self._sample_fn, self._end_fn, self._next_inputs_fn = sample_fn, end_fn, next_inputs_fn
        self._shape, self._dtype = TensorShape(sample_shape), as_dtype(sample_dtype)
        self._start_inputs = convert(start_inputs, name="start_inputs")
        self._batch_size = shape(self._start_inputs)[0]

    @property
    def batch_size(self) -> Any:
        """See `Helper`."""
        return self._batch_size

    @property
    def sample_ids_shape(self) -> TensorShape:
        """See `Helper`."""
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        """See `Helper`."""
        return self._dtype

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See `Helper`."""
        return tile(convert([False]), [self._batch_size]), self._start_inputs

    def sample(self, time: Any, outputs: Any, state: Any = None, name: str | None = None) -> Any:
        """See `Helper`."""
        return self._sample_fn(outputs)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See `Helper`."""
        chosen = sample_ids if self._next_inputs_fn is None else self._next_inputs_fn(sample_ids)
        return self._end_fn(sample_ids), chosen, state


class CustomHelper(Helper):
    """A helper made of its three functions; they get `time`, `outputs`, `state` and `sample_ids` by name.

    Args:
        sample_ids_shape, sample_ids_dtype: of what `sample_fn` gives for one sequence; None: an int32.
    """

    def __init__(
        self,
        initialize_fn: Function,
        sample_fn: Function,
        next_inputs_fn: Function,
        sample_ids_shape: Any = None,
        sample_ids_dtype: Any = None,
    ) -> None:
        self._initialize_fn, self._sample_fn, self._next_inputs_fn = initialize_fn, sample_fn, next_inputs_fn
        self._shape = TensorShape([] if sample_ids_shape is None else sample_ids_shape)
        self._dtype = as_dtype(sample_ids_dtype or int32)
        self._batch_size: Any = None

    @property
    def batch_size(self) -> Any:
        """See `Helper`. ValueError: `initialize` was not called yet."""
        if self._batch_size is None:
            raise ValueError("batch_size accessed before initialize was called")
        return self._batch_size

    @property
    def sample_ids_shape(self) -> TensorShape:
        """See `Helper`."""
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        """See `Helper`."""
        return self._dtype

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """See `Helper`."""
        finished, inputs = self._initialize_fn()
        self._batch_size = size(finished)
        return finished, inputs

    def sample(self, time: Any, outputs: Any, state: Any = None, name: str | None = None) -> Any:
        """See `Helper`."""
        return self._sample_fn(time=time, outputs=outputs, state=state)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> tuple[Any, Any, Any]:
        """See `Helper`."""
        found: tuple[Any, Any, Any] = self._next_inputs_fn(
            time=time, outputs=outputs, state=state, sample_ids=sample_ids
        )
        return found


def _embedding(given: Any) -> Function:
    """A function of ids."""
    return given if callable(given) else lambda ids: embedding_lookup(given, ids)


def _drawn(logits: Any, temperature: Any, seed: int | None) -> Tensor:
    """One class for each row, drawn by its probability."""
    x = convert(logits)
    found: Tensor = multinomial(x if temperature is None else x / temperature, 1, seed=seed)
    return reshape(cast(found, int32), [-1])


def _rank(x: Tensor) -> int:
    if x.shape.rank is None or x.shape.rank < 2:
        raise ValueError(f"inputs need an axis for the batch and one for the steps, not {x!r}")
    return x.shape.rank


def _unstacked(x: Tensor) -> TensorArray:
    return TensorArray(x.dtype.base, shape(x)[0], element_shape=None if x.dims is None else x.dims[1:]).unstack(x)


__all__ = [
    "CustomHelper",
    "GreedyEmbeddingHelper",
    "Helper",
    "InferenceHelper",
    "SampleEmbeddingHelper",
    "ScheduledEmbeddingTrainingHelper",
    "TrainingHelper",
]
