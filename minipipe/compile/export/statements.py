"""The lines of a trace as a person writes them.

A trace has a line for each call of NumPy. Here views are written in the lines that use
them, and checks are left out. Repeated parts are the subject of `units.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minipipe.compile.export.constants import Constants
from minipipe.compile.places import needed_lines
from minipipe.compile.trace import Line, Trace
from minipipe.errors import ModelError

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_UNIFORM = re.compile(
    r"uniform\((\{\w+\}), \{key\}\._replace\(layer=(\d+), draw=(\d+)\), \(0, 1\)\)"
)
_IS_ARITHMETIC = re.compile(r"^\S+ ([-+*/]=?|[<>!=]=|[<>]) \S+$")
_MASKED = re.compile(
    r"\{(?P<a>v\d+)\} = (?P<values>.+)\.view\(np\.int(?P<size>32|64)\)\n"
    r"\{(?P<b>v\d+)\} = (?P<mask>.+)\.astype\(np\.int(?P=size)\)\n"
    r"\{(?P<c>v\d+)\} = \{(?P=a)\} \* \{(?P=b)\}\n"
    r"\{(?P<result>v\d+)\} = \{(?P=c)\}\.view\(np\.float(?P=size)\)"
)
_RESHAPED = re.compile(r"\.reshape\((?:[^()]|\([^()]*\))*\)(?=\.reshape\()")
_LONGEST = 76  # characters of a line with others in it


@dataclass
class Statement:
    """A line of a program.

    Attributes
    ----------
    text : str
        With names in braces: ``{v3}`` a variable, ``{w:2.bias}`` a parameter,
        ``{d:2.bias}`` the name of its gradient, ``{layer:3}`` the layer of a draw.
    makes, reads, changes : tuple of str
        Variables.
    layer : int or None
    """

    text: str
    makes: tuple[str, ...]
    reads: tuple[str, ...]
    changes: tuple[str, ...] = ()
    layer: int | None = None
    is_view: bool = False

    @property
    def layers(self) -> list[int]:
        """The layers whose parameters it names."""
        names = PLACEHOLDER.findall(self.text)
        return [int(n[2:].partition(".")[0]) for n in names if n[:2] in ("w:", "d:")]


class Writer:
    """Makes statements of the lines of a trace.

    Parameters
    ----------
    trace : Trace
    parameters : sequence of str
        The names of the stage's parameters.
    gradients : sequence of str
        The names of the gradients of their uses.
    constants : Constants
        Of the rank.
    known : iterable of str
        The functions that statements may call, besides NumPy's.

    Attributes
    ----------
    helpers : set of str
        Those that they call.
    sections : dict of str to list of Statement

    Raises
    ------
    ModelError
        Code ``unsupported``: a function that a stand-alone file does not have.
    """

    def __init__(
        self,
        trace: Trace,
        parameters: Sequence[str],
        gradients: Sequence[str],
        constants: Constants,
        known: Iterable[str],
    ) -> None:
        self._trace, self._constants, self._known = trace, constants, set(known)
        self._parameters, self._gradients = parameters, gradients
        self._values = dict(trace.constants.values())
        self.helpers: set[str] = set()
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
                yield Statement(text, (), self._variables(line.reads))
            elif not line.has_effect:
                yield self._statement(line)
            elif not line.form.text.startswith("check_"):
                what = line.form.text.partition("(")[0]
                raise _unsupported(what, "which has an effect beyond its result")

    def _statement(self, line: Line) -> Statement:
        text = _UNIFORM.sub(r"uniform(\1, {layer:\2}, k, \3)", line.form.text)
        if "{key}" in text:
            message = "which divides random numbers among ranks"
            raise _unsupported("uniform", message)
        text = self._with_functions(text)
        text = PLACEHOLDER.sub(lambda found: self._named(found[1], text, line), text)
        if line.makes:
            text = f"{', '.join(f'{{{name}}}' for name in line.makes)} = {text}"
        variables = self._trace.variables
        is_view = len(line.makes) == 1 == len(line.reads) and not line.changes
        is_view = is_view and variables[line.makes[0]].root != line.makes[0]
        reads, changes = self._variables(line.reads), self._variables(line.changes)
        return Statement(text, line.makes, reads, changes, line.layer, is_view)

    def _variables(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(n for n in names if n[0] in "vxg")

    def _named(self, name: str, text: str, line: Line) -> str:
        """Return what stands for a name: a placeholder, or a number."""
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
        """Return a constant as a number of Python, which takes the dtype of others."""
        if not isinstance(value, np.ndarray | np.generic) or value.shape != ():
            return ""
        others = [n for n in (*line.reads, *line.changes) if n[0] in "vxgp"]
        dtypes = {self._trace.variables[name].dtype for name in others}
        is_plain = dtypes == {value.dtype} and value.dtype.kind == "f"
        number = float(value)
        if not is_plain or not np.isfinite(number):
            return ""
        return f"({number!r})" if np.signbit(number) else repr(number)

    def _with_functions(self, text: str) -> str:
        """Write the functions of NumPy with their module."""
        for name, function in self._trace.functions.items():
            called = re.compile(rf"(?<![\w.{{'\"]){name}(?![\w}}'\"=])")
            if not called.search(text):
                continue
            if getattr(np, name, None) is function:
                text = called.sub(f"np.{name}", text)
            elif name in self._known:
                self.helpers.add(name)
            else:
                raise _unsupported(name, f"a function of {function.__module__}")
        return re.sub(r"(?<![\w.])numpy\.", "np.", text)

    # -- views -------------------------------------------------------------------------

    def _write_views_once(self, section: str) -> None:
        """Leave out a view that an earlier line of the section has made."""
        known: dict[str, str] = {}
        same: dict[str, str] = {}
        kept = []
        for each in self.sections[section]:
            each = _renamed(each, same)
            if each.is_view:
                (name,), text = each.makes, each.text.partition(" = ")[2]
                if known.setdefault(text, name) != name:
                    same[name] = known[text]
                    continue
            kept.append(each)
        self.sections[section] = kept
        for later in self.sections:
            self.sections[later] = [_renamed(s, same) for s in self.sections[later]]
        results = self._trace.results
        results[section] = tuple(same.get(n, n) for n in results[section])

    def _inline(self, section: str) -> None:
        """Write a view, or the term of a gradient, in the line that uses it."""
        uses = self._uses()
        found: list[Statement] = []
        for each in self.sections[section]:
            for name in dict.fromkeys(each.reads):
                maker = next((s for s in found if s.makes == (name,)), None)
                if maker is None or uses[name] > 1 or name in each.changes:
                    continue
                if not self._can_move(maker, each, found):
                    continue
                value = maker.text.partition(" = ")[2]
                text = _with(each.text, name, value)
                reads = [n for n in each.reads if n != name]
                each = Statement(
                    text,
                    each.makes,
                    tuple(dict.fromkeys([*reads, *maker.reads])),
                    each.changes,
                    each.layer,
                    False,
                )
                found.remove(maker)
            found.append(each)
        for each in found:
            each.text = _RESHAPED.sub("", each.text)
        self.sections[section] = found

    def _write_masks(self, section: str) -> None:
        """Write the product of bits by which minipipe chooses numbers as a choice.

        ``(v2.view(np.int32) * mask.astype(np.int32)).view(np.float32)`` has the bits of
        ``np.where(mask, v2, 0)``, in a quarter of the time.
        """
        uses, found = self._uses(), list[Statement]()
        for each in self.sections[section]:
            found.append(each)
            last = found[-4:]
            match = _MASKED.fullmatch("\n".join(s.text for s in last))
            if match is None:
                continue
            between = match.group("a", "b", "c")
            if any(uses[name] > 1 for name in between):
                continue
            mask, values, result = match.group("mask", "values", "result")
            reads = [n for s in last for n in s.reads if n not in between]
            text = f"{{{result}}} = np.where({mask}, {values}, 0)"
            made = Statement(text, (result,), tuple(dict.fromkeys(reads)))
            made.layer = each.layer
            found[-4:] = [made]
        self.sections[section] = found

    def _can_move(
        self, maker: Statement, reader: Statement, before: Sequence[Statement]
    ) -> bool:
        """Return whether a line may be computed in a later one that is short."""
        is_of_one_layer = (
            maker.layer == reader.layer
        )  # else the last one of many differs
        if maker.changes or len(maker.makes) != 1 or not is_of_one_layer:
            return False
        length = _length(maker.text.partition(" = ")[2]) + _length(reader.text)
        if length > _LONGEST:
            return False
        if maker.is_view:
            return True
        roots = {self._root(name) for name in maker.reads}
        between = before[before.index(maker) + 1 :]
        return not any(self._root(n) in roots for s in between for n in s.changes)

    def _uses(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for statements in self.sections.values():
            for each in statements:
                names = PLACEHOLDER.findall(each.text.partition(" = ")[2] or each.text)
                found.update(names)
        for results in self._trace.results.values():
            found.update(2 * results)
        return found

    def _root(self, name: str) -> str:
        return self._trace.variables[name].root


def _length(text: str) -> int:
    return len(PLACEHOLDER.sub(_shown, text))


def _shown(found: re.Match[str]) -> str:
    kind, _, rest = found[1].partition(":")
    own = rest.partition(".")[2]  # of any layer, so that layers are written alike
    return {"w": f'w["00.{own}"]', "d": f'"00.{own}"'}.get(kind, "v00")


def _with(text: str, name: str, value: str) -> str:
    """Return a text with an expression in place of a name, in brackets if necessary."""
    start = text.index(f"{{{name}}}")
    end = start + len(name) + 2
    before, after = text[:start], text[end:]
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
    if not any(name in names for name in (*each.reads, *each.changes)):
        return each

    def renamed(many: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names.get(name, name) for name in many))

    text = PLACEHOLDER.sub(lambda f: f"{{{names.get(f[1], f[1])}}}", each.text)
    return Statement(
        text,
        each.makes,
        renamed(each.reads),
        renamed(each.changes),
        each.layer,
        each.is_view,
    )


def _unsupported(what: str, why: str) -> ModelError:
    message = f"A stage calls {what}, {why}; a stand-alone file has only NumPy."
    advice = "Export a model without it; Pipeline.source() prints its program."
    return ModelError("unsupported", f"{message} {advice}")
