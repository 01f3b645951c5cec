"""What a step costs.

    static.py    bytes, operations and traffic per device and link, from shapes
    memory.py    whether state fits the devices' memory
    shapes.py    sizes that are unknown in the graph, from the shapes of fed arrays
    launches.py  seconds and cores of kernels on a machine that was measured
    profile.py   measured times of nodes and links, as a file

Search, schedule, simulation and views may import it. It imports `partition`, `rules` and `cluster`.
"""
