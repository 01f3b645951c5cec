"""Settings from the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dovetail.graph.core.settings import RENAMED, SETTINGS, _warn_of_old_name, setting


def test_a_setting_has_the_type_of_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CHECK", "2")
    monkeypatch.setenv("DOVETAIL_STALL_S", "")
    assert setting("DOVETAIL_CHECK") == 2
    assert setting("DOVETAIL_STALL_S") == 30.0


@pytest.mark.parametrize(("name", "wanted"), [("DOVETAIL_CHECK", "a whole number"), ("DOVETAIL_STALL_S", "a number")])
def test_what_is_no_number_is_refused_with_what_the_setting_means(
    monkeypatch: pytest.MonkeyPatch, name: str, wanted: str
) -> None:
    monkeypatch.setenv(name, "lots")
    with pytest.raises(ValueError, match=f"{name}='lots' must be {wanted}. It means: .+"):
        setting(name)


def test_a_misspelt_setting_is_told_once() -> None:
    code = (
        "from dovetail.graph.core.settings import setting; print(setting('DOVETAIL_CHECK'), setting('DOVETAIL_CHECK'))"
    )
    environment = {**os.environ, "DOVETAIL_CHEK": "2", "DOVETAIL_SOMETHING_ELSE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0 0\n"
    told = "DOVETAIL_CHEK is not a setting of Dovetail, and has no effect: did you mean DOVETAIL_CHECK?"
    assert done.stderr.count(told) == 1
    assert "SOMETHING_ELSE" not in done.stderr


def test_a_renamed_setting_is_read_under_its_old_name_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not RENAMED.keys() & SETTINGS.keys()
    assert set(RENAMED.values()) <= SETTINGS.keys()
    _warn_of_old_name.cache_clear()
    monkeypatch.setenv("DOVETAIL_TUNE", "0")
    with pytest.warns(FutureWarning, match="DOVETAIL_TUNE is now called DOVETAIL_AUTOTUNE") as told:
        assert [setting("DOVETAIL_AUTOTUNE") for _ in range(2)] == [0, 0]
    assert len(told) == 1
    monkeypatch.setenv("DOVETAIL_AUTOTUNE", "1")
    assert setting("DOVETAIL_AUTOTUNE") == 1
