"""Who runs what: from a graph and a cluster, a device for every node and the cuts between devices."""
