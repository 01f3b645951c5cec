"""Candidate sampling: losses over a few sampled classes instead of all.

A softmax costs as much as the vocabulary is large. Sampled losses compare the true class with a few sampled ones, and correct for how often
each is sampled: Jean et al., "On Using Very Large Target Vocabulary" (https://arxiv.org/abs/1412.2007) for the softmax, Gutmann & Hyvärinen
(AISTATS 2010) for noise-contrastive estimation. The rows of the weights are gathered on the devices that have them: of sharded tables on
parameter servers, only the rows of the sampled classes are sent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert, make
from ....graph.core.dtypes import Array, float32, float64, int32, int64
from ....graph.core.graph import Node, Tensor
from ....graph.core.opdef import Attrs, Cost, Output, define_on_host, size, typed_attr
from ....graph.core.philox import Stream
from ....graph.formats.text_lines import vocabulary_of
from ....graph.ops.array.concat_stack import concat
from ....graph.ops.array.creation import ones_like, zeros_like
from ....graph.ops.array.embedding import embedding_lookup
from ....graph.ops.array.identity_and_placeholders import stop_gradient
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.shapes import expand_dims, reshape, shape
from ....graph.ops.array.slicing import slice as slice_
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.arithmetic import add, divide, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, where
from ....graph.ops.math.elementwise import log
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.math.static_operands import need_rank, op_scope
from ....graph.ops.nn.softmax import sigmoid_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2
from ....graph.ops.random.random_common import check_seeds, seed_attrs, stream_of
from ....graph.resources.resource_manager import Context

_MAX_DRAWS = 1 << 24  # beyond it a distribution does not hold enough classes that are ever drawn


# --- drawing ----------------------------------------------------------------------------------------------------------


class _Distribution(NamedTuple):
    """Which class a number in [0, 1) means, and how likely classes are."""

    classes: Any
    chance: Any


def _log_uniform(range_max: int, weights: Array) -> _Distribution:
    """Zipf's law for classes in the order of their frequency: P(k) = log((k + 2) / (k + 1)) / log(range_max + 1)."""
    width = math.log(range_max + 1)
    return _Distribution(
        lambda u: np.minimum(np.exp(u * width).astype(np.int64) - 1, range_max - 1),
        lambda k: np.log((k + 2.0) / (k + 1.0)) / width,
    )


def _uniform(range_max: int, weights: Array) -> _Distribution:
    return _Distribution(
        lambda u: np.minimum((u * range_max).astype(np.int64), range_max - 1),
        lambda k: np.full(np.shape(k), 1.0 / range_max),
    )


def _unigram(range_max: int, weights: Array) -> _Distribution:
    share = weights.astype(np.float64) / weights.sum(dtype=np.float64)
    edges = np.cumsum(share)
    last = int(np.flatnonzero(share)[-1])
    return _Distribution(
        lambda u: np.minimum(np.searchsorted(edges, u * edges[-1], side="right"), last).astype(np.int64),
        lambda k: share[k],
    )


def _draw(stream: Stream, distribution: _Distribution, count: int, unique: bool, node: str) -> tuple[Array, int]:
    """The classes, and how many draws they took."""
    draws = count
    while True:
        classes = distribution.classes(stream.uniform((draws,), np.dtype(np.float64)))  # begins as a shorter draw does
        if not unique:
            return classes, count
        _, firsts = np.unique(classes, return_index=True)
        if len(firsts) >= count:
            chosen = np.sort(firsts)[:count]
            return classes[chosen], int(chosen[-1]) + 1 if count else 0
        if draws > _MAX_DRAWS:
            raise ValueError(
                f"'{node}' found only {len(firsts)} different classes in {draws} draws, {count} are wanted"
            )
        draws *= 2


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    for name in ("num_true", "num_sampled", "range_max"):
        if type(attrs.get(name)) is not int or attrs[name] < 1:
            raise ValueError(f"{name} must be a positive whole number, not {attrs.get(name)!r}")
    typed_attr(attrs, "unique", bool)
    if attrs["unique"] and attrs["num_sampled"] > attrs["range_max"]:
        raise ValueError(f"{attrs['num_sampled']} different classes cannot be drawn out of {attrs['range_max']}")
    true, weights = inputs
    if true.dtype.base is not int64:
        raise TypeError(f"true_classes must be int64, not {true.dtype.base.name}")
    need_rank(true.dims, 2, "true_classes")
    need_rank(weights.dims, 1, "the weights")
    rows = None if true.dims is None else true.dims[0]
    if true.dims is not None and true.dims[1] not in (None, attrs["num_true"]):
        raise ValueError(f"true_classes must have num_true={attrs['num_true']} columns, not {true.dims[1]}")
    return [(int64, (attrs["num_sampled"],)), (float32, (rows, attrs["num_true"])), (float32, (attrs["num_sampled"],))]


