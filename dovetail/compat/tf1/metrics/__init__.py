"""Metrics that are counted over many steps, under TensorFlow 1's names (`dt.metrics`).

Each gives two tensors: the metric's value so far, and one that adds this step's batch and then gives the value. What is counted
is in local variables: `dt.local_variables_initializer()` sets it to zero.

>>> accuracy, update = dt.metrics.accuracy(labels, predictions)
>>> session.run(dt.local_variables_initializer())
>>> for batch in batches:
...     session.run(update, batch)
>>> session.run(accuracy)

`means`, `confusion`, `classes` and `ranking` have them; `totals` and `weights` what they share. `contrib`, `estimator` and
`compat.tf1` import it.
"""

from .classes import mean_iou, mean_per_class_accuracy
from .confusion import (
    auc,
    false_negatives,
    false_negatives_at_thresholds,
    false_positives,
    false_positives_at_thresholds,
    precision,
    precision_at_thresholds,
    recall,
    recall_at_thresholds,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
    true_negatives,
    true_negatives_at_thresholds,
    true_positives,
    true_positives_at_thresholds,
)
from .means import (
    accuracy,
    mean,
    mean_absolute_error,
    mean_cosine_distance,
    mean_relative_error,
    mean_squared_error,
    mean_tensor,
    percentage_below,
    root_mean_squared_error,
)
from .ranking import (
    average_precision_at_k,
    average_precision_at_k as sparse_average_precision_at_k,
    precision_at_k,
    precision_at_k as sparse_precision_at_k,
    precision_at_top_k,
    recall_at_k,
    recall_at_top_k,
)

__all__ = [
    "accuracy",
    "auc",
    "average_precision_at_k",
    "false_negatives",
    "false_negatives_at_thresholds",
    "false_positives",
    "false_positives_at_thresholds",
    "mean",
    "mean_absolute_error",
    "mean_cosine_distance",
    "mean_iou",
    "mean_per_class_accuracy",
    "mean_relative_error",
    "mean_squared_error",
    "mean_tensor",
    "percentage_below",
    "precision",
    "precision_at_k",
    "precision_at_thresholds",
    "precision_at_top_k",
    "recall",
    "recall_at_k",
    "recall_at_thresholds",
    "recall_at_top_k",
    "root_mean_squared_error",
    "sensitivity_at_specificity",
    "sparse_average_precision_at_k",
    "sparse_precision_at_k",
    "specificity_at_sensitivity",
    "true_negatives",
    "true_negatives_at_thresholds",
    "true_positives",
    "true_positives_at_thresholds",
]
