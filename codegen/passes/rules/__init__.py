"""The rules by which graphs are rewritten, as tables. `codegen/passes/rewrite.py` applies them."""
