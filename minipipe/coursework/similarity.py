"""Similar passages of submissions: a hint where to look, not a verdict.

Files are compared as tokens of Python, so comments, layout and the names of variables
do not matter. Runs of tokens are found by their fingerprints, as MOSS does. The stub,
which all students share, is subtracted, and so is code of many submissions, unless a
published solution has it.

References
----------
Schleimer, Wilkerson and Aiken 2003, "Winnowing: local algorithms for document
fingerprinting", sections 3 and 4 (the rightmost smallest hash of each window; at least
one fingerprint in each run of ``GRAM + WINDOW - 1`` tokens).
"""

from __future__ import annotations

import builtins
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from minipipe.coursework.exercise import Exercise
from minipipe.coursework.grading import files_of
from minipipe.coursework.submission import name_of, open_submission, submissions_in
from minipipe.errors import CourseworkError, FileError, counted
from minipipe.io import printable, read_text

GRAM = 10
"""Tokens of a hash."""
WINDOW = 8
"""Hashes of a window, of which one is a fingerprint."""
_MOST_TOKENS = 20_000  # of a file; a solution has 1,000 at most
_COMMON = 10  # a fingerprint of more submissions is no evidence, as in MOSS
PUBLISHED = "published/"
"""Begins the name of a published solution, and of no submission."""
HANDOUT = "handout"
"""The folder of handed-out code, beside published solutions."""
_LEAST = 0.3  # smaller similarities are not reported
_WIDTH = 56  # columns of a line in the report

_KEPT_NAMES = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
_LEVELS = {tokenize.INDENT: "indent", tokenize.DEDENT: "dedent"}
_NOTE = """\
Similarity: the part of the shorter answer that occurs in both, beyond the stub.
It is a hint, not a verdict: short tasks have few right answers. Read both files.
"""


class Match(NamedTuple):
    """The similarity of two answers to a task.

    Attributes
    ----------
    task : str
    names : tuple of str
        The two submissions.
    similarity : float
        From 0 to 1: the part of the shorter answer that occurs in both.
    tokens : int
        Tokens in common.
    lines : list of tuple of int
        Pairs of line numbers with the same tokens, from 1.
    """

    task: str
    names: tuple[str, str]
    similarity: float
    tokens: int
    lines: list[tuple[int, int]]


class _Answer:
    """The hashes of all runs of ``GRAM`` tokens in a text, and its fingerprints.

    Attributes
    ----------
    hashes : list of int
    own : list of bool
        By hash, whether it is not in the stub.
    fingerprints : dict
        Position by hash: of the first run that was selected.
    """

    def __init__(self, text: str, stub: frozenset[int]) -> None:
        tokens = tokens_of(text)
        self.words = [word for word, _ in tokens]
        self.line = [line for _, line in tokens]
        self.hashes = _hashes(tokens)
        self.own = [each not in stub for each in self.hashes]
        self.fingerprints: dict[int, int] = {}
        for position in _winnowed(self.hashes):
            if self.own[position]:
                self.fingerprints.setdefault(self.hashes[position], position)


def tokens_of(text: str) -> list[tuple[str, int]]:
    """Return the tokens of a Python text, each with its line; variables, numbers and
    strings without their values.

    Raises
    ------
    CourseworkError
        Codes ``damaged``, if it is not Python, and ``too-large``.

    Examples
    --------
    >>> [token for token, _ in tokens_of("total = sum(x) + 3  # a remark")]
    ['name', '=', 'sum', '(', 'name', ')', '+', 'number']
    """
    tokens: list[tuple[str, int]] = []
    before = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _LAYOUT:
                continue
            word = _word(token, before)
            before = token.string
            tokens.append((word, token.start[0]))
            if len(tokens) > _MOST_TOKENS:
                break
    # ValueError: a NUL. The others: the tokenizer's stack is full.
    except (tokenize.TokenError, SyntaxError, ValueError, MemoryError) as error:
        raise CourseworkError("damaged", f"it is not Python ({error})") from None
    if len(tokens) > _MOST_TOKENS:
        problem = f"it has more than {_MOST_TOKENS:,} tokens, the limit"
        raise CourseworkError("too-large", problem)
    return tokens


