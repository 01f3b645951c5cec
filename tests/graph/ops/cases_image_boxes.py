"""Boxes: those that are kept against a plain loop, and parts drawn around boxes by what they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_table import ScriptCase
from reference_interpreter import Interpreter

from dovetail.compat.tf1.image import boxes as boxes
from dovetail.graph.core.build import constant
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError

RNG = np.random.default_rng(0)
CORNERS = np.sort(RNG.random((30, 2, 2)), 1).reshape(30, 4).astype(np.float32)[:, [0, 1, 2, 3]]
SCORES = RNG.permutation(30).astype(np.float32) / 30


def run(fetches: Any) -> Any:
    return Interpreter(get_default_graph(), check=True).run(fetches)


def share(a: Any, b: Any) -> float:
    common = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return float(common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common))


def greedy(alike: Any, threshold: float, least: float = -np.inf) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-SCORES):
        if SCORES[i] > least and all(alike(i, j) <= threshold for j in kept):
            kept.append(int(i))
    return kept


def _kept() -> None:
    def alike(i: int, j: int) -> float:
        return share(CORNERS[i], CORNERS[j])

    expected = greedy(alike, 0.2)
    turned = CORNERS[:, [2, 1, 0, 3]]  # the corners of the other diagonal
    whole, other, few, high = run([
        boxes.non_max_suppression(CORNERS, SCORES, 30, 0.2), boxes.non_max_suppression(turned, SCORES, 30, 0.2),
        boxes.non_max_suppression(CORNERS, SCORES, 3, 0.2), boxes.non_max_suppression(CORNERS, SCORES, 30, 0.2, 0.5),
    ])  # fmt: skip
    assert 3 < len(expected) < 30
    assert whole.tolist() == other.tolist() == expected and few.tolist() == expected[:3]
    assert high.tolist() == greedy(alike, 0.2, 0.5)
    node, count = boxes.non_max_suppression_padded(CORNERS, SCORES, 30, 0.2, pad_to_max_output_size=True)
    assert node.shape.as_list() == [30]
    padded, valid = run([node, count])
    assert valid == len(expected) and padded.tolist() == expected + [0] * (30 - len(expected))
    alike_all = RNG.random((30, 30)).astype(np.float32)
    found = run(boxes.non_max_suppression_overlaps(alike_all, SCORES, 30, 0.7))
    assert found.tolist() == greedy(lambda i, j: alike_all[i, j], 0.7)


def _softly() -> None:
    """A box whose score falls below another's comes after it."""
    three = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [5, 5, 6, 6]], np.float32)
    places, scores = run(list(boxes.non_max_suppression_with_scores(three, [0.9, 0.8, 0.5], 3, 1.0, 0.0, 0.5)))
    fallen = 0.8 * np.exp(-(share(three[0], three[1]) ** 2))
    assert places.tolist() == [0, 2, 1]
    np.testing.assert_allclose(scores, [0.9, 0.5, fallen], rtol=1e-5)


def _refused() -> None:
    with pytest.raises(ValueError, match="rank 2"):
        boxes.non_max_suppression(CORNERS[0], SCORES[:1], 3)
    with pytest.raises(ValueError, match="a score for each box"):
        boxes.non_max_suppression(CORNERS, SCORES[:4], 3)
    with pytest.raises(InvalidArgumentError, match="iou_threshold"):
        run(boxes.non_max_suppression(CORNERS, SCORES, 3, 1.5))
    with pytest.raises(ValueError, match="area_range"):
        boxes.sample_distorted_bounding_box([9, 9, 3], np.zeros((1, 1, 4)), area_range=(0.5, 2.0))
    with pytest.raises(InvalidArgumentError, match="No bounding boxes"):
        run(boxes.sample_distorted_bounding_box([9, 9, 3], np.zeros((1, 0, 4)))[0])


def _drawn() -> None:
    size, box = np.array([40, 60, 3]), np.array([[[0.25, 0.5, 0.75, 0.75]]], np.float32)
    parts = set()
    made = [
        boxes.sample_distorted_bounding_box(constant(size), box, seed=i, min_object_covered=0.5, area_range=(0.2, 0.6))
        for i in range(40)
    ]
    found = run([tensor for part in made for tensor in part])
    for begin, extent, where in zip(*[iter(found)] * 3, strict=True):
        (top, left, _), (height, width, rest) = begin.tolist(), extent.tolist()
        assert begin.dtype == size.dtype and rest == -1 and where.shape == (1, 1, 4)
        np.testing.assert_allclose(
            where.ravel(), [top / 40, left / 60, (top + height) / 40, (left + width) / 60], rtol=1e-6
        )
        common = (min(top + height, 30) - max(top, 10)) * (min(left + width, 45) - max(left, 30))
        assert common >= 0.5 * 20 * 15
        assert 0.2 <= height * width / 2400 <= 0.6 and 0.65 < width / height < 1.45
        assert 0 <= top <= 40 - height and 0 <= left <= 60 - width
        parts.add((top, left, height, width))
    assert len(parts) > 30
    begin, extent, _ = run(
        list(
            boxes.sample_distorted_bounding_box(
                size, box, min_object_covered=1.0, area_range=(0.05, 0.051), max_attempts=3
            )
        )
    )
    assert begin.tolist() == [0, 0, 0] and extent.tolist() == [40, 60, -1]  # no part of that size covers the box


CASES: list[Any] = [
    ScriptCase(("NonMaxSuppressionV5", "NonMaxSuppressionWithOverlaps"), _kept, "boxes kept"),
    ScriptCase(("NonMaxSuppressionV5",), _softly, "boxes kept softly"),
    ScriptCase(("SampleDistortedBoundingBoxV2",), _drawn, "parts drawn around boxes"),
    ScriptCase((), _refused, "boxes refused"),
]
