"""Bounding boxes: non-maximum suppression, and random crops around boxes."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert, make
from ....graph.core.constant_value import static_value
from ....graph.core.dtypes import FLOATS, Array, float32, int32
from ....graph.core.errors import invalid
from ....graph.core.graph import Node, Tensor
from ....graph.core.opdef import Attrs, Cost, Output, define, define_on_host, size, typed_attr
from ....graph.core.shape import compatible
from ....graph.ops.math.common import allowed, same_type
from ....graph.ops.math.static_operands import need_rank, op_scope
from ....graph.ops.random.random_common import check_seeds, seed_attrs, stream_of
from ....graph.resources.resource_manager import Context

# --- keeping boxes ----------------------------------------------------------------------------------------------------


def _overlaps(boxes: Array) -> Callable[[Any, Any], Array]:
    """A function of the numbers of some boxes and of others, which gives the shares of intersections and unions of each with one of these.

    Corners of boxes may come in any order.
    """
    low = np.minimum(boxes[:, :2], boxes[:, 2:])
    high = np.maximum(boxes[:, :2], boxes[:, 2:])
    areas = (high - low).prod(1)

    def shares(some: Any, others: Any) -> Array:
        common = np.maximum(np.minimum(high[some], high[others]) - np.maximum(low[some], low[others]), 0).prod(1)
        whole = areas[some] + areas[others] - common
        good = (areas[some] > 0) & (areas[others] > 0)
        return np.where(good, common / np.where(good, whole, 1), 0)

    return shares


def _kept(
    scores: Array, most: int, threshold: float, least: float, sigma: float, alike: Callable[[Any, Any], Array]
) -> tuple[list[int], list[float]]:
    """Best first, those that overlap no better one by more than the threshold; with `sigma`, scores fall by how much they do.

    `alike`: how much some overlap others, which are chosen.
    """
    chosen: list[int] = []
    if sigma <= 0:
        rest = np.flatnonzero(scores > least)
        rest = rest[np.argsort(-scores[rest], kind="stable")]
        while rest.size and len(chosen) < most:
            chosen.append(int(rest[0]))
            rest = rest[1:][~(alike(rest[1:], rest[0]) > threshold)]
        return chosen, scores[chosen].tolist()
    waiting = [(-float(s), i, 0) for i, s in enumerate(scores) if s > least]
    heapq.heapify(waiting)
    values: list[float] = []
    while waiting and len(chosen) < most:
        negative, i, seen = heapq.heappop(waiting)
        score = -negative
        if seen < len(chosen):
            near = alike(i, chosen[seen:])
            score *= float(np.where(near <= threshold, np.exp(-0.5 / sigma * near**2), 0).prod())
        if score == -negative:
            chosen.append(i)
            values.append(score)
        elif score > least:
            heapq.heappush(waiting, (-score, i, len(chosen)))
    return chosen, values


def _check_boxes(boxes: Array, scores: Array, columns: int | None, most: Array) -> None:
    wanted = len(scores) if columns is None else columns
    if boxes.shape != (len(scores), wanted):
        raise invalid(f"boxes of shape {boxes.shape} and {len(scores)} scores do not fit")
    if int(most) < 0:
        raise invalid(f"max_output_size must be non-negative, not {int(most)}")


def _suppression(
    boxes: Array,
    scores: Array,
    most: Array,
    threshold: Array,
    least: Array,
    sigma: Array,
    *,
    pad_to_max_output_size: bool,
) -> tuple[Array, Array, Array]:
    _check_boxes(boxes, scores, 4, most)
    if not 0 <= float(threshold) <= 1:
        raise invalid(f"iou_threshold must be in [0, 1], not {float(threshold)}")
    alike = _overlaps(boxes.astype(np.float64))
    chosen, values = _kept(scores, int(most), float(threshold), float(least), float(sigma), alike)
    count = len(chosen)
    if pad_to_max_output_size:
        chosen, values = chosen + [0] * (int(most) - count), values + [0.0] * (int(most) - count)
    return np.array(chosen, np.int32), np.array(values).astype(scores.dtype), np.array(count, np.int32)


def _suppression_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    boxes, scores, most, *rest = inputs
    typed_attr(attrs, "pad_to_max_output_size", bool)
    dtype = _check_operands(boxes, scores, most, rest)
    if boxes.dims is not None and boxes.dims[1] not in (4, None):
        raise ValueError(f"boxes must have 4 columns, not {boxes.dims[1]}")
    known = static_value(most) if attrs["pad_to_max_output_size"] else None
    dims = (None if known is None else int(known),)
    return [(int32, dims), (dtype, dims), (int32, ())]


def _check_operands(boxes: Tensor, scores: Tensor, most: Tensor, rest: Sequence[Tensor]) -> Any:
    dtype = allowed(same_type([boxes, scores]), FLOATS)
    need_rank(boxes.dims, 2, "boxes")
    need_rank(scores.dims, 1, "scores")
    if boxes.dims is not None and not compatible(boxes.dims[:1], scores.dims):
        raise ValueError(f"there must be a score for each box: {scores.shape} and {boxes.shape}")
    if most.dtype.base is not int32:
        raise TypeError(f"max_output_size must be int32, not {most.dtype.name}")
    for t in (most, *rest):
        need_rank(t.dims, 0, "a threshold or a size")
    return dtype


def _by_overlaps(overlaps: Array, scores: Array, most: Array, threshold: Array, least: Array) -> Array:
    _check_boxes(overlaps, scores, None, most)
    chosen, _ = _kept(
        scores, int(most), float(threshold), float(least), 0.0, lambda some, others: overlaps[some, others]
    )
    return np.array(chosen, np.int32)


def _overlaps_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    overlaps, scores, most, *rest = inputs
    _check_operands(overlaps, scores, most, rest)
    return [(int32, (None,))]


def _suppression_cost(node: Node) -> Cost:
    count = float(size(node.inputs[1]))
    return Cost(20.0 * count * max(1.0, math.log2(count + 1)), 20.0 * count)


_CPUS = ("CPU",)
define("NonMaxSuppressionV5", _suppression_rule, _suppression, cost=_suppression_cost, device_types=_CPUS)
define("NonMaxSuppressionWithOverlaps", _overlaps_rule, _by_overlaps, cost=_suppression_cost, device_types=_CPUS)


def _suppressed(
    boxes: TensorLike, scores: TensorLike, most: TensorLike, threshold: TensorLike, least: TensorLike, sigma: float,
    padded: bool, name: str | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    with op_scope(name, "NonMaxSuppression", boxes, scores) as scope:
        given = convert(boxes, name="boxes")
        operands = (
            given, convert(scores, given.dtype.base, name="scores"), convert(most, int32, name="max_output_size"),
            convert(threshold, prefer=float32), convert(least, prefer=float32), convert(sigma, prefer=float32),
        )  # fmt: skip
        return make("NonMaxSuppressionV5", operands, {"pad_to_max_output_size": padded}, scope).outputs


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """Which boxes to keep, best first: those that overlap no better one by more than the threshold.

    Args:
        boxes: `[n, 4]`: two opposite corners, y and x of each.
        scores: `[n]`.
        max_output_size: how many at most, int32.
        iou_threshold: the share of intersection and union up to which a box is kept.
        score_threshold: what a score must exceed.

    Returns:
        Their places, int32 `[kept]`.
    """
    return _suppressed(boxes, scores, max_output_size, iou_threshold, score_threshold, 0.0, False, name)[0]


def non_max_suppression_with_scores(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = float("-inf"),
    soft_nms_sigma: float = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`non_max_suppression`, and the scores of what it keeps. With `soft_nms_sigma`, overlap with a better box
    multiplies a score by exp(-overlap ** 2 / (2 sigma)) instead of dropping the box (Bodla et al., 2017).
    """
    found = _suppressed(boxes, scores, max_output_size, iou_threshold, score_threshold, soft_nms_sigma, False, name)
    return found[0], found[1]


