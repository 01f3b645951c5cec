"""`dovetail plan`, `diff`, `explain`, `simulate` and `trace`, and `devices --cluster`: what they print, write and exit with."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import dovetail as tf
from dovetail.tools.cli import app

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import dovetail as tf

def graph_and_fetches():
    with tf.Graph().as_default() as g:
        with tf.device("/job:ps/task:1"):
            v = tf.Variable([1.0, 2.0], name="v")
        y = tf.negative(v, name="y")
    return g, [y]

def default_graph():
    with tf.device("/job:ps/task:0"):
        return {"y": tf.negative(1.0, name="y"), "more": [tf.no_op("n")]}

def only_graph():
    return graph_and_fetches()[0]

def nothing():
    default_graph()

def lost():
    tf.negative(1.0)
    with tf.device("/job:moon"):
        tf.negative(1.0, name="lost")

def misshapen():
    tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))

def broken():
    raise ZeroDivisionError("in the program")

number = 3
"""
CLUSTER = "jobs: {ps: 2, worker: 1}\ndevices: {worker: [cpu:0, {name: gpu:0, memory: 8 GiB, flops: 1e12}]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train_it.py").write_text(PROGRAM)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "train_it", raising=False)
    return tmp_path


def run(command: str, *arguments: str, cluster: str = "cluster.yaml") -> Result:
    given = ["--cluster", cluster] if cluster else []
    return CliRunner().invoke(app, [command, *arguments, *given], catch_exceptions=False)


def plan(program: str, *arguments: str, cluster: str = "cluster.yaml") -> Result:
    return run("plan", program, *arguments, cluster=cluster)


@pytest.mark.parametrize("program", ["train_it.py:graph_and_fetches", "train_it:graph_and_fetches"])
def test_a_file_and_a_module(folder: Path, program: str) -> None:
    result = plan(program)
    assert result.exit_code == 0 and result.stderr == ""
    text = " ".join(result.output.split())
    assert text.startswith("Plan: predicted step time ") and ", slower than one device: " in text
    assert (
        "3 nodes on 2 devices of 2 tasks; 1 channel between tasks (8 B per step); nothing runs on /job:ps/task:0 device"
        in text
    )
    assert "/job:ps/task:1/CPU:0 -> /job:worker/task:0/GPU:0" in result.output
    assert "warning: slower-than-one: The predicted step time is" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("function", "nodes"), [("default_graph", 3), ("only_graph", 5), ("nothing", 3), ("graph_and_fetches", 3)]
)
def test_what_a_function_may_return(folder: Path, function: str, nodes: int) -> None:
    assert f"{nodes} nodes on " in " ".join(plan(f"train_it.py:{function}").output.split())


def test_a_saved_graph(folder: Path) -> None:
    with tf.Graph().as_default() as g, tf.device("/job:ps/task:0"):
        tf.constant(1.0, name="c")
    tf.save_graph(g, folder / "graph.dtg")
    lines = plan("graph.dtg").output.splitlines()
    assert lines[0].startswith("Plan: predicted step time ") and lines[1].startswith("1 node on 1 device")


def test_other_fetches_and_another_master(folder: Path) -> None:
    result = plan("train_it.py:graph_and_fetches", "--fetch", "v/Assign", "--master", "/job:ps/task:0")
    assert result.exit_code == 0 and "v/Assign" in result.output and "GPU" not in result.output.split("warning")[0]


def test_explain(folder: Path) -> None:
    result = run("explain", "train_it.py:graph_and_fetches", "v", "y:0")
    assert result.exit_code == 0 and result.output.startswith("v -> /job:ps/replica:0/task:1/device:CPU:0")
    assert "inside device block '/job:ps/task:1' at" in result.output and "train_it.py:7" in result.output
    assert "\n\ny -> /job:worker" in result.output and "Plan:" not in result.output
    refused = run("explain", "train_it.py:graph_and_fetches", "v", "--device", "/job:worker/gpu:0")
    assert refused.exit_code == 0 and "'/job:ps/task:1' is required" in refused.output
    assert run("explain", "train_it.py:graph_and_fetches", "v", "--device", "/job:moon").exit_code == 2


