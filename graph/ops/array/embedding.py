"""Embedding lookups: rows of a table that may be sharded over several devices.

The ids are partitioned by shard. The device of each shard gathers the rows of its ids, and only these rows are sent. So the traffic grows
with the batch and not with the table. Each shard gets its gradient as `IndexedSlices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.build import TensorLike, convert
from ...core.dtypes import int32
from ...core.graph import Graph, Tensor
from ..math.arithmetic import floordiv, floormod, maximum, subtract
from ..math.cast import cast
from ..math.clip import clip_by_norm
from ..math.compare import less, where_v2
from ..math.static_operands import index_operand, op_scope
from .concat_stack import concat
from .dynamic_partition import dynamic_partition, parallel_dynamic_stitch
from .gather import gather
from .identity_and_placeholders import identity
from .ranges import range as range_
from .shapes import rank, reshape, shape, size

STRATEGIES = ("mod", "div")


def embedding_lookup(
    params: Any,
    ids: TensorLike,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """Look up rows of an embedding table.

    Args:
        params: the table `[rows, ...]`, as a tensor, a variable, a partitioned variable, or a list of shards.
        ids: the row numbers, int32 or int64 of any shape, each in [0, rows).
        partition_strategy: how rows are assigned to n shards. "mod": row r is row r // n of shard r % n. "div": each shard has a
            contiguous range, and the first `rows % n` shards have one row more. A partitioned variable is stored as "div".
        name: name scope of the nodes.
        validate_indices: accepted without effect. Indices are always checked.
        max_norm: rows with a larger L2 norm are scaled down to this norm. None means no limit.

    Returns:
        Shape `ids.shape + params.shape[1:]`.

    Raises:
        ValueError: there are no shards, or the strategy is unknown.
        InvalidArgumentError: in a step, an id is out of range.

    >>> embedding_lookup([shard_0, shard_1], [3, 0, 3])
    """
    shards = _shards(params)
    if partition_strategy not in STRATEGIES:
        raise ValueError(f"partition_strategy must be 'mod' or 'div', not {partition_strategy!r}")
    with op_scope(name, "embedding_lookup", *shards, ids) as scope:
        wanted = index_operand(ids, "ids")
        graph = wanted.graph
        if len(shards) == 1:
            with graph.colocate_with(_of_graph(shards[0])):
                rows = _clipped(gather(shards[0], wanted, name=scope), wanted, max_norm)
            # Consumers take the Identity, which is not colocated with the table.
            result: Tensor = identity(rows)
            return result
        return _sharded_lookup(graph, shards, wanted, partition_strategy, scope, max_norm)


def _shards(params: Any) -> list[Any]:
    parts = getattr(params, "_get_variable_list", None)  # a partitioned variable
    if parts is not None:
        params = parts()
    shards = list(params) if isinstance(params, (list, tuple)) else [params]
    if not shards or any(s is None for s in shards):
        raise ValueError(f"Need at least one param, and none may be None: {params!r}")
    return [s if isinstance(s, Tensor) or hasattr(s, "_as_tensor") else convert(s, name="params") for s in shards]


def _of_graph(shard: Any) -> Any:
    return shard if isinstance(shard, Tensor) or hasattr(shard, "_colocation_node") else convert(shard)


def _sharded_lookup(
    graph: Graph, shards: Sequence[Any], ids: Tensor, strategy: str, scope: str, max_norm: float | None
) -> Tensor:
    flat = reshape(ids, [-1])
    positions = range_(size(flat))
    if strategy == "mod":
        shard_of, row_of = floormod(flat, len(shards)), floordiv(flat, len(shards))
    else:
        shard_of, row_of = _contiguous(graph, shards, flat)
    assignment = cast(shard_of, int32)
    rows_per_shard = dynamic_partition(row_of, assignment, len(shards))
    positions_per_shard = dynamic_partition(positions, assignment, len(shards))
    found = []
    for shard, rows in zip(shards, rows_per_shard, strict=True):
        with graph.colocate_with(_of_graph(shard)):
            found.append(gather(shard, rows))
    stitched = parallel_dynamic_stitch(positions_per_shard, found, name=scope)
    tail = found[0].dims[1:] if found[0].dims is not None else None
    if tail is not None and None not in tail:
        inner = convert([d for d in tail if d is not None], int32)
    else:
        with graph.colocate_with(_of_graph(shards[0])):
            inner = shape(found[0])[1:]
    result = reshape(stitched, concat([shape(ids), inner], 0))
    if ids.dims is not None and tail is not None:
        result.set_shape((*ids.dims, *tail))
    return _clipped(result, ids, max_norm)


def _contiguous(graph: Graph, shards: Sequence[Any], ids: Tensor) -> tuple[Tensor, Tensor]:
    """The shard and the row within it of each id, for the strategy "div"."""
    lengths = [_length(graph, s, ids) for s in shards]
    total: Any = sum(lengths[1:], lengths[0])
    # The first `extra` shards have `longer` rows. `shorter` is 1 even if the others are empty, because it is a divisor.
    if isinstance(total, int):
        extra: Any = total % len(shards)
        longer: Any = total // len(shards) + 1
        shorter: Any = max(longer - 1, 1)
    else:
        extra = floormod(total, len(shards))
        longer = floordiv(total, len(shards)) + 1
        shorter = maximum(longer - 1, 1)
    behind = subtract(ids, extra)
    shard_of = maximum(floordiv(ids, longer), floordiv(behind, shorter))
    row_of = where_v2(less(shard_of, extra), floormod(ids, longer), floormod(behind, shorter))
    return shard_of, row_of


def _length(graph: Graph, shard: Any, ids: Tensor) -> Any:
    """Number of rows of a shard: an int if it is known statically, or else a tensor of the ids' type."""
    dims = shard.shape.dims_tuple
    if dims is not None and dims and dims[0] is not None:
        return dims[0]
    with graph.colocate_with(_of_graph(shard)):
        return shape(convert(shard), out_type=ids.dtype.base)[0]


def _clipped(rows: Tensor, ids: Tensor, max_norm: float | None) -> Tensor:
    if max_norm is None:
        return rows
    if ids.dims is not None and rows.dims is not None:
        axes: Any = list(range(len(ids.dims), len(rows.dims)))
    else:
        axes = range_(rank(ids), rank(rows))
    clipped: Tensor = clip_by_norm(rows, max_norm, axes=axes)
    return clipped
