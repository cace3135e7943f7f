"""The labels in the boxes of an SVG: one form for all boxes of a kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from minipipe.render.descriptions import short_label
from minipipe.render.layout import Axis, number, text_width
from minipipe.render.svg.lanes import Lane
from minipipe.render.svg.style import Letters, label_paint
from minipipe.schedules import Action, ActionKind, Span

_PADDING = 1.0  # pixels, on each side
_RISE = 0.36  # of the font size: from the middle of letters down to their base line
_CAPITALS = 0.73  # of the font size: the height of capitals and digits
_SIZES = (11.0, 10.0, 9.0, 8.0)  # pixels, at the default font size
_NEARLY_ALL = 0.95  # of the boxes of a kind: measured times have outliers


class _Form(NamedTuple):
    """A form of a label: with or without the stage, with or without the kind, upright
    or turned.
    """

    names_stage: bool
    names_kind: bool
    is_turned: bool


_FORMS = (
    _Form(True, True, False),
    _Form(False, True, False),
    _Form(True, True, True),
    _Form(False, True, True),
    _Form(False, False, False),
)
# The forms for labels that do not fit in any size.
_NOT_TURNED = tuple(form for form in _FORMS if not form.is_turned)
# A smaller size is better than a larger one that turns labels or drops the kind.
_UPRIGHT = _FORMS[:2]
_WITH_KIND = _FORMS[:4]


class Labels:
    """The labels of several lanes, of one size. Each kind of action has one form in all
    of them.

    The form is the first of ``2F3`` (if a rank holds several stages), ``F3``, these two
    turned, and ``3`` that fits into nearly all boxes of the kind, measured with the
    longest label of the kind. A box that is too narrow for it has no label. If most
    boxes of the kind in a row are too narrow, none of them has a label, because a few
    labels in a row would look accidental. F9 and F10 are therefore labelled alike in
    boxes of equal width.

    Parameters
    ----------
    lanes : sequence of Lane
    axis : Axis
        The axis of the lanes.
    height : float
        The height of the boxes, in pixels.
    letters : Letters

    Attributes
    ----------
    size : float
        The font size in pixels: the largest one with which all kinds have a form.
    """

    def __init__(
        self, lanes: Sequence[Lane], axis: Axis, height: float, letters: Letters
    ) -> None:
        self._scale = axis.scale
        self._height = height
        self._widths: defaultdict[ActionKind, list[float]] = defaultdict(list)
        # The width of the longest label, at a font size of 1.
        self._longest: defaultdict[tuple[ActionKind, _Form], float] = defaultdict(float)
        self._measure(lanes)
        sizes = [letters.size / 12 * size for size in _SIZES]
        sizes = [size for size in sizes if size <= height - 3] or sizes[-1:]
        wishes = product((_UPRIGHT, _WITH_KIND, _FORMS), sizes)
        fitting = (wish for wish in wishes if self._all_have_room(*wish))
        forms, size = next(fitting, (_NOT_TURNED, sizes[-1]))
        self.size = size
        self._forms = {kind: self._form(kind, forms) for kind in self._widths}

    def draw(self, lane: Lane) -> Iterator[str]:
        """Yield the labels of a lane, whose upper edge is at 0."""
        drawn: defaultdict[tuple[ActionKind, int], list[str]] = defaultdict(list)
        kinds = {kind for kind in self._forms if self._most_have_room(kind, lane.spans)}
        for action, start, end in lane.spans:
            form = self._forms[action.kind]
            if action.kind in kinds and self._fits(action.kind, end - start):
                x = (lane.x(start) + lane.x(end)) / 2
                written = _written(lane, action, form)
                text = f"<text {self._place(x, form)}>{written}</text>"
                drawn[action.kind, lane.panel.chunk_of(lane.rank, action)].append(text)
        for (kind, chunk), texts in drawn.items():
            yield f"<g {label_paint(kind, chunk)}>{''.join(texts)}</g>"

    def _most_have_room(self, kind: ActionKind, spans: Sequence[Span]) -> bool:
        """Return whether at least half of the boxes of a kind, in one row, are wide
        enough for their form.
        """
        boxes = (span for span in spans if span.action.kind is kind)
        fits = [self._fits(kind, end - start) for _, start, end in boxes]
        return 2 * sum(fits) >= len(fits)

    def _fits(self, kind: ActionKind, time: float) -> bool:
        return self._has_room(kind, self._forms[kind], self.size, time * self._scale)

    def _place(self, x: float, form: _Form) -> str:
        middle = self._height / 2
        if form.is_turned:
            place = f"{number(x + _RISE * self.size)} {number(middle)}"
            return f'transform="translate({place}) rotate(-90)"'
        return f'x="{number(x)}" y="{number(middle + _RISE * self.size)}"'

    def _measure(self, lanes: Sequence[Lane]) -> None:
        """Note the widths of all boxes, and the longest label of each kind in each
        form.
        """
        # Measured with the widest letter: otherwise a narrow I would have a longer form
        # than the F next to it.
        spans = chain.from_iterable(lane.spans for lane in lanes)
        kinds = {span.action.kind for span in spans}
        kinds = {kind for kind in kinds if not kind.is_of_rank}
        widest = max(
            kinds, key=lambda kind: text_width(kind, 1), default=ActionKind.FORWARD
        )
        for lane in lanes:
            for action, start, end in lane.spans:
                self._widths[action.kind].append((end - start) * self._scale)
                measured = action
                if not action.kind.is_of_rank:
                    measured = action._replace(kind=widest)
                for form in _FORMS:
                    width = text_width(_written(lane, measured, form), 1)
                    longest = self._longest[action.kind, form]
                    self._longest[action.kind, form] = max(longest, width)

    def _has_room(
        self, kind: ActionKind, form: _Form, size: float, width: float
    ) -> bool:
        """Return whether a box of this width is wide enough for the longest label of
        its kind.
        """
        length = size * self._longest[kind, form] + 2 * _PADDING
        if form.is_turned:
            return length <= self._height and _CAPITALS * size + _PADDING <= width
        return length <= width

    def _fraction(self, kind: ActionKind, form: _Form, size: float) -> float:
        """Return the fraction of the boxes of a kind that are wide enough for a
        form.
        """
        widths = self._widths[kind]
        fitting = sum(self._has_room(kind, form, size, width) for width in widths)
        return fitting / len(widths)

    def _all_have_room(self, forms: tuple[_Form, ...], size: float) -> bool:
        # Instructions of a rank have long names, which may be left out.
        kinds = (kind for kind in self._widths if not kind.is_of_rank)
        return all(
            any(self._fraction(kind, form, size) >= _NEARLY_ALL for form in forms)
            for kind in kinds
        )

    def _form(self, kind: ActionKind, forms: Sequence[_Form]) -> _Form:
        """Return the first form that fits into nearly all boxes of a kind, or the one
        that fits into the most.
        """
        fractions = {form: self._fraction(kind, form, self.size) for form in forms}
        fitting = (form for form in forms if fractions[form] >= _NEARLY_ALL)
        return next(fitting, max(forms, key=fractions.__getitem__))


def _written(lane: Lane, action: Action, form: _Form) -> str:
    if form.names_kind or action.kind.is_of_rank:
        names_stage = form.names_stage and lane.panel.names_stage(lane.rank)
        return short_label(action, names_stage)
    return str(action.microbatch)
