"""Every name that users import is documented and shown in an example that runs; the
rest is documented.

Users import what a package names in ``__all__``, and what the modules named there offer
(``minipipe.testing``, ``minipipe.nn.initialisers``). Each such name needs an example,
which pytest collects as a doctest. Every other name that a module offers to the rest of
the package needs a docstring of the right form.

The sources are read, not imported, so that what needs MPI or a GPU is read like
everything else. Only the packages are imported, to ask where a name is defined: they
may load their names lazily.
"""

import ast
import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, get_origin

import pytest

from minipipe.pipeline.options import KEYWORDS
from tests.code_lines import parsed
from tests.launch import for_each

PACKAGE = Path(__file__).resolve().parent.parent / "minipipe"

# What README.md tells users to import from the module that defines it: errors, to catch
# them, and how an operation or a schedule is written.
ALSO_PUBLIC = ("MinipipeError", "ScheduleError", "Problem", "record", "Program")
# Of these every method is shown, too, and those of the classes from which they have
# some of theirs.
SHOWN_IN_FULL = ("Pipeline", "ProcessGroup")
SECTIONS = (
    "Parameters",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "See Also",
    "Notes",
    "References",
)
# in numpydoc's order, but that attributes stand beside parameters
SECTIONS += ("Examples",)


# where an error says that it comes from, and where it is defined
DEFINED_IN = {"errors": "core.errors"}


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
        """The text of each section by its title; a title is underlined by as many
        dashes.
        """
        parts = re.split(r"^(\w[\w ]*)\n(-{3,})$", self.doc, flags=re.MULTILINE)
        return dict(zip(parts[1::3], parts[3::3]))

    @property
    def signature(self):
        """The names of the parameters, of a class those of its __init__; None where it
        has none of its own.
        """
        node = self.node
        if isinstance(node, ast.ClassDef):
            node = next(
                (n for n in node.body if getattr(n, "name", "") == "__init__"), None
            )
        if node is None:
            return None
        a = node.args
        given = [
            *a.posonlyargs,
            *a.args,
            *filter(None, [a.vararg]),
            *a.kwonlyargs,
            *filter(None, [a.kwarg]),
        ]
        return [
            argument.arg for argument in given if argument.arg not in ("self", "cls")
        ]


def module_name(path):
    return (
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        .removesuffix("__init__")
        .removesuffix(".")
    )


MODULES = {module_name(path): parsed(path) for path in sorted(PACKAGE.rglob("*.py"))}


def names_of(tree):
    """Return what stands in ``__all__``, or in a module of the inside, which has none,
    what has no underscore.
    """
    for node in tree.body:
        if isinstance(node, ast.Assign) and [
            getattr(t, "id", "") for t in node.targets
        ] == ["__all__"]:
            return ast.literal_eval(node.value)
    return [name for name in defined_in(tree) if not name.startswith("_")]