def non_max_suppression_padded(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = float("-inf"),
    pad_to_max_output_size: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`non_max_suppression`, optionally padded with zeros to `max_output_size`, and the number of boxes kept."""
    padded = bool(pad_to_max_output_size)
    found = _suppressed(boxes, scores, max_output_size, iou_threshold, score_threshold, 0.0, padded, name)
    return found[0], found[2]


def non_max_suppression_overlaps(
    overlaps: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    overlap_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = float("-inf"),
    name: str | None = None,
) -> Tensor:
    """`non_max_suppression` of anything: `overlaps` is `[n, n]`, how much each overlaps each."""
    with op_scope(name, "non_max_suppression_overlaps", overlaps, scores) as scope:
        given = convert(overlaps, name="overlaps")
        operands = (
            given, convert(scores, given.dtype.base, name="scores"), convert(max_output_size, int32),
            convert(overlap_threshold, prefer=float32), convert(score_threshold, prefer=float32),
        )  # fmt: skip
        return make("NonMaxSuppressionWithOverlaps", operands, None, scope).outputs[0]


# --- parts drawn around boxes -----------------------------------------------------------------------------------------


class DistortedBox(NamedTuple):
    """Where a part begins, `[3]`: y, x and 0; its size, `[3]`: height, width and -1; and it as a share of the picture, `[1, 1, 4]`."""

    begin: Tensor
    size: Tensor
    bboxes: Tensor


def _draw_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    check_seeds(attrs)
    whole, boxes, _ = inputs
    need_rank(whole.dims, 1, "image_size")
    need_rank(boxes.dims, 3, "bounding_boxes")
    for name, top in (("aspect_ratio_range", math.inf), ("area_range", 1.0)):
        low, high = attrs[name]
        if not 0 < low <= high <= top:
            raise ValueError(f"{name} must be two numbers above 0, the smaller one first, not {attrs[name]}")
    if type(attrs.get("max_attempts")) is not int or attrs["max_attempts"] < 1:
        raise ValueError(f"max_attempts must be a positive whole number, not {attrs.get('max_attempts')!r}")
    return [(whole.dtype.base, (3,)), (whole.dtype.base, (3,)), (float32, (1, 1, 4))]


def _drawn(
    context: Context, whole: Array, boxes: Array, covered: Array, *, aspect_ratio_range: Any, area_range: Any, max_attempts: int,
    use_image_if_no_bounding_boxes: bool, seed: int, seed2: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    height, width = int(whole[0]), int(whole[1])
    rows = boxes.reshape(-1, 4).astype(np.float64)
    if rows.size and not ((rows >= 0) & (rows <= 1)).all():
        raise invalid("bounding_boxes must be in [0, 1], as shares of the picture")
    if not len(rows):
        if not use_image_if_no_bounding_boxes:
            raise invalid(
                "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to not "
                "provide any bounding boxes."
            )
        rows = np.array([[0.0, 0.0, 1.0, 1.0]])
    pixels = np.rint(rows * [height, width, height, width])
    top, left, high, wide = 0, 0, height, width
    for u in stream_of(context, seed, seed2).uniform((max_attempts, 4), np.dtype(np.float64)):
        ratio = aspect_ratio_range[0] + u[0] * (aspect_ratio_range[1] - aspect_ratio_range[0])
        found = _part(height, width, ratio, area_range, u[1:4])
        if found is not None and _covers(found, pixels, float(covered)):
            top, left, high, wide = found
            break
    share = np.array([top / height, left / width, (top + high) / height, (left + wide) / width], np.float32)
    kind = whole.dtype
    return np.array([top, left, 0], kind), np.array([high, wide, -1], kind), share.reshape(1, 1, 4)


def _part(height: int, width: int, ratio: float, area_range: Any, u: Any) -> tuple[int, int, int, int] | None:
    """(top, left, height, width) of that ratio of width to height, and of an area in that range; None: there is none."""
    least, most = (share * height * width for share in area_range)
    low, high = round(math.sqrt(least / ratio)), min(round(math.sqrt(most / ratio)), height, int((width + 0.5) / ratio))
    low = min(low, high)
    tall = low + min(int(u[0] * (high - low + 1)), high - low)
    wide = round(tall * ratio)
    if tall * wide < least:
        tall += 1
        wide = round(tall * ratio)
    if tall * wide > most:
        tall -= 1
        wide = round(tall * ratio)
    if not (least <= tall * wide <= most and 0 < tall <= height and 0 < wide <= width):
        return None
    return int(u[1] * (height - tall + 1)), int(u[2] * (width - wide + 1)), tall, wide


def _covers(part: tuple[int, int, int, int], boxes: Array, least: float) -> bool:
    """Whether it covers at least that share of one of the boxes."""
    top, left, tall, wide = part
    low, high = np.maximum(boxes[:, :2], [top, left]), np.minimum(boxes[:, 2:], [top + tall, left + wide])
    common = np.maximum(high - low, 0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return bool((common >= least * areas)[areas > 0].any())


define_on_host("SampleDistortedBoundingBoxV2", _draw_rule, _drawn, cost=lambda node: Cost(1000.0, 100.0))


def sample_distorted_bounding_box(
    image_size: TensorLike,
    bounding_boxes: TensorLike,
    seed: int | None = None,
    seed2: int | None = None,
    min_object_covered: TensorLike = 0.1,
    aspect_ratio_range: Sequence[float] | None = None,
    area_range: Sequence[float] | None = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> DistortedBox:
    """A part of a picture, drawn at random so that it covers enough of one of some boxes: for training on parts.

    Args:
        image_size: height, width and channels, int32 or int64.
        bounding_boxes: float32 `[batch, n, 4]`: top, left, bottom and right as shares of the picture.
        min_object_covered: the share of a box that the part must cover.
        aspect_ratio_range: of width to height; 0.75 to 1.33.
        area_range: the part's share of the picture; 0.05 to 1.
        max_attempts: how often to draw, 100; then all of the picture is taken.
        use_image_if_no_bounding_boxes: whether all of it is the box where there is none.

    >>> begin, size, _ = sample_distorted_bounding_box(dt.shape(image), boxes)
    >>> part = dt.slice(image, begin, size)
    """
    attrs = {
        "aspect_ratio_range": tuple(float(v) for v in aspect_ratio_range or (0.75, 1.33)),
        "area_range": tuple(float(v) for v in area_range or (0.05, 1.0)),
        "max_attempts": int(max_attempts or 100),
        "use_image_if_no_bounding_boxes": bool(use_image_if_no_bounding_boxes),
        **seed_attrs(seed),
    }
    with op_scope(name, "sample_distorted_bounding_box", image_size, bounding_boxes):
        whole = convert(image_size, name="image_size")
        operands = whole, convert(bounding_boxes, float32, name="bounding_boxes"), convert(min_object_covered, float32)
        return DistortedBox(*make("SampleDistortedBoundingBoxV2", operands, attrs).outputs)


explain_members(sys.modules[__name__])
