"""Placement and partitioning: a device for every node of a graph, the parts that devices run, and the channels between them.

    pipeline.py   `place`: the list of planning passes, from a graph and a cluster to a plan
    plan.py       `Plan`: the result, a value; plan_data.py: the attributes of it that the packages below read
    simulate.py   a discrete-event simulation of a step: start and end of each node and transfer, memory
    views/        a plan for people: text report, lint, diff, diagram, HTML page, comparison with a trace
    serialize/    a plan as text, and back
    schedule/     orders of execution and flow control
    search/       placement by cost: the problem as arrays, searches, lower bounds
    cost/         what nodes and channels cost, computed or measured
    partition/    pruning, send/receive insertion, one-sided access
    rules/        placement by TensorFlow's rules: constraints, colocation, errors
    critical_path.py  the critical path of a step, simulated or measured
    render/       tables, pages and timelines that know no plan
    cluster/      tasks, devices and links

Each line may import those below it. `dovetail` and `runtime` import from here; from outside, the placer imports `graph` alone.
"""
