"""Pictures of the plan's page, taken in a real browser: what to look at after changing the page.

    python docs/plan_page.py                  # writes the pictures of docs/plan-page.md
    python docs/plan_page.py --all FOLDER     # writes pages and pictures of all sizes and views

It needs Chromium, its driver and selenium; tests/placer/page_browser.py says how to get them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "placer")]  # a checkout needs no install

import page_browser  # noqa: E402
import page_plans  # noqa: E402

IMAGES = ROOT / "docs" / "images"


class Picture(NamedTuple):
    """One view of one page: a plan of page_plans.py, the node it opens at, and what is clicked then."""

    plan: str
    node: str = ""
    clicks: Sequence[str] = ()
    dark: bool = False


SHOWN = {
    "plan-page-training": Picture("training", "tower_1/MatMul"),
    "plan-page-large": Picture("large", dark=True),
}
ALL = SHOWN | {
    "50-first": Picture("training"),
    "50-lines": Picture("training", clicks=['[data-do="bundle"]']),
    "50-dark": Picture("training", "model/hidden/weights", dark=True),
    "2000-first": Picture("deep"),
    "2000-device": Picture("deep", clicks=['#map g[aria-label^="/job:worker/task:1/GPU:0"]']),
    "2000-node": Picture("deep", "layer_70/MatMul"),
    "2000-table": Picture("deep", clicks=["#tab-nodes", ".heads > :nth-child(6) button"]),
    "2000-channels": Picture("deep", clicks=["#tab-channels", ".rows .row:nth-child(3)"]),
    "100000-first": Picture("large"),
    "100000-channel": Picture("large", clicks=["#map .chip"]),
    "100000-node": Picture("large", "tower_3/block_7/layer_12/MatMul"),
    "flat-first": Picture("flat"),
}


def take(driver: Any, folder: Path, name: str, picture: Picture, images: Path) -> None:
    """Write a page, bring it to its view, take the picture."""
    page = folder / f"{picture.plan}.html"
    if not page.exists():
        getattr(page_plans, picture.plan)().to_html(page)
    seconds = page_browser.open_page(driver, page, picture.node, dark=picture.dark)
    for selector in picture.clicks:
        driver.find_element("css selector", selector).click()
    time.sleep(0.4)  # the map glides for a fifth of a second
    driver.save_screenshot(str(images / f"{name}.png"))
    print(f"{name}: {page.stat().st_size / 1e6:.2f} MB, open after {seconds:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="all views, and the pages, into a folder")
    asked = parser.parse_args()
    if why := page_browser.missing():
        sys.exit(why)
    images = asked.all or IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, page_browser.browser(Path(scratch, "profile")) as driver:
        for name, picture in (ALL if asked.all else SHOWN).items():
            take(driver, asked.all or Path(scratch), name, picture, images)


if __name__ == "__main__":
    main()
