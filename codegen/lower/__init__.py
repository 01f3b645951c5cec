"""Lowering: nodes to instructions over slots, and the passes over instructions that CPUs and GPUs share.

lower.py                  a partition's steps to instructions; the backend gives the kernels
chunked_saves.py          large variables that only a save reads are read chunk by chunk
sends.py                  results that are sent are written into shared memory at once; which send is the last before a pause
region.py                 Region: consecutive calls that become one call, and how they run one by one; Steps: a kernel that is run so

`codegen/pipeline.py`, `codegen/explain.py` and both back ends may import it. It imports neither.
"""
