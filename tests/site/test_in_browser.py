"""The site on a phone, a tablet and a desk, light and dark, by keyboard, and what
axe-core says of it.
"""

import re

import pytest

from minipipe.render.palette import DARK, LIGHT
from tests.browser.test_svg_in_browser import css

# One page of each kind.
PAGES = [
    *(
        "index",
        "lessons/index",
        "lessons/09_zero_bubble",
        "packages/schedules",
        "glossary",
        "project/benchmarks",
    ),
    *(
        "schedules/index",
        "schedules/zb-h1",
        "papers/zero-bubble",
        "coming-from-pytorch",
    ),
    *(
        "api/index",
        "api/minipipe.schedules",
        "api/minipipe/minipipe.Pipeline",
        "_modules/minipipe/core/tensor",
    ),
]
SCHEMES = ("light", "dark")


@pytest.mark.parametrize("page", PAGES)
def test_no_page_is_wider_than_its_screen_and_axe_finds_nothing_wrong(open_page, page):
    """Contrast, names, structure, focus of what scrolls: on a phone and on a desk,
    light and dark.
    """
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="needs axe-core, of '.[browser]'",
    )
    for scheme in SCHEMES:
        tab = open_page(page, 1440, scheme)
        for width in (1440, 900, 380):
            tab.set_viewport_size({"width": width, "height": 900})
            # the theme says when it loads what scrolls, and so must take the focus
            tab.reload()
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, (
                f"{scheme}, {width} pixels"
            )
            if width != 900 and (scheme, width) != ("dark", 380):
                found = axe.Axe().run(tab).response["violations"]
                told = [
                    f"{each['id']}: {node['html'][:200]}"
                    for each in found
                    for node in each["nodes"]
                ]
                assert told == [], f"{scheme}, {width} pixels: " + "\n".join(told)


