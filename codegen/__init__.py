"""The compiler: one device's partition of a step becomes a program of kernel calls. At run time no graph is walked.

    pipeline.py        the lists of compiler passes for NumPy, CPUs and GPUs; `compile_partition` runs it
    compilation.py     the state of a compilation, which passes change; what a pass is
    explain.py         `DeviceKernels`: explains a compiled partition (`plan.kernels`)
    cpu/               kernels by Numba and LLVM, native regions
    gpu/               kernels by Triton, templates, the CUDA driver, CUDA graphs
    reference.py       the backend that runs the ops' NumPy references
    lower/             nodes to instructions, and passes over instructions
    backend.py         the interface of backends
    fusion/            which nodes become one kernel, and its loop nest
    passes/            passes over nodes: rewriting, attention fusion, random numbers
    memory/            the memory plan
    ir/                the intermediate representations: partition, fused kernel, loop nest, program
    vecmath/           vectorisable math functions, which CPU kernels call and GPU kernels translate
    target.py          machine parameters: cores, caches, costs
    options.py         compile options; check.py compares kernels with references; artifact_cache.py keeps compiled kernels on disk

Each line imports only lines below it. `cpu` and `gpu` do not know each other. The runtime imports `pipeline`, `explain`, `ir` and
`options`.
"""
