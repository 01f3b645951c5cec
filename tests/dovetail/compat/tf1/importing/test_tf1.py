"""Programs that say `import tensorflow`: the modules they get, the errors, and that a program runs as Python runs it."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dovetail
from dovetail import tf1
from dovetail.compat.tf1.names import inner_modules as names
from dovetail.tf1 import finder

ROOT = Path(__file__).resolve().parents[5]


@pytest.fixture
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`import tensorflow` with the finder in place, taken away afterwards."""
    monkeypatch.setattr(dovetail, "__version__", dovetail.__version__)
    here = finder.Finder()
    sys.meta_path.insert(0, here)
    try:
        yield importlib.import_module("tensorflow")
    finally:
        sys.meta_path.remove(here)
        for name in [n for n in list(sys.modules) if n.partition(".")[0] == "tensorflow"]:
            del sys.modules[name]
        vars(dovetail).pop("python", None)
        vars(dovetail).pop("core", None)


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TF_CONFIG")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def run(at: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail.tf1", *arguments]
    return subprocess.run(command, cwd=at, env=environment(**more), capture_output=True, text=True, timeout=120)


class TestModules:
    def test_public_modules_are_the_same_objects(self, tensorflow: ModuleType) -> None:
        assert tensorflow is dovetail and tensorflow.__version__ == dovetail.VERSION and tensorflow.__git_version__
        same = {
            "train": "train", "nn": "nn", "nn.rnn_cell": "nn.rnn_cell", "contrib.slim": "contrib.slim", "compat.v1": "compat.v1",
            "compat.v1.train": "train", "keras.layers": "keras.layers", "python.keras.layers": "keras.layers", "gfile": "gfile",
            "python.platform.gfile": "gfile", "python.ops.nn": "nn", "contrib.layers.python.layers.utils": "contrib.layers.utils",
        }  # fmt: skip
        for theirs, ours in same.items():
            spec = finder.walk(ours).__spec__
            found = importlib.import_module(f"tensorflow.{theirs}")
            assert found is finder.walk(ours), theirs
            assert found.__spec__ is spec is not None and spec.name.startswith("dovetail"), theirs

    def test_inner_modules_give_the_public_names(self, tensorflow: ModuleType) -> None:
        from tensorflow.core.framework import graph_pb2, types_pb2  # type: ignore[import-not-found]
        from tensorflow.python import keras, pywrap_tensorflow
        from tensorflow.python.framework import dtypes, ops
        from tensorflow.python.ops import array_ops, rnn_cell_impl

        assert ops.convert_to_tensor is dovetail.convert_to_tensor and ops.Tensor is dovetail.Tensor
        assert array_ops.concat_v2 is dovetail.concat and rnn_cell_impl.RNNCell is dovetail.nn.rnn_cell.RNNCell
        assert (dtypes, keras) == (dovetail.dtypes, dovetail.keras)
        assert pywrap_tensorflow.NewCheckpointReader is dovetail.train.NewCheckpointReader
        assert types_pb2.DT_FLOAT == 1 and graph_pb2.GraphDef is dovetail.GraphDef
        namespace: dict[str, Any] = {}
        exec("from tensorflow.python.ops.math_ops import *", namespace)
        assert namespace["reduce_sum"] is dovetail.reduce_sum
        assert sys.modules["tensorflow.python"].framework.ops is ops

    def test_every_row_of_the_table_has_a_target(self, tensorflow: ModuleType) -> None:
        homes = {home for row in names.MODULES.values() for home in row} | set(names.PUBLIC)
        targets = (names.SAME_MODULES, names.OTHER_NAMES, names._OLDER)
        for path in [*(homes - {"messages"}), *(path for table in targets for path in table.values())]:
            assert finder.walk(path) is not None, path
        for path in (*names.MODULES, *names.SAME_MODULES):
            module: Any = importlib.import_module(f"tensorflow.{path}")
            assert module.__all__ or path.startswith("core.") or names.MODULES[path] == (), path
        assert not set(names.MODULES) & set(names.SAME_MODULES)
        assert {name.rpartition(".")[0] for name in names.OTHER_NAMES} <= set(names.MODULES)

    @pytest.mark.parametrize(
        ("module", "wanted"),
        [
            ("framework.ops", "Tensor Operation Graph GraphKeys device control_dependencies name_scope RegisterGradient IndexedSlices"),
            ("framework.tensor_shape", "TensorShape Dimension as_shape unknown_shape scalar vector dimension_value"),
            ("framework.tensor_util", "constant_value make_tensor_proto MakeNdarray"),
            ("ops.array_ops", "concat reshape shape expand_dims zeros_like placeholder identity gather where"),
            ("ops.control_flow_ops", "cond while_loop group no_op with_dependencies tuple Assert"),
            ("framework.function", "Defun"),
            ("ops.inplace_ops", "alias_inplace_update alias_inplace_add alias_inplace_sub"),
            ("util.tf_inspect", "getfullargspec signature"),
            ("ops.data_flow_ops", "FIFOQueue RandomShuffleQueue PaddingFIFOQueue ConditionalAccumulator dynamic_partition"),
            ("ops.init_ops", "Constant Zeros constant_initializer variance_scaling_initializer glorot_uniform_initializer"),
            ("ops.math_ops", "add matmul reduce_mean cast to_float square sigmoid tanh range argmax equal"),
            ("ops.nn_ops", "conv2d max_pool bias_add relu softmax dropout softmax_cross_entropy_with_logits"),
            ("ops.state_ops", "assign assign_add assign_sub scatter_add scatter_update count_up_to"),
            ("ops.variable_scope", "variable_scope get_variable VariableScope get_variable_scope AUTO_REUSE"),
            ("ops.variables", "Variable VariableV1 global_variables trainable_variables global_variables_initializer"),
            ("training.optimizer", "Optimizer"),
            ("training.session_run_hook", "SessionRunHook SessionRunArgs SessionRunContext SessionRunValues"),
            ("training.training_util", "get_global_step get_or_create_global_step create_global_step assert_global_step"),
            ("layers.utils", "smart_cond constant_value"),
            ("lib.io.file_io", "FileIO file_exists read_file_to_string list_directory recursive_create_dir get_matching_files"),
            ("client.session", "Session InteractiveSession"),
            ("util.deprecation", "deprecated _PRINT_DEPRECATION_WARNINGS"),
        ],
    )  # fmt: skip
    def test_names_that_programs_take_from_inside(self, tensorflow: ModuleType, module: str, wanted: str) -> None:
        found = importlib.import_module(f"tensorflow.python.{module}")
        assert [name for name in wanted.split() if not hasattr(found, name)] == []

    def test_missing_names_say_what_to_use(self, tensorflow: ModuleType) -> None:
        for statement, said in {
            "from tensorflow.contrib.learn import Estimator": "use tf.estimator",
            "import tensorflow; tensorflow.contrib.learn.DNNClassifier": "use tf.estimator",
            "import tensorflow.contrib.learn.python.learn": "use tf.estimator",
            "from tensorflow.python.ops.array_ops import relu": "tensorflow.python.ops.array_ops.relu: tf.nn.relu is public",
            "from tensorflow.python.ops import rnn_cell_impl as r; r._linear": "use tf.layers.dense",
            "from tensorflow.python.ops.rnn_cell_impl import _linear": "use tf.layers.dense",
            "import tensorflow.python.no_such": "tensorflow.python.no_such: no public name is like it",
            "from tensorflow.contrib.slim.nets import resnet_v1": "research/slim/nets",
            "import tensorflow; tensorflow.contrib.tpu.rewrite": "there are no TPUs",
            "from tensorflow.contrib.tpu.python.ops import tpu_ops as t; t.cross_replica_sum": "there are no TPUs",
            "import tensorflow.compat.v1 as t; t.autograph": "'dovetail.compat.v1' has no attribute 'autograph': write tf.cond",
            "from tensorflow.python import debug; debug.LocalCLIDebugHook": "debug.LocalCLIDebugHook: use tf.add_check_numerics_ops",
            "import tensorflow.compat.v2 as tf": "tensorflow.compat.v2: there is TensorFlow 1 alone; use tf.compat.v1",
            "import tensorflow; tensorflow.scalar_summary": "use tf.summary.scalar",
            "from tensorflow import no_such": "cannot import name 'no_such'",
            "from tensorflow.examples.tutorials.mnist import input_data": "copy of TensorFlow's folder tensorflow/examples",
        }.items():  # fmt: skip
            with pytest.raises((ImportError, AttributeError)) as error:
                exec(statement, {})
            assert said in str(error.value), statement

    def test_programs_of_tensorflows_repository_come_from_the_path(
        self, tensorflow: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "tensorflow/examples/digits").mkdir(parents=True)
        (tmp_path / "tensorflow/examples/digits/reading.py").write_text(
            "import tensorflow as tf\nten = tf.Dimension(10)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        reading = importlib.import_module("tensorflow.examples.digits.reading")
        assert reading.ten == dovetail.Dimension(10) and tensorflow is dovetail
        with pytest.raises(ModuleNotFoundError, match="no part of the library"):
            importlib.import_module("tensorflow.examples.digits.writing")

    def test_it_goes_before_an_installed_tensorflow_and_says_so(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        request: pytest.FixtureRequest,
    ) -> None:
        (tmp_path / "tensorflow").mkdir()
        (tmp_path / "tensorflow/__init__.py").write_text("raise RuntimeError('the real one')\n")
        monkeypatch.syspath_prepend(tmp_path)
        with caplog.at_level(logging.DEBUG, "dovetail"):
            assert request.getfixturevalue("tensorflow") is dovetail
            importlib.import_module("tensorflow.train")
        assert [r.levelname for r in caplog.records if str(tmp_path) in r.getMessage()] == ["DEBUG"]

    def test_install_refuses_when_tensorflow_is_loaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
        with pytest.raises(ImportError, match="loaded already"):
            tf1.install.__wrapped__()

    def test_import_dovetail_does_not_load_it(self) -> None:
        code = "import dovetail, sys; print([m for m in sys.modules if m.startswith(('dovetail.compat.tf1.importing', 'tensorflow'))])"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n"


class TestInner:
    def test_devices_files_and_conditions(self, tensorflow: ModuleType, tmp_path: Path) -> None:
        from tensorflow.python.client import device_lib  # type: ignore[import-not-found]
        from tensorflow.python.layers import base, utils
        from tensorflow.python.lib.io import file_io
        from tensorflow.python.ops import control_flow_ops

        assert base.Layer is dovetail.layers.Layer
        (cpu, *_) = device_lib.list_local_devices()
        assert (cpu.name, cpu.device_type) == ("/device:CPU:0", "CPU") and cpu.memory_limit > 0
        path = str(tmp_path / "text")
        file_io.write_string_to_file(path, "words")
        assert file_io.read_file_to_string(path) == "words" and file_io.get_matching_files([path + "*"]) == [path]
        assert utils.smart_cond(True, lambda: 1, lambda: 2) == 1
        with dovetail.Graph().as_default(), dovetail.Session() as session:
            assert utils.smart_cond(dovetail.constant(False), lambda: 1, lambda: 2) == 2
            fed = dovetail.placeholder(dovetail.bool, [])
            chosen = utils.smart_cond(fed, lambda: dovetail.constant(1), lambda: dovetail.constant(2))
            v = dovetail.Variable(1.0)
            after = control_flow_ops.with_dependencies([v.assign(5.0)], dovetail.constant(3.0))
            session.run(v.initializer)
            assert session.run([chosen, after], {fed: False}) == [2, 3.0] and session.run(v) == 5.0


PROGRAM = """
import os, subprocess, sys
import tensorflow as tf
from tensorflow.python.framework import ops


def fail():
    raise ValueError("the program's own")


def child(queue):
    import tensorflow
    queue.put(tensorflow.VERSION)


if __name__ == "__main__":
    print(sys.argv, os.path.basename(__file__), sys.path[0] == os.path.dirname(os.path.abspath(__file__)), ops.Tensor is tf.Tensor)
    print([p for p in sys.path if "startup" in p])
    if sys.argv[1] == "fail":
        fail()
    if sys.argv[1] == "children":
        import multiprocessing
        spawn = multiprocessing.get_context("spawn")
        queue = spawn.Queue()
        process = spawn.Process(target=child, args=(queue,))
        process.start()
        print(queue.get(), flush=True)
        process.join()
        subprocess.run([sys.executable, "-c", "import tensorflow as tf; print(tf.VERSION)"], check=True)
    sys.exit(7)
"""


class TestRunning:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "program.py").write_text(PROGRAM)
        return tmp_path

    def test_it_runs_as_python_runs_it(self, folder: Path) -> None:
        done = run(folder, "program.py", "--help", "x")
        assert done.stdout == "['program.py', '--help', 'x'] program.py True True\n[]\n"
        assert (done.returncode, done.stderr) == (7, "")

    def test_a_traceback_has_the_programs_lines_alone(self, folder: Path) -> None:
        done = run(folder, "program.py", "fail")
        plain = (
            "import sys, types; sys.modules['tensorflow'] = types.SimpleNamespace(Tensor=1)\n"
            "for name in ('tensorflow.python', 'tensorflow.python.framework'):\n"
            "    sys.modules[name] = types.SimpleNamespace(ops=types.SimpleNamespace(Tensor=1), __path__=[])\n"
        )
        (folder / "sitecustomize.py").write_text(plain)
        python = [sys.executable, "program.py", "fail"]
        expected = subprocess.run(
            python, cwd=folder, env=environment(PYTHONPATH=str(folder)), capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (1, expected.stderr) and "the program's own" in done.stderr

    @pytest.mark.slow
    def test_processes_that_it_starts_find_dovetail(self, folder: Path) -> None:
        done = run(folder, "program.py", "children")
        assert done.stdout.splitlines()[2:] == [dovetail.VERSION] * 2, done.stderr

    @pytest.mark.slow
    def test_modules_code_and_options_of_python(self, folder: Path) -> None:
        assert run(folder, "-m", "program", "x").stdout.splitlines()[0].startswith(f"['{folder}/program.py', 'x']")
        done = run(folder, "-c", "import sys, tensorflow; print(sys.argv, sys.flags.optimize)", "--flag")
        assert done.stdout == "['-c', '--flag'] 0\n"
        command = [sys.executable, "-O", "-m", "dovetail", "tf1", "-c", "import sys; print(sys.flags.optimize)"]
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("1\n", "")

    @pytest.mark.slow
    def test_a_sitecustomize_of_the_machine_still_runs(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text("import builtins; builtins.seen = __name__\n")
        done = run(folder, "-c", "import tensorflow; print(seen)", PYTHONPATH=f"{ROOT}{os.pathsep}{folder}")
        assert (done.stdout, done.stderr) == ("sitecustomize\n", "")

    def test_python_that_ignores_its_environment_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it ran"))
        flags = type("Flags", (), {"ignore_environment": 1, "no_site": 0})
        monkeypatch.setattr(sys, "flags", flags)
        with pytest.raises(SystemExit, match="leave out -E, -I and -S"):
            tf1.run(["train.py"])


TRAINER = """
import tensorflow as tf
from tensorflow.python.platform import tf_logging as logging

flags = tf.app.flags
flags.DEFINE_string("job_name", "", "ps or worker")
flags.DEFINE_integer("task_index", 0, "which")
flags.DEFINE_string("ps_hosts", "", "addresses")
flags.DEFINE_string("worker_hosts", "", "addresses")
FLAGS = flags.FLAGS


def main(_):
    cluster = tf.train.ClusterSpec({"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()
    with tf.device(tf.train.replica_device_setter(worker_device="/job:worker/task:%d" % FLAGS.task_index, cluster=cluster)):
        x = tf.placeholder(tf.float32, [None])
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(weight * x - 3.0 * x))
        step = tf.contrib.framework.get_or_create_global_step()
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(last_step=60)]
    # The other worker may come late or be done.
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:%d" % FLAGS.task_index])
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief=FLAGS.task_index == 0, hooks=hooks, config=config
    ) as sess:
        value = 0.0
        while not sess.should_stop():
            value, _ = sess.run([weight, train], {x: [1.0, 2.0]})
    print("weight %.2f on %s" % (value, server.target), flush=True)


if __name__ == "__main__":
    tf.app.run()
"""


@pytest.mark.slow
def test_a_program_of_parameter_servers_and_workers_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    ports = [dovetail.train.Server({"probe": ["localhost:0"]}) for _ in range(3)]
    addresses = [server.target.rpartition("/")[2] for server in ports]
    for server in ports:
        server.stop()
    hosts = [f"--ps_hosts={addresses[0]}", f"--worker_hosts={','.join(addresses[1:])}"]
    tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "dovetail.tf1", "train.py", f"--job_name={job}", f"--task_index={i}", *hosts],
            cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for job, i in tasks
    ]  # fmt: skip
    try:
        for process in started[1:]:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert out.startswith("weight 3.00 on "), out
    finally:
        for process in started:
            process.kill()
            process.communicate()
