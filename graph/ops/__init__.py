"""Op definitions by family. An op is defined once: types and shapes, NumPy reference, gradient, cost, traits (`graph/core/opdef.py`).

    math/      elementwise arithmetic, comparisons, reductions, scans, statistics
    array/     shapes, slices, concatenation, gather and scatter, sorting, segments, padding
    linalg/    matrix products, einsum, decompositions, linear systems
    nn/        activations, convolutions, pooling, normalization, softmax, attention
    random/    random numbers by Philox, with seeds of the graph, of the op, or as tensors
    strings/   splitting, joining, hashing, regular expressions, CSV, printing
    sparse/    sparse tensors: arranging, arithmetic, conversion
    io/        files, data set iterators, parsing of examples, checkpoints, summaries
    control/   Switch and Merge, stacks, TensorArray, Python functions
    state/     variables, optimizers' updates, queues, accumulators, tables, collectives
    all.py     importing it registers every op

Each family's modules hold a `define(...)` next to the public function that adds the op to a graph. Kernels of stateful ops use
`graph/resources`. All packages above graph/ may import a family. graph/core does not: it knows ops by their names in the registry.
"""
