"""Clusters on the engines that people have: what starts Dovetail's tasks there, and finds them.

    engines.py                a cluster file, and the cluster that it describes, on any engine
    ray_cluster.py            `RayCluster`: an actor of Ray per task, in a placement group
    slurm_cluster.py          `SlurmCluster`: a step in a job of Slurm; the job's options and batch script
    kubernetes_manifests.py   what `kubectl apply` takes: a StatefulSet per job
    kubectl.py                applies them, and runs a program in a pod

An engine's own package is loaded when it is used.
"""
