"""Linear algebra on matrices and stacks of matrices.

linalg             matrix products and transposes
einsum             Einstein summation: any equation on two operands becomes one batched product
solving            inverse, determinant, linear systems, Cholesky factors
matrix_functions   decompositions (SVD, QR), ranks, pseudo-inverses, log-determinants

Whatever is above `graph/ops` may import it, and other families of ops.
"""
