"""`dovetail demo --strategy`: every strategy trains the digits, and says so."""

from __future__ import annotations

import pytest

import dovetail as tf
from dovetail.tools.demo import strategies


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(strategies.KINDS))
def test_every_strategy_reads_the_digits(kind):
    lines = []
    with tf.Graph().as_default():  # other tests leave variables in the default graph
        strategies.run(kind, steps=400, workers=2, ps=1, log=lines.append)
    accuracies = [float(line.rpartition(" ")[2]) for line in lines if "held-out accuracy" in line]
    assert len(accuracies) == (2 if kind in strategies.CLUSTERED else 1)
    assert min(accuracies) >= 0.93  # workers of a parameter server that are not in step differ from run to run
    assert any("classifier/hidden_1/weights is on" in line for line in lines)


def test_an_unknown_strategy_is_named():
    with pytest.raises(ValueError, match="Strategies: mirrored, central, multiworker, ps"):
        strategies.run("other", 1, 1, 1, print)
