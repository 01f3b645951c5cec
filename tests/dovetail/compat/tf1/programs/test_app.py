"""Flags, `app.run`, logging and files."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags as absl_flags

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
        assert done.returncode == 1 and "FATAL Flags parsing error" in done.stderr, done.stderr


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> tf.flags.FlagValues:
    """Flags of this test alone, and those of `tf.flags`."""
    made = tf.flags.FlagValues()
    monkeypatch.setattr(tf.flags, "FLAGS", type(tf.flags.FLAGS)(made))
    return made


def test_the_first_value_asked_for_reads_the_command_line(values, monkeypatch: pytest.MonkeyPatch):
    flags = tf.flags.FLAGS
    monkeypatch.setattr(sys, "argv", ["program", "--level=7", "--unknown=1", "rest"])
    tf.flags.DEFINE_integer("level", 1, "", flag_values=values)
    assert not flags.is_parsed() and flags["level"].value == 1
    assert flags.level == 7 and flags.is_parsed()  # what is no flag is left to the program
    flags.level = 8
    tf.flags.DEFINE_integer("later", 2, "", flag_values=values)  # defined after the first was asked for
    assert (flags.level, flags.later) == (8, 2)
    assert "level" in flags and set(flags) == {"later", "level"} and len(flags) == 2
    assert flags.flag_values_dict() == {"later": 2, "level": 8}
    with pytest.raises(AttributeError, match="other"):
        _ = flags.other
    with pytest.raises(tf.flags.UnrecognizedFlagError, match="other"):
        flags.other = 1
    with pytest.raises(tf.flags.DuplicateFlagError):
        tf.flags.DEFINE_integer("level", 1, "", flag_values=values)
    flags._parse_flags(["--level=9"])
    assert flags.level == 9


def test_flags_are_those_of_absl(monkeypatch: pytest.MonkeyPatch):
    tf.flags.DEFINE_integer("dovetail_rate", 1, "")
    absl_flags.DEFINE_integer("dovetail_steps", 1, "")
    found: list[object] = []
    try:
        with pytest.raises(SystemExit):
            tf.app.run(found.extend, ["program", "--dovetail_steps=2", "--dovetail_rate=3", "rest", "--unknown"])
        assert found == ["program", "rest", "--unknown"]
        assert (tf.flags.FLAGS.dovetail_steps, absl_flags.FLAGS.dovetail_rate) == (2, 3)
    finally:
        del tf.flags.FLAGS.dovetail_rate, tf.flags.FLAGS.dovetail_steps
        absl_flags.FLAGS.unparse_flags()


def test_flags_show_themselves_as_objects(values, monkeypatch: pytest.MonkeyPatch):
    flags = tf.flags.FLAGS
    monkeypatch.setattr(sys, "argv", ["program", "--rate=0.5", "--tags=a,b"])
    old_names = {"flag_name": "rate", "default_value": "0.1", "docstring": "a rate"}
    tf.flags.DEFINE_float(**old_names, flag_values=values)
    tf.flags.DEFINE_list("tags", None, flag_values=values)
    tf.flags.DEFINE_integer("count", 3, "a number", lower_bound=0, flag_values=values)
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
    flags.set_default("count", 9)
    assert (flags.count, count.default) == (9, 9)
    assert flags.get_flag_value("tags", 1) == ["a", "b"] and len(flags) == 3
    flags.unparse_flags()
    flags.mark_as_parsed()  # the command line is not read
    assert flags(["program", "--rate", "2", "rest"]) == ["program", "rest"] and flags.rate == 2
    with pytest.raises(tf.flags.IllegalFlagValueError):
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


def test_files_take_text_and_bytes(tmp_path: Path) -> None:
    a = str(tmp_path / "a")
    for mode in ("w", "wb", "a", "ab"):
        with tf.gfile.GFile(a, mode) as f:
            f.write("é")
            f.write(b"\x89")
            f.write("!")
            f.flush()
            assert Path(a).read_bytes().endswith(b"\x89!")
        with tf.gfile.GFile(a, "rb") as f:
            assert f.read() == "é".encode() + b"\x89!" + ("é".encode() + b"\x89!" if mode[0] == "a" else b"")
        if mode == "a":
            tf.gfile.GFile(a, "wb").close()
            with tf.gfile.GFile(a, "wb") as f:
                f.write("é".encode() + b"\x89!")


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
