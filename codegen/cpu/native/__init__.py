"""Native plans: launches of compiled kernels in a table, which compiled code runs without Python between them and without the GIL.

A `planner` records launches, and `plans` lays them out, runs and keeps them. `launches` has the launch table and the threads that share
launches, `launch_source` the loops that run a table, `moves_source` those of copies and checks, and `machine` instructions that Numba
lacks. Only `kernels` and `regions` import this package, which knows neither.
"""
