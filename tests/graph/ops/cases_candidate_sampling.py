"""Candidate samplers: which classes, how often, and losses against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_table import ScriptCase, interpreted

from dovetail.compat.tf1.ops import candidate_sampling as sampling
from dovetail.graph.core.build import constant

SAMPLERS = {
    "LogUniformCandidateSampler": sampling.log_uniform_candidate_sampler,
    "UniformCandidateSampler": sampling.uniform_candidate_sampler,
    "FixedUnigramCandidateSampler": lambda *args, **kwargs: sampling.fixed_unigram_candidate_sampler(
        *args, unigrams=np.arange(1, 51).tolist(), distortion=0.75, **kwargs
    ),
}
TRUE = np.array([[0, 49], [7, 20]], np.int64)


def _chances(op: str) -> Any:
    k = np.arange(50)
    weights = {"LogUniform": np.log((k + 2) / (k + 1)), "Uniform": np.ones(50), "FixedUnigram": (k + 1.0) ** 0.75}
    found = weights[op.removesuffix("CandidateSampler")]
    return found / found.sum()


def _draws() -> None:
    for op, sampler in SAMPLERS.items():
        chance = _chances(op)
        classes, true, drawn = interpreted(list(sampler(constant(TRUE), 2, 40_000, False, 50, seed=3)))
        found = np.bincount(classes, minlength=50) / 40_000
        np.testing.assert_allclose(found, chance, atol=0.012)
        np.testing.assert_allclose(true, 40_000 * chance[TRUE], rtol=1e-4)
        np.testing.assert_allclose(drawn, 40_000 * chance[classes], rtol=1e-4)

        classes, true, drawn = interpreted(list(sampler(constant(TRUE), 2, 30, True, 50, seed=3)))
        assert len(set(classes.tolist())) == 30
        assert classes.min() >= 0 and classes.max() < 50
        draws = np.log1p(-true[0, 0].astype("f8")) / np.log1p(-chance[0])  # how many there were
        assert draws > 29
        np.testing.assert_allclose(drawn, -np.expm1(draws * np.log1p(-chance[classes])), rtol=1e-2)


def _sigmoid_loss(logits: Any, targets: Any) -> Any:
    return np.maximum(logits, 0) - logits * targets + np.log1p(np.exp(-np.abs(logits)))


def _losses() -> None:
    rng = np.random.default_rng(0)
    w, b, x = rng.normal(size=(50, 8)), rng.normal(size=50), rng.normal(size=(2, 8))
    drawn = np.array([3, 7, 31, 20, 41])  # two of them are true ones of the second row
    true_count, drawn_count = rng.uniform(0.1, 1, (2, 2)), rng.uniform(0.1, 1, 5)
    logits = np.concatenate(
        [
            np.einsum("bd,btd->bt", x, w[TRUE]) + b[TRUE] - np.log(true_count),
            x @ w[drawn].T + b[drawn] - np.log(drawn_count),
        ],
        1,
    )
    targets = np.array([[0.5, 0.5, 0, 0, 0, 0, 0]] * 2)
    hit = np.zeros((2, 7), bool)
    hit[1, [3, 5]] = True
    values = [constant(v) for v in (drawn, true_count, drawn_count)]
    shards = [constant(w[i::3]) for i in range(3)]
    for weights in (constant(w), shards):
        for remove in (False, True):
            used = np.where(hit & remove, -1e30, logits)
            common = (weights, constant(b), constant(TRUE), constant(x), 5, 50, 2, values, remove)
            noise = _sigmoid_loss(used, targets).sum(1)
            np.testing.assert_allclose(interpreted(sampling.nce_loss(*common)), noise, rtol=1e-6)
            log_softmax = used - np.log(np.exp(used).sum(1, keepdims=True))
            cross = -(targets * log_softmax).sum(1)
            np.testing.assert_allclose(interpreted(sampling.sampled_softmax_loss(*common)), cross, rtol=1e-6)


def _errors() -> None:
    with pytest.raises(ValueError, match="60 different classes cannot be drawn out of 50"):
        sampling.uniform_candidate_sampler(constant(TRUE), 2, 60, True, 50)
    with pytest.raises(ValueError, match="num_true=1 columns, not 2"):
        sampling.uniform_candidate_sampler(constant(TRUE), 1, 6, True, 50)
    with pytest.raises(ValueError, match="exactly one of vocab_file and unigrams"):
        sampling.fixed_unigram_candidate_sampler(constant(TRUE), 2, 6, True, 50)
    with pytest.raises(ValueError, match="range_max is 50, but there are 3"):
        sampling.fixed_unigram_candidate_sampler(constant(TRUE), 2, 6, True, 50, unigrams=[1, 2, 3])


CASES = [
    ScriptCase(tuple(SAMPLERS), _draws, "candidate draws"),
    ScriptCase((), _losses, "sampled losses"),
    ScriptCase((), _errors, "candidate sampler errors"),
]