def test_saving_and_comparing(folder: Path) -> None:
    program = "train_it.py:graph_and_fetches"
    assert plan(program, "--save", "a.plan").exit_code == 0
    same = run("diff", "a.plan", program)
    assert (same.exit_code, same.output) == (0, "no differences\n")
    moved = run("diff", "a.plan", program, "--master", "/job:ps/task:0", "--html", "both.html")
    assert moved.exit_code == 3 and "Moved: 1 node" in moved.output
    assert "/job:worker/task:0/GPU:0 -> /job:ps/task:0/CPU:0" in moved.output
    assert (folder / "both.html").read_text().lstrip().lower().startswith("<!doctype html")
    assert run("diff", "a.plan", "a.plan", cluster="").exit_code == 0


def test_a_page_is_complete_if_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("dovetail.placer.plan.Plan.to_html", lambda plan, path, **more: asked.append(more["complete"]))
    for option in ([], ["--complete"]):
        assert plan("train_it.py:graph_and_fetches", "--html", "p.html", *option).exit_code == 0
    assert asked == [False, True]
    alone = plan("train_it.py:graph_and_fetches", "--complete")
    assert alone.exit_code == 2 and "Pass --html, too" in alone.stderr


def test_a_saved_plan_is_shown_explained_and_predicted_as_the_program_is(folder: Path) -> None:
    program = "train_it.py:graph_and_fetches"
    shown = plan(program, "--save", "a.plan")
    assert plan("a.plan", cluster="").output == shown.output
    assert run("explain", "a.plan", "v", cluster="").output == run("explain", program, "v").output
    assert run("simulate", "a.plan", cluster="").output == run("simulate", program).output
    again = plan("a.plan", "--strategy", "auto")
    assert again.exit_code == 2 and "--cluster applies only to programs: a plan is already placed" in again.stderr
    assert run("trace", "a.plan", cluster="").exit_code == 2


def test_a_function_may_return_a_plan(folder: Path) -> None:
    (folder / "compiled.py").write_text(
        "import dovetail as dt\nimport numpy as np\n\n@dt.compile(cluster={'worker': 2})\ndef step(x):\n    return x * 2.0\n\n"
        "def build():\n    return step.plan(np.ones((4, 3), np.float32))\n"
    )
    shown = plan("compiled.py:build", cluster="")
    assert shown.exit_code == 0 and "/job:worker/task:0/CPU:0" in shown.output


def test_a_predicted_step_names_what_its_end_depends_on(folder: Path) -> None:
    (folder / "chain.py").write_text(
        "import dovetail as dt\n\ndef build():\n    with dt.device('/job:ps'):\n        x = dt.random.normal([512, 512], name='x')\n"
        "    return dt.exp(x, name='y')\n"
    )
    done = run("simulate", "chain.py:build", "--trace", "step.json", "--html", "step.html", cluster="ps=1,worker=1")
    assert done.exit_code == 0 and "s; 7 nodes, 1 transfer; limited by" in done.output
    path = [line.split() for line in done.output.split("device or link\n")[1].splitlines()]
    assert all(words[:2] != ["0", "0"] for words in path)  # constants take no time
    assert [words[-1] for words in path if "y" in words] == ["/job:worker/task:0/CPU:0"]
    assert any("->" in words for words in path)  # x crosses to the worker
    (peak,) = re.findall(r"^  /job:ps/task:0/CPU:0 +busy +\d+%  peak (.*)$", done.output, re.MULTILINE)
    assert peak == "2.0 MiB"  # x, and what it is made of
    events = [e for e in json.loads((folder / "step.json").read_text())["traceEvents"] if e["ph"] == "X"]
    (y,) = [e for e in events if e["name"] == "y"]
    assert y["args"]["critical"] and y["dur"] > 0
    assert max(e["ts"] + e["dur"] for e in events) == y["ts"] + y["dur"]


