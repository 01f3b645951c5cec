"""Attention: each place of a sequence takes a weighted mean of all places of another (Vaswani et al., 2017)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....graph.core.build import convert
from .....graph.core.dtypes import float32
from .....graph.core.graph import Tensor
from .....graph.ops.array.ranges import range as range_
from .....graph.ops.array.shapes import expand_dims, shape, transpose
from .....graph.ops.linalg.einsum import tensordot
from .....graph.ops.linalg.linalg import matmul
from .....graph.ops.math.cast import cast
from .....graph.ops.math.compare import greater_equal, logical_and, where_v2
from .....graph.ops.nn.dense import dropout
from .....graph.ops.nn.softmax import softmax
from .. import initializers, regularizers
from .base import Layer, Shape
from .core import either, known, weighted_config


class MultiHeadAttention(Layer):
    """Attention by several heads, each with projections of its own: `layer(query, value, key=value)`.

    Args:
        num_heads: how many heads.
        key_dim: size of each head's queries and keys.
        value_dim: of its values; None: `key_dim`.
        dropout: share of the attention's weights that are dropped in training.
        use_bias: whether projections have biases.
        output_shape: size of the output's last axis; None: the query's.
        kernel_initializer: as of `Dense`.
        bias_initializer: as of `Dense`.
        kernel_regularizer: as of `Dense`.
        bias_regularizer: as of `Dense`.

    Called with [batch, targets, features] and [batch, sources, features]; `attention_mask`, bool [batch, targets, sources], says which
    targets see which sources; `use_causal_mask`: no position sees a later one; `return_attention_scores`: the weights are returned, too.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads, self.key_dim, self.value_dim = int(num_heads), int(key_dim), int(value_dim or key_dim)
        self.dropout, self.use_bias, self.seed = dropout, use_bias, seed
        wanted: Any = output_shape
        self.output_size: int | None = int(wanted[0]) if isinstance(wanted, (tuple, list)) else wanted
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)

    def _projection(self, name: str, kernel: list[int], bias: list[int]) -> tuple[Any, Any]:
        w = self.add_weight(f"{name}/kernel", kernel, None, self.kernel_initializer, self.kernel_regularizer)
        if not self.use_bias:
            return w, None
        return w, self.add_weight(f"{name}/bias", bias, None, self.bias_initializer, self.bias_regularizer)

    def _build_parts(self, query: Shape, value: Shape, key: Shape) -> None:
        n = self.num_heads
        size = known(self, query, -1)
        self._query = self._projection("query", [size, n, self.key_dim], [n, self.key_dim])
        self._key = self._projection("key", [known(self, key, -1), n, self.key_dim], [n, self.key_dim])
        self._value = self._projection("value", [known(self, value, -1), n, self.value_dim], [n, self.value_dim])
        out = self.output_size or size
        self._output = self._projection("attention_output", [n, self.value_dim, out], [out])

    def _build_for(self, inputs: Any) -> None:
        """The value's shape is known only in `call`."""

    def call(
        self,
        query: Tensor,
        value: Any = None,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """See `Layer.call`."""
        value = query if value is None else convert(value)
        key = value if key is None else convert(key)
        if not self.built:
            with query.graph.init_scope():
                self._build_parts(*(tuple(t.shape.as_list()) for t in (query, value, key)))
            self.built = True
        q, k, v = (_heads(t, *w) for t, w in ((query, self._query), (key, self._key), (value, self._value)))
        scores = matmul(q * (1.0 / math.sqrt(self.key_dim)), k, transpose_b=True)
        mask = self._mask(query, value, key, attention_mask, value_mask, key_mask, use_causal_mask)
        if mask is not None:
            scores = where_v2(
                mask, scores, convert(np.float32(-3e38) if scores.dtype.base is float32 else -6e4, scores.dtype)
            )
        weights = softmax(scores)
        kept = weights
        if self.dropout:
            kept = either(training, lambda: dropout(weights, rate=self.dropout, seed=self.seed), lambda: weights)
        kernel, bias = self._output
        y = tensordot(transpose(matmul(kept, v), [0, 2, 1, 3]), kernel, [[2, 3], [0, 1]])
        y = y if bias is None else y + bias
        return (y, weights) if return_attention_scores else y

    def _mask(
        self, query: Tensor, value: Tensor, key: Tensor, given: Any, of_value: Any, of_key: Any, causal: bool
    ) -> Any:
        """Who sees whom, bool [batch, 1, targets, sources], or None."""
        from ..backend import GraphState

        masks = GraphState.of(query.graph).masks
        of_value = masks.get(value) if of_value is None else of_value
        of_key = masks.get(key) if of_key is None and key is not value else of_key
        parts = [expand_dims(expand_dims(convert(m), 1), 1) for m in (of_value, of_key) if m is not None]
        if given is not None:
            seen = convert(given)
            seen = seen if seen.dtype.name == "bool" else cast(seen, "bool")
            parts.append(expand_dims(seen, 1) if seen.shape.rank == 3 else seen)
        if causal:
            targets, sources = range_(shape(query)[1]), range_(shape(value)[1])
            parts.append(greater_equal(expand_dims(targets, 1), sources)[None, None])
        found = None
        for part in parts:
            found = part if found is None else logical_and(found, part)
        return found

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """See `Layer.compute_mask`: the query's steps."""
        return mask

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self.output_size,
            "seed": self.seed,
            **weighted_config(self, "kernel", "bias"),
        }


def _heads(x: Tensor, kernel: Any, bias: Any) -> Tensor:
    """[batch, places, features] -> [batch, heads, places, size]."""
    y = tensordot(x, kernel, [[2], [0]])
    found: Tensor = transpose(y if bias is None else y + bias, [0, 2, 1, 3])
    return found


__all__ = ["MultiHeadAttention"]
