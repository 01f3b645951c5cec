"""Functions that rows of tables make are functions in the reference, as those that are written out."""

from __future__ import annotations

from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe", reason="the documentation's packages are not installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_functions_of_tables_have_signatures_and_texts_in_the_reference() -> None:
    extensions = griffe.load_extensions(ROOT / "docs" / "table_functions.py")
    loader = griffe.GriffeLoader(search_paths=[ROOT], extensions=extensions)
    package = loader.load("dovetail")
    loader.resolve_aliases(implicit=True)
    math, check = package["api.ops.math"], package["api.ops.debugging.assert_equal"]
    assert [name for name, member in math.members.items() if member.is_public and not member.is_function] == []
    assert [p.name for p in math["subtract"].parameters] == ["x", "y", "name"]
    assert math["abs"].docstring.value == "The absolute value (TensorFlow's `abs`)."
    assert "keepdims: keep the reduced axes" in math["reduce_sum"].docstring.value
    assert check.is_function and "x == y, element by element" in check.docstring.value
