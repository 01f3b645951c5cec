"""`control_dependencies` blocks: which control inputs nodes get, and in which order."""

import pytest

import dovetail as tf


@pytest.fixture
def graph():
    with tf.Graph().as_default() as g:
        for name in "abc":
            tf.no_op(name=name)
        tf.constant(1.0, name="k")
        yield g


def made_inside(graph, *blocks, take=None):
    """The control inputs of a node that is made inside these blocks, outermost first; a block is a word of node names."""
    if not blocks:
        node = tf.no_op() if take is None else tf.negative(take).op
        return "".join(n.name for n in node.control_inputs)
    inputs = None if blocks[0] is None else [graph.get_operation_by_name(n) for n in blocks[0]]
    with tf.control_dependencies(inputs):
        return made_inside(graph, *blocks[1:], take=take)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (["ab"], "ab"),
        (["aba"], "ab"),
        (["b", "a"], "ba"),  # those of the outermost block first
        (["a", "ba", "cab"], "abc"),  # once each
        (["a", ""], "a"),
        (["a", None], ""),
        (["a", None, "a"], "a"),
    ],
)
def test_blocks_in_blocks(graph, blocks, expected):
    assert made_inside(graph, *blocks) == expected


def test_what_a_data_input_waits_for_is_not_waited_for_again(graph):
    a, b = (graph.get_operation_by_name(n) for n in "ab")
    k = graph.get_tensor_by_name("k:0")
    assert made_inside(graph, "k", take=k) == ""
    with tf.control_dependencies([a]):
        x = tf.negative(k)  # waits for a
        assert made_inside(graph, "ab", take=x) == "b"  # the inner block adds b alone, so a is waited for through x
        with tf.control_dependencies([a, b]):
            y = tf.negative(x)
            assert made_inside(graph, take=y) == ""
        assert made_inside(graph, take=k) == "a"
