"""`dovetail calibrate`: what it measures, and the file and table that it writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.placer.cluster.calibration import OVERHEADS, Calibration
from dovetail.placer.cost.launches import KINDS
from dovetail.tools import calibration
from dovetail.tools.cli import app


def test_every_kind_of_kernel_that_plans_look_up_is_measured() -> None:
    with dt.Graph().as_default():
        kinds = {case.kind for family in calibration.FAMILIES for case in family()}
    assert kinds == set(KINDS)


def test_the_command_measures_and_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def few() -> Iterator[calibration.Case]:
        for size in (1 << 12, 1 << 20):
            x = dt.Variable(dt.zeros([size // 8]))
            yield calibration.Case("stream", size, [(x * 1.5 + 0.5).op])

    monkeypatch.setattr(calibration, "FAMILIES", (few,))
    monkeypatch.setattr(calibration, "SAMPLE_S", 0.001)
    monkeypatch.setattr(calibration, "WARM_S", 0.001)
    monkeypatch.setattr(calibration, "MESSAGES_S", 0.001)
    monkeypatch.setattr(calibration, "MIN_RUNS", 3)
    monkeypatch.setattr(calibration, "ROUNDS", 2)
    path = tmp_path / "machine.json"
    result = CliRunner().invoke(app, ["calibrate", "--output", str(path)])
    assert result.exit_code == 0, result.output
    found = Calibration.load(path)
    assert set(found.overheads) == set(OVERHEADS)
    assert [p.work for p in found.kernels["stream"]] == [1 << 12, 1 << 20]
    assert 0 < found.overheads["step"] < found.overheads["remote step"]
    assert "stream" in result.stdout
    assert "remote step" in result.stdout
    assert str(path) in result.stdout