@pytest.mark.slow
def test_a_step_is_traced_on_a_cluster_that_is_started_for_it(folder: Path) -> None:
    (folder / "sum_it.py").write_text(
        "import dovetail as dt\n\ndef build():\n    x = dt.placeholder(dt.float32, [None, 8], name='x')\n"
        "    with dt.device('/job:ps'):\n        w = dt.Variable(dt.ones([8, 4]), name='w')\n"
        "    return dt.reduce_sum(dt.matmul(x, w), name='loss')\n\ndef text():\n    return dt.placeholder(dt.string, [], name='t') + 'x'\n"
    )
    np.save(folder / "x.npy", np.ones((16, 8), np.float32))
    for sizes in (["--shape", "x=16,8"], ["--feed", "x=x.npy"]):
        done = run("trace", "sum_it.py:build", *sizes, "--trace", "t.json", "--html", "t.html", cluster="ps=1,worker=1")
        assert done.exit_code == 0, done.output
        assert "MatMul" in done.output and "/job:worker/task:0/CPU:0" in done.output
        assert "MatMul" in (folder / "t.json").read_text() and "<svg" in (folder / "t.html").read_text()
    for wrong, told in (
        ([], "Pass --shape x=..."),
        (["--feed", "x=nowhere.npy"], "nowhere.npy"),
        (["--feed", "x"], "x=FILE.npy"),
    ):
        done = run("trace", "sum_it.py:build", *wrong, cluster="")
        assert done.exit_code == 2 and told in done.stderr
    assert "t needs values of type string" in run("trace", "sum_it.py:text", cluster="").stderr.replace("t:0", "t")
    assert run("trace", "train_it.py:nothing", cluster="").exit_code == 2  # it names no step
    failed = run("trace", "sum_it.py:build", "--shape", "x=2,9", cluster="")
    assert failed.exit_code == 2 and "(?, 8)" in failed.stderr


def test_pages_and_pictures(folder: Path) -> None:
    assert plan("train_it.py:graph_and_fetches", "--html", "a.html", "--svg", "a.svg").exit_code == 0
    assert (folder / "a.html").read_text().lstrip().lower().startswith("<!doctype html")
    assert (folder / "a.svg").read_text().startswith("<svg")
    result = plan("train_it.py:graph_and_fetches", "--save", "no/such/folder/a.plan")
    assert result.exit_code == 2 and "there is no folder no/such/folder" in result.stderr and "--save" in result.stderr


def test_a_predicted_step_by_analytic_and_by_measured_costs(folder: Path) -> None:
    tf.Profile({"y": {"/job:worker/replica:0/task:0/device:GPU:0": 2.0}}, (), 2.0, 1).save(folder / "y.profile")
    for name, more in (("a", []), ("b", ["--costs", "y.profile"])):
        assert run("simulate", "train_it.py:graph_and_fetches", "--html", f"{name}.html", *more).exit_code == 0
        assert "<svg" in (folder / f"{name}.html").read_text()
    assert (folder / "a.html").read_text() != (folder / "b.html").read_text()
    (folder / "y.profile").write_text("{}")
    wrong = run("simulate", "train_it.py:graph_and_fetches", "--html", "c.html", "--costs", "y.profile")
    assert wrong.exit_code == 2 and "y.profile" in wrong.stderr and not (folder / "c.html").exists()


def test_what_cannot_be_placed_exits_with_1(folder: Path) -> None:
    result = plan("train_it.py:lost")
    assert result.exit_code == 1 and result.output.count("Plan:") == 0
    assert "error: Cannot assign a device for operation lost" in result.stderr
    assert "Possible fixes:" in result.stderr and "train_it.py:" in result.stderr


