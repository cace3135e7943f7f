"""The class of the difference of each gradient and weight.

Each kind of array has a list of cases, of which the first that holds decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf, sqrt
from typing import Any

import numpy as np

from minipipe.referee.bounds import DOUBT, GROWTH, Assumed, norm
from minipipe.referee.causes import described_weights, weights_of
from minipipe.referee.files import Name, Run
from minipipe.referee.formats import FLOAT32
from minipipe.referee.pairs import Pair
from minipipe.referee.report import Difference, Verdict

# A gradient that is 0 in exact arithmetic, such as the bias of keys in attention,
# consists of rounding errors. It is compared with this part of all gradients.
_LEAST = 0.01
_SURELY_STRUCTURED = 32  # unit roundoffs
_VISIBLE = 0.01  # the largest bound from repetitions: a bug could hide below
_VISIBLE_UPDATE = 1e-3  # the same of an update
_ALONE = 32.0  # times the whole difference, relative to one row
_SPREAD = 8.0  # times the spread of repeated runs
_SMALL = 0.05  # of an update by an optimiser that magnifies small gradients
_ACCUMULATED = 16  # microbatches, if a run records none
# Times the bound of a coarse format, which no sum makes larger.
_DOUBT_OF_PRODUCTS = 8.0

# Evidence that would decide.
SEEDS = "functions whose repetitions differ only by rounding: fix seeds"
GRADIENTS = "gradients of step 1 (gradients/NAME), compared to their last digits"
_PRECISION = "whether a run computed in float32 (precision)"
_TERMS = "the number of terms of a sum (terms), or both runs in float64"
_FLOAT32 = "both runs with sums and products in float32: a bug stays as large"
_PARTS = "what each microbatch adds to the sum (microbatch/K/gradients/NAME)"
_START = "the weights before the first step (step/0/weights/NAME), and their step"
_WEIGHTS = "weights in float64, after each step: their digits hide a wrong update"

Spread = Mapping[Name, Any]


class Judge:
    """Compares the gradients and weights of two runs, step by step.

    Parameters
    ----------
    a, b : mapping of Name to array
    assumed : Assumed
    spread : mapping of Name to float
        Differences between repetitions of a run, as norms relative to the array's;
        empty if the runs cannot be repeated.
    """

    def __init__(self, a: Run, b: Run, assumed: Assumed, spread: Spread) -> None:
        self.a = a
        self.b = b
        self.assumed = assumed
        self.spread = spread
        self.parts_of_a = _microbatches(a)
        self.parts_of_b = _microbatches(b)

    def _pairs(self, kind: str) -> list[Pair]:
        common = sorted(self.a.keys() & self.b.keys())
        return [Pair(it, self.a[it], self.b[it]) for it in common if it.kind == kind]

    def _terms(self, name: Name) -> list[np.ndarray]:
        """Return the parts of a gradient that microbatches added in A, or in B."""
        run, numbers = self.a, self.parts_of_a[name]
        if not numbers:
            run, numbers = self.b, self.parts_of_b[name]
        return [run[name._replace(microbatch=number)] for number in numbers]

    # -- gradients ---------------------------------------------------------------------

    def gradients(self) -> Iterator[Difference]:
        """Yield the differences of gradients. In later steps they may be larger, as
        rounding errors grow.
        """
        by_step = defaultdict(list)
        for pair in self._pairs("gradients"):
            by_step[pair.name.step].append(pair)
        allowed = 0.0
        for number, (step, pairs) in enumerate(sorted(by_step.items()), 1):
            results = list(self._of_step(pairs, allowed))
            if step != number:
                missing = f"the gradients of each step from 1 to {step}"
                results = [each.in_doubt(missing) for each in results]
            yield from results
            if any(each.verdict is Verdict.BUG for each in results):
                return  # later steps differ because this one does
            allowed = max(allowed, *(GROWTH * each.size for each in results))

    def _of_step(self, pairs: list[Pair], allowed: float) -> Iterator[Difference]:
        cause = ""
        if not allowed:
            cause = self._cause([pair for pair in pairs if pair.name.microbatch < 0])
        groups = defaultdict(list)
        for pair in pairs:
            groups[pair.name.microbatch].append(pair)
        harmless: set[Name] = set()
        for microbatch, group in sorted(groups.items()):
            count = max(1, sum(pair.a.size for pair in group))
            least = _LEAST * norm(*(pair.a for pair in group)) / sqrt(count)
            for pair in group:
                whole = pair.name._replace(microbatch=-1)
                # parts find what is wrong with their sum, if they are the same parts
                if microbatch >= 0 and (
                    whole in harmless
                    or self.parts_of_a[whole] != self.parts_of_b[whole]
                ):
                    continue
                length = max(pair.length, least * sqrt(pair.a.size))
                found = self._gradient(pair, length, allowed)
                if cause and microbatch < 0:
                    found = self._with_cause(found, pair, cause)
                if found.decides:
                    harmless.add(pair.name)
                yield found

    def _gradient(self, pair: Pair, length: float, allowed: float) -> Difference:
        arithmetic = self.assumed.format_of(pair.grid)
        terms = self._terms(pair.name)
        bound = self.assumed.bound(arithmetic)
        if terms and length:
            bound *= max(1.0, sum(map(norm, terms)) / length)
        if self.spread:
            bound = max(_SPREAD * self.spread.get(pair.name, 0.0), 4 * arithmetic.unit)
        found = pair.difference(length, max(bound, allowed))
        if pair.is_same:
            return found
        if pair.is_coarse:
            return _of_coarse(pair, found, terms)
        return self._of_fine(pair, found, length)

    def _of_fine(self, pair: Pair, found: Difference, length: float) -> Difference:
        """Judge arrays with the digits of float32, or more."""
        size = found.size
        bound = found.bound
        arithmetic = self.assumed.format_of(pair.grid)
        is_coarse = arithmetic.digits < FLOAT32.digits
        doubt = _DOUBT_OF_PRODUCTS if is_coarse else DOUBT
        is_beyond = size > bound
        is_double = arithmetic.digits > FLOAT32.digits
        is_unclear = is_double and not self.assumed.precision
        is_single = is_unclear and size <= self.assumed.bound(FLOAT32)
        where = f"{size:.1e} of its norm, the bound is {bound:.1e}"
        of_row, row = pair.worst_row(length)
        is_of_row = of_row > max(DOUBT * bound, _ALONE * size)
        of_a, of_b = pair.formats
        is_rounded = of_a != of_b and size > max(of_a.unit, of_b.unit) / 64
        is_wide = self.spread and bound > _VISIBLE
        is_rounded = is_rounded and not is_beyond and not is_coarse
        missing = _FLOAT32 if is_coarse else _TERMS
        return found.judged(
            (is_wide, Verdict.CANNOT_TELL, f"repeated, {where}", SEEDS),
            (is_of_row, Verdict.BUG, f"{of_row:.1e} of the norm of {row}, and {where}"),
            (is_beyond and is_single, Verdict.CANNOT_TELL, where, _PRECISION),
            (is_rounded, Verdict.ROUNDING, f"arithmetic in {pair.grid.name}: {where}"),
            *found.by_size(where, missing, doubt, is_coarse),
        )

    # -- causes ------------------------------------------------------------------------

    def _cause(self, pairs: list[Pair]) -> str:
        """Return a sentence if the microbatches have other weights in B."""
        if not pairs:
            return ""
        numbers = self.parts_of_a[pairs[0].name]
        if any(self.parts_of_a[pair.name] != numbers for pair in pairs):
            numbers = []
        terms = [
            _joined(self.a[pair.name._replace(microbatch=number)] for pair in pairs)
            for number in numbers
        ]
        total = _joined(pair.a for pair in pairs)
        weights = weights_of(total, _joined(pair.b for pair in pairs) - total, terms)
        if not weights:
            return ""
        return described_weights(weights, numbers)

    def _with_cause(self, found: Difference, pair: Pair, cause: str) -> Difference:
        """Judge a difference with a cause as a bug, even if it is small: rounding
        errors have none.
        """
        unit = self.assumed.format_of(pair.grid).unit
        is_large = found.size > _SURELY_STRUCTURED * unit
        is_repeated = found.verdict is Verdict.ROUNDING
        is_bug = found.verdict is Verdict.BUG or (is_large and not is_repeated)
        return found.judged((is_bug, Verdict.BUG, cause))

    # -- weights -----------------------------------------------------------------------

    def weights(self) -> Iterator[Difference]:
        """Yield the differences of weights, relative to their change since step 0."""
        results: dict[Name, Difference] = {}
        for pair in self._pairs("weights"):
            before = results.get(pair.name._replace(step=pair.name.step - 1))
            results[pair.name] = self._weight(pair, before)
        num_bad = sum(each.verdict is Verdict.BUG for each in results.values())
        for each in results.values():
            # One gradient may consist of rounding errors, which some optimisers make
            # as large as any other.
            is_alone = 2 * num_bad < len(results) and each.step != 0
            if is_alone and self.assumed.optimiser != "sgd":
                each = each.in_doubt(GRADIENTS)
            yield each

    def _weight(self, pair: Pair, before: Difference | None) -> Difference:
        """Judge a weight; ``before`` is its difference one step before, if known."""
        found = pair.difference(pair.length, pair.grid.unit)
        if pair.is_same:
            return found
        start = self.a.get(pair.name._replace(step=0))
        of_a, of_b = pair.formats
        if of_a != of_b and (words := pair.repeated()):
            return found.judged((True, Verdict.ROUNDING, words))
        if start is None or pair.name.step <= 0:
            first = "the runs start from different weights"
            unknown = "the update is unknown, to which its error is relative"
            return found.judged(
                (pair.name.step == 0, Verdict.BUG, first),
                (True, Verdict.CANNOT_TELL, unknown, _START),
            )
        update = max(norm(pair.a - start), norm(pair.b - start))
        found = pair.difference(update, self._of_update(pair, update, before))
        where = f"{found.size:.1e} of the update, the bound is {found.bound:.1e}"
        is_small = self.assumed.optimiser != "sgd" and found.size < _SMALL
        doubt = inf if is_small else DOUBT
        has_gradient = pair.name._replace(kind="gradients") in self.a
        missing = _WEIGHTS if has_gradient else GRADIENTS
        is_hidden = found.bound > _VISIBLE_UPDATE
        return found.judged(*found.by_size(where, missing, doubt, is_hidden))

    def _of_update(self, pair: Pair, update: float, before: Difference | None) -> float:
        """Return the bound on the difference of weights, relative to their update."""
        arithmetic = self.assumed.format_of(pair.grid)
        step = pair.name.step
        bound = self.assumed.bound(arithmetic)
        if self.spread:
            bound = _SPREAD * self.spread.get(pair.name, 0.0) * pair.length / update
        elif before is not None:
            bound = max(bound, GROWTH * before.size)
        else:
            bound *= GROWTH ** (step - 1)
        return bound + 2 * arithmetic.unit * sqrt(step) * pair.length / update


def _of_coarse(pair: Pair, found: Difference, terms: list[np.ndarray]) -> Difference:
    """Judge arrays of which one has few digits."""
    grid = pair.grid
    bound = 8 * sqrt(len(terms) or _ACCUMULATED) * grid.unit
    words = pair.repeated(terms)
    where = f"{found.size:.1e} of its norm; rounding to {grid.name} does not repeat it"
    missing = _FLOAT32 if terms else _PARTS
    found = found._replace(bound=bound)
    by_size = found.by_size(where, missing, doubt=1.0, is_blind=True)
    return found.judged((words, Verdict.ROUNDING, words), *by_size)


def _microbatches(run: Run) -> dict[Name, list[int]]:
    """Return by gradient the microbatches whose parts a run records."""
    numbers: dict[Name, list[int]] = defaultdict(list)
    for name in sorted(run):
        if name.microbatch >= 0:
            numbers[name._replace(microbatch=-1)].append(name.microbatch)
    return numbers


def _joined(arrays: Iterator[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])
