"""Check every link of a built site: ``python tutorials/site/links.py build/site``.

The target of each ``href`` and ``src`` must be a file of the site, and its fragment
(after ``#``) a place on that page or, in the playground, a schedule. ``--others`` lists
addresses of other sites. No address is fetched.
"""

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from minipipe.errors import ScheduleError
from minipipe.render.editor.sharing import unpacked


class Page(HTMLParser):
    """The places and the links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = {"", "top"}
        self.links: list[str] = []
        self.takes_schedules = path.parent.name == "playground"
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the places and the links of a tag."""
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")
            elif (
                name in ("href", "src")
                and value is not None
                and (tag, dict(attrs).get("rel")) != ("link", "canonical")
            ):
                self.links.append(value)

    def has(self, place: str) -> bool:
        """Tell whether the page has the place that a fragment names."""
        if place in self.places or not self.takes_schedules:
            return place in self.places
        try:
            return bool(unpacked(place))
        except ScheduleError:
            return False


def read(site: Path) -> dict[Path, Page]:
    """Return every page of a site by its path. Files of the theme in ``_static`` are
    not pages.
    """
    paths = [
        path
        for path in sorted(site.rglob("*.html"))
        if path.relative_to(site).parts[0] != "_static"
    ]
    return {path: Page(path) for path in paths}


def problems(site: Path) -> list[str]:
    """Return a sentence for each broken link."""
    pages, found = read(site), []
    for path, page in pages.items():
        for link in page.links:
            address, place = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = (
                (path.parent / unquote(urlsplit(address).path)).resolve()
                if address
                else path
            )
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or not target.is_relative_to(site.resolve()):
                found.append(f"{path.relative_to(site)}: there is no {link}")
            elif target in pages and not pages[target].has(unquote(place)):
                found.append(
                    f"{path.relative_to(site)}: {target.name} has no place {place}"
                )
    return found


def others(site: Path) -> list[str]:
    """Return the linked addresses of other sites."""
    links = {link for page in read(site).values() for link in page.links}
    return sorted(link for link in links if urlsplit(link).scheme in ("http", "https"))


def main() -> int:
    """Print the broken links. The exit status is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument(
        "--others",
        action="store_true",
        help="list the addresses on other sites instead",
    )
    options = parser.parse_args()
    found = others(options.site) if options.others else problems(options.site.resolve())
    print(*found, sep="\n", end="\n" if found else "")
    return 0 if options.others else int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