def defined_in(tree):
    """Return the functions and classes of a module, by name."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {
        node.name: Documented(node.name, node)
        for node in tree.body
        if isinstance(node, kinds)
    }


def offered_by(module):
    """Return the functions and classes that a module defines and offers; re-exports are
    not its own.
    """
    defined = defined_in(MODULES[module])
    return [defined[name] for name in names_of(MODULES[module]) if name in defined]


def members_of(documented):
    """Return the public methods and properties of a class."""
    if not isinstance(documented.node, ast.ClassDef):
        return []
    nodes = [node for node in documented.node.body if isinstance(node, ast.FunctionDef)]
    is_setter = {
        node
        for node in nodes
        for d in node.decorator_list
        if getattr(d, "attr", "") == "setter"
    }
    hidden = {
        node
        for node in nodes
        if any(getattr(d, "id", "") == "overload" for d in node.decorator_list)
    }
    shown = [
        node
        for node in nodes
        if not node.name.startswith("_") and node not in is_setter | hidden
    ]
    return [Documented(f"{documented.name}.{node.name}", node) for node in shown]


def is_property(documented):
    names = {
        getattr(d, "id", getattr(d, "attr", "")) for d in documented.node.decorator_list
    }
    return bool(names & {"property", "cached_property"})


def exported_by(package):
    """Return (module, name) for each function and class in the ``__all__`` of an
    imported package, where it is defined.

    A module that is named there exports what it offers in its turn.
    """
    found = set()
    for name in package.__all__:
        value = getattr(package, name)
        if isinstance(value, ModuleType):
            found |= exported_by(value)
        elif (
            callable(value) and get_origin(value) is None
        ):  # neither a constant nor a type alias
            home = value.__module__.removeprefix(f"{PACKAGE.name}.")
            found.add((DEFINED_IN.get(home, home), value.__name__))
    return found


def packages():
    """Return the packages inside minipipe, and minipipe itself, imported."""
    files = PACKAGE.rglob("__init__.py")
    return [
        importlib.import_module(f"{PACKAGE.name}.{module_name(path)}".rstrip("."))
        for path in sorted(files)
    ]


PUBLIC = {each for package in packages() for each in exported_by(package)}
PUBLIC |= {(m, d.name) for m in MODULES for d in offered_by(m) if d.name in ALSO_PUBLIC}


def lacking_examples(module):
    """Return the public names of a module without an example."""
    return [
        d.name
        for d in offered_by(module)
        if (module, d.name) in PUBLIC and not d.has_example
    ]


def with_bases(name):
    """Return the class of that name and the classes of minipipe from which it
    inherits.
    """
    documented, *_ = [
        d
        for module in sorted(MODULES, key=lambda one: one == "core.pipeline")
        for d in offered_by(module)
        if d.name == name
    ]
    offered = {d.name for module in MODULES for d in offered_by(module)}
    bases = [
        base.id
        for base in documented.node.bases
        if isinstance(base, ast.Name) and base.id in offered
    ]
    return [documented, *(each for base in bases for each in with_bases(base))]


def everything():
    """Yield (module, documented) for every function and class that a module offers, and
    its methods and properties.
    """
    for module in MODULES:
        for documented in offered_by(module):
            yield module, documented
            for member in members_of(documented):
                yield module, member


# -- what is wrong with a docstring ----------------------------------------------------


def problems_of(documented):
    """Return what is wrong with the form of a docstring."""
    return [
        *problems_of_summary(documented),
        *problems_of_sections(documented),
        *problems_of_parameters(documented),
    ]


def problems_of_summary(documented):
    lines = documented.doc.splitlines()
    if not lines:
        yield "has no docstring"
        return
    first = [*itertools.takewhile(bool, lines)]
    if not any(line.endswith((".", "?")) for line in first[:2]):
        yield "does not begin with a sentence on one line, or two"
    elif len(first) > 2:
        yield "has no empty line behind its first sentence"


def problems_of_sections(documented):
    titles = list(documented.sections)
    unknown = [title for title in titles if title not in SECTIONS]
    if unknown:
        yield f"has a section {unknown[0]}, which numpydoc does not know"
    elif titles != sorted(titles, key=SECTIONS.index):
        yield f"has its sections in the order {', '.join(titles)}"
    for title, dashes in re.findall(
        r"^(\w[\w ]*)\n(-{3,})$", documented.doc, flags=re.MULTILINE
    ):
        if len(title) != len(dashes):
            yield f"does not underline {title} by as many dashes"
    if "Examples" in titles and not documented.has_example:
        yield "has a section Examples without an example"
    for line in documented.sections.get("Raises", "").splitlines():
        own = re.match(r"(\w+Error)$", line)
        if (
            own
            and own[1] in CODED
            and "code" not in documented.sections["Raises"].lower()
        ):
            yield f"raises {own[1]} without saying with which code"


CODED = {name for name in defined_in(MODULES["core.errors"]) if name.endswith("Error")}


def problems_of_parameters(documented):
    """Those that are described must be those of the signature, in its order."""
    section, signature = documented.sections.get("Parameters"), documented.signature
    if section is None or signature is None:
        return
    heads = [line for line in section.splitlines() if re.match(r"\*{0,2}\w", line)]
    described = [
        name.strip().lstrip("*")
        for head in heads
        for name in head.partition(" : ")[0].split(",")
    ]
    if (
        documented.name == "Pipeline" and "options" in signature
    ):  # whose own keywords are in a table
        assert {*KEYWORDS} <= {*described}
        described = [name for name in described if name not in KEYWORDS]
    if described != signature:
        yield f"describes the parameters {described}, but takes {signature}"


# -- the checks ------------------------------------------------------------------------


@for_each(module=sorted({module for module, _ in PUBLIC}))
def test_every_public_name_has_an_example(module):
    lacking = lacking_examples(module)
    assert not lacking, (
        f"minipipe.{module}: {lacking} need a section Examples with >>> in their "
        "docstrings"
    )


def test_every_public_name_is_found_where_it_is_defined():
    """A name that was looked for in the wrong module would be asked for no example."""
    offered = {
        (module, documented.name)
        for module in MODULES
        for documented in offered_by(module)
    }
    assert offered >= PUBLIC
    assert {name for _, name in PUBLIC} >= set(ALSO_PUBLIC)


@pytest.mark.parametrize("name", SHOWN_IN_FULL)
def test_every_method_of_a_pipeline_and_of_a_group_has_an_example(name):
    classes = with_bases(name)
    methods = [
        member
        for each in classes
        for member in members_of(each)
        if not is_property(member)
    ]
    assert [method.name for method in methods if not method.has_example] == []


def test_every_docstring_has_the_form_of_numpydoc_and_fits_its_signature():
    wrong = [
        f"minipipe.{module}: {each.name} {what}"
        for module, each in everything()
        for what in problems_of(each)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_example_is_left_out():
    assert [
        module
        for module, tree in MODULES.items()
        if "doctest: +SKIP" in ast.unparse(tree)
    ] == []


# -- the checks find what is wrong -----------------------------------------------------

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
        (
            "times a number.",
            "times a number",
            "does not begin with a sentence on one line, or two",
        ),
        (
            "times a number.\n",
            "times a number.\n    And more.\n    Lines.",
            "has no empty line behind its first sentence",
        ),
        (
            "factor : float",
            "scale : float",
            "describes the parameters ['a', 'scale'], but takes ['a', 'factor']",
        ),
        (
            "a : Tensor of any shape",
            "",
            "describes the parameters ['factor'], but takes ['a', 'factor']",
        ),
        (
            "Examples\n    --------",
            "Examples\n    ---",
            "does not underline Examples by as many dashes",
        ),
        (
            "Raises\n    ------",
            "Errors\n    ------",
            "has a section Errors, which numpydoc does not know",
        ),
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


@pytest.mark.parametrize(
    "name",
    [
        "Tensor",
        "Pipeline",
        "draw_text",
        "check_gradients",
        "he_uniform",
        "ScheduleError",
    ],
)
def test_a_public_name_without_an_example_is_named(name, monkeypatch):
    """Whether minipipe, another package, or a module that is named in one exports
    it.
    """
    ((module, _),) = [each for each in PUBLIC if each[1] == name]
    assert name not in lacking_examples(module)
    source = ast.unparse(MODULES[module]).replace(">>>", "")
    monkeypatch.setitem(MODULES, module, ast.parse(source))
    assert name in lacking_examples(module)


def test_a_name_that_a_package_loads_lazily_is_found_where_it_is_defined(
    tmp_path, monkeypatch
):
    files = {
        "__init__": "__all__ = ['Late', 'rest', 'number']\nnumber = 3\n"
        "def __getattr__(name):\n"
        "    import importlib\n"
        "    if name == 'rest':\n"
        "        return importlib.import_module('lazy_for_this_test.rest')\n"
        "    return getattr(importlib.import_module('lazy_for_this_test.late'), "
        "name)\n",
        "late": "class Late: ...\n",
        "rest": "__all__ = ['again']\ndef again(): ...\n",
    }
    folder = tmp_path / "lazy_for_this_test"
    folder.mkdir()
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    found = exported_by(importlib.import_module(folder.name))
    assert found == {
        ("lazy_for_this_test.late", "Late"),
        ("lazy_for_this_test.rest", "again"),
    }
