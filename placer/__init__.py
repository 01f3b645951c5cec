"""Who runs what: a graph and a cluster go in; a device for every node, and the cuts between devices, come out."""
