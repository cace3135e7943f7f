"""The reference: a page for each public name, and for each module that offers some a page with its table.

A name is public where ``__all__`` of a public module has it. What several modules offer has its page in the one that
is named first here, and the others link to it.
"""

import importlib
import inspect
import re
import sys
from types import ModuleType
from typing import Any, NamedTuple

from chapters import ROOT, write
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer

# What users import: the package, and what it and README.md name. Their order says where a name has its page.
MODULES = [
    "minipipe",
    "minipipe.schedules",
    "minipipe.schedules.theory",
    "minipipe.render",
    "minipipe.nn",
    "minipipe.nn.initialisers",
    "minipipe.functional",
    "minipipe.optim",
    "minipipe.data",
    "minipipe.checkpoint",
    "minipipe.elastic",
    "minipipe.comm",
    "minipipe.execution",
    "minipipe.pipeline",
    "minipipe.tuning",
    "minipipe.tensor",
    "minipipe.autograd",
    "minipipe.errors",
    "minipipe.testing",
    "minipipe.coursework",
]


class Public(NamedTuple):
    """A public name: where its page is, and what it means."""

    module: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


def module_of(name: str) -> ModuleType:
    """Return a module by the name that users have for it: ``minipipe.schedules.theory`` is below ``analysis``."""
    return resolved(name)


def public_names() -> dict[str, list[Public]]:
    """Return for each module what it offers, in the order of ``__all__``, each with the place of its page."""
    homes: dict[int, Public] = {}
    found: dict[str, list[Public]] = {}
    for module in MODULES:
        offered = module_of(module)
        found[module] = []
        for name in offered.__all__:
            value = getattr(offered, name)
            if not isinstance(value, ModuleType) and not name.startswith("_"):
                here = Public(module, name, value)
                found[module].append(homes.setdefault(id(value), here) if is_documented(value) else here)
    return found


def is_documented(value: Any) -> bool:
    """Say whether a value has a docstring of its own: a function or a class, neither a constant nor an alias."""
    return inspect.isfunction(value) or inspect.isclass(value)


def pages(app: Sphinx) -> None:
    """Write a page for each module, with a table of what it offers."""
    found = public_names()
    listed = "\n   ".join(["", *MODULES])
    summary = "".join(f"* :py:mod:`{module}`: {first_line(module_of(module))}\n" for module in MODULES)
    write(app, "api/index.rst", f"{heading('Reference')}{summary}\n.. toctree::\n   :hidden:\n{listed}\n")
    for module, names in found.items():
        own = [public for public in names if public.module == module]
        other = [public.path for public in names if public.module != module]
        text = f"{heading(module)}.. module:: {module}\n\n{inspect.getdoc(module_of(module))}\n\n"
        if own:
            text += f".. autosummary::\n   :toctree: {module}\n   :nosignatures:\n\n"
            text += "".join(f"   {public.name}\n" for public in own) + "\n"
        if other:
            text += "Also here:\n\n.. autosummary::\n   :nosignatures:\n\n" + "".join(f"   {path}\n" for path in other)
        write(app, f"api/{module}.rst", text)
        for public in own:
            write(app, f"api/{module}/{public.path}.rst", page_of(public))


def heading(title: str) -> str:
    """Return the title of a page."""
    return f"{title}\n{'=' * len(title)}\n\n"


def page_of(public: Public) -> str:
    """Return the page of a name: its docstring, and for a class those of its members."""
    kind = "class" if inspect.isclass(public.value) else "function" if inspect.isroutine(public.value) else "data"
    if inspect.isclass(public.value) and issubclass(public.value, BaseException):
        kind = "exception"
    members = "   :members:\n   :show-inheritance:\n" if inspect.isclass(public.value) else ""
    return f"{heading(public.path)}.. currentmodule:: {public.module}\n\n.. auto{kind}:: {public.name}\n{members}"


def first_line(module: ModuleType) -> str:
    """Return the first line of a docstring."""
    return inspect.getdoc(module).splitlines()[0]


# -- references from docstrings to names inside the package ----------------------------------------------------------


def value_of(target: str, context: list[str]) -> Any:
    """Return what a reference names, looked for in the modules and classes around it, or None."""
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
    """Lead a reference to the page of a name, wherever the name is defined, and to its source where it has no page."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    name = node.get("py:class") and f"{node.get('py:module')}.{node['py:class']}"
    modules = [home for home in (name, node.get("py:module")) if home]
    documented = {id(public.value): public for names in public_names().values() for public in names}
    around = [resolved_or_none(home) for home in modules]
    modules += [value.__module__ for value in around if hasattr(value, "__module__")]
    value = value_of(target, modules)
    if value is None and (value := only_definition(target)) is None:
        return None
    if id(value) in documented and is_documented(value):
        path = documented[id(value)].path
        return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", path, node, content)
    owner, _, member = getattr(value, "__qualname__", "").rpartition(".")
    if owner:
        holder = value_of(owner, [value.__module__])
        if id(holder) in documented:
            path = f"{documented[id(holder)].path}.{member}"
            return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", path, node, content)
    return source_link(app, node, value, content)


def only_definition(name: str) -> Any:
    """Return what a public name means, or else one that a single file of the package defines; None of several."""
    public = {id(each.value): each.value for names in public_names().values() for each in names if each.name == name}
    if len(public) == 1:
        return next(iter(public.values()))
    homes = [module for path, module in sorted(sys.modules.items()) if path.startswith("minipipe")]
    values = {id(value): value for module in homes if is_documented(value := vars(module).get(name))}
    return next(iter(values.values())) if len(values) == 1 else None


def resolved_or_none(path: str) -> Any:
    """Return the value at a dotted path, if there is one."""
    return value_of(path, [])


def source_link(app: Sphinx, node: pending_xref, value: Any, content: nodes.Element) -> nodes.Element | None:
    """Return a link to the source page of a module or of what it defines."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    if module is None:
        return None
    page = f"_modules/{module.replace('.', '/')}"
    uri = app.builder.get_relative_uri(node["refdoc"], page)
    return nodes.reference("", "", content, internal=True, refuri=uri)


def source_pages(app: Sphinx, env: BuildEnvironment) -> None:
    """Let viewcode make a page of every file of the package, not only of those with public names."""
    known = env._viewcode_modules
    for path in sorted((ROOT / "minipipe").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not known.get(module):
            analyzer = ModuleAnalyzer.for_module(module)
            analyzer.find_tags()
            known[module] = analyzer.code, analyzer.tags, {}, module


def back_links(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Lead from source code to the page of a name, which viewcode takes for the place where the name is defined."""
    if page.startswith("_modules/"):
        found = r"/(minipipe[\w.]*\.(\w+))\.html#[\w.]*?\.\2(\.\w+)?\""
        context["body"] = re.sub(found, r'/\1.html#\1\3"', context["body"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages before autosummary looks for its tables."""
    app.connect("builder-inited", pages, priority=300)
    app.connect("missing-reference", missing_reference)
    app.connect("env-updated", source_pages)
    app.connect("html-page-context", back_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
