"""Device names: both parsers, both spec classes, complete names."""

import copy
import pickle

import pytest

from dovetail.graph.core.device import (
    DeviceName,
    DeviceSpec,
    DeviceSpecV1,
    canonical_name,
    parse_strict,
)
from dovetail.graph.core.errors import InvalidArgumentError

BOTH = pytest.mark.parametrize("cls", [DeviceSpec, DeviceSpecV1])

# -- the front end's parser --------------------------------------------------------------------------------

FRONT_END = [
    # nothing
    ("", ""),
    ("/", ""),
    ("//", ""),
    # the form
    ("/job:ps/", "/job:ps"),
    ("/job:ps//task:1", "/job:ps/task:1"),
    ("job:ps", "/job:ps"),
    ("cpu:0", "/device:CPU:0"),
    ("/job:ps/replica:0/task:1/device:GPU:2", "/job:ps/replica:0/task:1/device:GPU:2"),
    ("/gpu:2/task:1/replica:0/job:ps", "/job:ps/replica:0/task:1/device:GPU:2"),
    # an empty first piece is an empty part
    ("/:7/job:ps", "/job:ps"),
    # job: no check of characters
    ("/job:", "/job:"),
    ("/job:123", "/job:123"),
    ("/job:a-b", "/job:a-b"),
    ("/job:*", "/job:*"),
    # numbers
    ("/replica:3", "/replica:3"),
    ("/task:01", "/task:1"),
    ("/task:-1", "/task:-1"),
    ("/replica:-1", "/replica:-1"),
    ("/gpu:1 ", "/device:GPU:1"),
    ("/device:GPU:1 ", "/device:GPU:1"),
    # short types in any case
    ("/cpu", "/device:CPU:*"),
    ("/CPU", "/device:CPU:*"),
    ("/Gpu", "/device:GPU:*"),
    ("/gpu:1", "/device:GPU:1"),
    ("/GpU:1", "/device:GPU:1"),
    ("/gpu:*", "/device:GPU:*"),
    ("/tpu:3", "/device:TPU:3"),
    ("/custom:0", "/device:CUSTOM:0"),
    ("/epu:0", "/device:EPU:0"),
    # the long form keeps the type as written
    ("/device:cpu:0", "/device:CPU:0"),
    ("/device:gpu:0", "/device:GPU:0"),
    ("/device:Gpu:0", "/device:Gpu:0"),
    ("/device:XLA_CPU:0", "/device:XLA_CPU:0"),
    ("/device:fpga:2", "/device:fpga:2"),
    ("/device:GPU:*", "/device:GPU:*"),
    ("/device:*:3", "/device:*:3"),
    ("/device:*:*", "/device:*:*"),
    ("/device::3", "/device::3"),
    # the last of a repeated job, replica or task
    ("/job:a/job:b", "/job:b"),
    ("/replica:1/replica:2", "/replica:2"),
    ("/task:1/job:a/task:2", "/job:a/task:2"),
    ("/task:x/task:2", "/task:2"),
    ("/replica:/replica:1", "/replica:1"),
    # whatever int() reads
    ("/task:+1", "/task:1"),
    ("/cpu:1_0", "/device:CPU:10"),
]

