"""Count phrases that make English hard to read, in the documents, the lessons and the
package.

Six patterns catch most sentences that are not plain technical English (subject, verb,
object). Some hits are innocent, so a count need not be 0; ``LIMITS`` holds each count
and may only fall. ``python -m tests.language`` prints the table, ``python -m
tests.language package`` the hits of an area as well.
"""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

from tests.code_lines import parsed

ROOT = Path(__file__).resolve().parent.parent

# The words that follow "where" if it stands for "if" or "when"; "the line where PyTorch
# waits" is not meant.
_CONDITION = (
    r"(?:a|an|the|it|they|there|no|not|nothing|one|its|some|all|several|ranks?|this)\b"
)
PATTERNS = {
    # "What fits is legal." instead of "A schedule that fits is legal."; questions are
    # innocent.
    "statement begins with What/Who": r"(?:^|[.:;]\s+)(?:What|Whatever|Who|Whoever)\b[^?\n]*?[.;]",
    # "the time of F and that of B" instead of "the times of F and B"
    "that of / those of": r"\bth(?:at|ose) of\b",
    # "where no name is given" instead of "if no name is given"
    "where for if/when": rf"(?:^|[,;(]\s*|\s)where {_CONDITION}",
    # "Of one activation." instead of "Size of one activation in bytes."
    "Of/By without a verb": r"(?:^|\.\s+)(?:Of|By) [a-z][^.?!]{0,60}\.",
    # "The last one fits, too." instead of "The last one also fits."
    "trailing too": r", too\b[.;,)]",
    # "once its gradient is there" instead of "once its gradient has arrived"; "is there
    # a ..." asks
    "is there": r"\b(?:is|are) there\b(?! an?\b| any\b|\?)",
}
COMPILED = {
    name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()
}
_COMMENT = re.compile(r"(?:^\s*|  )#+ ?(.*)")

# {pattern: the most hits in (documents, lessons, package)}: lower a limit when its
# count has fallen.
AREAS = ("documents", "lessons", "package")
LIMITS = {
    "statement begins with What/Who": (0, 1, 0),
    "that of / those of": (6, 4, 12),
    "where for if/when": (3, 5, 6),
    "Of/By without a verb": (0, 1, 5),
    "trailing too": (0, 0, 0),
    "is there": (0, 0, 0),
}

# -- the texts -------------------------------------------------------------------------


def files_of(area):
    """Return the files of an area: tracked Markdown, the programs of the tutorials, or
    the package.
    """
    if area == "documents":
        return sorted(ROOT / name for name in _tracked("*.md"))
    return sorted(
        ROOT / name
        for name in _tracked(
            {"lessons": "tutorials/*.py", "package": "minipipe/*.py"}[area]
        )
    )


def _tracked(glob):
    """Return the names of the tracked files that exist, none without git; in its
    patterns a star crosses folders.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", glob],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [
        name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()
    ]


def texts_of(path):
    """Yield (number of the first line, text) for each string, comment paragraph or
    document of a file.
    """
    if path.suffix == ".md":
        yield 1, path.read_text()
        return
    # the lines of strings that span several, in which a # begins no comment
    inside = set()
    for node in ast.walk(parsed(path)):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
        ):
            inside |= (
                set(range(node.lineno, node.end_lineno + 1))
                if node.end_lineno > node.lineno
                else set()
            )
            yield node.lineno, _without_code(node.value)
    yield from _comments(path.read_text(), inside)


def _without_code(text):
    """Blank the doctests of a docstring and what stands between double backticks; the
    lines stay where they are.
    """
    return re.sub(r"^[ \t]*(?:>>>|\.\.\.).*$|``[^`]*``", " ", text, flags=re.MULTILINE)


def _comments(source, inside):
    """Yield the paragraphs of comments: those on lines that follow each other, without
    their marks.

    Formatted code has two blanks before a comment, which tells it from most strings; to
    tokenize all files takes longer than all the rest.
    """
    lines = {
        number: _without_code(match[1])
        for number, line in enumerate(source.splitlines(), start=1)
        if number not in inside and (match := _COMMENT.search(line))
    }
    while lines:
        first = last = min(lines)
        while last + 1 in lines:
            last += 1
        yield first, "\n".join(lines.pop(number) for number in range(first, last + 1))


# -- the hits --------------------------------------------------------------------------


@functools.cache
def hits_of(area):
    """Return {pattern: ["file:line: its line", ...]} for the files of an area."""
    found = {name: [] for name in PATTERNS}
    for path in files_of(area):
        lines = path.read_text().splitlines()
        for first, text in texts_of(path):
            for name, pattern in COMPILED.items():
                for match in pattern.finditer(text):
                    number = _line_of(match, first, text, lines)
                    found[name].append(
                        f"{path.relative_to(ROOT)}:{number}: "
                        f"{lines[number - 1].strip()}"
                    )
    return found


def _line_of(match, first, text, lines):
    """Return the number of a hit's line: a string in several pieces counts as its first
    line.
    """
    start = match.start() + len(match[0]) - len(match[0].lstrip(" .,:;(\n\t"))
    number = first + text.count("\n", 0, start)
    words = match[0].lstrip(" .,:;(\n\t").split("\n")[0]
    return (
        number
        if number <= len(lines) and words in lines[number - 1]
        else min(first, len(lines))
    )


def limit_of(pattern, area):
    return LIMITS[pattern][AREAS.index(area)]


def table():
    """Return the counts and the limits as lines of text."""
    head = "".join(f"{area:>20}" for area in AREAS)
    rows = [f"{'count / limit':32}{head}"]
    for name in PATTERNS:
        cells = (
            f"{len(hits_of(area)[name])} / {limit_of(name, area)}" for area in AREAS
        )
        rows.append(f"{name:32}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(rows)


def main(areas):
    for area in areas:
        for name, hits in hits_of(area).items():
            print(f"\n{area}, {name}:", *hits, sep="\n  ")
    print(table())


if __name__ == "__main__":
    main(sys.argv[1:])
