"""The picture of the editor in README.md shows the editor as it is."""

import base64

from tests.launch import ROOT
from tutorials.site.screenshot import screenshot

PICTURE = ROOT / "tutorials" / "site" / "editor.png"
# The share of pixels in which two pictures differ, after both are shrunk: letters may
# have other edges.
DIFFERENCE = """async (pictures) => {
  const [first, second] = await Promise.all(pictures.map(async (data) => {
    const image = new Image();
    image.src = `data:image/png;base64,${data}`;
    await image.decode();
    const canvas = new OffscreenCanvas(250, 140);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return context.getImageData(0, 0, canvas.width, canvas.height).data;
  }));
  return first.filter((value, i) => Math.abs(value - second[i]) > 40).length / first.length;
}"""


def difference(page, *pictures):
    return page.evaluate(
        DIFFERENCE, [base64.b64encode(picture).decode() for picture in pictures]
    )


def test_the_picture_of_the_editor_is_current(browser):
    page = browser.new_page()
    drawn, kept = screenshot(browser), PICTURE.read_bytes()
    assert difference(page, drawn, kept) < 0.02, (
        "python tutorials/site/screenshot.py tutorials/site/editor.png"
    )


def test_a_picture_of_another_draft_differs(browser):
    page = browser.new_page()
    assert difference(page, screenshot(browser, until=10), PICTURE.read_bytes()) > 0.02