def _word(token: tokenize.TokenInfo, before: str) -> str:
    if token.type == tokenize.NAME:
        # attributes are names of libraries, which nobody can change
        if token.string in _KEPT_NAMES or before == ".":
            return token.string
        return "name"
    if token.type == tokenize.NUMBER:
        return "number"
    if token.type in _LEVELS:
        return _LEVELS[token.type]
    if token.type == tokenize.OP:
        return token.string
    return "string"


def _hashes(tokens: Sequence[tuple[str, int]]) -> list[int]:
    words = [word for word, _ in tokens]
    ends = range(GRAM, len(words) + 1)
    return [crc32(" ".join(words[end - GRAM : end]).encode()) for end in ends]


def _winnowed(hashes: Sequence[int]) -> list[int]:
    """Return the positions of fingerprints: of the rightmost smallest hash in each
    window.
    """
    chosen: dict[int, None] = {}
    for first in range(max(1, len(hashes) - WINDOW + 1)):
        window = range(first, min(first + WINDOW, len(hashes)))
        if window:
            chosen[min(window, key=lambda index: (hashes[index], -index))] = None
    return [*chosen]


def compared(
    task: str, texts: Mapping[str, str], stub: str, handout: Iterable[int] = ()
) -> tuple[list[Match], list[str]]:
    """Compare all answers to a task with each other, and with published solutions.

    Parameters
    ----------
    task : str
    texts : mapping
        The text of the answer by name of the submission; the name of a published
        solution begins with ``PUBLISHED``.
    stub : str
        The text that all have in common.
    handout : iterable of int
        Hashes of runs of tokens that do not count either.

    Returns
    -------
    list of Match
        The most similar first.
    list of str
        A sentence for each answer that cannot be compared.

    Examples
    --------
    >>> one = "def f(a, b):\\n    for i in range(a):\\n        b += i * i - a\\n"
    >>> two = one.replace("a", "q").replace("rqnge", "range")
    >>> (match,), _ = compared("f", {"ada": one, "bob": two}, "")
    >>> match.names, match.similarity, match.lines
    (('ada', 'bob'), 1.0, [(1, 1), (2, 2), (3, 3)])
    """
    shared = frozenset(_hashes(tokens_of(stub))).union(handout)
    answers: dict[str, _Answer] = {}
    problems = []
    for name, text in texts.items():
        try:
            answers[name] = _Answer(text, shared)
        except CourseworkError as error:
            problems.append(f"{name}: {task}.py is not compared: {error.message}")
    holders: dict[int, list[str]] = defaultdict(list)
    for name, answer in answers.items():
        for fingerprint in answer.fingerprints:
            holders[fingerprint].append(name)
    anchors: dict[tuple[str, str], list[int]] = defaultdict(list)
    for fingerprint, names in holders.items():
        own = [name for name in names if not name.startswith(PUBLISHED)]
        pairs = [*product(own, [name for name in names if name not in own])]
        if len(own) <= _COMMON:
            pairs += combinations(own, 2)
        for pair in pairs:
            anchors[pair].append(fingerprint)
    matches = [
        _match(task, pair, (answers[pair[0]], answers[pair[1]]), common)
        for pair, common in anchors.items()
    ]
    return sorted(matches, key=_rank), problems


def _rank(match: Match) -> tuple[Any, ...]:
    return -match.similarity, -match.tokens, match.task, match.names


def _match(
    task: str,
    names: tuple[str, str],
    pair: tuple[_Answer, _Answer],
    anchors: Iterable[int],
) -> Match:
    a, b = pair
    positions: dict[int, int] = {}  # of a run in a: its position in b
    for anchor in anchors:
        start = (a.fingerprints[anchor], b.fingerprints[anchor])
        if start[0] not in positions:
            for direction in (-1, 1):
                _extend(a, b, start, direction, positions)
    tokens: dict[int, int] = {}
    for i, j in positions.items():
        tokens |= zip(range(i, i + GRAM), range(j, j + GRAM))
    lines = {
        (a.line[i], b.line[j])
        for i, j in tokens.items()
        if a.words[i] not in _LEVELS.values()  # the end of a block is on a later line
    }
    both = min(len(positions), len(set(positions.values())))
    similarity = both / min(sum(a.own), sum(b.own))
    return Match(task, names, round(similarity, 3), len(tokens), sorted(lines))


