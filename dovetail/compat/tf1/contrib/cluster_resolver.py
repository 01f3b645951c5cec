"""Cluster resolvers under the names that TensorFlow 1 had for them first; they live in `dt.distribute.cluster_resolver`."""

from ....distribute.resolvers.cluster_resolver import (
    ClusterResolver,
    KubernetesClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
)

__all__ = [
    "ClusterResolver",
    "KubernetesClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
]
