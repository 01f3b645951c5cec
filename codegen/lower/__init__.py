"""Lowering: nodes to instructions over slots, the passes over instructions that CPUs and GPUs share.

lower.py                  a partition's steps to instructions; the backend chooses a family of kernels for each call
chunked_saves.py          large variables that only a save reads are read chunk by chunk
sends.py                  results that are sent are written into shared memory at once; which send is the last before a pause

`codegen/pipeline.py`, `codegen/explain.py` and both back ends may import it. It imports neither.
"""
