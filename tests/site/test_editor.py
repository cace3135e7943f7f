"""The editor in a browser: one body of tests for ``minipipe edit``, over HTTP, and the
playground, over a worker.
"""

import re
import threading
import xml.etree.ElementTree as ET
from contextlib import contextmanager

import pytest

from minipipe import Costs, Schedule, schedules, simulate
from minipipe.cli.edit import Page
from minipipe.render.editor import Editor
from minipipe.render.editor.draft import Draft
from minipipe.render.editor.puzzles import PUZZLES
from minipipe.schedules import find_schedule
from minipipe.schedules.analysis.workload import Objective
from tests.render.editor.test_answering import BUILD_1F1B
from tests.site.desk import HALF, SMALL, Desk

PHONE = {
    "viewport": {"width": 375, "height": 760},
    "is_mobile": True,
    "has_touch": True,
}
WIDEST = "document.documentElement.scrollWidth"
# What is too small for a finger: in pixels, with its label.
SMALL_TARGETS = """() => [...document.querySelectorAll("a, button, input, select, summary, textarea")]
.filter((each) => {
  if (!each.checkVisibility()) return false;
  const { width, height } = (each.closest("label") || each).getBoundingClientRect();
  return Math.min(width, height) < (each.matches(".choice, #editing button") ? 44 : 24);
}).map((each) => each.outerHTML)"""


@contextmanager
def edited(file):
    """Serve the page of ``minipipe edit``."""
    with Page(Editor(file=file)) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield page.url
        page.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=["edit", "playground"])
def url(request, tmp_path_factory):
    """Return the address of a page of the editor, over HTTP or with Python inside."""
    if request.param == "playground":
        yield f"{request.getfixturevalue('address')}/playground/index.html"
    else:
        with edited(tmp_path_factory.mktemp("edit") / "mine.csv") as served:
            yield served


