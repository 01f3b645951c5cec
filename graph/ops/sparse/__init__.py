"""Ops on sparse tensors: coordinates, elements and a dense shape.

arrange    reorder, slice, concatenate, fill, reshape, to dense tensors; no arithmetic
math       sums, extremes, products with dense tensors, softmax, embedding lookups

Whatever is above `graph/ops` may import it, and other families of ops.
"""
