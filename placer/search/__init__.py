"""Placement by search: the problem as arrays, heuristics and exact methods for it, and bounds on how good an answer can be.

    types.py, problem.py      the problem as a value: costs, constraints, objective
    from_graph.py             the problem of a step of a graph
    assign.py                 the entry: constraints in, a placement out
    clock.py                  one step on a clock, as the search and plans run it
    evaluate.py               orders and ranks of nodes, the loads of a pipeline
    memory_profile.py, memory_penalty.py   memory over time, and the penalty for too much of it
    feasible.py               a first feasible assignment
    list_scheduling.py        HEFT and m-ETF
    orderings.py, contiguous.py            contiguous splits of linear orders
    coarsen_hypergraph.py, coarsen_dag.py  multilevel coarsening
    anneal.py, rounds.py                   simulated annealing, and the rounds that it goes through
    move_estimate.py          estimates of what moves do, so that few of them run on the clock
    crossover.py              what is best in several assignments, joined
    transfers.py              fewer bytes and transfers at the same objective
    window_search.py          local search within windows of the schedule
    exact.py, bounds.py       optimal answers of small problems, lower bounds
    portfolio.py              the driver of all of them
    jit.py, heaps.py          compiled loops (Numba), and heaps for them

Schedule, simulation and views may import it. It imports `cost`, `rules`, `render.text` and `cluster`. It does no work by the clock: a
search with one seed and budget gives one answer.
"""

SEARCHES = ("auto", "single", "heft", "m-etf", "contiguous", "local-search", "exact")
"""The names of the searches: `auto` is the whole portfolio, each other one a part of it."""
FROM_RULES = ("auto", "local-search")
"""Those that start from the placement by the rules, too."""
