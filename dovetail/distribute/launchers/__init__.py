"""Clusters on the engines that people have: what starts Dovetail's tasks there, and finds them.

    ray_cluster.py            `RayCluster`: an actor of Ray per task, in a placement group
    slurm_script.py           the batch script for Slurm
    kubernetes_manifests.py   what `kubectl apply` takes: a StatefulSet per job

An engine's own package is loaded when it is used.
"""
