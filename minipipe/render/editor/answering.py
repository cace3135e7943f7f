"""The protocol of the editor: a message, which is a mapping, and its answer; JSON on
both ways.

The member ``do`` of a message names a method of :class:`Editor` that begins with
``do_``. The other members are its arguments. The answer has ``said``, a sentence, and
``isRefused``; if something changed, also everything that the page shows. If a text was
refused at a place, ``place`` has the numbers of its line and cell, from 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any, cast

from minipipe.core.schedules.action import Action, I
from minipipe.core.specs import COUNT, INDEX, SCHEDULE_COUNT, Spec
from minipipe.errors import (
    ArgumentError,
    Code,
    MinipipeError,
    Problem,
    ScheduleError,
    counted,
    quoted,
)
from minipipe.io import json_value, parse_json, write_whole
from minipipe.render.editor.block import PATTERNS, block_data, block_like
from minipipe.render.editor.draft import Draft, check_size
from minipipe.render.editor.drawing import Sight
from minipipe.render.editor.par import Par, named_drafts
from minipipe.render.editor.puzzles import PUZZLES
from minipipe.render.editor.sharing import packed, unpacked
from minipipe.schedules.analysis.workload import Objective, Workload
from minipipe.schedules.registry import TRADES, build, spelled
from minipipe.schedules.simulation.building_block import BuildingBlock
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.timeline import by_rank
from minipipe.search.clock import schedule_of
from minipipe.search.gallery import known_bound
from minipipe.search.heuristic import Search, SearchState

_LIMIT = SCHEDULE_COUNT._replace(maximum=10**9)  # of pairs that a rank holds
_SECONDS = Spec(float, above=0, maximum=1, advice="Search longer with another message.")
_TIME = Spec(float, minimum=-inf, maximum=inf, expected="a number", code="type")
_PLACE = re.compile(r"Line (\d+), cell (\d+): ")
Answer = dict[str, Any]


class Editor:
    """A draft with its history, costs and a memory limit; it answers the messages of a
    page.

    Parameters
    ----------
    draft : Draft, optional
        By default 1F1B on 4 ranks with 8 microbatches.
    costs : str
        For :meth:`minipipe.Costs.parse`.
    file : Path, optional
        The only file to which ``save`` writes.

    Examples
    --------
    >>> editor = Editor()
    >>> editor.answer({"do": "empty"})["isRefused"]
    False
    >>> editor.answer({"do": "place", "rank": 1, "action": "1F0"})["said"]
    'Rank 1, position 0: 1F0 comes before 0F0, which it needs.'
    """

    def __init__(
        self, draft: Draft | None = None, costs: str = "", file: Path | None = None
    ) -> None:
        self._begin(draft or Draft.of(build("1f1b", 4, 8)))
        self.costs_text = costs
        self.costs = read_costs(costs)
        self.file = file
        self._sight: Sight | None = None
        self._par: Par | None = None

    def _begin(self, draft: Draft) -> None:
        """Take a draft, without a history, a limit or a puzzle."""
        self.draft = draft
        # Tuples: a message changes state only by assignment, so a change can be undone.
        self.past: tuple[Draft, ...] = ()
        self.future: tuple[Draft, ...] = ()
        self.halves = _has_halves(draft)
        self.puzzle = 0
        self.limit: int | None = None
        self.search: Search | None = None

    # -- messages and answers ----------------------------------------------------------

    def ask(self, text: str) -> str:
        """Answer a JSON message with JSON."""
        try:
            message = json_value(parse_json(text), dict, "the message")
        except ArgumentError as error:
            reason = f"No message of the editor: {error.message}"
            return json.dumps(_answer(reason, True))
        return json.dumps(self.answer(message), separators=(",", ":"), allow_nan=False)

    def answer(self, message: dict[str, Any]) -> Answer:
        """Answer a message; one that is refused changes nothing.

        A change is not complete before the page can be drawn with it: costs that are
        valid by themselves may not fit the draft. So the state before is restored, and
        no method has to compute everything before it assigns.
        """
        before = dict(vars(self))
        try:
            answer = self._carried_out(message)
        except BaseException:
            vars(self).update(before)
            raise
        if answer["isRefused"]:
            vars(self).update(before)
        return answer

    def _carried_out(self, message: dict[str, Any]) -> Answer:
        arguments = dict(message)
        verb = arguments.pop("do", None)
        do: Callable[..., Answer] | None = None
        if isinstance(verb, str):
            do = getattr(self, f"do_{verb}", None)
        if do is None:
            reason = "The editor does not know what to do"
            return self._refused(f"{reason}: {quoted(verb)}.")
        known = signature(do).parameters
        needed = {name for name, it in known.items() if it.default is it.empty}
        if not needed <= set(arguments) <= set(known):
            expected = ", ".join(known) or "nothing"
            actual = ", ".join(arguments) or "nothing"
            reason = f"The message {verb} takes {expected}"
            return self._refused(f"{reason}; this one has {actual}.")
        try:
            return do(**arguments)
        except ScheduleError as error:
            return self._refused(error.problems[0].message)
        except MinipipeError as error:
            return self._refused(str(error))

    def _refused(self, sentence: str) -> Answer:
        """Return the answer to a refused message."""
        match = _PLACE.match(sentence)
        place = match and [int(match[1]), int(match[2])]
        return _answer(sentence, True, place=place)

    @property
    def sight(self) -> Sight:
        """The visible state of the draft."""
        now = self.draft, self.costs, self.limit, self.halves
        if self._sight is None or self._sight.inputs != now:
            self._sight = Sight(*now)
        return self._sight

    def do_show(self, said: str = "") -> Answer:
        """Return everything that the page shows."""
        draft = self.draft
        can = {"undo": self.past, "redo": self.future}
        return {
            **self.sight.data(),
            "said": json_value(said, str, "said"),
            "isRefused": False,
            "text": self.sight.export("txt"),
            "sizes": [len(draft.rows), draft.num_microbatches, len(draft.placement)],
            "costs": self.costs_text,
            "limit": self.limit,
            "halves": self.halves,
            "puzzle": self.puzzle,
            "can": [verb for verb, drafts in can.items() if drafts],
            "file": self.file and str(self.file),
        }

    def _built(self) -> str:
        """Return the message for a draft that was finished by hand: its name and, in a
        puzzle, how good it is.
        """
        if not self.sight.is_finished:
            return ""
        message = "The schedule is complete and legal."
        names = self._named_like(self.draft)
        if names:
            message = f"You built {', which is also '.join(names[:2])}."
        if not self.puzzle:
            return message
        par = PUZZLES[self.puzzle - 1].par.value
        over = self.sight.end - par
        if over < 1e-9:
            return f"{message} Par: {par:g} units. It cannot be beaten."
        return f"{message} {over:g} units above par."

    # -- opening -----------------------------------------------------------------------

    def do_open(
        self, name: str, ranks: int, microbatches: int, chunks: int | None = None
    ) -> Answer:
        """Open a named schedule."""
        SCHEDULE_COUNT.check("ranks", ranks)
        SCHEDULE_COUNT.check("microbatches", microbatches)
        SCHEDULE_COUNT.check("chunks", chunks or 1)
        check_size(ranks * (chunks or 1), microbatches)  # before it is built
        self._begin(Draft.of(build(name, ranks, microbatches, chunks)))
        known = spelled(name)
        return self.do_show(f"{known}: {TRADES[known]}.")

    def do_puzzle(self, number: int) -> Answer:
        """Open a puzzle, by its number from 1."""
        COUNT._replace(maximum=len(PUZZLES)).check("The puzzle", number)
        puzzle = PUZZLES[number - 1]
        placement = tuple(range(puzzle.num_ranks))
        self.costs_text = puzzle.costs
        self.costs = read_costs(puzzle.costs)
        rows = ((),) * puzzle.num_ranks
        batch = puzzle.num_microbatches
        self._begin(Draft(f"puzzle {number}", placement, batch, rows))
        self.limit = puzzle.memory_limit
        self.puzzle = number
        self.halves = True
        return self.do_show(f"Par is {puzzle.par.value:g} units. {puzzle.hint}")

    def do_shared(self, fragment: str) -> Answer:
        """Open the draft in the fragment of an address."""
        draft, costs, limit, puzzle = unpacked(json_value(fragment, str, "the address"))
        fresh = Editor(draft, costs, self.file)
        if puzzle:
            fresh.do_puzzle(puzzle)
            fresh._check_fits_puzzle(draft)
            limit = fresh.limit
        if (problem := draft.problem()) is not None:
            raise ScheduleError([problem])
        fresh.draft = draft
        fresh.puzzle = 0
        fresh.do_limit(cast(Any, limit))  # refuses anything but a whole number
        fresh.puzzle = puzzle
        vars(self).update(vars(fresh))
        return self.do_show("This is the schedule of the address.")

    # -- editing -----------------------------------------------------------------------

    def _change(self, draft: Draft, said: str = "") -> Answer:
        if draft != self.draft:
            self.past = (*self.past, self.draft)
            self.future = ()
            self.draft = draft
        return self.do_show(said or self._built())

    def do_place(
        self, rank: int, action: str | None = None, kind: str | None = None
    ) -> Answer:
        """Place an action at the end of a row: the argument, the next of a kind, or the
        one that is ready.
        """
        choices = self.sight.choices[self._rank(rank)]
        if action is not None:
            chosen = Action.parse(json_value(action, str, "the action"))
        else:
            fitting = [it for it in choices if kind in (None, it.action.kind)]
            ready = [choice.action for choice in fitting if choice.is_ready]
            if len(ready) > 1 and kind is None:
                offers = [str(each) for each in ready]
                said = f"Rank {rank} may run {' or '.join(offers)}."
                return _answer(said, offers=offers)
            if not fitting:
                missing = kind or "action"
                return self._refused(f"Rank {rank} has no {missing} left to place.")
            chosen = next(iter(ready), fitting[0].action)
        problem = self.draft.refusal(rank, chosen, self.limit)
        if problem is not None:
            return self._refused(problem.message)
        return self._change(self.draft.placed(rank, chosen))

    def do_back(self, rank: int) -> Answer:
        """Remove the last action of a rank."""
        return self._change(self.draft.without_last(self._rank(rank)))

    def do_cut(self, time: float) -> Answer:
        """Remove all actions that begin at a time or later."""
        time = _TIME.check("The time", time)
        return self._change(self.draft.cut(self.sight.timeline, time))

    def do_empty(self) -> Answer:
        """Remove all actions."""
        return self._change(replace(self.draft, rows=((),) * len(self.draft.rows)))

    def do_text(self, text: str) -> Answer:
        """Take the rows from a text, or from CSV."""
        draft = self.draft.written(json_value(text, str, "the text"))
        self._check_fits_puzzle(draft)
        problem = draft.problem(self.limit)
        if problem is not None:
            return {**self._refused(problem.message), "place": _in_text(text, problem)}
        return self._change(draft)

    def do_undo(self) -> Answer:
        """Go back to the draft before."""
        if not self.past:
            return self._refused("There is nothing to undo.")
        self.future = (*self.future, self.draft)
        self.draft = self.past[-1]
        self.past = self.past[:-1]
        return self.do_show()

    def do_redo(self) -> Answer:
        """Return to the draft that was undone."""
        if not self.future:
            return self._refused("There is nothing to redo.")
        self.past = (*self.past, self.draft)
        self.draft = self.future[-1]
        self.future = self.future[:-1]
        return self.do_show()

    def _rank(self, rank: Any) -> int:
        return INDEX._replace(maximum=len(self.draft.rows) - 1).check("The rank", rank)

    def _check_fits_puzzle(self, draft: Draft) -> None:
        puzzle = self.draft
        sizes = (puzzle.placement, puzzle.num_microbatches)
        if not self.puzzle or (draft.placement, draft.num_microbatches) == sizes:
            return
        stages = counted(len(puzzle.placement), "stage")
        batch = counted(puzzle.num_microbatches, "microbatch")
        expected = f"Puzzle {self.puzzle} has {stages}, one on each rank, and {batch}"
        stages = counted(len(draft.placement), "stage")
        ranks = counted(len(draft.rows), "rank")
        batch = counted(draft.num_microbatches, "microbatch")
        message = f"{expected}; this has {stages} on {ranks} and {batch}."
        raise ScheduleError.of(Code.PLACEMENT, message)

    def _named_like(self, draft: Draft) -> list[str]:
        """Return the named schedules with the rows of a draft."""
        table = (draft.placement, draft.rows)
        named = named_drafts(draft.placement, draft.num_microbatches)
        return [name for name, it in named.items() if (it.placement, it.rows) == table]

    # -- settings ----------------------------------------------------------------------

    def do_halves(self, halves: bool) -> Answer:
        """Offer backwards as I and W, or whole."""
        Spec(bool, expected="true or false").of_class("halves", halves)
        self.halves = halves
        return self.do_show()

    def do_costs(self, costs: str) -> Answer:
        """Take other costs, as text for :meth:`minipipe.Costs.parse`."""
        self._check_free("costs")
        parsed = read_costs(json_value(costs, str, "the costs"))
        # This refuses costs for another number of stages.
        parsed.workload(self.draft.placement, self.draft.num_microbatches)
        self.costs_text = costs
        self.costs = parsed
        return self.do_show()

    def do_limit(self, limit: int | None) -> Answer:
        """Limit the (stage, microbatch) pairs that a rank may hold; None lifts the
        limit.
        """
        self._check_free("limit")
        if limit is not None:
            _LIMIT.check("limit", limit)
            # This refuses a limit that is too small for one microbatch.
            known_bound(self._workload(limit), Objective.MAKESPAN)
            problem = self.draft.problem(limit)
            if problem is not None:
                raise ScheduleError([problem])
        self.limit = limit
        return self.do_show()

    def _check_free(self, noun: str) -> None:
        if self.puzzle:
            problem = f"The {noun} belong to the puzzle"
            raise ArgumentError(f"{problem}; open a schedule to change them.")

    # -- searching ---------------------------------------------------------------------

    def do_search(self, seconds: float, again: bool = False) -> Answer:
        """Search for a number of seconds, at most 1, and report progress; a further
        message continues.
        """
        best = self._searched(self._workload(self.limit), seconds, again)
        search = self.search
        assert search is not None  # it has begun
        is_best = best.value <= search.bound * (1 + 1e-9)
        tried = f"{search.evaluations:,} schedules"
        said = f"Makespan {best.value:g} after {tried}; the bound is {search.bound:g}"
        if is_best:
            said += ": none is shorter"
        return _answer(f"{said}.", isDone=is_best)

    def _workload(self, limit: int | None) -> Workload:
        """Return the workload of the sizes of the draft, within a limit."""
        draft = self.draft
        return self.costs.workload(draft.placement, draft.num_microbatches, limit)

    def _searched(self, work: Workload, seconds: float, again: bool) -> SearchState:
        """Begin or continue the search, and return its best."""
        _SECONDS.check("seconds", seconds)
        if again or self.search is None or self.search.problem.workload != work:
            bound = known_bound(work, Objective.MAKESPAN)
            self.search = Search(work, Objective.MAKESPAN, bound.value, seed=0)
        return self.search.run(inf, seconds)

    def do_par(self, seconds: float, again: bool = False) -> Answer:
        """Compare the draft with named schedules, the lower bound and the best of a
        search, which a further message continues.
        """
        best = self._searched(self.sight.workload, seconds, again)
        if self._par is None or self._par.sight is not self.sight:
            self._par = Par(self.sight)
        return _answer(**self._par.compared(best, bool(self.puzzle)))

    def do_take(self) -> Answer:
        """Take the best schedule that the search has found."""
        if self.search is None or self.search.best is None:
            return self._refused("The search has no schedule yet; search first.")
        orders = self.search.best.run.orders
        workload = self.search.problem.workload
        draft = Draft.of(schedule_of(orders, workload, self.draft.name))
        self._check_fits_puzzle(draft)
        self.halves = True
        return self._change(draft, f"Found by {self.search.best.found_by}.")

    # -- building blocks ---------------------------------------------------------------

    def do_pattern(self, name: str = "") -> Answer:
        """Return the block of a named schedule, or a single microbatch."""
        Spec(str, choices=("", *PATTERNS)).check("The pattern", name)
        block = block_like(self.draft, name, self.costs)
        return _answer("", block=block_data(block))

    def do_block(self, text: str, interval: float) -> Answer:
        """Return what a block predicts."""
        block = BuildingBlock.from_text(text, interval, self.costs)
        return _answer("", block=block_data(block))

    def do_repeat(self, text: str, interval: float, microbatches: int) -> Answer:
        """Take the schedule that repeats a block."""
        block = BuildingBlock.from_text(text, interval, self.costs)
        SCHEDULE_COUNT.check("microbatches", microbatches)
        check_size(len(block.placement), microbatches)
        draft = Draft.of(block.unrolled(microbatches))
        self._check_fits_puzzle(draft)
        if (problem := draft.problem(self.limit)) is not None:
            raise ScheduleError([problem])
        self.halves = _has_halves(draft)
        predicted = by_rank(block.peak_activations)
        said = f"Repeated. The block predicts peaks of {predicted}."
        return self._change(draft, said)

    # -- leaving -----------------------------------------------------------------------

    def do_share(self) -> Answer:
        """Return the fragment of an address that holds the draft, its costs and its
        limit.
        """
        fragment = packed(self.draft, self.costs_text, self.limit, self.puzzle)
        said = "The address of this page now holds the schedule."
        return _answer(said, fragment=fragment)

    def do_export(self, form: str) -> Answer:
        """Return the content of a file: ``csv``, ``txt`` or ``svg``."""
        name = f"{self.draft.name.replace(' ', '-')}.{form}"
        content = self.sight.export(form)
        return _answer(f"Exported as {name}.", name=name, content=content)

    def do_save(self) -> Answer:
        """Write the file of ``minipipe edit``."""
        if self.file is None:
            return self._refused("This page has no file to save to; export one.")
        write_whole(self.file, self.sight.export(self.file.suffix[1:]))
        missing = len(self.draft.missing)
        run = f"mpirun -n {len(self.draft.rows)} python tutorials/train.py"
        program = f"{run} --schedule {self.file}"
        if missing:
            what = f"{self.file} is incomplete: {counted(missing, 'action')} missing"
            said = f"Warning: {what}. No program can run it yet."
            return _answer(f"{said} Place the rest and save again.", True)
        return _answer(f"Saved {self.file}. Train with it: {program}")


def _answer(said: str, is_refused: bool = False, **more: Any) -> Answer:
    return {"said": said, "isRefused": is_refused, **more}


def read_costs(text: str) -> Costs:
    """Return costs of text, in which memory counts (stage, microbatch) pairs, as the
    limit does.
    """
    return replace(
        Costs.parse(text),
        activation=1.0,
        weight_activation=None,
        transient_activation=0.0,
    )


def _has_halves(draft: Draft) -> bool:
    return any(action.kind is I for action in draft.actions)


def _in_text(text: str, problem: Problem) -> list[int] | None:
    """Return the line and the cell of a problem in a text or CSV, both from 1."""
    if problem.rank is None or problem.step is None:
        return None
    every = enumerate(text.splitlines(), 1)
    lines = [n for n, line in every if line.split("#", 1)[0].strip()]
    if problem.rank < len(lines):
        return [lines[problem.rank], problem.step + 1]
    return None