FRONT_END_ERRORS = [
    ("/replica:*", "number"),
    ("/task:*", "number"),
    ("/task:x", "number, not 'x'"),
    ("/task:1.5", "number"),
    ("/task:", "number"),
    ("/replica:", "number"),
    ("/gpu:x", "number"),
    ("/gpu:", "number"),
    ("/gpu: 1", "number"),
    ("/task: 1", "number"),
    (" /gpu:1", "Unknown attribute ' '"),
    ("/device:GPU:x", "number"),
    ("/device:GPU:", "number"),
    ("/device:GPU", "Unknown attribute 'device'"),
    ("/fpga:2", "Unknown attribute 'fpga'"),
    ("/XLA_CPU:0", "Unknown attribute 'XLA_CPU'"),
    ("/job:a:b", "Unknown attribute 'job'"),
    ("/JOB:x", "Unknown attribute 'JOB'"),
    ("/task", "Unknown attribute 'task'"),
    ("/job", "Unknown attribute 'job'"),
    ("/device", "Unknown attribute 'device'"),
    ("/gpu:1:2", "Unknown attribute 'gpu'"),
    ("/foo:bar", "Unknown attribute 'foo'"),
    ("/job:ps/tsk:1", "Write '/job:ps/task:1'"),
    ("/JOB:x", "Write '/job:x'"),
    ("/devise:GPU:0", "Write '/device:GPU:0'"),
    ("cuda:0", "Write '/gpu:0'"),
    ("cuda", "Write '/gpu:0'"),
    ("/job:ps/cuda:1", "Write '/job:ps/gpu:1'"),
    ("gpu1", "Write '/gpu:1'"),
    ("worker:1/gpu:0", "Write '/job:worker/task:1/gpu:0'"),
    ("/job:ps:1", "Write '/job:ps/task:1'"),
    ("/gpu:0/cpu:0", "Multiple device types are not allowed"),
    ("/gpu:0/gpu:0", "Multiple device types are not allowed"),
    ("/gpu/device:GPU:0", "Multiple device types are not allowed"),
    ("/device:GPU:0/cpu", "Multiple device types are not allowed"),
]


@BOTH
@pytest.mark.parametrize(("text", "printed"), FRONT_END)
def test_front_end_reads(cls, text, printed):
    assert cls.from_string(text).to_string() == printed
    assert cls().parse_from_string(text).to_string() == printed
    assert canonical_name(text) == printed
    assert canonical_name(printed) == printed


@BOTH
@pytest.mark.parametrize(("text", "message"), FRONT_END_ERRORS)
def test_front_end_rejects_naming_the_spec(cls, text, message):
    with pytest.raises(ValueError, match="device spec") as error:
        cls.from_string(text)
    assert message in str(error.value)
    assert text in str(error.value)
    with pytest.raises(ValueError, match="device spec"):
        canonical_name(text)


def test_front_end_reads_only_strings():
    with pytest.raises(TypeError, match="parsed from a string"):
        DeviceSpec.from_string(3)


@BOTH
def test_no_text_constrains_nothing(cls):
    assert cls.from_string(None) == cls.from_string("") == cls()
    assert cls(job="a").parse_from_string(None).to_string() == canonical_name(None) == ""


def test_fields_of_a_parsed_spec():
    spec = DeviceSpec.from_string("/job:ps/task:1/gpu:*")
    assert (spec.job, spec.replica, spec.task) == ("ps", None, 1)
    assert (spec.device_type, spec.device_index) == ("GPU", None)


# -- the spec objects --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("fields", "printed"),
    [
        ({}, ""),
        ({"job": "ps"}, "/job:ps"),
        ({"job": 0}, "/job:0"),
        ({"replica": "2"}, "/replica:2"),
        ({"task": 1.7}, "/task:1"),
        ({"device_type": "cpu"}, "/device:CPU:*"),
        ({"device_type": "gpu", "device_index": "3"}, "/device:GPU:3"),
        ({"device_type": "Gpu"}, "/device:Gpu:*"),
        ({"device_type": "tpu"}, "/device:tpu:*"),
        ({"device_index": 1}, ""),
        ({"device_index": 1, "job": "a"}, "/job:a"),
    ],
)
def test_constructor_converts_and_prints(cls, fields, printed):
    assert cls(**fields).to_string() == printed
    assert str(cls(**fields)) == printed


@BOTH
@pytest.mark.parametrize("field", ["replica", "task", "device_index"])
def test_constructor_rejects_numbers_that_are_none(cls, field):
    with pytest.raises(ValueError, match="'x'"):
        cls(**{field: "x"})


@BOTH
def test_make_merged_spec_lets_the_other_win_field_by_field(cls):
    under = cls.from_string("/job:a/task:1/gpu:3")
    over = cls.from_string("/job:b/replica:0/cpu:*")
    merged = under.make_merged_spec(over)
    assert type(merged) is cls
    assert merged.to_string() == "/job:b/replica:0/task:1/device:CPU:3"
    assert under.to_string() == "/job:a/task:1/device:GPU:3"
    assert over.to_string() == "/job:b/replica:0/device:CPU:*"


