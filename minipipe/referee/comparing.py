"""Two runs, or two functions that make them, and the verdict on their differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minipipe.core.specs import COUNT, Spec
from minipipe.errors import ArgumentError
from minipipe.referee.bounds import TERMS, Assumed, norm
from minipipe.referee.files import KINDS, LOSS, Name, Run, check_alike, read_run, run_of
from minipipe.referee.formats import FLOAT32, FLOAT64, FORMATS, Format, format_of
from minipipe.referee.growth import judge_losses
from minipipe.referee.judging import Judge
from minipipe.referee.pairs import Pair
from minipipe.referee.report import Difference, Report, Verdict

OPTIMISERS = ("sgd", "adam")
_CURVE = Name(-1, -1, LOSS, "")
_FEWEST = 32  # values that together prove a rounding
_SCALES = "the optimiser, if it is SGD (optimiser), or the gradients of step 1 "
_SCALES += "(gradients/NAME): under Adam and its like, a gradient of the wrong scale "
_SCALES += "trains alike"


class Variation:
    """Changes in a run that only rounding errors can notice.

    A function that :func:`referee` repeats applies them: it takes its microbatches in
    :meth:`order`, and passes its first weights through :meth:`nudge`.

    Parameters
    ----------
    number : int
        0 changes nothing; each other number makes other changes.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe.testing import Variation
    >>> Variation(0).order(4), sorted(Variation(1).order(4))
    ([0, 1, 2, 3], [0, 1, 2, 3])
    >>> float(abs(Variation(1).nudge(np.ones(9, np.float32)) - 1).max()) <= 2**-23
    True
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._random = np.random.default_rng(number)

    def order(self, num_microbatches: int) -> list[int]:
        """Return the microbatches in the order in which to add their gradients."""
        if not self.number:
            return list(range(num_microbatches))
        return self._random.permutation(num_microbatches).tolist()

    def nudge(self, array: np.ndarray) -> np.ndarray:
        """Return an array of which about half of the elements have the next number."""
        if not self.number:
            return array
        towards = self._random.choice([-np.inf, np.inf], array.shape)
        moved = self._random.random(array.shape) < 0.5
        return np.where(moved, np.nextafter(array, towards.astype(array.dtype)), array)


Source = str | Path | Mapping[str, Any] | Callable[[Variation], Mapping[str, Any]]


def referee(
    a: Source,
    b: Source,
    *,
    kind: str = "",
    precision: str | None = None,
    terms: int = TERMS,
    optimiser: str = "",
    repeats: int = 3,
) -> Report:
    """Compare two runs, and say whether their difference is a bug.

    Parameters
    ----------
    a, b : str, Path, mapping of str to array, or function
        Files that end in .npz or .safetensors, or their contents by name: ``"loss"`` of
        shape (steps,), ``"gradients/NAME"``, ``"weights/NAME"``. ``"step/3/"`` before
        such a name is the step, from 1 (of weights, from 0, before the first update);
        ``"microbatch/2/"`` behind it is the part that a microbatch adds to a gradient.
        A function takes a :class:`Variation` and returns such a mapping; it is called
        ``1 + repeats`` times, to measure by how much rounding errors grow.
    kind : str
        ``"gradients"`` (of step 1) or ``"weights"``: the kind of names without one.
    precision : str, optional
        ``"float64"``, ``"float32"``, ``"float16"`` or ``"bfloat16"``: the arithmetic of
        the runs, if it is not the format of their arrays.
    terms : int
        The number of terms of a sum, such as the tokens of a batch.
    optimiser : str
        ``"sgd"``, also with momentum; ``"adam"`` for all that divide by the size of
        a gradient. Loss curves of the latter cannot show a wrong scale.
    repeats : int
        How often each function is repeated.

    Returns
    -------
    Report

    Raises
    ------
    ArgumentError
        Codes ``value``, ``type``, ``name``, ``shape``, ``dtype``, ``not-finite``,
        ``missing`` and ``duplicate``; ``not-repeatable``, if a function ignores its
        variation.
    FileError
        Codes ``unreadable`` and ``too-large``.

    Notes
    -----
    An order of summation is accepted within a bound (:mod:`minipipe.referee.bounds`).
    The bounds of coarse precisions are too wide to exclude a bug, so they are accepted
    only if the rounding can be repeated: B's bits follow from A's numbers. Otherwise
    the verdict is ``cannot tell``, with the evidence that is missing.

    Examples
    --------
    The same terms, added one after the other and in pairs:

    >>> import numpy as np
    >>> from minipipe.testing import referee
    >>> x = np.random.default_rng(0).standard_normal((1000, 50)).astype(np.float32)
    >>> one_by_one = np.add.accumulate(x)[-1]
    >>> in_blocks = x.reshape(10, 100, 50).sum(axis=1).sum(axis=0)
    >>> name = "gradients/0.weight"
    >>> print(referee({name: one_by_one}, {name: in_blocks}).verdict)
    order of summation
    >>> print(referee({name: one_by_one}, {name: x[1:].sum(axis=0)}).verdict)
    bug
    """
    named = (
        ("kind", kind, KINDS),
        ("precision", precision, FORMATS),
        ("optimiser", optimiser, OPTIMISERS),
    )
    for name, value, choices in named:
        if value:
            Spec(str, choices=tuple(choices)).check(name, value)
    COUNT.check("terms", terms)
    COUNT.check("repeats", repeats)
    assumed = Assumed(FORMATS.get(precision or ""), terms, optimiser)
    runs_of_a = _runs(a, "A", kind, repeats)
    return _report(runs_of_a, _runs(b, "B", kind, repeats), assumed)