@pytest.fixture(scope="module")
def new_desk(url, chromium):
    """Return a function that opens a new page; what pages complain of, or fetch
    elsewhere, fails the last test.
    """
    contexts, complaints = [], []

    def opened(fragment="", **options):
        context = chromium.new_context(
            **{"viewport": {"width": 1400, "height": 900}, **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "requestfailed",
            lambda request: complaints.append(f"{request.url} {request.failure}"),
        )
        own = (url.rpartition("/")[0], "data:", "blob:")
        page.on(
            "request",
            lambda request: (
                request.url.startswith(own) or complaints.append(request.url)
            ),
        )
        page.goto(f"{url}{fragment}")
        desk = Desk(page)
        desk.wait_until_alive()
        return desk

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def shared_desk(new_desk):
    return new_desk()


@pytest.fixture
def desk(shared_desk):
    """Return a page that many tests share, with half of 1F1B for 2 ranks and 2
    microbatches.
    """
    shared_desk.open()
    return shared_desk


# -- placing ---------------------------------------------------------------------------


def test_1f1b_is_built_by_clicks_on_what_is_ready(desk):
    desk.page.click("#empty")
    for word in BUILD_1F1B:
        action = word.split(":")[1]
        desk.expect(desk.choice(action)).to_have_class("choice ready")
        desk.choice(action).click()
        desk.expect(desk.choice(action)).to_have_count(0)
    desk.says("You built 1f1b")
    desk.has("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
    for name, value in (
        ("makespan", "9 units"),
        ("bubble", "33.3 %"),
        ("gap", "28.6 %"),
    ):
        desk.shows(name, value)
    desk.shows("peak activations by rank", "2, 1")
    assert int(desk.page.locator("canvas").first.get_attribute("data-boxes")) >= 8


def test_a_click_behind_a_row_places_what_is_ready_and_one_on_a_box_sets_the_time(desk):
    # 1F1 alone is ready there, behind the 4 units of 1F0 and 1B0
    desk.click_in_chart(1, 5, 7)
    desk.has("0F0 0F1", "1F0 1B0 1F1")
    desk.click_in_chart(0, 1.5, 7)
    desk.expect(desk.page.locator("#clock")).to_have_text(
        re.compile(r"^1\.\d+ of 7 units$")
    )
    desk.has("0F0 0F1", "1F0 1B0 1F1")


def test_of_several_ready_actions_one_is_chosen(desk):
    desk.open(HALF.without_last(0))
    desk.click_in_chart(0, 5, 7)
    desk.says("Rank 0 may run 0F1 or 0B0.")
    offers = desk.page.locator("#offers button")
    desk.expect(offers).to_have_text(["0F1", "0B0"])
    desk.page.keyboard.press("Escape")
    desk.expect(offers.first).to_be_hidden()
    desk.click_in_chart(0, 5, 7)
    offers.nth(1).click()
    desk.has("0F0 0B0", "1F0 1B0")


def test_a_wrong_action_is_refused_with_the_verifiers_sentence_and_changes_nothing(
    desk,
):
    desk.expect(desk.choice("1B1")).to_have_class("choice")
    desk.choice("1B1").click()
    desk.says(
        "Rank 1, position 2: 1B1 comes before 1F1, which it needs.", is_refused=True
    )
    desk.has("0F0 0F1", "1F0 1B0")
    desk.choice("0B0").click()
    desk.has("0F0 0F1 0B0", "1F0 1B0")
    desk.expect(desk.page.locator("#said")).to_have_text("")


def test_what_was_done_is_undone_and_done_again(desk):
    page = desk.page
    desk.choice("0B0").click()
    desk.has("0F0 0F1 0B0", "1F0 1B0")
    page.click("#undo")
    desk.has("0F0 0F1", "1F0 1B0")
    desk.expect(page.locator("#undo")).to_be_disabled()
    page.keyboard.press("Control+y")
    desk.has("0F0 0F1 0B0", "1F0 1B0")
    desk.expect(page.locator("#redo")).to_be_disabled()
    page.keyboard.press("Control+z")
    desk.has("0F0 0F1", "1F0 1B0")
    page.keyboard.press("Control+Shift+Z")
    desk.has("0F0 0F1 0B0", "1F0 1B0")


def test_what_begins_behind_the_cursor_is_taken_back(desk):
    desk.click_in_chart(0, 1.5, 7)
    desk.page.click("#cut")
    desk.has("0F0 0F1", "1F0")


def test_1f1b_is_built_with_the_keyboard_alone(desk):
    press, focused = desk.page.keyboard.press, desk.page.locator(":focus")
    for name in ("Clear all", "Chart: a row for each rank, time from left to right"):
        key = "Tab" if name == "Clear all" else "Shift+Tab"
        for _ in range(60):
            press(key)
            if (focused.get_attribute("aria-label") or focused.text_content()) == name:
                break
        desk.expect(focused).to_be_visible()
        if name == "Clear all":
            press("Enter")
            desk.has("", "")
    press("ArrowUp")
    press("ArrowUp")  # to rank 0
    press("F")
    press("F")
    press("B")
    desk.says(
        "Rank 0, position 2: 0B0 comes before 1B0, which it needs.", is_refused=True
    )
    press("ArrowDown")
    press("Enter")
    press("b")
    press("f")
    desk.has("0F0 0F1", "1F0 1B0 1F1")
    press("Backspace")
    desk.has("0F0 0F1", "1F0 1B0")
    press("Control+z")
    press("b")
    press("ArrowUp")
    press("Enter")
    press("Enter")
    desk.says("You built 1f1b")
    desk.expect(focused).to_have_attribute("id", "scroller")


# -- text, costs, memory ---------------------------------------------------------------


def test_a_text_is_read_while_it_is_written_and_a_wrong_cell_is_shown(desk):
    page, text, judged = (
        desk.page,
        desk.page.locator("#text"),
        desk.page.locator("#text-said"),
    )
    text.fill("rank 0: 0F0 0B0 0F1\nrank 1: 1F0 1B0")
    desk.shows("placed", "5 of 8 actions")
    text.fill("rank 0: 0F0 0B1\nrank 1: 1F0 1B0")
    desk.expect(judged).to_have_text(
        "Rank 0, position 1: 0B1 comes before 0F1, which it needs."
    )
    desk.expect(text).to_have_attribute("aria-invalid", "true")
    desk.shows("placed", "5 of 8 actions")
    page.click("#there")
    selected = "[text.value.slice(text.selectionStart, text.selectionEnd)][0]"
    assert (
        page.evaluate(
            f"(() => {{ const text = document.activeElement; return {selected}; }})()"
        )
        == "0B1"
    )
    text.fill(schedules.zb_h1(2, 3).to_csv())
    desk.says("You built zb-h1")
    desk.shows(
        "peak activations by rank",
        ", ".join(map(str, simulate(schedules.zb_h1(2, 3)).peak_activations)),
    )
    desk.expect(judged).to_have_text("You built zb-h1.")


def test_a_text_is_read_before_what_was_clicked_on_behind_it(desk):
    desk.page.fill("#text", "0F0 0B0 0F1\n1F0 1B0")
    desk.page.click("#empty")
    desk.has("", "")
    desk.page.click("#undo")
    desk.has("0F0 0B0 0F1", "1F0 1B0")


def test_an_answer_moves_nothing_under_a_pressed_button(desk):
    rows = [f"{rank}F0 {rank}B0" for rank in range(6)]
    desk.page.fill("#text", "\n".join(rows))
    desk.page.click("#empty", delay=1000)  # Python answers earlier, with more rows
    desk.has(*[""] * 6)
    desk.page.click("#undo")
    desk.has(*rows)


@pytest.mark.parametrize("slider", ["F", "I", "W", "latency"])
def test_sliders_change_the_figures(desk, slider):
    desk.open(Draft.of(SMALL))
    desk.shows("makespan", "9 units")
    desk.page.locator(f"#cost-{slider}").focus()
    desk.page.keyboard.press("ArrowRight")
    costs = (
        Costs(latency=0.125) if slider == "latency" else Costs.parse(f"{slider}=1.25")
    )
    timeline = simulate(SMALL, costs)
    desk.shows("makespan", f"{timeline.makespan:g} units")
    desk.shows("bubble", f"{100 * timeline.bubble_fraction:.1f} %")
    desk.expect(desk.page.locator(f"#cost-{slider} + output")).to_have_text(
        "0.125" if slider == "latency" else "1.25"
    )


def test_a_limit_of_memory_is_kept(desk):
    limit = desk.page.locator("#limit")
    limit.fill("1")
    limit.press("Enter")
    desk.says("the limit is 1", is_refused=True)
    desk.page.click("#empty")
    desk.has("", "")
    limit.fill("1")
    limit.press("Enter")
    desk.shows("bound", "10 units (warm-up and drain)")
    desk.choice("0F0").click()
    desk.expect(desk.choice("0F1")).to_have_class("choice")
    desk.choice("0F1").click()
    desk.says("limit is 1", is_refused=True)


# -- search, puzzles -------------------------------------------------------------------


def test_a_search_in_the_page_finds_the_optimum_which_is_taken_and_undone(desk):
    desk.page.click("#search")
    desk.expect(desk.page.locator("#found")).to_contain_text("none is shorter")
    # which its progress does not take the place of
    desk.says("This is the schedule of the address.")
    desk.page.click("#take")
    desk.says("Found by")
    desk.shows("gap", "none: optimal")
    desk.page.click("#undo")
    desk.has("0F0 0F1", "1F0 1B0")


def test_a_puzzle_has_a_par_that_is_reached_and_not_beaten(desk):
    page, puzzle = desk.page, PUZZLES[0]
    page.select_option("#puzzle", "1")
    desk.says(f"Par is {puzzle.par.value:g} units.")
    desk.expect(page.locator("#cost-F")).to_be_disabled()
    desk.expect(page.locator("#limit")).to_have_value(str(puzzle.memory_limit))
    workload = Costs.parse(puzzle.costs).workload(
        range(puzzle.num_ranks), puzzle.num_microbatches, puzzle.memory_limit
    )
    best = find_schedule(workload, Objective.MAKESPAN, evaluations=100).schedule
    page.fill("#text", best.to_text())
    desk.says(f"Par: {puzzle.par.value:g} units. It cannot be beaten.")
    page.fill("#text", SMALL.to_text())
    desk.says("units above par.")
    page.select_option("#puzzle", "0")
    desk.expect(page.locator("#cost-F")).to_be_enabled()


def cells(desk):
    """Return the table of the comparison."""
    rows = desk.page.locator("#par-table tbody tr").all()
    return [row.locator("th, td").all_text_contents() for row in rows]


def test_a_schedule_is_compared_with_par_and_an_edit_ends_the_comparison(desk):
    desk.open(Draft.of(SMALL))
    desk.page.click("#par")
    said = desk.page.locator("#par-said")
    desk.expect(said).to_have_text(
        "Par is 7 units, which is proved. Yours takes 2 units more."
    )
    named = {name: rest for name, *rest in cells(desk)}
    assert named["yours"] == ["9 units", "33.3 %", "2, 1", ""]
    assert named["lower bound"] == ["7 units", "14.3 %", "at most 2", "work"]
    assert named["best found"][0] == named["zb-h1"][0] == "7 units"
    desk.page.click("#take")
    desk.shows("gap", "none: optimal")
    desk.expect(desk.page.locator("#par-table")).to_be_hidden()
    desk.expect(said).to_have_text("")
    desk.page.click("#par")
    desk.expect(said).to_contain_text("Yours reaches it.")


# -- building blocks -------------------------------------------------------------------


def box(desk, name):
    return desk.page.locator(f"[data-box='{name}']")


def begin(desk, pattern):
    desk.page.select_option("#pattern", pattern)
    desk.page.click("#begin-block")
    desk.expect(desk.page.locator("#block .placed").first).to_be_visible()


def test_a_block_is_moved_by_keys_predicted_and_repeated(desk):
    begin(desk, "1f1b")
    page, said = desk.page, desk.page.locator("#block-said")
    text = page.locator("#block-text")
    desk.expect(text).to_have_value("rank 0: 0F@0 0B@4\nrank 1: 1F@1 1B@2\n")
    predicted = page.locator("#block-memory tbody tr")
    desk.expect(predicted.first).to_have_text("rank 06 / 322")
    box(desk, "0B").focus()
    page.keyboard.press("ArrowRight")
    desk.expect(said).to_contain_text("Two actions need rank 0 at 6")
    desk.expect(page.locator("#repeat")).to_be_disabled()
    desk.expect(box(desk, "0B")).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)  # before Python has answered
    desk.expect(said).to_contain_text("It can be repeated.")
    desk.expect(text).to_have_value(re.compile("0B@7"))
    desk.expect(predicted.first).to_contain_text("9 / 3")
    page.fill("#repeats", "5")
    page.click("#repeat")
    desk.says("The block predicts peaks of 3, 1.")
    desk.shows("peak activations by rank", "3, 1")
    content, name = desk.download("csv")
    assert name == "block.csv"
    assert simulate(Schedule.from_csv(content)).peak_activations == (3, 1)
    page.click("#undo")
    desk.has("0F0 0F1", "1F0 1B0")


def test_a_box_of_a_block_is_dragged(desk):
    begin(desk, "")
    page = desk.page
    desk.expect(page.locator("#block-said")).to_contain_text("Two actions need rank 0")
    box(desk, "0W").scroll_into_view_if_needed()
    place = box(desk, "0W").bounding_box()
    at = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] - 1.1 * place["width"], at[1], steps=3)
    page.mouse.up()
    desk.expect(page.locator("#block-text")).to_have_value(re.compile("0W@3"))
    # the text is the block, and another interval or text is read at once
    page.fill("#interval", "6")
    page.fill("#block-text", "0F@0 0B@4\n1F@1 1B@2")
    desk.expect(page.locator("#block-said")).to_contain_text("In each 6 units")
    page.fill("#block-text", "0F@0 0B\n1F@1 1B@2")
    desk.expect(page.locator("#block-said.refused")).to_contain_text("Line 1, cell 2")
    desk.expect(page.locator("#repeat")).to_be_disabled()
    desk.has("0F0 0F1", "1F0 1B0")