@BOTH
def test_merging_carries_an_index_without_type(cls):
    assert cls(device_index=1).make_merged_spec(cls(device_type="GPU")).to_string() == "/device:GPU:1"


@BOTH
def test_replace_sets_and_clears(cls):
    spec = cls.from_string("/job:a/task:1/gpu:3")
    assert spec.replace(task=2, device_type="cpu").to_string() == "/job:a/task:2/device:CPU:3"
    assert spec.replace(job=None, device_type=None).to_string() == "/task:1"
    assert spec.to_string() == "/job:a/task:1/device:GPU:3"
    with pytest.raises(TypeError, match="jobs"):
        spec.replace(jobs="a")


def test_the_v2_class_is_immutable():
    spec = DeviceSpec(job="a")
    for field in ("job", "replica", "task", "device_type", "device_index", "no_field"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(spec, field, "1")
        with pytest.raises(AttributeError, match="cannot be changed"):
            delattr(spec, field)
    assert not hasattr(spec, "merge_from")
    other = spec.parse_from_string("/gpu:1")
    assert (spec.to_string(), other.to_string()) == ("/job:a", "/device:GPU:1")


def test_the_v1_class_has_setters_that_convert():
    spec = DeviceSpecV1()
    spec.job, spec.replica, spec.task, spec.device_type, spec.device_index = 0, "1", 2.9, "gpu", "3"
    assert spec.to_string() == "/job:0/replica:1/task:2/device:GPU:3"
    spec.task = None
    assert spec.to_string() == "/job:0/replica:1/device:GPU:3"
    with pytest.raises(AttributeError, match="device_type"):
        spec.type = "GPU"
    with pytest.raises(ValueError, match="'x'"):
        spec.task = "x"


def test_the_v1_class_parses_and_merges_in_place():
    spec = DeviceSpecV1(job="a", task=1)
    assert spec.parse_from_string("/job:b/gpu:3") is spec
    assert spec.to_string() == "/job:b/device:GPU:3"
    assert spec.merge_from(DeviceSpec(task=2, device_type="cpu")) is None
    assert spec.to_string() == "/job:b/task:2/device:CPU:3"
    with pytest.raises(ValueError, match="Unknown attribute"):
        spec.parse_from_string("/job:c/foo:1")
    assert spec.to_string() == "/job:b/task:2/device:CPU:3"


def test_equality_is_by_text_within_a_class():
    one, two = DeviceSpec(job="a"), DeviceSpecV1(job="a")
    assert one == DeviceSpec.from_string("/job:a") and hash(one) == hash(DeviceSpec.from_string("job:a"))
    assert two == DeviceSpecV1.from_string("/job:a")
    assert one != two and two != one
    assert one != DeviceSpec(job="b") and two != DeviceSpecV1(job="b")
    assert one != "/job:a"
    assert DeviceSpec(device_index=1) == DeviceSpec()  # they print the same


@BOTH
def test_specs_copy_pickle_and_show_themselves(cls):
    spec = cls.from_string("/job:a/gpu:3")
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert copy.deepcopy(spec) == spec
    assert repr(spec) == f"{cls.__name__}(job='a', device_type='GPU', device_index=3)"
    assert repr(cls()) == f"{cls.__name__}()"


# -- the runtime's parser ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        ("/", ""),
        ("/job:ps/replica:0/task:1/device:GPU:2", "/job:ps/replica:0/task:1/device:GPU:2"),
        ("/device:GPU:2/task:1/job:ps/replica:0", "/job:ps/replica:0/task:1/device:GPU:2"),
        ("/job:a_1B", "/job:a_1B"),
        ("/job:*/replica:*/task:*/device:*:*", ""),
        ("/replica:01", "/replica:1"),
        ("/device:GPU", "/device:GPU:*"),
        ("/device:GPU:*", "/device:GPU:*"),
        ("/device:XLA_CPU:0", "/device:XLA_CPU:0"),
        ("/device:Fpga2:0", "/device:Fpga2:0"),
        ("/cpu:0", "/device:CPU:0"),
        ("/CPU:0", "/device:CPU:0"),
        ("/gpu:3", "/device:GPU:3"),
        ("/GPU:*", "/device:GPU:*"),
        ("/job:a/job:b", "/job:b"),
        ("/job:a/job:*", ""),
        ("/task:1/task:2", "/task:2"),
        ("/gpu:3/cpu:1", "/device:CPU:1"),
        ("/gpu:3/device:CPU", "/device:CPU:*"),
    ],
)
def test_strict_reads(text, printed):
    assert parse_strict(text).to_string() == printed


