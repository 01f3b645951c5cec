"""Whole programs in the manner of TensorFlow 1's tutorials, run as they stand. Numbers are those that TensorFlow 2.21's
compatibility layer gave for the same files with another import."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

CLASSICS = Path(__file__).parent / "scripts" / "classics"


def run(program: str) -> dict[str, Any]:
    """What the program's `main` gives; it is loaded as a module of its own."""
    found: dict[str, Any] = runpy.run_path(str(CLASSICS / f"{program}.py"))["main"]()
    json.dumps(found)  # plain values: nothing of the graph outlives the program
    return found


def test_towers_average_their_gradients() -> None:
    found = run("towers")
    np.testing.assert_allclose(
        found["losses"],
        [
            [1.0447395, 1.8252137], [1.0832015, 1.6922557], [1.1211617, 1.5927675], [1.1567906, 1.4724127],
            [1.1612386, 1.4446436], [1.1615478, 1.4346459], [1.1619455, 1.4252043], [1.1645576, 1.4139460],
        ],
        rtol=1e-4,
    )  # fmt: skip
    np.testing.assert_allclose(found["shadow"], [-0.0035040, 0.3193599, 0.1177034, -0.2115411], rtol=1e-3)
    assert found["rate"] == pytest.approx(0.025)
    layers = ("conv1", "local2", "softmax_linear")
    assert found["variables"] == [f"{layer}/{kind}:0" for layer in layers for kind in ("weights", "biases")]
    assert found["shadow_name"] == "conv1/weights/ExponentialMovingAverage"
    assert found["summaries"] == 1


def test_a_language_model_trains_and_a_second_one_shares_its_variables() -> None:
    found = run("language_model")
    costs = [12.6473312, 13.3965034, 12.2173538, 13.1861153, 12.0958815, 12.4706078]
    np.testing.assert_allclose(found["costs"], costs, rtol=1e-4)
    norms = [1.7229357, 1.4827406, 1.6146325, 1.4665483, 1.6048099, 1.2245601]
    np.testing.assert_allclose(found["norms"], norms, rtol=1e-4)
    assert found["valid"] == pytest.approx(12.0538111, rel=1e-4)
    cells = [f"RNN/multi_rnn_cell/cell_{i}/basic_lstm_cell/{v}" for i in range(2) for v in ("kernel", "bias")]
    assert found["variables"] == [f"Model/{v}:0" for v in ("embedding", *cells, "softmax_w", "softmax_b")]


def test_words_get_vectors_in_tables_that_are_cut() -> None:
    found = run("word2vec")
    losses = [
        [9.2337856, 2.0165339], [9.4482698, 2.8327405], [9.2177200, 2.3307791],
        [9.5279961, 2.3346610], [9.5188313, 2.4927859], [9.1980791, 2.6952242],
    ]  # fmt: skip
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
    assert found["nearest"] == [0, 1, 2, 3]
    assert found["parts"] == 3


def test_queues_feed_a_model_until_the_epochs_are_over() -> None:
    found = run("queues")
    assert found["steps"] == 25
    assert found["last"] < found["first"] / 100


def test_wide_and_deep_updates_the_rows_that_occur() -> None:
    found = run("wide_and_deep")
    losses = [
        0.7334419,
        0.6909362,
        0.6513883,
        0.6181222,
        0.5892197,
        0.5637269,
        0.5410128,
        0.5205997,
        0.5019935,
        0.4850727,
    ]
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
    assert found["accuracy"] == pytest.approx(0.9375)
    assert found["steps"] == 10
    assert found["untouched"]


def test_layers_with_batch_normalisation_learn_from_a_data_set() -> None:
    found = run("batch_norm")
    assert found["steps"] == 48
    assert found["last"] < found["first"]
    assert found["right"] > 0.7
    assert found["moved"] > 0.1


def test_the_tools_around_a_model_do_their_work(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("tools") == {
        "squared": [[36.0, 81.0], [36.0, 81.0]],
        "traced": True,
        "branch": "large",
        "scan": [0, 1, 3, 6, 10],
        "fibonacci": [1, 1, 2, 3, 5, 8, 13, 21],
        "callable": [[6.0, 9.0], [6.0, 9.0]],
        "assertion": True,
        "restored": ["model-3", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]],
    }
    assert "shape of y: [2 2]" in capfd.readouterr().err


def test_names_that_are_absent_on_purpose_say_what_to_use() -> None:
    with pytest.raises(AttributeError, match="dt.train.Saver"):
        tf.train.Checkpoint  # noqa: B018
