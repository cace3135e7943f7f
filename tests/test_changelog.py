"""The changelog has the form of Keep a Changelog, and a release fits on one screen."""

import re
from configparser import ConfigParser
from datetime import date

import pytest

from tests.launch import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
# in this order
SECTIONS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
SCREEN = 50  # lines of a release, its heading and blank lines included
WIDTH = 88
UNRELEASED = "Unreleased"
RELEASED = re.compile(r"\d+\.\d+\.\d+ - (\d{4}-\d{2}-\d{2})")


def releases_of(text):
    """Return the text of each release by its heading."""
    _, *parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2]))


def problems(text):
    """Return a sentence for each place where a changelog departs from the form."""
    releases, found = releases_of(text), []
    if UNRELEASED in list(releases)[1:]:
        found.append("Unreleased is not the first release")
    dates = []
    for heading, body in releases.items():
        match = RELEASED.fullmatch(heading)
        if match:
            dates.append(date.fromisoformat(match[1]))
        elif heading != UNRELEASED:
            found.append(f"{heading}: not a version with its date")
        found += [f"{heading}: {problem}" for problem in problems_of_release(body)]
    if dates != sorted(dates, reverse=True):
        found.append("the newest release is not first")
    return found


def problems_of_release(body):
    """Yield what is wrong with the text of one release, which begins behind its
    heading.
    """
    lines = body.strip().splitlines()
    if len(lines) + 2 > SCREEN:  # with the heading and the blank line below it
        yield f"{len(lines) + 2} lines"
    if any(len(line) > WIDTH for line in lines):
        yield "a line that is too long"
    before, *parts = re.split(r"^### (.*)$", body, flags=re.MULTILINE)
    titles, entries = parts[::2], parts[1::2]
    if before.strip():
        yield "text above the first section"
    if titles != [title for title in SECTIONS if title in titles]:
        yield f"sections {titles}"
    for title, text in zip(titles, entries):
        is_list = all(
            line.startswith(("- ", "  ")) for line in text.strip().splitlines()
        )
        if not (text.strip() and is_list):
            yield f"{title} is not a list"


def test_a_release_fits_on_one_screen_in_the_form_of_keep_a_changelog():
    assert problems(TEXT) == []
    assert next(iter(releases_of(TEXT))) == UNRELEASED


def test_releases_link_to_a_comparison_if_and_only_if_the_project_has_an_address():
    metadata = ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    links = re.findall(r"^\[(.+)\]: https://", TEXT, re.MULTILINE)
    has_address = {"url", "project_urls"} & set(metadata["metadata"])
    assert links == (
        [heading.split(" - ")[0] for heading in releases_of(TEXT)]
        if has_address
        else []
    )


ENTRY = "### Added\n\n- One.\n"


@pytest.mark.parametrize(
    "wrong, problem",
    [
        (f"## 0.2.0\n\n{ENTRY}", "0.2.0: not a version with its date"),
        (
            f"## 0.1.0 - 2026-01-02\n\n{ENTRY}\n## Unreleased\n\n{ENTRY}",
            "Unreleased is not the first release",
        ),
        (
            f"## 0.1.0 - 2026-01-02\n\n{ENTRY}\n## 0.2.0 - 2026-01-03\n\n{ENTRY}",
            "the newest release is not first",
        ),
        (f"## Unreleased\n\n{ENTRY}" + "- One.\n" * SCREEN, "Unreleased: 55 lines"),
        (
            f"## Unreleased\n\n{ENTRY}- {'long' * WIDTH}\n",
            "Unreleased: a line that is too long",
        ),
        (
            f"## Unreleased\n\nText.\n\n{ENTRY}",
            "Unreleased: text above the first section",
        ),
        ("## Unreleased\n\n### Moved\n\n- One.\n", "Unreleased: sections ['Moved']"),
        (
            f"## Unreleased\n\n### Fixed\n\n- One.\n\n{ENTRY}",
            "Unreleased: sections ['Fixed', 'Added']",
        ),
        (
            f"## Unreleased\n\n{ENTRY}\n### Changed\n\nText.\n",
            "Unreleased: Changed is not a list",
        ),
        (
            f"## Unreleased\n\n### Added\n\n{ENTRY.replace('Added', 'Fixed')}",
            "Unreleased: Added is not a list",
        ),
    ],
)
def test_another_form_is_noticed(wrong, problem):
    assert problems(wrong) == [problem]
