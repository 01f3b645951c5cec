"""Ops on sparse tensors: coordinates, elements and a dense shape.

    arrange    reorder, slice, concatenate, fill, reshape; no arithmetic
    math       sums, extremes, products with dense tensors, softmax, embedding lookups
    records    sparse tensors as texts, for queues
    sets       set operations along the last axis
    to_dense   a dense tensor from coordinates and elements
"""
