"""Elementwise mathematics and reductions.

arithmetic, elementwise, special_functions   sums, products, powers; exponentials, trigonometry; Bessel functions, polynomials
compare                                      comparisons, selection, Boolean logic, bitwise operations
reduce, scan, statistics                     reductions over axes; cumulative sums; variance, norms, counts
reduce_gradients                             the gradients of reductions
cast, clip                                   conversion of element types; clipping of values and norms
common, broadcasting, static_operands        for all families: shape rules, gradients of broadcasts, constant operands

Whatever is above `graph/ops` may import it, and other families of ops.
"""
