"""`tf.contrib.training.HParams`."""

from __future__ import annotations

import json

import pytest

import dovetail as tf

HParams = tf.contrib.training.HParams


def params() -> HParams:
    return HParams(rate=0.1, layers=2, units=[64, 32], name="net", bias=True)


def test_values_are_attributes() -> None:
    p = params()
    assert (p.rate, p.layers, p.units, p.name, p.bias) == (0.1, 2, [64, 32], "net", True)
    assert p.values() == {"rate": 0.1, "layers": 2, "units": [64, 32], "name": "net", "bias": True}
    assert "rate" in p and "more" not in p and p.get("more", 3) == 3 and p.get("layers") == 2
    p.add_hparam("more", 1)
    p.del_hparam("more")
    assert "more" not in p and not hasattr(p, "more")
    assert str(HParams(b=1, a="x")) == "[('a', 'x'), ('b', 1)]"
    with pytest.raises(ValueError, match="name is reserved: rate"):
        p.add_hparam("rate", 1)
    with pytest.raises(ValueError, match="cannot be empty: none"):
        p.add_hparam("none", [])


def test_text_gives_other_values() -> None:
    p = params().parse("rate=1e-3, layers=3,units=[1, 2,3],name=a-b c,bias=False")
    assert p.values() == {"rate": 1e-3, "layers": 3, "units": [1, 2, 3], "name": "a-b c", "bias": False}
    assert params().parse("units[1]=5,units[0]=6").units == [6, 5]
    assert params().parse("units=7,bias=0").values()["units"] == [7]
    assert params().parse("").values() == params().values()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rate", "Malformed hyperparameter value: rate"),
        ("other=1", "Unknown hyperparameter type for other"),
        ("layers=1.5", "Could not parse hparam 'layers' of type 'int' with value '1.5'"),
        ("bias=maybe", "of type 'bool' with value 'maybe'"),
        ("rate=1,rate=2", "Multiple assignments to variable 'rate'"),
        ("units[0]=1,units[0]=2", "Multiple assignments to variable 'units'"),
        ("layers=[1]", "Must not pass a list for single-valued parameter: layers"),
        ("layers[0]=1", "Could not parse hparam 'layers'"),
        ("units[2]=1", "units has 2 values"),
    ],
)
def test_text_that_is_wrong_changes_nothing(text: str, error: str) -> None:
    p = params()
    with pytest.raises(ValueError) as e:
        p.parse("name=other," + text)
    assert error in str(e.value)
    assert p.values() == params().values()


def test_values_keep_their_types() -> None:
    p = params()
    p.set_hparam("rate", 2)
    assert p.rate == 2.0 and isinstance(p.rate, float)
    for name, value in (("layers", 1.5), ("layers", True), ("bias", 1), ("name", 3), ("rate", "0.1"), ("units", ["a"])):
        with pytest.raises(ValueError, match=f"Could not cast hparam '{name}'"):
            p.set_hparam(name, value)
    with pytest.raises(ValueError, match="Must pass a list for multi-valued parameter: units"):
        p.set_hparam("units", 3)
    before = p.values()
    with pytest.raises(KeyError, match="there are rate, layers"):
        p.override_from_dict({"rate": 7.0, "other": 3})
    assert p.values() == before
    with pytest.raises(ValueError, match="Hparam 'rate' is no list"):
        p.get("rate", [1])


def test_json() -> None:
    p = params()
    assert json.loads(p.to_json()) == p.values()
    assert HParams(f=len, a=1).to_json() == '{"a": 1}'
    assert p.parse_json('{"rate": 0.5, "units": [1]}').units == [1]
