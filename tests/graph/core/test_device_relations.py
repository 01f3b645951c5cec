"""How device names relate: matching, merging, overriding, and the properties of all of it for any names."""

import timeit

import pytest
from hypothesis import given, strategies as st

from dovetail.graph.core.device import (
    DeviceName,
    DeviceSpec,
    DeviceSpecV1,
    canonical_name,
    is_compatible,
    is_specialization,
    matches,
    merge,
    merge_names,
    override,
    parse_strict,
    task_name,
)
from dovetail.graph.core.errors import InvalidArgumentError

# -- relations ---------------------------------------------------------------------------------------------

FULL = DeviceName.parse("/job:ps/replica:0/task:1/device:GPU:2")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("", True), ("/job:ps", True), ("/job:ps/task:1", True), ("/gpu:*", True), ("/gpu:2", True),
        (str(FULL), True), ("/job:worker", False), ("/replica:1", False), ("/task:0", False),
        ("/cpu:*", False),
        ("/gpu:0", False), ("/job:ps/task:1/cpu:2", False), ("/device:*:2", True), ("/device:*:3", False),
    ],
)  # fmt: skip
def test_matches(pattern, fits):
    assert matches(parse_strict(pattern), FULL) is fits


@pytest.mark.parametrize(
    ("less", "more", "expected"),
    [
        ("", "", True), ("", "/job:a", True), ("/job:a", "", False), ("/job:a", "/job:a/task:1", True),
        ("/job:a/task:1", "/job:a", False), ("/job:a", "/job:b", False), ("/gpu:*", "/gpu:1", True),
        ("/gpu:1", "/gpu:*", False), ("/replica:0", "/replica:0", True),
    ],
)  # fmt: skip
def test_is_specialization(less, more, expected):
    assert is_specialization(parse_strict(less), parse_strict(more)) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "/job:a", True), ("/job:a", "/task:1", True), ("/job:a", "/job:b", False),
        ("/replica:0", "/replica:1", False), ("/task:0", "/task:1", False), ("/gpu:*", "/cpu:*", False),
        ("/gpu:0", "/gpu:1", False), ("/gpu:*", "/gpu:1", True), ("/device:*:1", "/gpu:*", True),
        ("/device:*:1", "/gpu:2", False), ("/job:a/gpu:0", "/job:a/cpu:0", False),
    ],
)  # fmt: skip
def test_is_compatible(a, b, expected):
    a, b = parse_strict(a), parse_strict(b)
    assert is_compatible(a, b) is expected
    assert is_compatible(b, a) is expected


MERGES = [  # target, other, strict outcome (None: error about ...), soft outcome
    ("", "/job:a", "/job:a", "/job:a"),
    ("/job:a", "", "/job:a", "/job:a"),
    ("/job:a/gpu:*", "/task:1/gpu:2", "/job:a/task:1/device:GPU:2", "/job:a/task:1/device:GPU:2"),
    ("/job:a", "/job:b", "jobs", "jobs"),
    ("/replica:0", "/replica:1", "replicas", "replicas"),
    ("/job:a/task:0", "/job:a/task:1", "tasks", "tasks"),
    ("/job:a/gpu:0", "/task:1/cpu:0", "types", "/job:a/task:1"),
    ("/job:a/gpu:0", "/task:1/cpu:*", "types", "/job:a/task:1"),
    ("/gpu:*", "/cpu:3", "types", ""),
    ("/job:a/gpu:0", "/task:1/gpu:1", "ids", "/job:a/task:1/device:GPU:*"),
    ("/job:a/gpu:0", "/job:b/cpu:0", "jobs", "jobs"),
]


@pytest.mark.parametrize(("target", "other", "strict", "soft"), MERGES)
def test_merge(target, other, strict, soft):
    target, other = parse_strict(target), parse_strict(other)
    for is_soft, expected in ((False, strict), (True, soft)):
        if expected and not expected.startswith("/"):
            with pytest.raises(InvalidArgumentError) as error:
                merge(target, other, soft=is_soft)
            text = f"Cannot merge devices with incompatible {expected}: '{target}' and '{other}'"
            assert str(error.value) == text
        else:
            merged = merge(target, other, soft=is_soft)
            assert merged.to_string() == expected
            if expected == "":
                assert merged.device_index is None


@pytest.mark.parametrize(
    ("target", "other", "expected"),
    [
        ("/job:a/task:1", "/job:b", "/job:b/task:1"),
        ("/gpu:1", "/cpu:*", "/device:CPU:1"),
        ("/gpu:1", "/cpu:0", "/device:CPU:0"),
        ("/job:a", "", "/job:a"),
        ("/job:a/replica:0/task:0", "/job:b/replica:1/task:1/cpu:1", "/job:b/replica:1/task:1/device:CPU:1"),
    ],
)
def test_override(target, other, expected):
    assert override(parse_strict(target), parse_strict(other)).to_string() == expected


def test_task_name():
    assert task_name(parse_strict("/job:a/replica:0/task:1/gpu:0")) == "/job:a/replica:0/task:1"
    assert task_name(FULL) == FULL.task_name
    for text in ("/replica:0/task:1", "/job:a/task:1", "/job:a/replica:0"):
        with pytest.raises(InvalidArgumentError, match="does not name a task"):
            task_name(parse_strict(text))


# -- canonical strings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("", "", ""), ("/job:a", "", "/job:a"), ("", "/job:a", "/job:a"), ("/job:a", "/job:b", "/job:b"),
        ("/device:GPU:7", "/device:CPU:*", "/device:CPU:7"),
        ("/device:GPU:7", "/device:GPU:*", "/device:GPU:7"),
        ("/job:o/task:9/device:GPU:3", "/job:worker", "/job:worker/task:9/device:GPU:3"),
        ("/job:worker", "/task:1/device:GPU:1", "/job:worker/task:1/device:GPU:1"),
    ],
)  # fmt: skip
def test_merge_names(outer, inner, expected):
    assert merge_names(outer, inner) == expected


