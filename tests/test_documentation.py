"""Every public name is documented, and shown in an example that runs: pytest collects the examples as doctests.

The sources are read, not imported: what only MPI or a GPU can run is read like everything else.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "minipipe"

# Modules whose names need no example of their own, and why. A name that one of the packages exports needs one anyhow.
INTERNAL = {
    "autograd": "the graph behind Tensor.backward, which has an example",
    "backend": "what array modules do differently; operations are written with it, users call the operations",
    "bundle": "what passes between layers; the sequence of layers takes it apart",
    "cli": "the command line: its --help and the README are its documentation",
    "comm.describe": "what `minipipe info` prints; it differs from machine to machine",
    "comm.ending": "ends the process when another rank has failed, which no example can show",
    "comm.host": "settings of the process, made by spawn and init_process_group",
    "comm.message": "the header of a message, written and read by the groups",
    "comm.mpi": "needs mpirun",
    "coursework.checking": "behind grade, which has an example",
    "coursework.child": "what the process of a task runs",
    "coursework.exercise": "how exercises are read; tutorials/exercises/README.md says how they are written",
    "coursework.process": "behind grade, which has an example",
    "coursework.verbs": "what the command line prints",
    "held": "what Pipeline.measure_memory counts with",
    "pipeline.agreement": "part of the pipeline",
    "pipeline.executor": "part of the pipeline",
    "pipeline.layout": "part of the pipeline",
    "pipeline.local": "part of the pipeline",
    "pipeline.measured": "part of the pipeline",
    "pipeline.parcel": "part of the pipeline",
    "pipeline.shared": "part of the pipeline",
    "pipeline.table": "what print(pipeline) shows",
    "place": "behind random_key, which has an example",
    "recording": "behind no_grad, which has an example",
    "render.html.data": "part of draw_html",
    "render.columns": "part of draw_text",
    "render.moment": "what `minipipe step` shows; its frames are in the tests",
    "render.grid": "the grid of `minipipe step`",
    "render.terminal": "colours and sizes of the terminal at hand",
    "render.text.draw_axis": "part of draw_text",
    "render.text.paint_cells": "part of draw_text",
    "render.text.row_cells": "part of draw_text",
    "render.palette": "the colours of all drawings",
    "render.panel": "what all drawings share",
    "render.svg.convert": "needs the optional CairoSVG; behind save, which has an example",
    "render.svg.labels": "part of draw_svg",
    "render.svg.lanes": "part of draw_svg",
    "render.svg.legend": "part of draw_svg",
    "render.svg.messages": "part of draw_svg",
    "render.svg.page": "part of draw_svg",
    "render.svg.strip": "part of draw_svg",
    "render.svg.style": "part of draw_svg",
    "schedules.fitting": "behind Costs.measured, which has an example",
    "schedules.formulas": "behind schedules.theory, whose functions have examples",
    "schedules.holding": "part of Walkthrough, which has an example",
    "schedules.moment": "what a Walkthrough consists of",
    "schedules.needs": "part of Walkthrough",
    "schedules.steps": "part of Walkthrough",
    "schedules.order": "the walk behind verify, lower and simulate, which have examples",
    "schedules.schedule.check_range": "a check that builders make",
    "schedules.schedule.check_schedule": "a check that functions of a schedule make",
    "schedules.waits": "behind Timeline.idle, messages and critical_path",
    "schedules.text": "behind Schedule.from_text, from_csv and their counterparts",
    "comm.point_to_point.Done": "a request that was done at once; every request is used alike",
    "stepper.keys": "needs a terminal",
    "stepper.loop": "needs a terminal",
    "stepper.written": "what `minipipe step --all` prints",
    "verbs.asked": "what the command line prints",
    "verbs.check": "what the command line prints",
    "verbs.info": "what the command line prints",
    "verbs.schedules": "what the command line prints",
    "verbs.show": "what the command line prints",
    "verbs.simulate": "what the command line prints",
    "verbs.step": "what the command line prints",
    "verbs.told": "what the command line prints",
}
# Of these every method is shown, too, and of the classes from which they have some of theirs.
SHOWN_IN_FULL = {"Pipeline": ("Measuring", "PartOfModel"), "ProcessGroup": ("PointToPoint",)}
BASES = [base for bases in SHOWN_IN_FULL.values() for base in bases]
SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns", "See Also", "Notes", "References")
SECTIONS += ("Examples",)  # in numpydoc's order, but that attributes stand beside parameters


class Documented(NamedTuple):
    """A function, class, method or property with its docstring."""

    name: str
    node: ast.AST

    @property
    def doc(self):
        return ast.get_docstring(self.node) or ""

    @property
    def has_example(self):
        return ">>>" in self.sections.get("Examples", "")

    @property
    def sections(self):
        """The text of each section by its title; a title is underlined by as many dashes."""
        parts = re.split(r"^(\w[\w ]*)\n(-{3,})$", self.doc, flags=re.MULTILINE)
        return dict(zip(parts[1::3], parts[3::3]))

    @property
    def signature(self):
        """The names of the parameters, of a class those of its __init__; None where it has none of its own."""
        node = self.node
        if isinstance(node, ast.ClassDef):
            node = next((n for n in node.body if getattr(n, "name", "") == "__init__"), None)
        if node is None:
            return None
        a = node.args
        given = [*a.posonlyargs, *a.args, *filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]
        return [argument.arg for argument in given if argument.arg not in ("self", "cls")]


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {module_name(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def names_of(tree):
    """Return what stands in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["__all__"]:
            return ast.literal_eval(node.value)
    return []


