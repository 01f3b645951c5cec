"""A real Chromium, without a window, that opens plan pages and must not reach any network."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
WIDTH, HEIGHT = 1366, 768  # a small laptop


def missing() -> str:
    """What is not installed that the browser needs; '' when all is there."""
    if CHROMIUM is None or DRIVER is None:
        return "Chromium and its driver are not installed (Debian: apt-get install chromium chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (pip install dovetail[test])"
    return ""


MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "all is there"),
    pytest.mark.usefixtures("quiet"),
]
"""The marks of a file of tests in the browser."""
HOSTILE = "</script><img src=x onerror=document.title='owned'>"
"""A name that would run if it got into a page as HTML."""


@contextmanager
def browser(profile: Path, width: int = WIDTH, height: int = HEIGHT) -> Iterator[Any]:
    """A Chromium with a profile folder of its own; it ends with the block."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars",
        f"--user-data-dir={profile}", f"--window-size={width},{height}",
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        # The window of a headless Chromium has bars too; this sets the size of the page itself.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        driver.get("about:blank")  # what the browser opens by itself is over
        yield driver
    finally:
        driver.quit()


def open_page(driver: Any, page: Path, node: str = "", *, dark: bool = False) -> None:
    """Open a page, and wait until it is drawn."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    driver.get("about:blank")  # a new hash alone would not load the page anew
    driver.get(page.as_uri() + (f"#{node}" if node else ""))
    until(lambda: driver.execute_script("return document.documentElement.dataset.ready") == "yes", 30)


def until(done: Any, seconds: float = 5) -> None:
    """Wait until `done()` is true."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "the page did not get there in time"
        time.sleep(0.02)


def complaints(driver: Any) -> list[str]:
    """What the browser has written to its console since the last call."""
    return [entry["message"] for entry in driver.get_log("browser")]


def requests(driver: Any) -> list[str]:
    """The addresses that pages have asked for since the last call."""
    import json

    found = []
    for entry in driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            found.append(event["params"]["request"]["url"])
    return found


def find(driver, selector):
    return driver.find_element("css selector", selector)


def find_all(driver, selector):
    return driver.find_elements("css selector", selector)


def box(driver, label):
    """The box whose label for screen readers begins so."""
    return find(driver, f'#map g[aria-label^="{label}"]')


def texts(driver, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    return driver.execute_script(script, selector)


def press(driver, *keys):
    from selenium.webdriver import ActionChains

    for key in keys:
        ActionChains(driver).send_keys(key).perform()