def test_too_little_memory_exits_with_1_by_rules_and_by_a_search(folder: Path) -> None:
    (folder / "small.yaml").write_text("jobs: {ps: 2, worker: 1}\ndevices: {ps: [{name: cpu:0, memory: 4}]}\n")
    for strategy in ("rules", "auto"):
        result = plan("train_it.py:graph_and_fetches", "--strategy", strategy, cluster="small.yaml")
        assert result.exit_code == 1 and not result.stdout
        assert (
            "error: Memory does not suffice: 'v' needs 8 B, and no device that it may be on has more than 4 B"
            in result.stderr
        )
        assert 'v = tf.Variable([1.0, 2.0], name="v")' in result.stderr


def test_checking_prints_the_warnings_and_exits_with_4_when_there_are_any(folder: Path) -> None:
    (folder / "plain.yaml").write_text(
        "jobs: {ps: 2, worker: 1}\nlinks: [{between: [/job:ps, /job:worker], latency: 1 ms, bandwidth: 1 GB/s}]\n"
    )
    found = plan("train_it.py:graph_and_fetches", "--check", cluster="plain.yaml")
    assert found.exit_code == 4 and "Plan:" not in found.output
    text = " ".join(found.stdout.split())
    assert text.startswith("warning: slower-than-one: The predicted step time is")
    assert 'train_it.py:6: with tf.device("/job:ps/task:1"):' in text and "fix: Remove the device blocks" in text
    fixed = plan("train_it.py:graph_and_fetches", "--fix", cluster="plain.yaml")
    assert fixed.exit_code == 4 and "Result: predicted step time" in " ".join(fixed.stdout.split())
    (folder / "one.yaml").write_text("jobs: {ps: 2}\nmaster: /job:ps/task:1\n")
    well = plan("train_it.py:graph_and_fetches", "--check", cluster="one.yaml")
    assert (well.exit_code, well.stdout) == (0, "no warnings\n")


@pytest.mark.slow
def test_fixing_searches_without_log_lines(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "unknown.py").write_text(
        "import dovetail as dt\n\ndef build():\n    with dt.device('/job:worker/task:1'):\n        v = dt.Variable(dt.ones([4096, 1024]))\n"
        "    return dt.matmul(dt.placeholder(dt.float32, [None, 4096], name='x'), v)\n"
    )
    fixed = plan("unknown.py:build", "--fix", cluster="worker=2")
    assert 'strategy="auto"' in fixed.stdout and "predicted step time ≥" in " ".join(fixed.stdout.split())
    assert caplog.text == ""  # the search for unknown sizes warns in the log


def test_compiled_functions_are_programs_if_they_take_no_arguments(folder: Path) -> None:
    (folder / "compiled.py").write_text(
        "import dovetail as dt\n@dt.compile\ndef forward(params, x=1):\n    return params\n"
        "@dt.compile(cluster={'worker': 2})\ndef step():\n    with dt.device('/job:worker/task:1'):\n        return dt.negative(1.0)\n"
        "def plain(x):\n    pass\n"
    )
    wrong = plan("compiled.py:forward")
    assert wrong.exit_code == 2
    assert "forward needs arguments (params). Name a function that returns forward.plan(...)" in wrong.stderr
    assert "plain needs arguments (x). Name a function that calls it" in plan("compiled.py:plain").stderr
    assert "/job:worker/task:1" in plan("compiled.py:step", cluster=None).stdout


