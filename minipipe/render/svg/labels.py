"""The labels in the boxes of an SVG: as much of an action's name as there is room for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from minipipe.render.axis import Axis
from minipipe.render.descriptions import short_label
from minipipe.render.lettering import number, text_width
from minipipe.render.panel import Panel
from minipipe.render.svg.lanes import is_drawn
from minipipe.render.svg.style import box_class
from minipipe.schedules.action import Action, ActionKind
from minipipe.simulation.span import Span

__all__ = ["Labels"]

_PADDING = 1.0  # pixels, on each side
_RISE = 0.36  # of the size of letters: from their middle down to the line on which they stand


class _Form(NamedTuple):
    """A way to write a label: with the stage, with the kind, and whether turned, to be read upwards."""

    names_stage: bool
    names_kind: bool
    is_turned: bool


_FORMS = (
    _Form(True, True, False),
    _Form(False, True, False),
    _Form(False, False, False),
    _Form(True, True, True),
    _Form(False, True, True),
)
_PLAIN = _FORMS[:2]  # what is large enough to be wished for before all others


class Labels:
    """What stands in the boxes of a panel: boxes of one width say equally much, whatever their letter.

    A label is ``2F3`` where the rank holds several stages, otherwise ``F3``. Where there is no room it is shortened to
    ``F3`` and to ``3``, then turned, then left out.

    Parameters
    ----------
    panel : Panel
    axis : Axis
    height : float
        Of the boxes, in pixels.

    Attributes
    ----------
    size : float
        Of the letters, in pixels: as large as can be with which nearly all boxes have room for a label.
    """

    def __init__(self, panel: Panel, axis: Axis, height: float) -> None:
        self._panel, self._axis, self._height = panel, axis, height
        self._widths: defaultdict[ActionKind, list[float]] = defaultdict(list)
        self._longest: defaultdict[tuple[ActionKind, _Form], float] = defaultdict(float)  # with letters of size 1
        kinds = {span.action.kind for row in panel.timeline.spans for span in row if is_drawn(span)}
        # Measured with the widest letter, or a narrow I would say more than the F beside it.
        widest = max(kinds, key=lambda kind: text_width(kind, 1), default=ActionKind.FORWARD)
        for rank, row in enumerate(panel.timeline.spans):
            for action, start, end in filter(is_drawn, row):
                self._widths[action.kind].append((end - start) * axis.scale)
                for form in _FORMS:
                    width = text_width(self._written(rank, action._replace(kind=widest), form), 1)
                    self._longest[action.kind, form] = max(self._longest[action.kind, form], width)
        sizes = [size for size in (11.0, 10.0, 9.0, 8.0) if size <= height - 3]
        wishes = ((size, forms) for forms in (_PLAIN, _FORMS) for size in sizes)
        self.size = next((size for size, forms in wishes if self._all_have_room(forms, size)), sizes[0])
        self._first = {kind: self._first_form(kind) for kind in self._widths}

    def draw(self, rank: int) -> Iterator[str]:
        """Yield the labels of a rank's boxes; the lane's upper edge is at 0."""
        origin, middle = self._panel.timeline.start, self._height / 2
        for span in filter(is_drawn, self._panel.timeline.spans[rank]):
            form = self._form(span)
            if form is None:
                continue
            name = box_class(span.action.kind, self._panel.chunk_of(rank, span.action.stage))
            x = (self._axis.x(span.start - origin) + self._axis.x(span.end - origin)) / 2
            place = f'x="{number(x)}" y="{number(middle + _RISE * self.size)}"'
            if form.is_turned:
                place = f'transform="translate({number(x + _RISE * self.size)} {number(middle)}) rotate(-90)"'
            yield f'<text class="label on-{name}" {place}>{self._written(rank, span.action, form)}</text>'

    def _form(self, span: Span) -> _Form | None:
        """Return how the label of a box is written, or None where there is no room for any."""
        kind, width = span.action.kind, (span.end - span.start) * self._axis.scale
        return next(
            (form for form in _FORMS[self._first[kind] :] if self._has_room(kind, form, self.size, width)), None
        )

    def _written(self, rank: int, action: Action, form: _Form) -> str:
        if form.names_kind:
            return short_label(action, form.names_stage and self._panel.names_stage(rank))
        return str(action.microbatch)

    def _has_room(self, kind: ActionKind, form: _Form, size: float, width: float) -> bool:
        """Tell whether a box of so many pixels has room for the longest label of its kind."""
        length = size * self._longest[kind, form] + 2 * _PADDING
        return length <= self._height and size <= width if form.is_turned else length <= width

    def _most_have_room(self, kind: ActionKind, form: _Form, size: float) -> bool:
        widths = self._widths[kind]
        return sum(self._has_room(kind, form, size, width) for width in widths) >= 0.95 * len(widths)

    def _all_have_room(self, forms: tuple[_Form, ...], size: float) -> bool:
        return all(any(self._most_have_room(kind, form, size) for form in forms) for kind in self._widths)

    def _first_form(self, kind: ActionKind) -> int:
        """Return the first form for which nearly all boxes of a kind have room, so that they look alike."""
        return next((i for i, form in enumerate(_FORMS) if self._most_have_room(kind, form, self.size)), 1)
