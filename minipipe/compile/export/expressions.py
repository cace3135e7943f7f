"""The lines of a trace as a person writes them.

A trace has a line for each call of NumPy. Here views are inlined, and checks are left
out. Repeated parts are the subject of `units.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from minipipe.compile.export.constants import Constants
from minipipe.compile.export.texts import HELPERS
from minipipe.compile.places import needed_lines
from minipipe.compile.statements import PLACEHOLDER, Statement, substituted
from minipipe.compile.trace import Line, Trace
from minipipe.errors import ModelError

_UNIFORM = re.compile(
    r"uniform\((\{\w+\}), \{key\}\._replace\(layer=(\{layer:\d+\}), draw=(\d+)\), "
    r"\(0, 1\)\)"
)
_IS_ARITHMETIC = re.compile(r"^\S+ ([-+*/]=?|[<>!=]=|[<>]) \S+$")
_MASKED = re.compile(
    r"\{(?P<a>v\d+)\} = (?P<values>.+)\.view\(np\.int(?P<size>32|64)\)\n"
    r"\{(?P<b>v\d+)\} = (?P<mask>.+)\.astype\(np\.int(?P=size)\)\n"
    r"\{(?P<c>v\d+)\} = \{(?P=a)\} \* \{(?P=b)\}\n"
    r"\{(?P<result>v\d+)\} = \{(?P=c)\}\.view\(np\.float(?P=size)\)"
)
_RESHAPED = re.compile(r"\.reshape\((?:[^()]|\([^()]*\))*\)(?=\.reshape\()")
_LONGEST = 76  # characters of a line with inlined ones


class Writer:
    """Converts the lines of a trace to statements.

    Parameters
    ----------
    trace : Trace
    parameters : sequence of str
        The names of the stage's parameters.
    gradients : sequence of str
        The names of the gradients of their uses.
    constants : Constants
        The constants of the rank.

    Attributes
    ----------
    sections : dict of str to list of Statement
    results : dict of str to list of str
        By section, the names of its results, without missing ones.

    Raises
    ------
    ModelError
        Code ``unsupported``: a call of a function that a stand-alone file lacks.
    """

    def __init__(
        self,
        trace: Trace,
        parameters: Sequence[str],
        gradients: Sequence[str],
        constants: Constants,
    ) -> None:
        self._trace = trace
        self._constants = constants
        self._parameters = parameters
        self._gradients = gradients
        self._values = dict(trace.constants.values())
        self.results = {
            section: [name for name in names if name != "None"]
            for section, names in trace.results.items()
        }
        self.sections = {
            section: list(self._statements(lines))
            for section, lines in needed_lines(trace).items()
        }
        for section in self.sections:
            self._write_views_once(section)
            self._write_masks(section)
            self._inline(section)

    def _statements(self, lines: Iterable[Line]) -> Iterator[Statement]:
        for line in lines:
            if line.leaf is not None:
                gradient = self._gradients[line.leaf]
                text = f"add_gradient({{d:{gradient}}}, {{{line.reads[0]}}})"
                yield Statement(text)
            elif not line.has_effect:
                yield self._statement(line)
            elif not line.form.text.startswith("check_"):
                called = line.form.text.partition("(")[0]
                raise _unsupported(called, "which has an effect beyond its result")

    def _statement(self, line: Line) -> Statement:
        text = _UNIFORM.sub(r"uniform(\1, \2, k, \3)", line.form.text)
        if "{key}" in text:
            message = "which divides random numbers among ranks"
            raise _unsupported("uniform", message)
        text = self._with_functions(text)
        text = line.left + substituted(text, lambda name: self._named(name, text, line))
        variables = self._trace.variables
        is_view = line.makes_one and len(line.reads) == 1 and not line.changes
        is_view = is_view and variables[line.makes[0]].root != line.makes[0]
        return Statement(text, line.makes, line.changes, line.layer, is_view)

    def _named(self, name: str, text: str, line: Line) -> str:
        """Return the placeholder for a name, or a number."""
        if name[0] == "p":
            return f"{{w:{self._parameters[int(name[1:])]}}}"
        if name[0] != "c":
            return f"{{{name}}}"
        value = self._values[name]
        number = self._number(value, line)
        if number and _IS_ARITHMETIC.match(text):
            return number
        return self._constants.name_of(value)

    def _number(self, value: object, line: Line) -> str:
        """Return a constant as a number of Python; empty if that changes a dtype."""
        if not isinstance(value, np.ndarray | np.generic) or value.shape != ():
            return ""
        others = [n for n in (*line.reads, *line.changes) if n[0] in "vxgp"]
        dtypes = {self._trace.variables[name].dtype for name in others}
        is_plain = dtypes == {value.dtype} and value.dtype.kind == "f"
        number = float(value)
        if not is_plain or not np.isfinite(number):
            return ""
        if np.signbit(number):
            return f"({number!r})"
        return repr(number)

    def _with_functions(self, text: str) -> str:
        """Write the functions of NumPy with their module."""
        for name, function in self._trace.functions.items():
            called = re.compile(rf"(?<![\w.{{'\"]){name}(?![\w}}'\"=])")
            if not called.search(text):
                continue
            if getattr(np, name, None) is function:
                text = called.sub(f"np.{name}", text)
            elif name not in HELPERS:
                raise _unsupported(name, f"a function of {function.__module__}")
        return re.sub(r"(?<![\w.])numpy\.", "np.", text)

    # -- views -------------------------------------------------------------------------

    def _write_views_once(self, section: str) -> None:
        """Remove views that an earlier line of the section makes."""
        known: dict[str, str] = {}
        same: dict[str, str] = {}
        kept = []
        for statement in self.sections[section]:
            each = _renamed(statement, same)
            if each.is_view:
                (name,) = each.makes
                earlier = known.setdefault(each.expression, name)
                if earlier != name:
                    same[name] = earlier
                    continue
            kept.append(each)
        self.sections[section] = kept
        for later, statements in self.sections.items():
            self.sections[later] = [_renamed(each, same) for each in statements]
        results = self.results[section]
        self.results[section] = [same.get(name, name) for name in results]

    def _inline(self, section: str) -> None:
        """Write a view, or the term of a gradient, in the line that uses it."""
        uses = self._uses()
        inlined: list[Statement] = []
        for each in self.sections[section]:
            for name in each.reads:
                maker = next((s for s in inlined if s.makes == (name,)), None)
                if maker is None or uses[name] > 1 or name in each.changes:
                    continue
                if self._can_move(maker, each, inlined):
                    text = _with(each.text, name, maker.expression)
                    each = replace(each, text=text, is_view=False)
                    inlined.remove(maker)
            inlined.append(replace(each, text=_RESHAPED.sub("", each.text)))
        self.sections[section] = inlined

    def _write_masks(self, section: str) -> None:
        """Write a product of bits, by which minipipe selects numbers, as a selection.

        ``(v2.view(np.int32) * mask.astype(np.int32)).view(np.float32)`` has the bits of
        ``np.where(mask, v2, 0)``, in a quarter of the time.
        """
        uses = self._uses()
        statements = list[Statement]()
        for each in self.sections[section]:
            statements.append(each)
            last = statements[-4:]
            match = _MASKED.fullmatch("\n".join(s.text for s in last))
            if match is None:
                continue
            between = match.group("a", "b", "c")
            if any(uses[name] > 1 for name in between):
                continue
            mask, values, result = match.group("mask", "values", "result")
            text = f"{{{result}}} = np.where({mask}, {values}, 0)"
            statements[-4:] = [Statement(text, (result,), layer=each.layer)]
        self.sections[section] = statements

    def _can_move(
        self, maker: Statement, reader: Statement, before: Sequence[Statement]
    ) -> bool:
        """Return whether a line may be inlined in a later one."""
        is_of_one_layer = (
            maker.layer == reader.layer
        )  # else repeated layers would differ
        is_assignment = maker.text.startswith(f"{{{maker.makes[0]}}} = ")
        if not is_assignment or maker.changes or not is_of_one_layer:
            return False
        length = _length(maker.expression) + _length(reader.text)
        if length > _LONGEST:
            return False
        if maker.is_view:
            return True
        roots = {self._root(name) for name in maker.reads}
        between = before[before.index(maker) + 1 :]
        return not any(self._root(n) in roots for s in between for n in s.changes)

    def _uses(self) -> Counter[str]:
        uses: Counter[str] = Counter()
        for statements in self.sections.values():
            for each in statements:
                uses.update(PLACEHOLDER.findall(each.expression or each.text))
        for results in self.results.values():
            uses.update(2 * results)  # twice, so that they are not inlined
        return uses

    def _root(self, name: str) -> str:
        return self._trace.variables[name].root


def _length(text: str) -> int:
    return len(substituted(text, _of_typical_length))


def _of_typical_length(name: str) -> str:
    """Return a name that is as long in all layers: these are inlined alike."""
    prefix, _, rest = name.partition(":")
    parameter = rest.partition(".")[2]
    names = {"w": f'w["00.{parameter}"]', "d": f'"00.{parameter}"'}
    return names.get(prefix, "v00")


def _with(text: str, name: str, value: str) -> str:
    """Return a text with an expression in place of a name, in brackets if needed."""
    start = text.index(f"{{{name}}}")
    end = start + len(name) + 2
    before = text[:start]
    after = text[end:]
    is_argument = before.endswith(("(", ", ")) and after.startswith((")", ","))
    is_right_side = before.endswith("= ") and not after
    if not is_argument and not is_right_side and _has_operator(value):
        value = f"({value})"
    return before + value + after


def _has_operator(text: str) -> bool:
    """Return whether an expression has an operator outside of brackets."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and (character == " " or (character in "-~" and i == 0)):
            return True
    return False


def _renamed(each: Statement, names: Mapping[str, str]) -> Statement:
    if names.keys().isdisjoint(each.names):
        return each
    text = substituted(each.text, lambda name: f"{{{names.get(name, name)}}}")
    changes = tuple(names.get(name, name) for name in each.changes)
    return replace(each, text=text, changes=changes)


def _unsupported(function: str, reason: str) -> ModelError:
    message = f"A stage calls {function}, {reason}; a stand-alone file has only NumPy."
    advice = "Export a model without it; Pipeline.source() prints its program."
    return ModelError("unsupported", f"{message} {advice}")
