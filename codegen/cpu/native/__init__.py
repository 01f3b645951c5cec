"""Native plans: launches of compiled kernels in a table, which compiled code runs without Python between them and without the GIL.

A `planner` records launches, and `plans` lays them out, runs and keeps them. `table` is the launch table, `launch_source` the loops that
run it, `moves_source` those of copies and checks, `worker_pool` the threads that share launches, and `machine` has instructions that Numba
lacks. Only `kernels` and `regions` import this package, which knows neither.
"""