def test_soft_placement(folder: Path) -> None:
    code = "import dovetail as tf\ndef f():\n    with tf.device('/job:ps/gpu:0'):\n        tf.negative(1.0, name='y')\n"
    (folder / "soft_program.py").write_text(code)
    assert plan("soft_program.py:f").exit_code == 1
    result = plan("soft_program.py:f", "--allow-soft-placement")
    assert result.exit_code == 0 and "Relaxed requests: 2 nodes" in result.output


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        ("train_it.py", [], "'train_it.py' is not a program"),
        ("train_it.py", [], "train_it.py has "),
        ("nowhere.py:f", [], "There is no file nowhere.py"),
        ("nowhere:f", [], "There is no module 'nowhere'"),
        ("train_it.py:f", [], "train_it.py has no function 'f'"),
        ("train_it.py:only_graf", [], "train_it.py has no function 'only_graf': did you mean 'only_graph'?"),
        ("train_it.py:number", [], "train_it.py has no function 'number'"),
        ("nowhere.dtg", [], "is not a program"),
        ("cluster.yaml", [], "Malformed graph data"),
        (
            "train_it.py:nothing",
            ["--fetch", "what"],
            "No node is named 'what'",
        ),
        ("train_it.py:nothing", ["--master", "/job:moon"], "The master '/job:moon' is no task"),
    ],
)
def test_mistakes_exit_with_2(folder: Path, program: str, arguments: list[str], said: str) -> None:
    no_file = plan("train_it.py:only_graph", cluster="nofile.yaml")
    assert no_file.exit_code == 2 and no_file.stderr == "error: --cluster: There is no file 'nofile.yaml'\n"
    result = plan(program, *arguments)
    assert result.exit_code == 2 and said in result.stderr and "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ")


def test_a_cluster_that_is_not_there(folder: Path) -> None:
    result = plan("train_it.py:nothing", cluster="nowhere.yaml")
    assert result.exit_code == 2 and "--cluster: " in result.stderr and "nowhere.yaml" in result.stderr
    (folder / "broken.plan").write_text('{"dovetail-plan": 99}\n')
    assert "Malformed plan" in plan("broken.plan", cluster="").stderr
    assert run("explain", "train_it.py:nothing", "what:9").exit_code == 2


