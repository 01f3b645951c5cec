"""Ops that move, select and rearrange elements.

creation, identity_and_placeholders           constants, fills; identity, placeholders, run-time checks
shapes, slicing, concat_stack, padding        reshape, transpose, expand; slices; concat, split, stack; pad and tile
indexing                                      `tensor[key]`
gather, scatter, embedding                    elements by index, and the reverse; lookups in sharded tables
ranges                                        range and linspace
dynamic_partition, segments, sorting          rows by group; segment reductions; top k, sort, search
diagonal, space_depth, sequences              diagonals and bands; blocks of pixels; repeats, sequence masks

Whatever is above `graph/ops` may import it, and other families of ops.
"""