def test_a_block_costs_a_look_up():
    names = [f"/job:ps/task:{i}" for i in range(10)]

    def blocks():
        for name in names:
            merge_names("/job:worker/device:GPU:1", canonical_name(name))

    blocks()
    best = min(timeit.repeat(blocks, number=100, repeat=5)) / (100 * len(names))
    assert best < 2e-6  # about 0.1 us; the uncached way costs over 5 us


# -- properties --------------------------------------------------------------------------------------------

names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,5}", fullmatch=True)
numbers = st.integers(0, 999_999_999)
# A lower-case cpu or gpu is upper-cased on the way in, so it is a type of the raw text only.
types = st.sampled_from(["CPU", "GPU", "TPU", "XLA_CPU"]) | names.filter(lambda n: n not in ("cpu", "gpu"))
specs = st.builds(
    DeviceSpec,
    job=st.none() | names,
    replica=st.none() | numbers,
    task=st.none() | numbers,
    device_type=st.none() | types,
    device_index=st.none() | numbers,
)
# Few values, so that conflicts, agreements and gaps are all common.
few = st.builds(
    DeviceSpec,
    job=st.sampled_from([None, "a", "b"]),
    replica=st.sampled_from([None, 0, 1]),
    task=st.sampled_from([None, 0, 1]),
    device_type=st.sampled_from([None, "CPU", "GPU"]),
    device_index=st.sampled_from([None, 0, 1]),
)


def fields(spec):
    return spec.job, spec.replica, spec.task, spec.device_type, spec.device_index


@given(specs)
def test_parsing_what_was_printed_gives_it_back(spec):
    for parse in (DeviceSpec.from_string, parse_strict):
        again = parse(spec.to_string())
        assert again == spec
        if spec.device_type is not None:  # an index without type does not print
            assert fields(again) == fields(spec)
    assert DeviceSpecV1.from_string(spec.to_string()).to_string() == spec.to_string()


@given(specs, st.randoms(use_true_random=False))
def test_the_order_of_parts_is_free(spec, random):
    parts = spec.to_string().split("/")[1:]
    random.shuffle(parts)
    text = "".join("/" + part for part in parts)
    assert DeviceSpec.from_string(text) == parse_strict(text) == spec


@given(st.text("/:*ajobtaskcpugevirl01- ", max_size=30))
def test_any_text_is_read_canonically_or_rejected_in_words(text):
    try:
        spec = DeviceSpec.from_string(text)
    except ValueError as error:
        assert text in str(error)
    else:
        assert DeviceSpec.from_string(spec.to_string()) == spec
    try:
        strict = parse_strict(text)
    except InvalidArgumentError as error:
        assert text in str(error)
    else:
        assert parse_strict(strict.to_string()) == strict


@given(few, few, few)
def test_make_merged_spec_is_associative_with_the_empty_spec_as_unit(a, b, c):
    left = a.make_merged_spec(b).make_merged_spec(c)
    assert fields(left) == fields(a.make_merged_spec(b.make_merged_spec(c)))
    assert fields(a.make_merged_spec(DeviceSpec())) == fields(DeviceSpec().make_merged_spec(a)) == fields(a)
    assert fields(a.make_merged_spec(a)) == fields(a)
    assert is_specialization(b, a.make_merged_spec(b))


@given(few, few)
def test_strict_merge_succeeds_exactly_on_compatible_specs_and_then_commutes(a, b):
    if not is_compatible(a, b):
        with pytest.raises(InvalidArgumentError, match="Cannot merge devices with incompatible"):
            merge(a, b)
        return
    merged = merge(a, b)
    assert fields(merged) == fields(merge(b, a)) == fields(override(a, b)) == fields(merge(a, b, soft=True))
    assert is_specialization(a, merged) and is_specialization(b, merged)


@given(few, few)
def test_soft_merge_gives_up_type_and_index_only(a, b):
    task_of = [DeviceSpec(s.job, s.replica, s.task) for s in (a, b)]
    if not is_compatible(*task_of):
        with pytest.raises(InvalidArgumentError, match="incompatible (jobs|replicas|tasks)"):
            merge(a, b, soft=True)
        return
    merged = merge(a, b, soft=True)
    assert fields(merged)[:3] == fields(merge(*task_of))[:3]
    assert is_compatible(merged, a) and is_compatible(merged, b)


@given(few, few)
def test_override_never_fails_and_lets_the_other_win(a, b):
    merged = override(a, b)
    assert is_specialization(b, merged)
    assert all(mine in (x, y) for mine, x, y in zip(fields(merged), fields(a), fields(b), strict=True))


@given(few, few)
def test_specialization_is_an_order_and_compatible_specs_have_a_common_one(a, b):
    assert is_specialization(a, a)
    if is_specialization(a, b):
        assert is_compatible(a, b)
        assert fields(a) == fields(b) or not is_specialization(b, a)


@given(specs, specs)
def test_merging_strings_is_merging_specs(outer, inner):
    expected = DeviceSpec.from_string(str(outer)).make_merged_spec(DeviceSpec.from_string(str(inner)))
    assert merge_names(str(outer), str(inner)) == str(expected)


@given(names, numbers, numbers, types, numbers)
def test_complete_names_survive_printing(job, replica, task, device_type, index):
    name = DeviceName(job, replica, task, device_type, index)
    assert DeviceName.parse(str(name)) == name == DeviceName.of(parse_strict(str(name)))
    assert matches(name, name) and task_name(name) == name.task_name
