"""The options of verbs, whose texts are in ``help/options.txt``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from minipipe.cli.numbers import add_number
from minipipe.core.specs import COUNT, Spec
from minipipe.io import MOST_STAGES, package_text

if TYPE_CHECKING:
    from pathlib import Path

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
RANKS = COUNT._replace(maximum=MOST_STAGES)
NUM_RANKS = 4  # by default


def file_path(text: str) -> Path:
    """Return the path of an option."""
    from pathlib import Path  # on demand: most commands print their answer

    return Path(text)


@cache
def _texts() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the metavar and the description of each option, by verb and name."""
    texts = {}
    verb = ""
    text = package_text("cli/help/options.txt").replace("\n    ", " ")
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            verb = line[1:-1]
            continue
        head, _, description = line.partition(": ")
        name, _, metavar = head.partition(" ")
        texts[verb, name] = metavar, description
    return texts


def adder(parser: Parser, verb: str = "") -> Callable[..., argparse.Action]:
    """Return a function that declares an option or argument of a verb.

    The function takes the names of the option, the last of which is in
    ``help/options.txt``, for this verb or for all; ``spec``, if it is a number; the
    usual value, if its text has it and it is not the default; and the keywords of
    :meth:`argparse.ArgumentParser.add_argument`. An option without metavar and choices
    is a flag.
    """

    def add(
        *names: str, spec: Spec | None = None, usual: object = None, **form: Any
    ) -> argparse.Action:
        texts = _texts()
        own = (verb, names[-1])
        metavar, description = texts[own if own in texts else ("", names[-1])]
        shown = str(usual or form.get("default"))
        form["help"] = description.replace("%(usual)s", shown)
        if metavar:
            form["metavar"] = metavar
        elif "choices" not in form:
            form["action"] = "store_true"
        if spec is None:
            return parser.add_argument(*names, **form)
        return add_number(parser, *names, spec=spec, **form)

    return add
