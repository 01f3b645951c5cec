"""Elementwise and reducing mathematics.

    arithmetic, elementwise, special_functions   sums, products, powers; exponentials, trigonometry; Bessel functions, polynomials
    compare                                      comparisons and choices; truth values and bits
    reduce, scan, statistics                     reductions over axes; running sums; moments, norms, weights
    cast, clip                                   element types; limits of values and norms
    fused_ops                                    ops that only the compiler makes, of formulas that were spelled out
    common, broadcasting, static_operands        shared by all families: shape rules, gradients of broadcasts, constant operands
"""
