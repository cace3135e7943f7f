"""Every page of the site at 1440, 1280 and 375 pixels, light and dark: nothing
overflows, headings are in order.

One browser session loads each page once, into a frame whose width is changed.
"""

import time
from pathlib import Path

import pytest

MEASURE = Path(__file__).with_name("measure.js")
HOST = (
    '<!doctype html><link rel="icon" href="data:,"><body><iframe '
    'style="border:0;height:900px"></iframe>'
)
DEFECTS = {  # what a page must not have, as a page that has it
    "a wide paragraph": '<h1>1</h1><p style="width:2000px">wide</p>',
    "a wide paragraph in the dark": "<h1>1</h1><style>[data-theme=dark] p { width: 2000px; }</style><p>wide</p>",
    "a wide picture": (
        '<h1>1</h1><div class="picture" style="width:600px"><svg width="640" '
        'height="9"></svg></div>'
    ),
    "a skipped heading": "<h1>1</h1><h3>3</h3>",
    "two first headings": "<h1>1</h1><h1>1</h1>",
    "headings of one size": '<h1>1</h1><h2 style="font-size:2em">2</h2>',
    "a crowded header": '<h1>1</h1><div class="bd-header"><a href="#a">a</a><a href="#b">b</a></div>',
}


@pytest.fixture
def measure(chromium, address):
    """Return a function that measures a page of the site and returns its problems, with
    those of the console.
    """
    # Without transitions a change of width has its effect at once.
    page = chromium.new_page(
        viewport={"width": 1500, "height": 1000}, reduced_motion="reduce"
    )
    said = []
    page.on(
        "console",
        lambda message: (
            message.type in ("error", "warning") and said.append(message.text)
        ),
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.route(
        "**/host", lambda route: route.fulfill(body=HOST, content_type="text/html")
    )
    page.goto(f"{address}/host")
    page.add_script_tag(path=MEASURE)

    def measured(name):
        said.clear()
        problems = page.evaluate("(address) => measure(address)", f"{address}/{name}")
        return [*problems, *said]

    measured.page = page
    yield measured
    page.close()


def test_every_page_fits_its_screen_and_writes_nothing_to_the_console(site, measure):
    paths = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
    names = [path.as_posix() for path in paths if path.parts[0] != "_static"]
    begun = time.monotonic()
    problems = {name: found for name in names if (found := measure(name))}
    print(f"{len(names)} pages in {time.monotonic() - begun:.0f} s")
    assert problems == {}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_page_with_a_defect_is_noticed(measure, defect):
    page = f'<!doctype html><title>x</title><body style="margin:0">{DEFECTS[defect]}'
    measure.page.route(
        "**/defect.html",
        lambda route: route.fulfill(body=page, content_type="text/html"),
    )
    assert measure("defect.html") != []
