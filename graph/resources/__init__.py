"""State that outlives a step, as kernels see it.

    resource_manager     container -> name -> resource; `Context`: the first argument of a stateful op's kernel
    async_request        requests that a resource answers later: a step waits without holding a thread
    variable             the value of a variable: copy-on-write, atomic changes
    chunked_snapshot     the value of one moment of a large variable, read while the variable is changed in place
    cancellation         how a kernel that runs long learns that its step has ended
    queue, accumulator   the rules of these resources
    buffer_pool          memory of results, reused
    shared_storage       interfaces by which a runtime keeps values in shared memory
    shared_accumulator   the state of an accumulator to which several processes add
    collective_context   collectives: a member's contribution, and the interface of the context that runs them

The package uses no sockets, processes or clocks: the runtime implements the interfaces. Ops, kernels of codegen/, the placer (for
sizes) and the runtime import this package. It imports graph/core.
"""
