"""State that outlives a step, as kernels see it.

    resource_manager     container -> name -> resource; `Context`: what the kernel of a stateful op is given
    async_request        requests that a resource answers later: a step waits without holding a thread
    variable             the value of a variable: copy-on-write, atomic changes
    queue, barrier, accumulator   the rules of these resources
    buffer_pool          memory of results, reused
    shared_storage       interfaces by which a runtime keeps values in shared memory
    shared_accumulator   the state of an accumulator to which several processes add
    collective_context   collectives: what a member brings, and the interface of what runs them

Nothing here knows sockets, processes or clocks: the runtime implements the interfaces. Ops, kernels of codegen/, the placer (for sizes) and
the runtime import this package. It imports graph/core.
"""
