"""Ops on sparse tensors. A sparse tensor has coordinates, values and a dense shape.

arrange    reorder, slice, concatenate, fill, reshape; conversion from and to dense tensors
math       sums, maxima, products with dense tensors, softmax, embedding lookups

Whatever is above `graph/ops` may import it, and other families of ops.
"""
