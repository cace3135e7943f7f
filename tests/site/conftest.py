"""The site, built once for all of these tests, and served to a browser."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch import ROOT, environment

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# a frame was still loading when its page was left; not an error
ABORTED = "net::ERR_ABORTED"


def pytest_collection_modifyitems(items):
    """Leave these tests to ``.ci/run``, since the build takes a minute, and give the
    build more time than a test.
    """
    for item in items:
        if item.path.parent == ROOT / "tests" / "site":
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the site. A warning is an error."""
    if find_spec("sphinx") is None:
        pytest.skip("needs Sphinx (pip install -e '.[docs]')")
    if built := os.environ.get("SITE"):  # an existing build, to work on these tests
        return Path(built).resolve()
    destination = tmp_path_factory.mktemp("site") / "html"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-j",
        "2",
        "tutorials/site",
        destination,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-10_000:]
    return destination


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *arguments):
        """Say nothing of a browser that leaves a page while it loads."""


@pytest.fixture(scope="session")
def address(site):
    """Serve the site, and return its address."""
    with Server(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def chromium():
    """Start Chromium."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Chromium (pip install playwright)"
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, address):
    """Return a function that opens a page of the site. Errors of the page and external
    requests fail the test.
    """
    contexts, complaints = [], []

    def opened(page, width=1440, scheme="light"):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: complaints.append(f"{page}: {error}"))
        tab.on(
            "requestfailed",
            lambda r: (
                r.failure == ABORTED
                or complaints.append(f"{page}: {r.url} {r.failure}")
            ),
        )
        tab.on(
            "request",
            lambda r: (
                r.url.startswith((address, "data:", "blob:"))
                or complaints.append(f"{page}: {r.url}")
            ),
        )
        tab.goto(f"{address}/{page}.html")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