def test_other_costs_give_a_block_other_times(desk):
    begin(desk, "zb-h1")
    desk.expect(desk.page.locator("#block-said")).to_contain_text("In each 3 units")
    desk.page.locator("#cost-W").focus()
    desk.page.keyboard.press("ArrowRight")
    desk.expect(desk.page.locator("#block-said.refused")).to_contain_text("Two actions")


# -- leaving ---------------------------------------------------------------------------


def test_what_is_exported_is_read_again(desk):
    desk.open(Draft.of(SMALL))
    content, name = desk.download("csv")
    assert name == "1f1b.csv" and Schedule.from_csv(content).actions == SMALL.actions
    content, name = desk.download("txt")
    assert name == "1f1b.txt" and Schedule.from_text(content).actions == SMALL.actions
    content, name = desk.download("svg")
    assert name == "1f1b.svg" and ET.fromstring(content).tag.endswith("svg")
    desk.says("Exported as 1f1b.svg.")


def test_a_picture_of_what_is_unfinished_is_refused(desk):
    desk.page.click("[data-format=svg]")
    desk.says("missing: 4 actions", is_refused=True)


def test_a_draft_is_there_again_in_another_browser_and_after_a_reload(
    url, new_desk, desk
):
    """The playground puts it into its address, and ``minipipe edit`` keeps it until it
    ends.
    """
    desk.open(HALF, "F=2,latency=0.5")
    desk.choice("0B0").click()
    desk.has("0F0 0F1 0B0", "1F0 1B0")
    fragment = ""
    if url.endswith(".html"):
        desk.page.click("#share")
        desk.says("The address of this page now holds the schedule.")
        fragment = f"#{desk.page.url.partition('#')[2]}"
        assert 10 < len(fragment) < 200
    other = new_desk(fragment)
    other.has("0F0 0F1 0B0", "1F0 1B0")
    other.reload()
    other.has("0F0 0F1 0B0", "1F0 1B0")
    for name, cost in (("F", "2"), ("latency", "0.5")):
        other.expect(other.page.locator(f"#cost-{name} + output")).to_have_text(cost)


