"""State that persists between steps, and its interface for kernels.

    resource_manager     container -> name -> resource, and the first argument of a stateful op's kernel (`Context`)
    async_request        requests that a resource answers later, so that a step waits without holding a thread
    variable             the value of a variable, with copy-on-write and atomic changes
    chunked_snapshot     a snapshot of a large variable that is read while the variable is changed in place
    cancellation         notifies long kernels that their step has ended
    queue, accumulator   queues and conditional accumulators
    buffer_pool          a pool of the memory of large results
    shared_storage       interfaces by which a runtime keeps values in shared memory
    shared_accumulator   the state of an accumulator to which several processes add
    collective_context   the kernels' interface to collectives

The package does not use sockets, processes or clocks. The runtime implements the interfaces. Ops, kernels of codegen/, the placer (for
sizes) and the runtime import this package. It imports graph/core.
"""