def defined_in(tree):
    """Return the functions and classes of a module, by name."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: Documented(node.name, node) for node in tree.body if isinstance(node, kinds)}


def public_in(module):
    """Return the functions and classes that a module defines and names in ``__all__``; re-exports are not its own."""
    defined = defined_in(MODULES[module])
    return [defined[name] for name in names_of(MODULES[module]) if name in defined]


def members_of(documented):
    """Return the public methods and properties of a class."""
    if not isinstance(documented.node, ast.ClassDef):
        return []
    nodes = [node for node in documented.node.body if isinstance(node, ast.FunctionDef)]
    is_setter = {node for node in nodes for d in node.decorator_list if getattr(d, "attr", "") == "setter"}
    shown = [node for node in nodes if not node.name.startswith("_") and node not in is_setter]
    return [Documented(f"{documented.name}.{node.name}", node) for node in shown]


def is_property(documented):
    names = {getattr(d, "id", getattr(d, "attr", "")) for d in documented.node.decorator_list}
    return bool(names & {"property", "cached_property"})


def exported():
    """Return (module, name) for all that a package exports, where it is defined."""
    found = set()
    for package, tree in MODULES.items():
        if (PACKAGE / package.replace(".", "/") / "__init__.py").exists():
            names = set(names_of(tree))
            imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
            found |= {(n.module.partition(".")[2], a.name) for n in imports for a in n.names if a.name in names}
    return found


EXPORTED = exported()


def is_error(documented):
    """An error shows itself where it is raised; its root has an example of how to catch it."""
    return isinstance(documented.node, ast.ClassDef) and documented.name.endswith("Error")


def needs_example(module, documented):
    if is_error(documented) and documented.name not in ("MinipipeError", "ScheduleError"):
        return False
    if documented.name in BASES:  # a base class, shown by what is made of it
        return False
    return (module, documented.name) in EXPORTED or not {module, f"{module}.{documented.name}"} & set(INTERNAL)


def everything():
    """Yield (module, documented) for every public function and class, and its methods and properties."""
    for module in MODULES:
        for documented in public_in(module):
            yield module, documented
            for member in members_of(documented):
                yield module, member


# -- what is wrong with a docstring ----------------------------------------------------------------------------


def problems_of(documented):
    """Return what is wrong with the form of a docstring."""
    return [*problems_of_summary(documented), *problems_of_sections(documented), *problems_of_parameters(documented)]


def problems_of_summary(documented):
    lines = documented.doc.splitlines()
    if not lines:
        yield "has no docstring"
    elif not lines[0].endswith((".", "?")):
        yield "does not begin with a sentence on one line"
    elif len(lines) > 1 and lines[1]:
        yield "has no empty line behind its first sentence"


def problems_of_sections(documented):
    titles = list(documented.sections)
    unknown = [title for title in titles if title not in SECTIONS]
    if unknown:
        yield f"has a section {unknown[0]}, which numpydoc does not know"
    elif titles != sorted(titles, key=SECTIONS.index):
        yield f"has its sections in the order {', '.join(titles)}"
    for title, dashes in re.findall(r"^(\w[\w ]*)\n(-{3,})$", documented.doc, flags=re.MULTILINE):
        if len(title) != len(dashes):
            yield f"does not underline {title} by as many dashes"
    if "Examples" in titles and not documented.has_example:
        yield "has a section Examples without an example"
    for line in documented.sections.get("Raises", "").splitlines():
        own = re.match(r"(\w+Error)$", line)
        if own and own[1] in CODED and "code" not in documented.sections["Raises"].lower():
            yield f"raises {own[1]} without saying with which code"


CODED = {name for name in defined_in(MODULES["errors"]) if name.endswith("Error")}


def problems_of_parameters(documented):
    """Those that are described must be those of the signature, in its order."""
    section, signature = documented.sections.get("Parameters"), documented.signature
    if section is None or signature is None:
        return
    heads = [line for line in section.splitlines() if re.match(r"\*{0,2}\w", line)]
    described = [name.strip().lstrip("*") for head in heads for name in head.partition(" : ")[0].split(",")]
    if described != signature:
        yield f"describes the parameters {described}, but takes {signature}"


# -- the checks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_an_example(module):
    lacking = [each.name for each in public_in(module) if needs_example(module, each) and not each.has_example]
    assert not lacking, f"minipipe.{module}: {lacking} need a section Examples with >>> in their docstrings"


@pytest.mark.parametrize("name", [*SHOWN_IN_FULL, *BASES])
def test_every_method_of_a_pipeline_and_of_a_group_has_an_example(name):
    (documented,) = [each for module in MODULES for each in public_in(module) if each.name == name]
    methods = [member for member in members_of(documented) if not is_property(member)]
    assert [method.name for method in methods if not method.has_example] == []


@pytest.mark.parametrize("module", MODULES)
def test_every_docstring_has_the_form_of_numpydoc_and_fits_its_signature(module):
    wrong = [f"{each.name} {what}" for m, each in everything() if m == module for what in problems_of(each)]
    assert not wrong, f"minipipe.{module}: " + "; ".join(wrong)


def test_no_example_is_left_out():
    assert [module for module, tree in MODULES.items() if "doctest: +SKIP" in ast.unparse(tree)] == []


def test_no_exemption_is_stale():
    """An exempt module that is gone, or whose names all have examples, is exempt for nothing."""
    lacking = {
        key
        for module in MODULES
        for each in public_in(module)
        for key in (module, f"{module}.{each.name}")
        if not each.has_example
    }
    assert set(INTERNAL) <= lacking


# -- the checks find what is wrong -----------------------------------------------------------------------------

GOOD = '''
def scale(a, factor):
    """Return a tensor times a number.

    Parameters
    ----------
    a : Tensor of any shape
    factor : float

    Raises
    ------
    TensorError
        Code ``dtype``.

    Examples
    --------
    >>> scale(2, 3)
    6
    """
'''


def only_function(source):
    (documented,) = defined_in(ast.parse(source)).values()
    return documented


def test_a_good_docstring_passes():
    assert only_function(GOOD).has_example and problems_of(only_function(GOOD)) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("times a number.", "times a number", "does not begin with a sentence on one line"),
        ("times a number.\n", "times a number.\n    And more.", "has no empty line behind its first sentence"),
        ("factor : float", "scale : float", "describes the parameters ['a', 'scale'], but takes ['a', 'factor']"),
        ("a : Tensor of any shape", "", "describes the parameters ['factor'], but takes ['a', 'factor']"),
        ("Examples\n    --------", "Examples\n    ---", "does not underline Examples by as many dashes"),
        ("Raises\n    ------", "Errors\n    ------", "has a section Errors, which numpydoc does not know"),
        ("Code ``dtype``.", "", "raises TensorError without saying with which code"),
        (">>> scale(2, 3)", "", "has a section Examples without an example"),
    ],
)
def test_a_mutant_of_it_does_not(old, new, problem):
    assert old in GOOD
    assert problem in problems_of(only_function(GOOD.replace(old, new)))


def test_sections_in_another_order_are_noticed():
    head, examples = GOOD.split("    Examples\n", 1)
    start, rest = head.split("    Parameters\n", 1)
    body = examples.replace('    """\n', "")
    turned = f'{start}    Examples\n{body}\n    Parameters\n{rest}    """\n'
    (problem,) = problems_of(only_function(turned))
    assert problem == "has its sections in the order Examples, Parameters, Raises"


def test_a_name_without_an_example_is_noticed():
    assert not only_function(GOOD.replace(">>> scale(2, 3)", "")).has_example
    assert not only_function("def f(): ...").has_example