def _sampler(make_distribution: Any) -> Any:
    def reference(
        context: Context, true: Array, weights: Array, *, num_true: int, num_sampled: int, unique: bool, range_max: int,
        seed: int, seed2: int,
    ) -> tuple[Array, ...]:  # fmt: skip
        if true.size and not (true.min() >= 0 and true.max() < range_max):
            raise ValueError(f"true_classes must be in [0, {range_max}), not {int(true.min())} to {int(true.max())}")
        distribution = make_distribution(range_max, weights)
        sampled, draws = _draw(stream_of(context, seed, seed2), distribution, num_sampled, unique, context.node_name)

        def expected(classes: Array) -> Array:
            chance = distribution.chance(classes)
            if draws == num_sampled:
                return np.asarray(chance * num_sampled, np.float32)
            return np.asarray(-np.expm1(draws * np.log1p(-chance)), np.float32)

        return sampled, expected(true), expected(sampled)

    return reference


def _cost(node: Node) -> Cost:
    return Cost(100.0 * node.attrs["num_sampled"], 8.0 * (size(node.inputs[0]) + node.attrs["num_sampled"]))


for _name, _make in (
    ("LogUniformCandidateSampler", _log_uniform),
    ("UniformCandidateSampler", _uniform),
    ("FixedUnigramCandidateSampler", _unigram),
):
    define_on_host(_name, _rule, _sampler(_make), cost=_cost)