def test_the_keyboard_skips_to_the_text_and_shows_where_it_is(open_page):
    page = open_page("lessons/09_zero_bubble")
    page.keyboard.press("Tab")
    assert (
        page.evaluate("document.activeElement.textContent").strip()
        == "Skip to main content"
    )
    page.wait_for_function("document.activeElement.getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    for _ in range(5):
        page.keyboard.press("Tab")
        style = (
            "(({outlineStyle, boxShadow}) => [outlineStyle, "
            "boxShadow])(getComputedStyle(document.activeElement))"
        )
        assert page.evaluate(style) != ["none", "none"], page.evaluate(
            "document.activeElement.outerHTML"
        )
        assert page.evaluate("document.activeElement.closest('main, footer') !== null")


@pytest.mark.parametrize("width", [1440, 1180, 960, 380])
def test_the_playground_is_in_sight_in_a_header_of_one_row(open_page, width):
    page = open_page("lessons/index", width)
    link = page.locator("header a:visible", has_text="Playground")
    header, shown = page.locator(".bd-header").bounding_box(), link.bounding_box()
    assert (
        header["y"]
        <= shown["y"]
        < shown["y"] + shown["height"]
        <= header["y"] + header["height"]
        < 100
    )
    assert (
        abs(shown["y"] + shown["height"] / 2 - header["y"] - header["height"] / 2) < 8
    )
    link.click()
    # a click does not wait for the page behind it
    page.wait_for_function("document.title === 'Build a schedule'")


def test_a_search_finds_a_name(open_page):
    page = open_page("index")
    page.keyboard.press("Control+k")
    page.keyboard.type("partition_by_cost")
    page.keyboard.press("Enter")
    page.locator("#search-results a", has_text="partition_by_cost").first.click()
    page.wait_for_function("document.title.includes('partition_by_cost')")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pictures_have_the_colours_of_their_page_whatever_the_system_prefers(
    open_page, scheme
):
    page = open_page(
        "lessons/09_zero_bubble", scheme="dark" if scheme == "light" else "light"
    )
    page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
    ground = "getComputedStyle(document.querySelector('.cell_output svg .ground')).fill"
    is_dark = sum(int(x) for x in page.evaluate(ground)[4:-1].split(",")) < 3 * 128
    assert is_dark == (scheme == "dark")


GROUND = "getComputedStyle({}).backgroundColor"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pictures_and_players_have_no_edge(open_page, scheme):
    """Their background is the one of the page, and nothing draws a border."""
    page = open_page("lessons/09_zero_bubble", scheme=scheme)
    for picture in page.locator(".cell_output .picture").all():
        style = picture.evaluate(
            "(each) => [getComputedStyle(each).backgroundColor, "
            "getComputedStyle(each).padding]"
        )
        assert style == ["rgba(0, 0, 0, 0)", "0px"]
    fill = page.evaluate(
        "getComputedStyle(document.querySelector('.picture svg .ground')).fill"
    )
    assert (
        fill
        == page.evaluate(GROUND.format("document.body"))
        == css((DARK if scheme == "dark" else LIGHT).ground)
    )
    page = open_page("schedules/zb-h1", scheme=scheme)
    inside = page.frame_locator("iframe").locator("body")
    assert inside.evaluate("(body) => getComputedStyle(body).backgroundColor") == fill
    assert (
        page.locator("iframe").evaluate(
            "(frame) => getComputedStyle(frame).borderTopWidth"
        )
        == "0px"
    )


def test_code_cells_have_no_bright_borders_in_the_dark(open_page):
    page = open_page("lessons/09_zero_bubble", scheme="dark")
    for cell in page.locator(".cell_input, .cell_output > .output pre").all():
        colours = cell.evaluate(
            "(cell) => ['Top', 'Right', 'Bottom'].map((s) => "
            "getComputedStyle(cell)[`border${s}Color`])"
        )
        assert all(
            sum(map(int, re.findall(r"\d+", colour)[:3])) < 3 * 128
            for colour in colours
        )


@pytest.mark.parametrize("width", [1440, 375])
def test_the_player_in_a_page_is_shown_whole(open_page, width):
    """The frame has the height of its content, with legend and table, also while it
    plays.
    """
    page = open_page("schedules/zb-h1", width)
    frame = page.locator("iframe")
    frame.scroll_into_view_if_needed()
    player = page.frame_locator("iframe").locator("body")
    hidden = (
        "(body) => body.ownerDocument.documentElement.scrollHeight - "
        "body.ownerDocument.defaultView.innerHeight"
    )
    page.wait_for_function("document.querySelector('iframe').style.height !== ''")
    for _ in range(3):
        assert player.evaluate(hidden) <= 0
        for part in (".legend", ".moments tbody tr:last-child", "summary"):
            box, outside = (
                player.locator(part).first.bounding_box(),
                frame.bounding_box(),
            )
            assert (
                outside["y"]
                <= box["y"]
                < box["y"] + box["height"]
                <= outside["y"] + outside["height"]
            )
        player.locator("#forward").click()
    height = frame.bounding_box()["height"]
    player.locator("summary").first.click()
    page.wait_for_function(
        f"document.querySelector('iframe').getBoundingClientRect().height > {height}"
    )


@pytest.mark.parametrize(
    "page", ["lessons/index", "schedules/index", "coming-from-pytorch"]
)
def test_tables_are_lists_on_a_phone(open_page, page):
    """Nothing scrolls sideways, and each cell says of which column it is."""
    tab = open_page(page, 375)
    table = tab.locator("table.list-on-phone").first
    assert table.evaluate("(table) => table.getBoundingClientRect().right") <= 375 - 8
    assert table.evaluate(
        "(table) => table.parentElement.scrollWidth <= table.parentElement.clientWidth"
    )
    assert table.locator("thead").is_hidden()
    cells = table.locator("tbody tr").first.locator("td:visible").all()
    for cell in cells:
        assert cell.evaluate(
            "(cell) => cell.matches('.is-title, .is-text, [data-label]')"
        )


def test_the_player_in_a_page_plays(open_page):
    page = open_page("schedules/zb-h1")
    page.locator("iframe").scroll_into_view_if_needed()
    player = page.frame_locator("iframe").locator("body")
    player.locator("#play").click()
    player.locator("#play", has_text="Pause").wait_for()


def test_the_player_in_a_page_has_the_theme_that_is_chosen_there(chromium, address):
    """Not one that is emulated, which would reach the player by itself."""
    expect = pytest.importorskip(
        "playwright.sync_api", reason="needs Chromium (pip install playwright)"
    ).expect
    page = chromium.new_context(color_scheme="null").new_page()
    page.goto(f"{address}/schedules/zb-h1.html")
    page.locator("iframe").scroll_into_view_if_needed()
    body = page.frame_locator("iframe").locator("body")
    for mode, theme in (("dark", DARK), ("light", LIGHT), ("dark", DARK)):
        page.locator(".theme-switch-button:visible").click()
        page.locator(f".theme-change-button[data-mode={mode}]:visible").click()
        expect(body).to_have_css("background-color", css(theme.ground))
    page.context.close()


def chosen(page, mode):
    """Choose a theme in the header of a page of the site."""
    page.locator(".theme-switch-button:visible").click()
    page.locator(f".theme-change-button[data-mode={mode}]:visible").click()


def test_the_playground_has_the_theme_of_the_site_also_while_it_is_open(
    chromium, address
):
    expect = pytest.importorskip(
        "playwright.sync_api", reason="needs Chromium (pip install playwright)"
    ).expect
    context = chromium.new_context(color_scheme="light")
    page, playground = context.new_page(), context.new_page()
    page.goto(f"{address}/index.html")
    playground.goto(f"{address}/playground/index.html")
    body = playground.locator("body")
    picture = "document.querySelector('.chart canvas').toDataURL()"
    drawn = {"light": playground.evaluate(picture)}
    expect(body).to_have_css("background-color", css(LIGHT.ground))
    for mode, theme in (("dark", DARK), ("light", LIGHT), ("dark", DARK)):
        chosen(page, mode)
        expect(body).to_have_css("background-color", css(theme.ground))
        expect(playground.locator("html")).to_have_css("color-scheme", mode)
        playground.evaluate("new Promise((done) => setTimeout(done, 300))")
        assert drawn.setdefault(mode, playground.evaluate(picture)) == (
            playground.evaluate(picture)
        )
    assert drawn["light"] != drawn["dark"]  # the chart is drawn anew
    playground.reload()  # before Python has started, too
    expect(body).to_have_css("background-color", css(DARK.ground))
    playground.emulate_media(media="print")
    expect(body).to_have_css("background-color", css(LIGHT.ground))
    playground.emulate_media(media="screen")
    chosen(page, "auto")
    expect(body).to_have_css("background-color", css(LIGHT.ground))
    playground.emulate_media(color_scheme="dark")
    expect(body).to_have_css("background-color", css(DARK.ground))
    context.close()


def test_the_playground_has_a_theme_that_was_chosen_before_the_reader_came_back(
    chromium, address
):
    expect = pytest.importorskip(
        "playwright.sync_api", reason="needs Chromium (pip install playwright)"
    ).expect
    page = chromium.new_context(color_scheme="light").new_page()
    page.goto(f"{address}/playground/index.html")
    page.locator(".home a").click()
    page.wait_for_url("**/index.html")
    chosen(page, "dark")
    page.go_back()
    expect(page.locator("#said")).to_be_visible()
    expect(page.locator("body")).to_have_css("background-color", css(DARK.ground))
    page.context.close()
