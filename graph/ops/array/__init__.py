"""Ops that arrange elements and compute none.

creation, identity_and_placeholders           constants, fills and ranges; identity, placeholders, checks
shapes, slicing, concat_stack, padding        reshape, transpose, expand; slices; concat, split, stack; pad and tile
indexing                                      `tensor[key]`: what slices and masks mean
gather, scatter, embedding                    elements by index, and back; tables in shards
dynamic_partition, segments, sorting          rows by group; sums by segment; top k, sort, search
diagonal, space_depth, sequences              diagonals and bands; blocks of pixels; repeats, sequences

Whatever is above `graph/ops` may import it, and other families of ops.
"""
