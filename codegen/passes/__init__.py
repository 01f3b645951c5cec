"""Graph passes: from a partition's nodes to better nodes. They know `ir` only; `pipeline` and `explain` import them.

rewrite.py            applies the rule tables, folds constants, merges equal nodes (CSE)
rules/                the rule tables and their pattern language
attention_fusion.py   finds attention and its gradient, and makes two nodes of them
sums_of_products.py   products that are added become one: the gradient of a matrix that is used several times
batch_norm.py         batch normalization and its gradient, as sums and arithmetic
decompose.py          random nodes become streams and numbers of them, which fusion can compute in place; narrow products are widened
"""
