"""What the tests of pages in a real browser share."""

import page_plans
import pytest
from page_browser import browser, complaints, requests


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Name -> the page of a plan, written when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    def page(name):
        path = folder / f"{name}.html"
        if not path.exists():
            getattr(page_plans, name)().to_html(path)
        return path

    return page


@pytest.fixture
def quiet(driver):
    """No test may make the browser complain, or ask for anything but the page itself."""
    complaints(driver), requests(driver)
    yield
    assert complaints(driver) == []
    assert {url.partition(":")[0] for url in requests(driver)} <= {"file", "about"}