@pytest.mark.parametrize("address", ["zz", "%E2%9C%93", "eJw"])
def test_an_address_that_holds_no_schedule_is_refused(desk, address):
    desk.page.evaluate("(fragment) => { location.hash = fragment; }", address)
    desk.says("The address holds no schedule", is_refused=True)
    desk.has("0F0 0F1", "1F0 1B0")


def test_edit_saves_its_file(chromium, tmp_path):
    file = tmp_path / "mine.csv"
    with edited(file) as served:
        page = chromium.new_page()
        page.goto(served)
        page.click("#save")
        Desk(page).says(
            f"Saved {file}. Train with it: mpirun -n 4 python tutorials/train.py "
            f"--schedule {file}"
        )
        page.close()
    assert Schedule.from_file(file).actions == schedules.one_f_one_b(4, 8).actions


# -- looks -----------------------------------------------------------------------------


def test_on_a_phone_one_builds_with_a_finger_and_nothing_is_wider_than_it(new_desk):
    desk = new_desk(**PHONE)
    page = desk.page
    assert page.locator("#opening").is_hidden()
    chart = page.locator(".chart").bounding_box()
    assert chart["y"] < PHONE["viewport"]["height"] - 60  # without scrolling
    assert (page.evaluate(WIDEST), page.evaluate(SMALL_TARGETS)) == (375, [])
    page.tap("#opener summary")
    page.fill("#ranks", "2")
    page.fill("#microbatches", "2")
    page.tap("#open")
    page.tap("#empty")
    desk.has("", "")
    assert page.evaluate(SMALL_TARGETS) == []
    desk.choice("1F0").tap()
    desk.says("1F0 comes before 0F0", is_refused=True)
    # in sight, however far down the page the button is
    said = page.locator("#said").bounding_box()
    assert (
        0
        <= said["y"]
        < said["y"] + said["height"]
        <= desk.choice("1F0").bounding_box()["y"]
    )
    for word in BUILD_1F1B:
        action = word.split(":")[1]
        desk.expect(desk.choice(action)).to_have_class("choice ready")
        desk.choice(action).tap()
    desk.says("You built 1f1b")
    begin(desk, "v-half")
    page.tap("#par")
    desk.expect(page.locator("#par-said")).to_contain_text("Par is")
    assert (page.evaluate(WIDEST), page.evaluate(SMALL_TARGETS)) == (375, [])


def test_axe_finds_nothing_wrong_whether_refused_or_offered(new_desk):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="needs axe-core, of '.[browser]'",
    ).Axe()
    desk = new_desk()
    desk.open(HALF.without_last(0))
    begin(desk, "v-min")
    desk.page.click("#par")
    desk.expect(desk.page.locator("#par-table")).to_be_visible()
    desk.choice("1B1").click()
    desk.says("1B1 comes before 1F1", is_refused=True)
    desk.page.fill("#text", "0B0")
    desk.expect(desk.page.locator("#there")).to_be_visible()
    check_with(axe, desk.page)
    desk.page.locator("#scroller").focus()
    desk.page.keyboard.press("ArrowDown")
    desk.page.keyboard.press("Enter")
    desk.expect(desk.page.locator("#offers")).to_be_visible()
    check_with(axe, desk.page)


def check_with(axe, page):
    """Expect no complaint of axe-core, light and dark, and on a phone."""
    for width, scheme in ((1400, "light"), (1400, "dark"), (375, "light")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        found = axe.run(page).response["violations"]
        told = [
            f"{each['id']}: {node['html'][:200]}"
            for each in found
            for node in each["nodes"]
        ]
        assert told == [], f"{scheme}, {width} pixels"