def test_strict_star_type_leaves_an_index_alone():
    assert parse_strict("/device:*:3").device_index == 3
    assert parse_strict("/device:*:3").device_type is None


@pytest.mark.parametrize(
    "text",
    [
        "job:ps", "//", "/job:ps/", "/job:ps//task:1", "/job:", "/job:1a", "/job:a-b", "/job:_a", "/job:*a",
        "/job:\u00e4", "/task:-1", "/task:", "/task:x", "/task: 1", "/task:1 ", "/task:1.5", "/task:\u0661",
        "/task:99999999999", "/task:" + "9" * 5000, "/replica:-1", "/cpu", "/gpu", "/Gpu:0", "/tpu:0",
        "/GPU:",
        "/device:", "/device", "/device:1GPU:0", "/device:GPU:", "/device:GPU:x", "/device:GPU:-1",
        "/device:_A:0", "/foo:bar", "/JOB:a", " /job:a", "/job:a ", "/job:a\n",
    ],
)  # fmt: skip
def test_strict_rejects(text):
    with pytest.raises(InvalidArgumentError, match="Malformed device specification") as error:
        parse_strict(text)
    assert f"'{text}'" in str(error.value)


# -- complete names ----------------------------------------------------------------------------------------


def test_complete_name():
    name = DeviceName("ps", 0, 1, "GPU", 2)
    assert str(name) == "/job:ps/replica:0/task:1/device:GPU:2"
    assert name.task_name == "/job:ps/replica:0/task:1"
    assert name.spec == DeviceSpec("ps", 0, 1, "GPU", 2)
    assert name == DeviceName.parse("/job:ps/replica:0/task:1/gpu:2") == DeviceName.of(name.spec)
    assert hash(name) == hash(DeviceName.of(name.spec))
    assert name == str(name) and name != name.spec
    assert pickle.loads(pickle.dumps(name)) == name
    with pytest.raises(AttributeError):
        name.task = 3


def test_complete_names_are_ordered_by_text():
    ends = ["ps/replica:0/task:0/device:CPU:0", "ps/replica:0/task:0/device:CPU:10",
            "ps/replica:0/task:0/device:CPU:2", "worker/replica:0/task:0/device:CPU:0"]  # fmt: skip
    texts = [f"/job:{end}" for end in ends]
    names = [DeviceName.parse(text) for text in reversed(texts)]
    assert [str(name) for name in sorted(names)] == texts
    assert names[0] > names[1] >= names[2] and names[2] <= names[1]
    assert sorted([*names, *texts])[::2] == texts


@pytest.mark.parametrize("missing", ["job", "replica", "task", "device_type", "device_index"])
def test_an_incomplete_name_says_what_is_missing(missing):
    spec = DeviceSpec("ps", 0, 0, "CPU", 0).replace(**{missing: None})
    with pytest.raises(InvalidArgumentError, match=f"{missing} unset"):
        DeviceName.of(spec)
    with pytest.raises(InvalidArgumentError, match="unset"):
        DeviceName.parse(spec.to_string())


@pytest.mark.parametrize(
    "fields",
    [("a-b", 0, 0, "CPU", 0), ("", 0, 0, "CPU", 0), ("a", -1, 0, "CPU", 0), ("a", 0, -1, "CPU", 0),
     ("a", 0, 0, "", 0), ("a", 0, 0, "1", 0), ("a", 0, 0, "CPU", -1), ("a", 0, 0, "CPU", None)],
)  # fmt: skip
def test_a_malformed_name_cannot_be_made(fields):
    with pytest.raises(InvalidArgumentError, match="not a complete device name"):
        DeviceName(*fields)
