"""Which layers make which stage, as Megatron-LM and torchtitan write it.

Megatron's option ``--pipeline-model-parallel-layout`` takes a string such as
``Et*3|(tt|)*29,m|L``. Each letter is a layer: E the embedding, t a transformer layer, m
a layer for multi-token prediction, L the output layer with the loss. ``|`` ends a
stage, ``t*3`` is ``ttt``, ``(tt|)*2`` is ``tt|tt|``, and commas are ignored. Stage s
runs on rank s modulo the number of ranks.

References
----------
NVIDIA, Megatron-LM, class ``PipelineParallelLayerLayout``: the same reading, in the
same two passes (groups, then letters), and the same rules. PyTorch, torchtitan, option
``module_fqns_per_model_part``: the names of modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from minipipe.core.schedules.placement import looped_placement
from minipipe.errors import Code, ScheduleError, counted, quoted

_LETTERS = {"E": "embedding", "t": "transformer layer", "m": "MTP layer", "L": "loss"}
_GROUP = re.compile(r"\(([^)]+)\)\*(\d{1,9})", re.ASCII)
_LETTER = re.compile(r"(.)\*(\d{1,9})", re.ASCII)
_MOST = 2**13  # characters after all repetitions; a model has fewer than 1000 layers
_HINTS = {
    "(": "its group has no ')*N' behind it; write (tt|)*3, without a group inside it",
    ")": "it closes no group; write (tt|)*3, without a group inside it",
    "*": "a repetition is a letter or a group, * and a number, such as t*3",
    " ": "leave blanks out; commas may separate parts",
}
_unreadable = partial(ScheduleError.of, Code.SYNTAX)
_Cells = list[tuple[str, int]]  # each character and its position in the text


class Layout(NamedTuple):
    """The layers of each stage.

    Attributes
    ----------
    stages : tuple of str
        By stage, the letters of its layers; an empty text for a stage without layers.

    Examples
    --------
    >>> layout = Layout.parse("Et*2|(tt|)*2,m|L")
    >>> layout.stages
    ('Ett', 'tt', 'tt', 'm', 'L')
    >>> layout.partition
    [range(0, 3), range(3, 5), range(5, 7), range(7, 8), range(8, 9)]
    """

    stages: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read Megatron's string or, as ``4,6,6,4``, the number of layers of each
        stage: E, transformer layers and L.

        Raises
        ------
        ScheduleError
            Code ``syntax``, with the position of the wrong character; ``too-large``.

        Examples
        --------
        >>> Layout.parse("Ett|tt|L") == Layout.parse("3,2,1")
        True
        >>> Layout.parse("E(tt|*2L")
        Traceback (most recent call last):
            ...
        minipipe.errors.ScheduleError: [syntax] Layout 'E(tt|*2L', character 2 is '(': its group has no ')*N' behind ...
        """
        if re.fullmatch(r"\d{1,9}(,\d{1,9})*", text, re.ASCII):
            return cls.of_sizes(list(map(int, text.split(","))))
        cells = [(letter, at) for at, letter in enumerate(text, 1) if letter != ","]
        for pattern in (_GROUP, _LETTER):
            cells = _unrolled(cells, pattern)
        for letter, at in cells:
            if letter not in _LETTERS and letter != "|":
                hint = _HINTS.get(letter, f"expected {_expected(letter)}")
                where = f"Layout {quoted(text, 200)}, character {at}"
                raise _unreadable(f"{where} is {quoted(letter)}: {hint}.")
        return cls(tuple("".join(letter for letter, _ in cells).split("|")))

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Layout:
        """Return the layout with a number of layers on each stage: the first is the
        embedding, the last the loss.

        Raises
        ------
        ScheduleError
            Codes ``value`` and ``too-large``.

        Examples
        --------
        >>> Layout.of_sizes([3, 2, 1]).stages
        ('Ett', 'tt', 'L')
        """
        total = sum(sizes)
        _check_length(total)
        if total < 2 or min(sizes) < 1:
            problem = f"The stages have {','.join(map(str, sizes))} layers"
            hint = "expected at least one each, and with the embedding and the loss 2"
            raise ScheduleError.of(Code.VALUE, f"{problem}; {hint}.")
        letters = iter(f"E{'t' * (total - 2)}L")
        return cls(tuple("".join(next(letters) for _ in range(n)) for n in sizes))

    def check(self, num_ranks: int) -> None:
        """Refuse a layout that Megatron refuses, with its first problem.

        Raises
        ------
        ScheduleError
            Code ``placement``.

        Examples
        --------
        >>> Layout.parse("Ett|tt|L").check(num_ranks=2)
        Traceback (most recent call last):
            ...
        minipipe.errors.ScheduleError: [placement] The layout has 3 stages, which 2 ranks do not divide; ...
        """
        for problem in self._problems(num_ranks):
            raise ScheduleError.of(Code.PLACEMENT, problem)

    def _problems(self, num_ranks: int) -> Iterator[str]:
        n = len(self.stages)
        if n % num_ranks:
            sizes = f"{counted(n, 'stage')}, which {counted(num_ranks, 'rank')}"
            more = num_ranks - n % num_ranks
            remedy = (
                f"write {more} more '|' or {n % num_ranks} fewer, or change --ranks"
            )
            yield f"The layout has {sizes} do not divide; {remedy}."
        layers = "".join(self.stages)
        ends = {"E": ("begin", layers[:1]), "L": ("end", layers[-1:])}
        for letter, (verb, at_end) in ends.items():
            count = layers.count(letter)
            expected = f"{verb} with {letter}, the {_LETTERS[letter]}"
            if count != 1:
                problem = f"The layout has {count} times {letter}"
                yield f"{problem}; it must {expected}, and have no other."
            elif at_end != letter:
                yield f"The layout must {expected}; move its {letter} there."
        yield from self._problems_of_m(num_ranks, layers)

    def _problems_of_m(self, num_ranks: int, layers: str) -> Iterator[str]:
        with_m = [stage for stage, letters in enumerate(self.stages) if "m" in letters]
        if "t" in layers.partition("m")[2]:
            last = max(s for s, letters in enumerate(self.stages) if "t" in letters)
            yield f"Stage {last} has t after an m; write all m after the last t."
        if len(with_m) > 1:
            where = f"Stages {', '.join(map(str, with_m))} have m"
            yield f"{where}; write all m in one stage."
        for stage in with_m:
            if stage < len(self.stages) - num_ranks:
                problem = f"Stage {stage} has m and is not the last stage of its rank"
                first = len(self.stages) - num_ranks
                yield f"{problem}; write m in one of the stages from {first} on."

    @property
    def partition(self) -> list[range]:
        """The layers of each stage, for ``Pipeline(…, partition=…)``: each letter is a
        layer.

        Raises
        ------
        ScheduleError
            Code ``unsupported``, for a stage without layers.
        """
        empty = [stage for stage, letters in enumerate(self.stages) if not letters]
        if empty:
            problem = f"Stage {empty[0]} of the layout is empty, which Megatron allows"
            hint = "a stage of Pipeline and of torchtitan needs a layer"
            remedy = "remove one '|', or move a layer there"
            message = f"{problem}; {hint}: {remedy}."
            raise ScheduleError.of(Code.UNSUPPORTED, message)
        ends = [0]
        for letters in self.stages:
            ends.append(ends[-1] + len(letters))
        return [range(begin, end) for begin, end in pairwise(ends)]

    def placement(self, num_ranks: int) -> tuple[int, ...]:
        """Return the rank of each stage in Megatron."""
        return looped_placement(num_ranks, len(self.stages) // num_ranks)

    def to_megatron(self) -> str:
        """Return a short string that Megatron reads as this layout.

        Examples
        --------
        >>> Layout.parse("Ettt|tt|tt|tt|m|L").to_megatron()
        'Et*3|(t*2|)*3m|L'
        """
        parts: list[str] = []
        last = len(self.stages) - 1
        for letters, run in groupby(self.stages[:last]):
            count = len([*run])
            stage = f"{_shortened(letters)}|"
            parts.append(stage if count == 1 else f"({stage})*{count}")
        return "".join([*parts, _shortened(self.stages[last])])

    def to_torchtitan(self) -> list[list[str]]:
        """Return torchtitan's ``module_fqns_per_model_part``: the names of the modules
        of each stage.

        Raises
        ------
        ScheduleError
            Code ``unsupported``, for a stage without layers, and for m.

        Examples
        --------
        >>> Layout.parse("Et|t|L").to_torchtitan()
        [['tok_embeddings', 'layers.0'], ['layers.1'], ['norm', 'lm_head']]
        """
        if any("m" in letters for letters in self.stages):
            problem = "The layout has m, and torchtitan has no name for MTP layers"
            raise ScheduleError.of(Code.UNSUPPORTED, f"{problem}; leave m out.")
        first = 0
        modules = []
        for letters, _ in zip(self.stages, self.partition):
            names = ["tok_embeddings"] * letters.count("E")
            layers = range(first, first + letters.count("t"))
            names += [f"layers.{layer}" for layer in layers]
            names += ["norm", "lm_head"] * letters.count("L")
            modules.append(names)
            first = layers.stop
        return modules


def _unrolled(cells: _Cells, pattern: re.Pattern[str]) -> _Cells:
    """Write repetitions out, from left to right and once, as Megatron does."""
    text = "".join(letter for letter, _ in cells)
    unrolled: _Cells = []
    end = 0
    for match in pattern.finditer(text):
        start, stop = match.span(1)
        count = int(match[2])
        _check_length(len(unrolled) + (stop - start) * count)
        unrolled += cells[end : match.start()] + cells[start:stop] * count
        end = match.end()
    return unrolled + cells[end:]


def _check_length(length: int) -> None:
    if length > _MOST:
        message = f"The layout has at least {length:,} layers and '|'"
        limit = f"the limit is {_MOST:,}"
        raise ScheduleError.of(Code.TOO_LARGE, f"{message}; {limit}.")


def _expected(letter: str) -> str:
    """Return the characters of a layout as text, for an unknown one."""
    other = {name.lower(): name for name in _LETTERS} | {"T": "t", "M": "m"}
    if letter in other:
        return f"{other[letter]}: capitals matter"
    if letter.isdigit():
        return "* before a number, such as t*3"
    names = (f"{name} ({meaning})" for name, meaning in _LETTERS.items())
    return f"{', '.join(names)} or |"


def _shortened(letters: Iterable[str]) -> str:
    """Return letters with repetitions as ``t*3``."""
    runs = ((letter, len([*run])) for letter, run in groupby(letters))
    return "".join(run[0] if run[1] == 1 else f"{run[0]}*{run[1]}" for run in runs)
