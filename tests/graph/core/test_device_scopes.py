"""Device blocks: what a node asks for, given the blocks around it. Each table reads from the outermost block inwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

import dovetail as dt


@pytest.fixture
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as g:
        yield g


def asked(*blocks: Any) -> str:
    """The device of a node made inside these blocks, the outermost first."""
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(dt.device(block))
        return dt.constant(1.0).op.device


def to(device: Any) -> Callable[[Any], Any]:
    """A device function that answers the same for every node."""
    return lambda node: device


# --- merging ------------------------------------------------------------------------------------------------------

MERGING = [
    ([], ""),
    (["/job:a"], "/job:a"),
    ([""], ""),
    (["/"], ""),
    (["gpu:1/job:ps"], "/job:ps/device:GPU:1"),  # printed canonically, however it was written
    (["/device:CPU:0/task:1/replica:2/job:j"], "/job:j/replica:2/task:1/device:CPU:0"),
    (["/cpu"], "/device:CPU:*"),
    # field by field, the inner one wins
    (["/job:a/task:1", "/gpu:0"], "/job:a/task:1/device:GPU:0"),
    (["/job:a/task:1", "/task:2"], "/job:a/task:2"),
    (["/job:a", "/job:b", "/job:c"], "/job:c"),
    (["/job:a/replica:1/task:1/gpu:1", "/job:b/replica:2/task:2/cpu:2"], "/job:b/replica:2/task:2/device:CPU:2"),
    (["/gpu:0", "/job:worker", "/cpu:0", "/job:ps"], "/job:ps/device:CPU:0"),
    # type and index are fields of their own
    (["/gpu:7", "/cpu:*"], "/device:CPU:7"),
    (["/gpu:7", "/gpu:*"], "/device:GPU:7"),
    (["/gpu:*", "/gpu:7"], "/device:GPU:7"),
    (["/gpu:7", "/cpu:0"], "/device:CPU:0"),
    # an empty block changes nothing, wherever it stands
    (["", "/job:a"], "/job:a"),
    (["/job:a", ""], "/job:a"),
    (["/job:a", "", "/task:1", "/"], "/job:a/task:1"),
]


@pytest.mark.parametrize(("blocks", "device"), MERGING)
def test_texts_merge_field_by_field(graph: dt.Graph, blocks: Sequence[Any], device: str) -> None:
    assert asked(*blocks) == device


@pytest.mark.parametrize(("blocks", "device"), MERGING)
def test_specs_mean_the_same_as_their_texts(graph: dt.Graph, blocks: Sequence[Any], device: str) -> None:
    assert asked(*(dt.DeviceSpec.from_string(b) for b in blocks)) == device


@pytest.mark.parametrize(("blocks", "device"), MERGING)
def test_merge_device_means_the_same_as_a_text(graph: dt.Graph, blocks: Sequence[Any], device: str) -> None:
    assert asked(*(dt.merge_device(b) for b in blocks)) == device
    assert asked(*(dt.merge_device(b) if i % 2 else b for i, b in enumerate(blocks))) == device


def test_merge_device_takes_a_spec_or_nothing(graph: dt.Graph) -> None:
    assert asked("/job:a", dt.merge_device(dt.DeviceSpec(task=1))) == "/job:a/task:1"
    assert asked("/job:a", dt.merge_device(None)) == "/job:a"  # where device(None) would clear


# --- clearing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "device"),
    [
        ([None], ""),
        (["/job:a", None], ""),
        ([None, "/job:a"], "/job:a"),
        (["/job:a/task:3", None, "/task:1"], "/task:1"),
        (["/job:a", None, None, "/task:1", None, "/gpu:0"], "/device:GPU:0"),
        # functions further out are not even asked
        ([to("/job:f"), None], ""),
        ([to("/job:f"), None, "/task:1"], "/task:1"),
        ([lambda node: 1 / 0, None, "/task:1"], "/task:1"),
        # what a function inside a clearing block asks for stays
        (["/job:a", None, to("/job:f")], "/job:f"),
    ],
)
def test_none_hides_all_blocks_around_it(graph: dt.Graph, blocks: Sequence[Any], device: str) -> None:
    assert asked(*blocks) == device


def test_the_blocks_around_apply_again_behind_a_clearing_one(graph: dt.Graph) -> None:
    with dt.device("/job:a"):
        with dt.device(None):
            pass
        assert asked() == "/job:a"
    assert asked() == ""


# --- functions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "device"),
    [
        ([to("/job:outer"), "/task:1/gpu:0"], "/job:outer"),  # replaces: the inner request is lost
        (["/job:o/task:3", to("/cpu:0")], "/job:o/task:3/device:CPU:0"),
        ([to("/job:outer"), to("/job:inner")], "/job:outer"),
        (["/job:o", to(""), "/gpu:0"], "/job:o"),  # nothing: the inner request is cleared, outer ones are not
        ([to("")], ""),
        ([to(""), "/gpu:0"], ""),
        ([to(dt.DeviceSpec(job="f"))], "/job:f"),
        (["/task:1", to(dt.DeviceSpec(job="f"))], "/job:f/task:1"),
        # kept as it was spelled, unless a block further out merges it
        ([to("gpu:1/job:ps")], "gpu:1/job:ps"),
        (["/task:1", to("gpu:1/job:ps")], "/job:ps/task:1/device:GPU:1"),
        ([to("/job:a-b")], "/job:a-b"),
        ([to("nonsense")], "nonsense"),  # the placer judges it
    ],
)
def test_a_function_replaces_what_the_blocks_inside_it_ask_for(
    graph: dt.Graph, blocks: Sequence[Any], device: str
) -> None:
    assert asked(*blocks) == device


def test_a_function_sees_the_node_with_what_the_blocks_inside_it_ask_for(graph: dt.Graph) -> None:
    seen: list[Any] = []

    def look(node: Any) -> str:
        seen.append((node.type, node.name, [t.name for t in node.inputs], node.device))
        return str(node.device)

    a, b = dt.constant(1.0, name="a"), dt.constant(2.0, name="b")
    with dt.device("/job:outside"), dt.device(look), dt.device("/task:1"), dt.name_scope("s"), dt.device("/gpu:0"):
        c = dt.matmul([[a]], [[b]], transpose_a=True, name="c")
    assert seen[-1] == ("MatMul", "s/c", ["s/c/a:0", "s/c/b:0"], "/task:1/device:GPU:0")
    assert c.device == "/job:outside/task:1/device:GPU:0"


def test_a_function_may_ask_for_attributes_and_shapes(graph: dt.Graph) -> None:
    def by_size(node: Any) -> str:
        return "/gpu:0" if node.outputs[0].shape.num_elements() > 2 else "/cpu:0"

    def by_type(node: Any) -> str:
        return "/job:big" if node.get_attr("dtype") == dt.float64 else "/job:small"

    with dt.device(by_size):
        assert [dt.zeros([n]).device for n in (1, 5)] == ["/cpu:0", "/gpu:0"]
    with dt.device(by_type):
        assert [dt.placeholder(t).device for t in (dt.float32, dt.float64)] == ["/job:small", "/job:big"]


def test_a_function_is_asked_once_for_each_node(graph: dt.Graph) -> None:
    calls: list[str] = []
    with dt.device(lambda node: calls.append(node.name) or ""):
        dt.constant(1.0, name="a")
        dt.constant(1.0, name="b")
    dt.constant(1.0, name="c")
    assert calls == ["a", "b"]


def test_functions_read_node_defs_as_tensorflow_programs_do(graph: dt.Graph) -> None:
    def variables_on_cpu(op: Any) -> str:
        node_def = op if isinstance(op, dt.NodeDef) else op.node_def
        return "/cpu:0" if node_def.op in ("Variable", "VariableV2", "VarHandleOp") else "/gpu:0"

    with dt.device(variables_on_cpu):
        v = dt.Variable([1.0], use_resource=False)
        y = v * 2.0
    assert (v.device, y.device) == ("/cpu:0", "/gpu:0")


# --- functions that misbehave -------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [3, 0, True, [], ["/cpu:0"], {}, 1.5], ids=repr)
@pytest.mark.parametrize("around", [[], ["/job:o"]])
def test_an_answer_that_is_no_text_is_an_error(graph: dt.Graph, answer: Any, around: list[str]) -> None:
    with pytest.raises(TypeError):
        asked(*around, to(answer))


@pytest.mark.parametrize("answer", ["nonsense", "/task:x", "/cpu:0/gpu:0"])
def test_a_malformed_answer_is_an_error_where_a_block_further_out_merges_it(graph: dt.Graph, answer: str) -> None:
    with pytest.raises(ValueError, match="device spec"):
        asked("/job:o", to(answer))


def test_a_function_that_fails_leaves_the_graph_as_it_was(graph: dt.Graph) -> None:
    x = dt.constant(1.0)
    with pytest.raises(ZeroDivisionError), dt.device(lambda node: 1 / 0):
        dt.negative(x, name="n")
    assert [n.name for n in graph.get_operations()] == [x.op.name]
    assert "n" not in graph


def test_a_function_may_make_nodes(graph: dt.Graph) -> None:
    def with_a_helper(node: Any) -> str:
        with dt.device(None):  # else it would be asked about the helper, too
            dt.no_op(name=f"for_{node.name}")
        return "/job:a"

    with dt.device(with_a_helper):
        x = dt.constant(1.0, name="x")
    assert [(n.name, n.device) for n in graph.get_operations()] == [("for_x", ""), ("x", "/job:a")]
    assert [n.index for n in graph.nodes] == [0, 1]
    assert x.device == "/job:a"


def test_a_function_that_makes_nodes_under_itself_without_end(graph: dt.Graph) -> None:
    with pytest.raises(RecursionError), dt.device(lambda node: dt.constant(1.0).device):
        dt.constant(1.0)
    assert asked() == ""


def test_a_function_that_leaves_a_block_open_is_an_error(graph: dt.Graph) -> None:
    def leak(node: Any) -> str:
        graph.device("/job:leak").__enter__()
        return "/job:b"

    with pytest.raises(RuntimeError, match="without proper scope nesting"), dt.device(leak):
        dt.constant(1.0)
    assert asked() == ""


def test_a_function_that_takes_no_node_is_an_error(graph: dt.Graph) -> None:
    with pytest.raises(TypeError, match="argument"):
        asked(lambda: "/job:a")


def test_what_a_function_raises_reaches_the_user(graph: dt.Graph) -> None:
    with pytest.raises(ZeroDivisionError):
        asked(lambda node: 1 / 0)
    assert asked() == ""  # and the blocks were left


# --- entering and leaving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["nonsense", "/jobb:ps", "/task:x", "/cpu:0/gpu:0", "/replica:*", "/job"])
def test_a_malformed_text_is_an_error_at_entry(graph: dt.Graph, bad: str) -> None:
    with dt.device("/job:a"):
        entered = []
        with pytest.raises(ValueError), dt.device(bad):  # noqa: PT011  # the texts are in test_device.py
            entered.append(bad)
        assert not entered
        assert asked() == "/job:a"  # nothing is left of it


@pytest.mark.parametrize("bad", [3, ["/cpu:0"], 1.5, {}], ids=repr)
def test_what_is_no_device_is_an_error_at_entry(graph: dt.Graph, bad: Any) -> None:
    with dt.device("/job:a"):
        with pytest.raises((TypeError, AttributeError)), dt.device(bad):
            pass
        assert asked() == "/job:a"


def test_an_error_inside_leaves_the_blocks(graph: dt.Graph) -> None:
    with pytest.raises(KeyError), dt.device("/job:a"), dt.device("/task:1"):
        raise KeyError
    assert asked() == ""


def test_blocks_left_in_the_wrong_order_are_an_error(graph: dt.Graph) -> None:
    outer, inner = graph.device("/job:a"), graph.device("/gpu:0")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match=r"Exiting device scope without proper scope nesting\."):
        outer.__exit__(None, None, None)


def test_nothing_is_left_of_blocks_that_were_left_in_the_wrong_order(graph: dt.Graph) -> None:
    blocks = [graph.device(d) for d in ("/job:a", "/task:1", "/gpu:0")]
    with dt.device("/replica:0"):
        for block in blocks:
            block.__enter__()
        assert asked() == "/job:a/replica:0/task:1/device:GPU:0"
        for block in blocks:  # the first takes the others with it
            with pytest.raises(RuntimeError, match="without proper scope nesting"):
                block.__exit__(None, None, None)
            assert asked() == "/replica:0"
    assert asked() == ""


def test_leaving_twice_or_without_entering_is_an_error(graph: dt.Graph) -> None:
    block = graph.device("/job:a")
    for _ in range(2):
        with dt.device("/job:b"):
            with pytest.raises(RuntimeError, match="without proper scope nesting"):
                block.__exit__(None, None, None)
            assert asked() == "/job:b"
        with block:  # it may be used again, after all
            assert asked() == "/job:a"
    with pytest.raises(RuntimeError, match="open already"), block, block:
        pass
    assert asked() == ""


def test_a_block_that_a_generator_holds_open_across_others_is_an_error(graph: dt.Graph) -> None:
    def devices() -> Iterator[str]:
        with dt.device("/job:g"):
            yield asked()

    it = devices()
    assert next(it) == "/job:g"
    with pytest.raises(RuntimeError, match="without proper scope nesting"), dt.device("/gpu:0"):
        assert asked() == "/job:g/device:GPU:0"
        with pytest.raises(RuntimeError, match="without proper scope nesting"):
            next(it)
        assert asked() == ""  # both have gone
    assert asked() == ""


def test_a_device_is_fixed_when_the_node_is_made(graph: dt.Graph) -> None:
    with dt.device("/job:a"):
        x = dt.constant(1.0)
        with dt.device("/job:b"):
            pass
    assert x.device == x.op.device == "/job:a"


def test_each_graph_has_its_own_blocks(graph: dt.Graph) -> None:
    with dt.device("/job:a"):
        with dt.Graph().as_default():
            assert asked() == ""
            with dt.device("/job:b"):
                assert asked() == "/job:b"
        assert asked() == "/job:a"
    other = dt.Graph()
    with other.device("/job:c"):
        assert asked() == ""
        with other.as_default():
            assert asked() == "/job:c"


def test_a_device_may_be_set_afterwards(graph: dt.Graph) -> None:
    x = dt.constant(1.0)
    for device in ("/job:a/task:1", "/device:GPU:0", "", dt.DeviceSpec(job="b")):
        x.op._set_device(device)
        assert x.device == (device if isinstance(device, str) else device.to_string())


# --- threads ------------------------------------------------------------------------------------------------------


class Builder(threading.Thread):
    """Makes two nodes inside a block, and waits in between until it is told to go on."""

    def __init__(self, graph: dt.Graph, number: int) -> None:
        super().__init__(daemon=True)
        self.graph, self.number = graph, number
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.devices: list[str] = []

    def run(self) -> None:
        with self.graph.as_default():
            self.devices.append(dt.constant(1.0).device)
            with dt.device(f"/task:{self.number}"):
                self.devices.append(dt.constant(1.0).device)
                self.reached.set()
                assert self.go_on.wait(10)
                self.devices.append(dt.constant(1.0).device)
            self.devices.append(dt.constant(1.0).device)


def test_threads_share_the_blocks_of_a_graph(graph: dt.Graph) -> None:
    thread = Builder(graph, 1)
    with dt.device("/job:a"):
        thread.start()
        assert thread.reached.wait(10)
        assert asked() == "/job:a/task:1"  # the other thread's block is this thread's, too
        thread.go_on.set()
        thread.join(10)
        assert asked() == "/job:a"
    assert thread.devices == ["/job:a", "/job:a/task:1", "/job:a/task:1", "/job:a"]


def test_after_the_switch_each_thread_has_its_own_blocks(graph: dt.Graph) -> None:
    graph.switch_to_thread_local()
    threads = [Builder(graph, i) for i in range(3)]
    for thread in threads:
        thread.start()
        assert thread.reached.wait(10)
        assert asked() == ""
    for thread in threads:  # left in another order than entered: no matter
        thread.go_on.set()
        thread.join(10)
    for i, thread in enumerate(threads):
        assert thread.devices == ["", f"/task:{i}", f"/task:{i}", ""]


def test_a_thread_starts_from_the_blocks_that_were_open_at_the_switch(graph: dt.Graph) -> None:
    thread = Builder(graph, 1)
    with dt.device("/job:a"):
        graph.switch_to_thread_local()
        with dt.device("/gpu:0"):  # this thread's own
            thread.start()
            assert thread.reached.wait(10)
            assert asked() == "/job:a/device:GPU:0"
            thread.go_on.set()
            thread.join(10)
    assert thread.devices == ["/job:a", "/job:a/task:1", "/job:a/task:1", "/job:a"]