class Candidates(NamedTuple):
    """Classes drawn, and how often true and drawn ones are expected among as many."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


def _candidates(
    op: str, true_classes: TensorLike, weights: Any, num_true: int, num_sampled: int, unique: bool, range_max: int,
    seed: int | None, name: str | None,
) -> Candidates:  # fmt: skip
    attrs = {
        "num_true": int(num_true), "num_sampled": int(num_sampled), "unique": bool(unique), "range_max": int(range_max),
        **seed_attrs(seed),
    }  # fmt: skip
    with op_scope(name, op, true_classes) as scope:
        true = cast(convert(true_classes, name="true_classes"), int64)
        return Candidates(*make(op, (true, convert(weights, name="weights")), attrs, scope).outputs)


_NO_WEIGHTS = np.zeros(0, np.float32)


def log_uniform_candidate_sampler(
    true_classes: TensorLike, num_true: int, num_sampled: int, unique: bool, range_max: int, seed: int | None = None,
    name: str | None = None,
) -> Candidates:  # fmt: skip
    """Classes drawn by Zipf's law: right where classes are numbered by falling frequency, as words mostly are.

    Args:
        true_classes: int64 `[batch, num_true]`.
        num_sampled: how many are drawn for the whole batch.
        unique: whether each class is drawn at most once.
        range_max: number of classes.

    Returns:
        Classes int64 `[num_sampled]`, and the expected counts float32 `[batch, num_true]` and `[num_sampled]`.

    Raises:
        ValueError: more different classes than there are; in a step: a true class out of range.
    """
    return _candidates(
        "LogUniformCandidateSampler", true_classes, _NO_WEIGHTS, num_true, num_sampled, unique, range_max, seed, name
    )


def uniform_candidate_sampler(
    true_classes: TensorLike, num_true: int, num_sampled: int, unique: bool, range_max: int, seed: int | None = None,
    name: str | None = None,
) -> Candidates:  # fmt: skip
    """Classes drawn with equal chances; arguments and results as of `log_uniform_candidate_sampler`."""
    return _candidates(
        "UniformCandidateSampler", true_classes, _NO_WEIGHTS, num_true, num_sampled, unique, range_max, seed, name
    )


def fixed_unigram_candidate_sampler(
    true_classes: TensorLike, num_true: int, num_sampled: int, unique: bool, range_max: int, vocab_file: str = "",
    distortion: float = 1.0, num_reserved_ids: int = 0, num_shards: int = 1, shard: int = 0,
    unigrams: Sequence[float] = (), seed: int | None = None, name: str | None = None,
) -> Candidates:  # fmt: skip
    """Classes drawn as often as a table says; arguments and results as of `log_uniform_candidate_sampler`.

    Args:
        vocab_file: a file of lines whose last entry behind a comma is a count; it is read here, when the graph is built.
        unigrams: the counts, instead of a file.
        distortion: the power to which they are raised; word2vec takes 0.75.
        num_reserved_ids: how many classes before the first count are never drawn.
        num_shards: only 1 and 0: cut the vocabulary yourself.
        shard: only 1 and 0: cut the vocabulary yourself.
    """
    if bool(vocab_file) == bool(len(unigrams)):
        raise ValueError("Must provide exactly one of vocab_file and unigrams")
    if (num_shards, shard) != (1, 0):
        raise ValueError("fixed_unigram_candidate_sampler draws from the whole vocabulary: num_shards must be 1")
    if vocab_file:
        unigrams = [float(line.rsplit(",", 1)[-1]) for line in vocabulary_of(vocab_file) if line.strip()]
    weights = np.concatenate([np.zeros(num_reserved_ids), np.asarray(unigrams, np.float64) ** distortion])
    if len(weights) != range_max:
        raise ValueError(f"range_max is {range_max}, but there are {len(weights)} counts and reserved classes")
    if not (weights >= 0).all() or not weights.any():
        raise ValueError("counts must not be negative, and one must be above 0")
    return _candidates(
        "FixedUnigramCandidateSampler", true_classes, weights.astype(np.float32), num_true, num_sampled, unique,
        range_max, seed, name,
    )  # fmt: skip


def all_candidate_sampler(
    true_classes: TensorLike, num_true: int, num_sampled: int, unique: bool, seed: int | None = None, name: str | None = None
) -> Candidates:  # fmt: skip
    """All classes from 0 to `num_sampled` - 1, each expected once: for tests. Results as of `log_uniform_candidate_sampler`."""
    with op_scope(name, "AllCandidateSampler", true_classes):
        true = cast(convert(true_classes, name="true_classes"), int64)
        every = range_(convert(num_sampled, int64))
        return Candidates(every, ones_like(true, float32), ones_like(every, float32))


class AccidentalHits(NamedTuple):
    """Sampled classes that are true classes: row, index among the samples, and the number to add to their logits."""

    indices: Tensor
    ids: Tensor
    weights: Tensor


def compute_accidental_hits(
    true_classes: TensorLike, sampled_candidates: TensorLike, num_true: int, seed: int | None = None, name: str | None = None
) -> AccidentalHits:  # fmt: skip
    """Where drawn classes meet true ones of the same row, to be taken out.

    Args:
        true_classes: int64 `[batch, num_true]`.
        sampled_candidates: int64 `[num_sampled]`, each class once.

    Returns:
        Rows int32, places int64 and weights float32 (the lowest number), all `[hits]`.
    """
    with op_scope(name, "ComputeAccidentalHits", true_classes, sampled_candidates):
        true, drawn = (cast(convert(x), int64) for x in (true_classes, sampled_candidates))
        found = where(equal(expand_dims(true, 2), reshape(drawn, [1, 1, -1])))
        return AccidentalHits(
            cast(found[:, 0], int32), found[:, 2], ones_like(found[:, 0], float32) * float(np.finfo(np.float32).min)
        )


# --- losses -----------------------------------------------------------------------------------------------------------


def nce_loss(
    weights: Any,
    biases: Any,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Tensor:
    """Noise-contrastive estimation: tell the true classes from drawn ones. For training only.

    Args:
        weights: `[num_classes, dim]`, or a list of shards, or a partitioned variable.
        biases: `[num_classes]`, likewise.
        labels: int64 `[batch, num_true]`.
        inputs: `[batch, dim]`.
        num_sampled: how many classes are drawn for the batch.
        num_classes: how many there are.
        num_true: true ones per row.
        sampled_values: what a candidate sampler gave; None: those of `log_uniform_candidate_sampler`.
        remove_accidental_hits: whether drawn classes that are true ones are left out.
        partition_strategy: of the shards, as of `embedding_lookup`.

    Returns:
        Loss per row, `[batch]`.

    >>> loss = dt.reduce_mean(dt.nn.nce_loss(weights, biases, labels, embedded, num_sampled=64, num_classes=50000))
    """
    logits, targets = _sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, remove_accidental_hits,
        partition_strategy, name, None,
    )  # fmt: skip
    return reduce_sum(sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name="sampled_losses"), 1)


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Tensor:
    """Cross entropy of a softmax over the true classes and drawn ones; arguments as of `nce_loss`. For training only.

    Returns:
        Loss per row, `[batch]`. It is an underestimate of the full softmax's.
    """
    logits, targets = _sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, remove_accidental_hits,
        partition_strategy, name, seed,
    )  # fmt: skip
    return softmax_cross_entropy_with_logits_v2(labels=stop_gradient(targets), logits=logits)


def _sampled_logits(
    weights: Any, biases: Any, labels: TensorLike, inputs: TensorLike, num_sampled: int, num_classes: int, num_true: int,
    sampled_values: Any, remove_hits: bool, strategy: str, name: str, seed: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Logits `[batch, num_true + num_sampled]`, less the log of the expected counts; and their targets."""
    with op_scope(name, "compute_sampled_logits", labels, inputs):
        x, true = convert(inputs, name="inputs"), cast(convert(labels, name="labels"), int64)
        if sampled_values is None:
            sampled_values = log_uniform_candidate_sampler(true, num_true, num_sampled, True, num_classes, seed=seed)
        sampled, true_count, sampled_count = (stop_gradient(v) for v in sampled_values)
        sampled = cast(sampled, int64)
        wanted = concat([reshape(true, [-1]), sampled], 0)
        rows = embedding_lookup(weights, wanted, partition_strategy=strategy)
        offsets = embedding_lookup(biases, wanted, partition_strategy=strategy)

        count = shape(wanted)[0] - num_sampled
        true_rows = slice_(rows, [0, 0], [count, -1])
        drawn_rows = slice_(rows, concat([reshape(count, [1]), [0]], 0), [-1, -1])
        true_logits = reduce_sum(
            expand_dims(x, 1) * reshape(true_rows, concat([[-1, num_true], shape(rows)[1:]], 0)), 2
        ) + reshape(slice_(offsets, [0], reshape(count, [1])), [-1, num_true])
        drawn_logits = matmul(x, drawn_rows, transpose_b=True) + slice_(offsets, reshape(count, [1]), [-1])
        if remove_hits:
            hits = reduce_sum(cast(equal(expand_dims(true, 2), reshape(sampled, [1, 1, -1])), x.dtype.base), 1)
            drawn_logits = add(drawn_logits, hits * _almost_never(x))
        true_logits = subtract(true_logits, log(cast(true_count, x.dtype.base)))
        drawn_logits = subtract(drawn_logits, log(cast(sampled_count, x.dtype.base)))
        logits = concat([true_logits, drawn_logits], 1)
        targets = concat([divide(ones_like(true_logits), float(num_true)), zeros_like(drawn_logits)], 1)
        return logits, targets


def _almost_never(x: Tensor) -> float:
    """A logit that no softmax gives a share to."""
    return -1e30 if x.dtype.base in (float32, float64) else -6e4


explain_members(sys.modules[__name__])
