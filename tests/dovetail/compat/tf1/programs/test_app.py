"""Flags, `app.run`, logging and files."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dovetail as tf

PROGRAM = """
import dovetail as tf
flags = tf.app.flags
flags.DEFINE_string("name", "x", "100% text")
flags.DEFINE_integer("count", 3, "a number")
flags.DEFINE_float("rate", 0.5, "a rate")
flags.DEFINE_boolean("sync", False, "whether")
flags.DEFINE_bool("fast", True, "whether")
flags.DEFINE_list("hosts", "a,b", "hosts")
flags.DEFINE_enum("kind", "one", ["one", "two"], "which")
flags.DEFINE_string("must", None, "needed")
flags.mark_flag_as_required("must")
F = flags.FLAGS

def main(argv):
    print(argv[1:], F.name, F.count, F.rate, F.sync, F.fast, F.hosts, F.kind, F.must)
    return 3 if F.count < 0 else None

tf.app.run()
"""


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(tf.__file__).resolve().parents[1]
    environment = {"PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.mark.slow
def test_a_program_reads_its_flags_and_exits_with_what_main_returns():
    done = program("--must=1")
    assert (done.returncode, done.stdout) == (0, "[] x 3 0.5 False True ['a', 'b'] one 1\n"), done.stderr
    done = program(
        "--name", "y", "--count=-1", "--rate=2", "--sync", "--nofast", "--hosts=c", "--kind=two", "--must=", "z"
    )
    assert (done.returncode, done.stdout) == (3, "['z'] y -1 2.0 True False ['c'] two \n"), done.stderr
    for wrong in ((), ("--must=1", "--count=x"), ("--must=1", "--kind=three"), ("--must=1", "--sync=maybe")):
        done = program(*wrong)
        assert done.returncode == 2 and "error:" in done.stderr


def test_flags_are_set_and_asked_for_by_name(monkeypatch: pytest.MonkeyPatch):
    flags = tf.flags.FlagValues()
    monkeypatch.setattr(tf.flags, "FLAGS", flags)
    monkeypatch.setattr(sys, "argv", ["program", "--level=7"])
    tf.flags.DEFINE_integer("level", 1, "")
    assert flags.level == 7
    flags.level = 8
    tf.flags.DEFINE_integer("later", 2, "")  # defined after the first was asked for
    assert (flags.level, flags.later) == (8, 2)
    assert "level" in flags and list(flags) == ["later", "level"]
    assert flags.flag_values_dict() == {"later": 2, "level": 8}
    with pytest.raises(AttributeError, match="There is no flag 'other'"):
        _ = flags.other
    with pytest.raises(AttributeError, match="There is no flag 'other'"):
        flags.other = 1
    with pytest.raises(ValueError, match="defined twice"):
        tf.flags.DEFINE_integer("level", 1, "")


def test_run_lets_absl_read_the_flags_that_are_its_own(monkeypatch: pytest.MonkeyPatch):
    class Theirs(tf.flags.FlagValues):
        def __call__(self, argv=None, known_only=False):
            assert known_only
            return super().__call__(argv)

    ours, theirs = tf.flags.FlagValues(), Theirs()
    module = ModuleType("absl.flags")
    module.FLAGS = theirs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "absl.flags", module)
    for values, name in ((theirs, "steps"), (ours, "rate")):
        monkeypatch.setattr(tf.flags, "FLAGS", values)
        tf.flags.DEFINE_integer(name, 1, "")
    found: list[object] = []
    with pytest.raises(SystemExit):
        tf.app.run(found.extend, ["program", "--steps=2", "--rate=3", "rest"])
    assert (found, theirs.steps, ours.rate) == (["program", "rest"], 2, 3)


def test_flags_show_themselves_as_objects(monkeypatch: pytest.MonkeyPatch):
    flags = tf.flags.FlagValues()
    monkeypatch.setattr(tf.flags, "FLAGS", flags)
    monkeypatch.setattr(sys, "argv", ["program", "--rate=0.5", "--tags=a,b"])
    tf.flags.DEFINE_float(flag_name="rate", default_value="0.1", docstring="a rate")  # the arguments' old names
    tf.flags.DEFINE_list("tags", None)
    tf.flags.DEFINE_integer("count", 3, "a number", lower_bound=0)
    assert not flags.is_parsed() and flags["rate"].value == 0.1
    assert flags.rate == 0.5 and flags.is_parsed()
    every = getattr(flags, "__flags")  # noqa: B009  (in this spelling no class can change the name)
    assert {name: flag.value for name, flag in every.items()} == {"rate": 0.5, "tags": ["a", "b"], "count": 3}
    rate, count = flags["rate"], flags["count"]
    assert (rate.name, rate.default, rate.help, rate.present, rate.using_default_value) == (
        "rate",
        0.1,
        "a rate",
        1,
        False,
    )
    assert (count.present, count.using_default_value) == (0, True)
    flags["count"].value = 4
    flags.set_default("count", 9)
    assert (flags.count, count.default) == (4, 9)
    assert flags.get_flag_value("other", 1) == 1 and len(flags) == 3
    assert flags.flags_into_string() == "--count=4\n--rate=0.5\n--tags=['a', 'b']\n"
    flags.unparse_flags()
    assert (rate.value, count.value, flags.is_parsed()) == (0.1, 9, False)
    del flags.rate
    tf.flags.DEFINE_string("rate", "slow")
    flags.mark_as_parsed()  # the command line is not read
    assert (flags.rate, flags.tags) == ("slow", None)
    assert flags(["program", "--rate", "fast", "rest"]) == ["program", "rest"] and flags.rate == "fast"
    with pytest.raises(SystemExit):
        flags(["program", "--count=-1"])
    with pytest.raises(KeyError):
        flags["other"]


def test_messages_go_to_the_logger_of_the_package(caplog: pytest.LogCaptureFixture):
    before = logging.getLogger("dovetail").level
    try:
        tf.logging.set_verbosity(tf.logging.INFO)
        assert tf.logging.get_verbosity() == tf.logging.INFO
        tf.logging.info("step %d", 3)
        tf.logging.debug("not shown")
        tf.logging.warn("careful")
        assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
            ("dovetail", "INFO", "step 3"),
            ("dovetail", "WARNING", "careful"),
        ]
    finally:
        logging.getLogger("dovetail").setLevel(before)


def test_files(tmp_path: Path):
    a, b, sub = str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "s" / "t")
    with tf.gfile.GFile(a, "w") as f:
        f.write("grün")
    with tf.gfile.Open(a, "rb") as f:
        assert f.read() == "grün".encode()
    assert tf.gfile.Exists(a) and not tf.gfile.Exists(b)
    tf.gfile.MakeDirs(sub)
    tf.gfile.MakeDirs(sub)
    assert tf.gfile.IsDirectory(sub) and not tf.gfile.IsDirectory(a)
    tf.gfile.Copy(a, b)
    with pytest.raises(tf.errors.AlreadyExistsError):
        tf.gfile.Copy(a, b)
    tf.gfile.Rename(b, f"{sub}/c")
    assert tf.gfile.ListDirectory(str(tmp_path)) == ["a", "s"]
    assert tf.gfile.Glob(f"{sub}/*") == [f"{sub}/c"]
    tf.gfile.DeleteRecursively(str(tmp_path / "s"))
    tf.gfile.Remove(a)
    for gone in (
        lambda: tf.gfile.Remove(a),
        lambda: tf.gfile.GFile(a),
        lambda: tf.gfile.ListDirectory(sub),
        lambda: tf.gfile.DeleteRecursively(sub),
    ):
        with pytest.raises(tf.errors.NotFoundError):
            gone()
