"""Linear algebra on matrices and stacks of matrices.

linalg             matrix products, and what is made of them
einsum             Einstein summation: any equation on two operands becomes one batched product
solving            inverse, determinant, linear systems, Cholesky factors
matrix_functions   decompositions (SVD, QR, eigenvalues), and what follows from them

Whatever is above `graph/ops` may import it, and other families of ops.
"""
