"""A file that a document, a docstring or a comment names is there."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

from tests.code_lines import tree_of
from tests.launch import ROOT, for_each

TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split()
TRACKED = [name for name in TRACKED if (ROOT / name).is_file()]
pytestmark = pytest.mark.skipif(
    not TRACKED, reason="no git here, which knows the files of the project"
)

_ENDING = "py|pyi|md|toml|cfg|csv|gz|js|css|html|sh|svg|cff|sbatch|pbs"
# In backquotes: a name with a known ending, or folders with a slash at the end.
NAMED = re.compile(
    rf"(?<!`)``?((?:[\w.*-]+/)*[\w.*-]+\.(?:{_ENDING})|(?:[\w.-]+/)+)``?(?!`)"
)
LINKED = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
# Files that a reader makes, that stand for many, or that belong to other projects.
OF_READERS = re.compile(
    r"(?:.*/)?(?:test_)?NN_name\.py|minipipe/cli/NAME\.py|mine(?:\.csv|/.*)|class/(?:ada|bob)/.*|smallest\.py"
    r"|(?:minipipe/schedules/)?gpipe_in_groups\.py|step(?:ping\.py|\.html|\.measured\.html)|json\.py"
    r"|(?:megatron/training/)?arguments\.py|messages\.py|train_torch\.py|from_csv\.py|wheels/"
)
# A history names what was there; the pages of the site are made when it is built, and
# its own tests follow their links.
OTHERWISE = {
    "CHANGELOG.md",
    "tutorials/site/index.md",
    "tutorials/site/coming-from-megatron.md",
    "tutorials/site/is-it-a-bug.md",
    "tutorials/site/course.md",
    "tutorials/site/large-vocabularies.md",
}
DOCUMENTS = [name for name in TRACKED if name.endswith(".md") and name not in OTHERWISE]
PROGRAMS = [name for name in TRACKED if name.endswith(".py")]


TOP_LEVEL = {
    *(
        ".ci",
        ".gitignore",
        ".ruff.toml",
        "setup.cfg",
        "setup.py",
        "minipipe",
        "tests",
        "tutorials",
        "README.md",
    ),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "DESIGN.md", "LICENSE"),
}


def test_nothing_else_is_at_the_top_level():
    assert {name.partition("/")[0] for name in TRACKED} == TOP_LEVEL


def ends_of(path):
    """Yield the ends of a path, and what it has of folders, with a slash behind it."""
    parts = path.split("/")
    for first in range(len(parts)):
        yield "/".join(parts[first:])
        for last in range(first + 1, len(parts)):
            yield "/".join([*parts[first:last], ""])


ENDS = {end for path in TRACKED for end in ends_of(path)}


def is_there(name, folder):
    """Return whether a name leads to a file or a folder: from its own folder, or as the
    end of a path.
    """
    if name in ENDS or (ROOT / folder / name).exists():
        return True
    return "*" in name and any((ROOT / folder).glob(name))


def missing(text, folder):
    # a module
    named = [name for name in NAMED.findall(text) if not name.startswith("minipipe.")]
    return [
        name
        for name in named
        if not OF_READERS.fullmatch(name) and not is_there(name, folder)
    ]


def prose_of(source):
    """Return the docstrings and the comments of a program."""
    nodes = ast.walk(tree_of(source))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [
        ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join(
        [
            *docstrings,
            *(token.string for token in tokens if token.type == tokenize.COMMENT),
        ]
    )


@for_each(document=DOCUMENTS)
def test_a_file_that_a_document_names_or_links_to_is_there(document):
    text, folder = (ROOT / document).read_text(encoding="utf-8"), Path(document).parent
    assert missing(text, folder) == []
    assert [
        link for link in LINKED.findall(text) if not (ROOT / folder / link).exists()
    ] == []


def missing_of(name):
    """Return what the docstrings and the comments of a program name in vain."""
    source = (ROOT / name).read_text(encoding="utf-8")
    # few programs have such a name anywhere, and only those are parsed
    if not missing(source, Path(name).parent):
        return []
    return missing(prose_of(source), Path(name).parent)


@pytest.mark.parametrize("folder", ["minipipe/", "tests/", "tutorials/"])
def test_a_file_that_a_docstring_or_a_comment_names_is_there(folder):
    programs = [name for name in PROGRAMS if name.startswith(folder)]
    found = {name: missing_of(name) for name in programs}
    assert {name: names for name, names in found.items() if names} == {} and programs


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see `schedules/garbage.py` and ``nn/layers.py``", ["schedules/garbage.py"]),
        ("`parameter_group.py`, `optimiser.py`, `optim/`", ["parameter_group.py"]),
        ("`functional/` has no `functional/strange/`", ["functional/strange/"]),
        ("save it as `smallest.py`; `python -m pytest`, `x.py = 3`", []),
    ],
)
def test_a_name_of_a_file_that_is_gone_is_noticed(text, names):
    assert missing(text, Path()) == names
