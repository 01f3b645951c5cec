"""The intermediate representations, from nodes to instructions. Any package of codegen/ may import this one.

partition.py       PartitionGraph: one device's nodes in order, with sends, receives, predicates and loops; which are dead together
index_maps.py      IndexMaps: which axis of a node's iteration space each dimension of its tensors is
windows.py         windows over images: which ops have them, and the sizes that a launch gives
symbolic_shape.py  sizes that are products of unknown dimensions, and when two are equal
loop_nest.py       LoopNest: scalar values in SSA form over an iteration space; TileLoops: those on a template's tile
schedule.py        schedules of loop nests and products, by machine: values that print
value_writer.py    ValueWriter: the values of a loop nest as lines of source text, in a dialect of Python
fused_kernel.py    FusedKernel: the nodes of one kernel with its loop nest
program.py         Program: instructions over slots
nodes.py           makes nodes that the compiler adds; facts about ops: products, variables, ops that pass values on
verify.py          what holds of partitions and programs between passes
"""
