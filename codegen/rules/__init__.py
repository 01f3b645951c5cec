"""The rules by which graphs are rewritten, as tables. `codegen/rewrite.py` applies them."""