@pytest.mark.parametrize(
    ("function", "told"), [("broken", "ZeroDivisionError: in the program"), ("misshapen", "matrix sizes do not match")]
)
def test_a_program_that_fails_shows_where(
    folder: Path, function: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = plan(f"train_it.py:{function}")
    assert result.exit_code == 1 and told in result.stderr
    assert f"in {function}" in result.stderr and "train_it.py" in result.stderr
    frames = [line for line in result.stderr.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1 and "DOVETAIL_TRACEBACK=full" in result.stderr
    monkeypatch.setenv("DOVETAIL_TRACEBACK", "full")
    full = plan(f"train_it.py:{function}")
    assert full.exit_code == 1 and "programs.py" in full.stderr


def test_this_machine_and_a_server(folder: Path) -> None:
    assert plan("train_it.py:lost", cluster="").exit_code == 1
    with tf.train.Server({"ps": ["localhost:0"]}) as server:
        result = plan("train_it.py:default_graph", cluster=server.target)
    assert result.exit_code == 0 and "/job:ps/task:0/CPU:0" in result.output


def test_as_a_process(folder: Path) -> None:
    command = [sys.executable, "-m", "dovetail", "plan", "train_it.py:lost", "--cluster", "cluster.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1 and done.stdout == ""


def test_a_reader_that_has_seen_enough_changes_no_exit_status(folder: Path) -> None:
    plan("train_it.py:only_graph", "--save", "old.plan")
    command = [
        sys.executable, "-m", "dovetail", "diff", "old.plan", "train_it.py:default_graph", "--cluster", "cluster.yaml",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env={"PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # as `| head` does, in time
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait() == 3


def test_devices_of_a_file(folder: Path) -> None:
    lines = CliRunner().invoke(app, ["devices", "--cluster", "cluster.yaml"]).output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "/job:worker/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:GPU:0",
        "/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0",
    ]  # fmt: skip
    assert "8.0 GiB" in lines[2] and "1.0 Tflop/s" in lines[2]
    (folder / "bad.yaml").write_text("jobs: 3")
    result = CliRunner().invoke(app, ["devices", "--cluster", "bad.yaml"])
    assert result.exit_code == 2 and "bad.yaml" in result.stderr


def test_sizes_are_given_by_name(folder: Path) -> None:
    (folder / "sized.py").write_text(
        "import dovetail as tf\n\ndef build():\n    x = tf.placeholder(tf.float32, [None, 512], name='x')\n"
        "    return tf.matmul(x, tf.ones([512, 8]), name='y')\n"
    )
    done = plan("sized.py:build", "--report", cluster="worker=1")
    assert done.exit_code == 0 and "--shape x=64,512" in done.output and "≥" in done.output
    done = plan("sized.py:build", "--report", "--shape", "x=4096,512", cluster='{"worker": 1}')
    assert "≥" not in done.output and "33.6 M" in done.output  # 2 * 4096 * 512 * 8, and ones
    unknown = "no input 'z'; the inputs are x (?, 512)"
    for given, told in (
        ("x", "x=64,784"),
        ("x=3,b", "x=64,784"),
        ("x=3,4", "the graph says (?, 512)"),
        ("z=3", unknown),
    ):
        done = plan("sized.py:build", "--shape", given, cluster="worker=1")
        assert done.exit_code == 2 and told in done.output
    (folder / "called.py").write_text(
        "import numpy as np\nimport dovetail as dt\n\n@dt.compile(symbolic_batch=True)\ndef f(x):\n    return x @ dt.ones([512, 8])\n\n"
        "def build():\n    return f.plan(np.ones((2, 512), np.float32))\n"
    )
    done = plan("called.py:build", "--report", "--shape", "x=4096,512", cluster="")
    assert done.exit_code == 0 and "33.6 M" in done.output
    done = plan("sized.py:build", "--strategy", "auto", cluster="worker=2")
    assert "warning: unknown-sizes" in done.output and "best so far ≥ " in done.stderr and "at least" not in done.stderr
    assert plan("sized.py:build", "--objective", "beauty").exit_code == 2


def test_a_model_from_elsewhere_is_planned_by_its_own_names(folder: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Gemm", ["in put", "w"], ["hidden:1"], name="First/Gemm"),
        helper.make_node("Relu", ["hidden:1"], ["out"], name="Act"),
    ]
    weights = onnx.numpy_helper.from_array(__import__("numpy").ones((8, 4), "float32"), "w")
    ends = (
        [helper.make_tensor_value_info("in put", floats, ["N", 8])],
        [helper.make_tensor_value_info("out", floats, ["N", 4])],
    )
    graph = helper.make_graph(nodes, "main", *ends, initializer=[weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "small.onnx")
    sized = ("--shape", "in put=1024,8")
    done = plan(
        "small.onnx", *sized, "--strategy", "auto", "--objective", "throughput", "--report", cluster='{"worker": 4}'
    )
    assert done.exit_code == 0 and "≥" not in done.output and "slower than one device" not in done.output
    assert "predicted throughput: a step every" in done.output and "lower bound" in done.output
    assert "memory" in done.output and "/job:worker/task:0/CPU:0" in done.output
    made_by = {
        "First/Gemm": "'First/Gemm' (Gemm)",
        "hidden:1": "'First/Gemm' (Gemm)",
        "Act": "'Act' (Relu)",
        "w": "weights",
    }
    for name, told in made_by.items():
        done = run("explain", "small.onnx", name, cluster="worker=4")
        assert done.exit_code == 0 and told in done.output and "small.onnx:" in done.output and ".py" not in done.output
    assert run("explain", "small.onnx", "nothing", cluster="worker=4").exit_code == 2
    both = plan("small.onnx", "--explain", "hidden:1", "--explain", "w", cluster="worker=4")
    assert both.exit_code == 0 and "'First/Gemm' (Gemm)\n" in both.output and "weights" in both.output
    assert "Plan:" not in both.output and both.output.count("  assigned: /job:worker/") == 2
    for name, close in {
        "nothing": "; it has ",
        "gemm": ": did you mean 'First/Gemm'?",
        "hidden:2": ": did you mean 'hidden:1'",
    }.items():
        done = plan("small.onnx", "--explain", name, cluster="worker=4")
        assert done.exit_code == 2 and f"The model has no node or tensor '{name}'{close}" in " ".join(
            done.output.split()
        )
    done = plan("small.onnx", *sized, *sized, cluster="worker=4")
    assert done.exit_code == 2 and "the shape of 'in put' is given twice" in done.output
