"""The rewrite rules, as tables. `codegen/passes/rewrite.py` applies them.

    dsl.py             the pattern language
    algebra.py         algebraic identities
    shapes.py          shape queries and broadcasts
    layout.py          reshapes, transposes and casts that cancel
    layout_motion.py   transposes and casts that move past their neighbours
    idioms.py          softmax, GELU, layer normalization... written out by hand
    dead_stores.py     assignments that a later one overwrites
"""
