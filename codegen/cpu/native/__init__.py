"""Native plans: launches of compiled kernels in a table that compiled code runs, without Python or its lock in between.

    recorder     the executor interface of hand-written kernels: run now, or record into a plan
    planner      traces calls with placeholder arrays, and lays out memory, records and the state that threads share
    plan         a plan for one set of shapes, ready to run
    vm           the interpreter of the table, and the calling conventions of Numba and NumPy that it relies on
    worker_pool  threads that spin between the launches of one plan
    copy_source  strided copies and sums for plans

`kernels` records into plans, `regions` makes and runs them. This package knows neither.
"""
