"""The reference: a page for each public name, and for each public module a page with
the table of its names.

A name is public if it is in ``__all__`` of a public module. A name of several modules
has its page in the first of them in the list below, and the others link to it.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any, NamedTuple

from chapters import ROOT, write
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer

# The modules that users import. Their order decides where a name of several modules has
# its page.
MODULES = [
    "minipipe",
    "minipipe.schedules",
    "minipipe.schedules.theory",
    "minipipe.render",
    "minipipe.nn",
    "minipipe.nn.initialisers",
    "minipipe.functional",
    "minipipe.gpu",
    "minipipe.optim",
    "minipipe.data",
    "minipipe.checkpoint",
    "minipipe.elastic",
    "minipipe.comm",
    "minipipe.execution",
    "minipipe.pipeline",
    "minipipe.tuning",
    "minipipe.trace",
    "minipipe.autograd",
    "minipipe.core.tensor",
    "minipipe.errors",
    "minipipe.testing",
    "minipipe.coursework",
    "minipipe.compile.export",
]


class Public(NamedTuple):
    """A public name, the module of its page, and its value."""

    module: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


def module_of(name: str) -> ModuleType:
    """Return a module by its public name: the file of ``minipipe.schedules.theory`` is
    in ``analysis``.
    """
    return resolved(name)


def public_names() -> dict[str, list[Public]]:
    """Return the public names of each module, in the order of ``__all__``, each with
    the module of its page.
    """
    homes: dict[int, Public] = {}
    found: dict[str, list[Public]] = {}
    for module in MODULES:
        offered = module_of(module)
        found[module] = []
        for name in offered.__all__:
            value = getattr(offered, name)
            if not isinstance(value, ModuleType) and not name.startswith("_"):
                here = Public(module, name, value)
                found[module].append(
                    homes.setdefault(id(value), here) if is_documented(value) else here
                )
    return found


def is_documented(value: Any) -> bool:
    """Say whether a value is a function or a class, which have docstrings, and not a
    constant or an alias.
    """
    return inspect.isfunction(value) or inspect.isclass(value)


def pages(app: Sphinx) -> None:
    """Write a page for each module with a table of its names, and a page for each
    name.
    """
    found = public_names()
    listed = "\n   ".join(["", *MODULES])
    summary = "".join(
        f"* :py:mod:`{module}`: {summary_of(module_of(module))}\n" for module in MODULES
    )
    write(
        app,
        "api/index.rst",
        f"{heading('Reference')}{summary}\n.. toctree::\n   :hidden:\n{listed}\n",
    )
    for module, names in found.items():
        own = [public for public in names if public.module == module]
        other = [public.path for public in names if public.module != module]
        text = (
            f"{heading(module)}.. module:: "
            f"{module}\n\n{inspect.getdoc(module_of(module))}\n\n"
        )
        if own:
            text += f".. autosummary::\n   :toctree: {module}\n   :nosignatures:\n\n"
            text += "".join(f"   {public.name}\n" for public in own) + "\n"
        if other:
            text += "Also here:\n\n.. autosummary::\n   :nosignatures:\n\n" + "".join(
                f"   {path}\n" for path in other
            )
        write(app, f"api/{module}.rst", text)
        for public in own:
            write(app, f"api/{module}/{public.path}.rst", page_of(public))


def heading(title: str) -> str:
    """Return the title of a page."""
    return f"{title}\n{'=' * len(title)}\n\n"


def page_of(public: Public) -> str:
    """Return the page of a name: its docstring and, if it is a class, the docstrings of
    its members.
    """
    kind = (
        "class"
        if inspect.isclass(public.value)
        else "function"
        if inspect.isroutine(public.value)
        else "data"
    )
    if inspect.isclass(public.value) and issubclass(public.value, BaseException):
        kind = "exception"
    members = options_of(public.value) if inspect.isclass(public.value) else ""
    return (
        f"{heading(public.name)}.. currentmodule:: {public.module}\n\n.. "
        f"auto{kind}:: {public.name}\n{members}"
    )


def options_of(value: type) -> str:
    """Return the options of autodoc for a class: its members, also inherited ones, and
    its public bases.
    """
    options = "   :members:\n"
    if any(
        has_documented_members(base) for base in value.__mro__[1:] if is_inside(base)
    ):
        shown_elsewhere = [
            base.__name__ for base in value.__mro__[1:] if not is_inside(base)
        ]
        options += f"   :inherited-members: {', '.join(shown_elsewhere)}\n"
    if public_bases(value.__bases__) not in ([], [object]):
        options += "   :show-inheritance:\n"
    return options


def is_inside(base: type) -> bool:
    """Say whether a base class is one of the package that has no page."""
    public = {id(each.value) for names in public_names().values() for each in names}
    return base.__module__.startswith("minipipe") and id(base) not in public


def has_documented_members(base: type) -> bool:
    """Say whether a class itself defines a public method or property with a
    docstring.
    """
    members = {
        name: value for name, value in vars(base).items() if not name.startswith("_")
    }
    return any(
        (inspect.isroutine(value) or isinstance(value, property)) and value.__doc__
        for value in members.values()
    )


def public_bases(bases: Iterable[Any]) -> list[Any]:
    """Return bases with those of inner classes in place of the inner classes."""
    found: list[Any] = []
    for base in bases:
        inner = inspect.isclass(base) and is_inside(base)
        found += [
            each
            for each in (public_bases(base.__bases__) if inner else [base])
            if each not in found
        ]
    return [base for base in found if base is not object] or [object]


def show_public_bases(
    app: Sphinx, name: str, value: type, options: Any, bases: list[Any]
) -> None:
    """Show no inner class as a base."""
    bases[:] = public_bases(bases)


def summary_of(module: ModuleType) -> str:
    """Return the first sentence of a docstring, in one line."""
    return inspect.getdoc(module).partition("\n\n")[0].replace("\n", " ")


# -- references from docstrings to names inside the package ----------------------------


def value_of(target: str, context: list[str]) -> Any:
    """Return the value of a reference, looked up in the modules and classes around it,
    or None.
    """
    for prefix in ["", *context]:
        path = f"{prefix}.{target}" if prefix else target
        if path.split(".")[0] == "minipipe":
            try:
                return resolved(path)
            except (ImportError, AttributeError):
                continue
    return None


def resolved(path: str) -> Any:
    """Return the value at a dotted path."""
    first, *rest = path.split(".")
    value = importlib.import_module(first)
    for at, name in enumerate(rest, 2):
        try:
            value = getattr(value, name)
        except AttributeError:
            value = importlib.import_module(".".join(path.split(".")[:at]))
    return value


def missing_reference(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Resolve a reference to the page of a name, or to its source code if it has no
    page.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    name = node.get("py:class") and f"{node.get('py:module')}.{node['py:class']}"
    modules = [home for home in (name, node.get("py:module")) if home]
    documented = {
        id(public.value): public
        for names in public_names().values()
        for public in names
    }
    around = [resolved_or_none(home) for home in modules]
    modules += [value.__module__ for value in around if hasattr(value, "__module__")]
    value = value_of(target, modules)
    if value is None and (value := only_definition(target)) is None:
        return None
    if id(value) in documented and is_documented(value):
        path = documented[id(value)].path
        return env.domains["py"].resolve_xref(
            env, node["refdoc"], app.builder, "obj", path, node, content
        )
    owner, _, member = getattr(value, "__qualname__", "").rpartition(".")
    if owner:
        holder = value_of(owner, [value.__module__])
        if id(holder) in documented:
            path = f"{documented[id(holder)].path}.{member}"
            return env.domains["py"].resolve_xref(
                env, node["refdoc"], app.builder, "obj", path, node, content
            )
    return source_link(app, node, value, content)


def only_definition(name: str) -> Any:
    """Return the value of a name that is public in one module or defined in one file,
    or None if it is ambiguous.
    """
    public = {
        id(each.value): each.value
        for names in public_names().values()
        for each in names
        if each.name == name
    }
    if len(public) == 1:
        return next(iter(public.values()))
    homes = [
        module
        for path, module in sorted(sys.modules.items())
        if path.startswith("minipipe")
    ]
    values = {
        id(value): value
        for module in homes
        if is_documented(value := vars(module).get(name))
    }
    return next(iter(values.values())) if len(values) == 1 else None


def resolved_or_none(path: str) -> Any:
    """Return the value at a dotted path, or None."""
    return value_of(path, [])


def source_link(
    app: Sphinx, node: pending_xref, value: Any, content: nodes.Element
) -> nodes.Element | None:
    """Return a link to the source code of a module or of a value that it defines."""
    module = (
        value.__name__
        if isinstance(value, ModuleType)
        else getattr(value, "__module__", None)
    )
    if module is None:
        return None
    page = f"_modules/{module.replace('.', '/')}"
    uri = app.builder.get_relative_uri(node["refdoc"], page)
    return nodes.reference("", "", content, internal=True, refuri=uri)


def source_pages(app: Sphinx, env: BuildEnvironment) -> None:
    """Let viewcode write a page for every file of the package, also for those without
    public names.
    """
    known = env._viewcode_modules
    for path in sorted((ROOT / "minipipe").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
            ".__init__"
        )
        if not known.get(module):
            analyzer = ModuleAnalyzer.for_module(module)
            analyzer.find_tags()
            known[module] = analyzer.code, analyzer.tags, {}, module


def choose_lexers(app: Sphinx, tree: nodes.document) -> None:
    """Colour a block without a language as Python only if it is Python; most are
    schedules and drawings.
    """
    for block in tree.findall(nodes.literal_block):
        if "language" not in block:
            block["language"] = "python" if is_python(block.astext()) else "text"


def is_python(text: str) -> bool:
    """Say whether Python can parse a text."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def back_links(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Let source code link to the page of a name, which is not always in the module
    that defines the name.
    """
    if page.startswith("_modules/"):
        found = r"/(minipipe[\w.]*\.(\w+))\.html#[\w.]*?\.\2(\.\w+)?\""
        context["body"] = re.sub(found, r'/\1.html#\1\3"', context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before autosummary reads their tables."""
    app.connect("builder-inited", pages, priority=300)
    app.connect("missing-reference", missing_reference)
    app.connect("autodoc-process-bases", show_public_bases)
    app.connect("doctree-read", choose_lexers)
    app.connect("env-updated", source_pages)
    app.connect("html-page-context", back_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
