"""Elementwise and reducing mathematics.

arithmetic, elementwise, special_functions   sums, products, powers; exponentials, trigonometry; Bessel functions, polynomials
compare                                      comparisons and choices; truth values and bits
reduce, scan, statistics                     reductions over axes; running sums; moments, norms, weights
reduce_gradients                             the gradients of reductions
cast, clip                                   element types; limits of values and norms
common, broadcasting, static_operands        shared by all families: shape rules, gradients of broadcasts, constant operands

Whatever is above `graph/ops` may import it, and other families of ops.
"""