def _extend(
    a: _Answer,
    b: _Answer,
    start: tuple[int, int],
    direction: int,
    positions: dict[int, int],
) -> None:
    """Follow equal runs from a start in one direction, and record them."""
    i, j = start
    while 0 <= i < len(a.hashes) and 0 <= j < len(b.hashes):
        if a.hashes[i] != b.hashes[j] or not a.own[i]:
            return
        positions[i] = j
        i += direction
        j += direction


class Similarities(NamedTuple):
    """A report on the similarity of submissions.

    Attributes
    ----------
    matches : list of Match
        The most similar first.
    problems : list of str
        The answers that were not compared.
    texts : dict
        Text of an answer by task and name.
    """

    matches: list[Match]
    problems: list[str]
    texts: dict[tuple[str, str], str]

    def as_data(self) -> list[dict[str, Any]]:
        """Return the matches as plain data."""
        return [match._asdict() for match in self.matches]

    def __str__(self) -> str:
        pairs = counted(len(self.matches), "pair")
        parts = [_NOTE, f"{pairs} of answers with a similarity of {_LEAST:.0%} or more"]
        parts += self.problems
        for match in self.matches:
            names = " and ".join(match.names)
            figures = f"{match.similarity:.0%}, {counted(match.tokens, 'token')}"
            parts.append(f"\n{match.task}: {names}, {figures}")
            texts = [self.texts[match.task, name].splitlines() for name in match.names]
            for line, other in match.lines:
                left = _shown(line, texts[0])
                parts.append(f"{left:{_WIDTH}}| {_shown(other, texts[1])}".rstrip())
        return "\n".join(map(str, parts)) + "\n"


def _shown(number: int, lines: Sequence[str]) -> str:
    text = printable("".join(lines[number - 1 : number]).expandtabs(4))
    return f"{number:4}  {text}"[: _WIDTH - 1]


def similarities(
    paths: Iterable[Path], exercises: Iterable[Exercise], against: Path | None = None
) -> Similarities:
    """Compare the submissions of a class, task by task, with each other and with
    published solutions.

    Parameters
    ----------
    paths : iterable of Path
        Directories and archives, with different names.
    exercises : iterable of Exercise
        The tasks to compare.
    against : Path, optional
        A folder of published solutions, like one of submissions. Code in its folder
        ``handout`` does not count.
    """
    exercises = list(exercises)
    files = files_of(exercises)
    report = Similarities([], [], {})
    handout: set[int] = set()
    named = [("", path) for path in paths]
    if against:
        handout = _hashes_in(against / HANDOUT, report.problems)
        found = submissions_in([against], files)
        named += [(PUBLISHED, each) for each in found if each != against / HANDOUT]
    by_task: dict[str, dict[str, str]] = {each.name: {} for each in exercises}
    for prefix, path in named:
        name = prefix + name_of(path)
        try:
            submission = open_submission(path, files, links=bool(prefix))
        except (CourseworkError, FileError) as error:
            if path == against and handout:
                continue  # it holds nothing else
            report.problems.append(f"{name} is not compared: {error.message}")
            continue
        for task, texts in by_task.items():
            try:
                if f"{task}.py" in submission.files:
                    texts[name] = submission.read(f"{task}.py").decode("utf-8-sig")
            except (FileError, UnicodeDecodeError) as error:
                reason = getattr(error, "message", "it is not text in UTF-8")
                report.problems.append(f"{name}: {task}.py is not compared: {reason}")
    for exercise in exercises:
        texts = by_task[exercise.name]
        matches, problems = compared(exercise.name, texts, exercise.stub, handout)
        report.matches.extend(each for each in matches if each.similarity >= _LEAST)
        report.problems.extend(problems)
        report.texts.update({(exercise.name, name): texts[name] for name in texts})
    report.matches.sort(key=_rank)
    return report


def _hashes_in(folder: Path, problems: list[str]) -> set[int]:
    """Return the hashes of all Python files in a folder."""
    hashes: set[int] = set()
    for path in sorted(folder.rglob("*.py")):
        try:
            hashes.update(_hashes(tokens_of(read_text(path))))
        except (CourseworkError, FileError) as error:
            problems.append(f"{path} is left out: {error.message}")
    return hashes
