"""Fusion: which nodes become one kernel, and the loop nest of it. It knows `ir` only.

grouping.py            one greedy walk that forms fusion groups
merge.py               FusionGroup, and whether two groups and a node fit in one iteration space
fuse.py                which groups pay; replaces each of these by a FusedKernel
rematerialize.py       copies of cheap producers instead of reads
to_loops.py            the nodes of a group as a loop nest
op_rules.py            one rule per op: op to loop nest; tracer.py: operands that record arithmetic
table_loops.py         loop nests of gathers, scatters and segment sums; of running sums, along one axis
window_loops.py        values of pooling and depthwise convolutions in loop nests
window_producers.py    arithmetic before a pooling or depthwise convolution, computed at each tap
optimizer_loops.py     loop nests of the optimizers' update rules
epilogue.py            prologue and epilogue fusion: elementwise kernels fused into a product or convolution
range_analysis.py      facts about value ranges, such as x - max(x) <= 0; online reductions: softmax and variance in one pass

The passes of `codegen/pipeline.py`, the lowering and both back ends may import it; nothing in `ir`, `memory` or `passes` may.
"""
