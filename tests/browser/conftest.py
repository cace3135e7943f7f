"""One headless Chromium, and pages in it that may neither complain nor fetch
anything.
"""

import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """Start Chromium for the tests of a module."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Chromium (pip install playwright)"
    )
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        # Its own sandbox does not run as root, and the pages are ours.
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Return a function that opens a text as a page, from a file; what it complains of
    or fetches fails the test.
    """
    contexts, complaints, fetched = [], [], []

    def open_text(text, ending="html", width=1400, height=900, **options):
        path = tmp_path / f"{len(contexts):02}.{ending}"
        path.write_text(text, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": height}, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_text
    for context in contexts:
        context.close()
    assert complaints == []
    expected = [
        (tmp_path / name).as_uri()
        for name in sorted(path.name for path in tmp_path.iterdir())
    ]
    assert [url for url in fetched if not url.startswith("data:")] == expected