def _runs(source: Source, letter: str, kind: str, repeats: int) -> list[Run]:
    """Return the record of a run; of a function also its variations."""
    if isinstance(source, str | Path):
        return [read_run(source, kind)]
    if isinstance(source, Mapping):
        return [run_of(source, letter, kind)]
    if not callable(source):
        message = f"{letter} is {type(source).__name__}; expected the path of a file"
        raise ArgumentError("type", f"{message}, a mapping of arrays or a function.")
    runs = []
    for number in range(repeats + 1):
        runs.append(run_of(source(Variation(number)), letter, kind))
        check_alike(runs[0], runs[-1])
    first, *others = runs
    if all(np.array_equal(run[name], first[name]) for run in others for name in first):
        message = f"{letter} gives the same bits with every variation; expected other "
        message += "last digits. Take microbatches in variation.order(m), and pass the "
        message += "first weights through variation.nudge(weights)."
        raise ArgumentError("not-repeatable", message)
    return runs


def _report(runs_of_a: list[Run], runs_of_b: list[Run], assumed: Assumed) -> Report:
    a = runs_of_a[0]
    b = runs_of_b[0]
    check_alike(a, b)
    spread = _spread(runs_of_a, runs_of_b)
    differences = []
    if _CURVE in a:
        usual = _arithmetic(a, b)
        pair = Pair(_CURVE, a[_CURVE], b[_CURVE])
        differences.append(judge_losses(pair, assumed, spread.get(_CURVE), usual))
    judge = Judge(a, b, assumed, spread)
    differences += [*judge.gradients(), *judge.weights()]
    together = _together(differences, a, assumed)
    judgement = (together.verdict, together.evidence, together.missing)
    return Report(*judgement, tuple(differences), str(assumed))


def _arithmetic(a: Run, b: Run) -> Format:
    """Return float64 if all gradients and weights have its digits, else float32."""
    others = [run[name] for run in (a, b) for name in run if name != _CURVE]
    if others and all(format_of(array) == FLOAT64 for array in others):
        return FLOAT64
    return FLOAT32


def _spread(*both: list[Run]) -> dict[Name, Any]:
    """Return by name the largest relative difference between repetitions of a run,
    among those with the digits of float32, or more: of losses, for each step.
    """
    spread: dict[Name, Any] = {}
    for first, *others in both:
        for name, array in first.items():
            if format_of(array).digits < FLOAT32.digits:
                continue
            for run in others:
                size: Any = norm(run[name] - array) / (norm(array) or 1.0)
                if name == _CURVE:
                    size = np.abs(run[name] - array)
                    size /= np.maximum(np.abs(array), 1e-300)
                spread[name] = np.maximum(size, spread.get(name, 0.0))
    return spread


def _together(
    differences: Sequence[Difference], a: Run, assumed: Assumed
) -> Difference:
    """Return the difference that decides, judged for both runs."""
    verdict = max((each.verdict for each in differences), key=lambda each: each.rank)
    decisive = [each for each in differences if each.verdict is verdict]
    worst = max(decisive, key=lambda each: each.size / (each.bound or 1.0))
    missing = dict.fromkeys(each.missing for each in decisive if each.missing)
    sizes = {(str(name), name.step): values.size for name, values in a.items()}
    num_values = sum(sizes.get((it.name, it.step), _FEWEST) for it in decisive)
    is_chance = verdict is Verdict.ROUNDING and num_values < _FEWEST
    few = f"{worst.evidence}; so few values could agree by chance"
    has_gradients = any(name.kind == "gradients" for name in a)
    sees_scales = has_gradients or assumed.optimiser == "sgd"
    is_blind = verdict is Verdict.ORDER and not sees_scales
    alone = verdict is Verdict.BUG and _alone(differences, decisive)
    return worst.judged(
        (is_blind, Verdict.CANNOT_TELL, worst.evidence, _SCALES),
        (is_chance, Verdict.CANNOT_TELL, few, "more arrays of the same runs"),
        (worst.decides, verdict, f"{worst.name}: {worst.evidence}"),
        (True, verdict, alone or worst.evidence, "; ".join(missing)),
    )


def _alone(differences: Sequence[Difference], bad: Sequence[Difference]) -> str:
    """Return a sentence if a single gradient is wrong."""
    wrong = {each.name for each in bad}
    others = {each.name for each in differences if each.name.startswith("gradients/")}
    if len(wrong) > 1 or wrong == others or not wrong <= others:
        return ""
    words = f"only {bad[0].name} is beyond its bound: {bad[0].evidence}"
    return f"{words}. A weight that is used several times may be counted once"
