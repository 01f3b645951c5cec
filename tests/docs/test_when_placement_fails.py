"""The page "When placement fails" shows the messages that placing gives now."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_its_script_makes() -> None:
    spec = importlib.util.spec_from_file_location("when_placement_fails", ROOT / "docs" / "when_placement_fails.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look their module up
    spec.loader.exec_module(script)
    told = "run `python docs/when_placement_fails.py`, and read what has changed"
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), told
