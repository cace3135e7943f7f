"""How tests read the page of the player: what it shows, the colours of its pixels, its
clock.
"""

from tests.browser import oracle

DASH = "\N{EN DASH}"
# Goes to each of some times and returns what the page then shows.
SHOW = """async (times) => {
  const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const text = (node, name) => node.querySelector(`.${name}`)?.textContent ?? null;
  const rows = (moment) => [...moment.querySelectorAll("tbody tr")].map((row) => Object.fromEntries(
    ["doing", "beside", "count", "holds", "memory"].map((name) => [name, text(row, name)])));
  const scrub = document.getElementById("scrub");
  const shown = [];
  for (const time of times) {
    scrub.value = time;
    scrub.dispatchEvent(new Event("input"));
    await frame();
    shown.push([...document.querySelectorAll(".moment")].map((moment) => ({
      rows: rows(moment),
      messages: [...moment.querySelectorAll(".messages li:not(.none)")].map((item) => item.textContent),
    })));
  }
  return shown;
}"""
# The colour of a point of the chart, in CSS pixels from its corner.
COLOUR = """([x, y]) => {
  const canvas = document.querySelector("canvas");
  const ratio = canvas.width / canvas.clientWidth;
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, x * ratio, y * ratio, 1, 1, 0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""


def clock(page):
    return page.inner_text("#clock")


def wait_until_played(page):
    page.locator("#play", has_text="Play").wait_for()


def frame(page):
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => "
        "requestAnimationFrame(done)))"
    )


def difference(timeline, shown, time):
    """Return the first thing in which the page and the timeline differ at a time, or
    None.
    """
    expected = oracle.told(timeline, time)
    if sorted(shown["messages"]) != expected["messages"]:
        return time, "messages", shown["messages"], expected["messages"]
    for rank, (row, told) in enumerate(
        zip(shown["rows"], expected["rows"], strict=True)
    ):
        stages = {span.action.stage for span in timeline.spans[rank]}
        holds = oracle.read_holds(row["holds"], min(stages))
        for name, seen in (
            ("doing", row["doing"]),
            ("holds", holds),
            ("memory", row["memory"]),
        ):
            if seen != told[name]:
                return time, rank, name, seen, told[name]
        if abs(float(row["count"]) - told["count"]) > 1e-9:
            return time, rank, "count", row["count"], told["count"]
        beside = row["beside"].split("; ")
        if not {told["cause"], told["how_far"]} - {""} <= set(beside) or (
            not told["how_far"] and "rank" in beside
        ):
            return time, rank, "beside", row["beside"], told
    return None
