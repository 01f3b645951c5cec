"""The rewrite rules, as tables. `codegen/passes/rewrite.py` applies them. Only `codegen/passes` imports this package.

dsl.py       the pattern language
algebra.py   algebraic identities that spare a costly function
einsum.py    Einstein summation becomes matrix products
shapes.py    shape queries and broadcasts
layout.py    transposes and casts that cancel, and that move past their neighbours
"""
