"""The commands in texts: where they stand, and the parsers that they are given to.

Quick ones are run by test_commands.py. The others, which install something, start ranks
or serve a page, are parsed by the real parser, and the files and tasks that they name
must exist. A program that is not known here is an error.
"""

import ast
import contextlib
import functools
import importlib.util
import io
import re
import shlex
import sys
from configparser import ConfigParser
from importlib import import_module

from minipipe.cli.main import VERBS, _parser_of
from minipipe.coursework import write_coursework
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.schedules.registry import REGISTRY, spelled
from minipipe.schedules.simulation.paper_scale import TABLES
from tests.code_lines import parsed
from tests.launch import ROOT

SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
EXTRAS = SETUP["options.extras_require"]
REQUIRED = {
    re.match(r"[\w-]+", line)[0]
    for text in EXTRAS.values()
    for line in text.split("\n")
    if line.strip(" #")
}
# that pip may be told to install, beside minipipe's folder
PACKAGES = REQUIRED | {"notebook", "torch", "cairosvg"}
PACKAGES |= {"cupy-cuda12x[ctk]", "cupy-cuda13x[ctk]"}
TASKS = {exercise.name for exercise in exercises_in(find_source())}
# of a reader
PLACEHOLDERS = {
    "train.py",
    "smallest.py",
    "survives.py",
    "script.py",
    "x.py",
    "stepping.py",
    "program",
}
PLACEHOLDER = re.compile(r"[A-Z]{2,}(\.\w+)?|NN_name")


class Wrong(Exception):
    """What is wrong with a command."""


# -- the texts, and the commands in them -----------------------------------------------

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def in_markdown(text):
    """Yield the commands of a text with Markdown: the lines of its blocks of shell, and
    those between backticks.
    """
    for language, block in FENCE.findall(text):
        if language == "sh":
            yield from filter(
                None, map(str.strip, block.replace("\\\n", " ").splitlines())
            )
    for quoted in re.findall(r"``?([^`]+)``?", FENCE.sub("", text)):
        words = quoted.split()
        if words and words[0] in PROGRAMS:
            yield " ".join(words)


def in_help(text):
    """Yield the commands of a help or of a table: indented lines, perhaps with a remark
    behind some blanks.
    """
    heads = "|".join(map(re.escape, PROGRAMS))
    for line in re.findall(
        rf"^ {{2,}}((?:{heads}) .*)$", text.replace("\\\n", " "), re.MULTILINE
    ):
        yield re.split(r"(?<=\S) {4,}(?=[a-z])", line)[0]


def in_help_file(text):
    """Return the commands of a file of helps: also those in its sentences."""
    return [*in_markdown(text), *in_sentences(text), *in_help(text)]


def in_sentences(text):
    """Yield what sentences tell to install, and the verbs that they name with their
    options.
    """
    yield from re.findall(r"(?<!`)pip install [^\n`]*", text)
    yield from re.findall(rf"minipipe (?:{'|'.join(VERBS)})\b(?: --[a-z-]+)*", text)


def strings_of(path):
    """Yield the strings of a program; in a formatted one, 1 stands for what is
    inserted.
    """
    parts = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "1"
                for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in parts
        ):
            yield node.value


def in_lesson(path):
    """Return the commands of a lesson, whose comments are Markdown."""
    comments = [
        line[1:].removeprefix(" ")
        for line in path.read_text().splitlines()
        if line.startswith("#")
    ]
    return [
        *in_markdown("\n".join(comments)),
        *(each for text in strings_of(path) for each in in_markdown(text)),
    ]


def in_program(path):
    """Return the commands in the strings of a file of the package."""
    found: list[str] = []
    # which is quicker
    if not any(
        f"{program} " in path.read_text() for program in PROGRAMS if len(program) > 2
    ):
        return found
    for text in strings_of(path):
        found += [*in_markdown(text), *in_sentences(text)]
        if path.parent.name == "cli":
            found += in_help(text)
    return found


def in_script(path):
    """Return the commands of a shell script that start ranks."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    return [
        line
        for line in lines
        if line.split(" ")[0]
        in ("minipipe", "mpirun", "mpiexec", "srun", "pip", "python")
    ]


def in_copy(folder):
    """Return the commands of the README files of students' copies, with and without
    names and other exercises.
    """
    found = []
    for number, given in enumerate(({}, {"student": "ada"}, {"source": find_source()})):
        write_coursework(folder / str(number), **given)
        text = (folder / str(number) / "README.md").read_text()
        found += [*in_markdown(text), *in_help(text)]
    return found


def pages_of_the_site():
    """Return the names in the folder of the site that a build of it makes."""
    lines = (ROOT / "tutorials" / "site" / ".gitignore").read_text().splitlines()
    return {line.strip("/") for line in lines if line.startswith("/")}


def documents():
    """Return the function that reads the commands of a document, by the document's
    name.
    """
    pages = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "DESIGN.md"))]
    pages += [*ROOT.glob("minipipe/**/*.md"), *ROOT.glob("tutorials/**/*.md")]
    found = {path: lambda path: in_markdown(path.read_text()) for path in pages}
    found |= dict.fromkeys(ROOT.glob("tutorials/**/*.py"), in_lesson)
    found |= dict.fromkeys(ROOT.glob("minipipe/**/*.py"), in_program)
    others = [
        ROOT / "minipipe" / "hints.toml",
        *(ROOT / "minipipe" / "coursework" / "templates").iterdir(),
    ]
    found |= {path: lambda path: in_sentences(path.read_text()) for path in others}
    helps = ROOT.glob("minipipe/cli/help/*.txt")
    found |= {path: lambda path: in_help_file(path.read_text()) for path in helps}
    found |= dict.fromkeys(ROOT.glob("tutorials/**/*.sh"), in_script)
    made = {ROOT / "tutorials" / "site" / name for name in pages_of_the_site()}
    kept = {
        path: read
        for path, read in sorted(found.items())
        if made.isdisjoint([path, *path.parents])
    }
    return {str(path.relative_to(ROOT)): (path, read) for path, read in kept.items()}


# -- the parsers -----------------------------------------------------------------------


@functools.cache
def check(command):
    """Raise ``Wrong`` for a command that cannot work."""
    # options that may be left out
    command = re.sub(r"\[(--[^\]]*)\]", r"\1", command).replace("…", "")
    # a | between quotes belongs to an argument
    for part in re.split(r"&&|\|(?=(?:[^']*'[^']*')*[^']*$)", command):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:  # a sentence with an apostrophe
            words = part.split()
        # of a script
        words = [
            re.sub(r"^\$\w+", "1", word)
            for word in words
            if word not in ("$@", "$OPTIONS")
        ]
        while words and re.match(r"\w+=", words[0]):
            del words[0]
        if words:
            if words[0] not in PROGRAMS:
                raise Wrong(f"{words[0]} is no program that is known here")
            PROGRAMS[words[0]](words[1:])


def must(condition, reason):
    if not condition:
        raise Wrong(reason)


def check_minipipe(words):
    if not words or words[0] in ("--help", "--version", "VERB"):
        return
    verb, *rest = words
    must(verb in VERBS, f"there is no verb {verb}")
    module = import_module(f"minipipe.cli.{verb}")
    parser, passed_on = _parser_of(verb, module), []
    if getattr(module, "PASSES_ON", False) and "--" in rest:
        rest, passed_on = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    known = {name for action in parser._actions for name in action.option_strings}
    # the name of an option, such as `minipipe check --prove`
    if all(word.startswith("-") for word in rest):
        must(
            {word.partition("=")[0] for word in rest} <= known,
            f"{verb} has not all of {rest}",
        )
        return
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            options = parser.parse_args(rest)
    except SystemExit:
        raise Wrong(complaint.getvalue().strip().splitlines()[-1]) from None
    check_values({"arguments": passed_on, **vars(options)})


def check_values(options):
    """Check what options name: schedules, tasks, programs and files."""
    given = options.get("schedule") or []
    for name in [given] if isinstance(given, str) else given:
        is_file = name.endswith((".csv", ".txt"))
        is_known = spelled(name) in REGISTRY or name == "1"
        must(
            is_known or is_file or PLACEHOLDER.fullmatch(name),
            f"there is no schedule {name}",
        )
    for path in options.get("submissions", []):
        must(
            path.suffix != ".py" or path.stem in TASKS, f"there is no task {path.stem}"
        )
    for task in options.get("only") or []:
        must(
            task in TASKS or PLACEHOLDER.fullmatch(task) or task == "1",
            f"there is no task {task}",
        )
    table = options.get("table", "TABLE")
    must(
        table in (*TABLES, "vocabulary")
        or table.endswith(".csv")
        or PLACEHOLDER.fullmatch(table),
        f"there is no table {table}",
    )
    if options.get("script"):
        check_script([options["script"], *options["arguments"]])
    if options.get("hostfile") and "/" in str(options["hostfile"]):
        must(
            (ROOT / options["hostfile"]).exists(),
            f"there is no file {options['hostfile']}",
        )
    if options.get("program"):
        check_script([options["program"], *options["arguments"]])


def check_launcher(words):
    """Check the program that mpirun or srun starts; options take a value if they are
    not written with =.
    """
    words = list(words)
    while words and words[0].startswith("-"):
        has_value = not words.pop(0).startswith("--") or words[:1] == ["ulfm"]
        del words[: int(has_value)]
    if words and words[0] != "hostname":
        must(words[0].startswith("python"), f"a launcher starts {words[0]}")
        check_python(words[1:])


def check_python(words):
    if words[:1] == ["-m"] and len(words) > 1:
        check_module(words[1], words[2:])
    elif words and not words[0].startswith("-"):
        check_script(words)


def check_module(module, words):
    if module in ("pytest", "minipipe", "pip"):
        PROGRAMS[module](words)
    elif module.split(".")[0] in ("tests", "minipipe"):
        check_script([f"{module.replace('.', '/')}", *words])
    else:
        must(module in ("venv", "build", "http.server"), f"there is no module {module}")


def check_script(words):
    path, arguments = ROOT / words[0], words[1:]
    if words[0] in PLACEHOLDERS or PLACEHOLDER.fullmatch(words[0]):
        return
    path = next(
        (
            each
            for each in (path, path.with_suffix(".py"), path / "__main__.py")
            if each.is_file()
        ),
        None,
    )
    must(path, f"there is no file {words[0]}")
    if path.name in ("train.py", "train_lm.py"):
        check_training(path, arguments)
        return
    for word in arguments:
        must(
            not word.startswith("--") or f'"{word}"' in path.read_text(),
            f"{words[0]} has no option {word}",
        )


def check_training(path, arguments):
    """Parse the arguments of a training program as it does."""
    complaint, before = io.StringIO(), sys.argv
    try:
        sys.argv = [str(path), *arguments]
        with contextlib.redirect_stderr(complaint):
            training_program(path).parse_options(is_silent=False)
    except SystemExit:
        raise Wrong(complaint.getvalue().strip().splitlines()[-1]) from None
    finally:
        sys.argv = before


@functools.cache
def training_program(path):
    """Return the module of a program in tutorials/, which imports its neighbours."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_of_the_tutorials", path)
    program, before = importlib.util.module_from_spec(spec), sys.path[:]
    try:
        sys.path.insert(0, str(path.parent))
        spec.loader.exec_module(program)
    finally:
        sys.path[:] = before
    return program


def check_pip(words):
    """Check what is installed: extras of setup.cfg from minipipe's folder, its wheel,
    or a known package.
    """
    if words[:1] == ["install"]:
        found = 0
        options = {"-e", "--quiet", "--no-cache-dir", "--no-binary", "--no-deps"}
        for word in words[1:]:
            bare = word.strip("\"'`").rstrip(").,:;").removesuffix("'")
            folder = re.fullmatch(r"\.(?:\[([\w,]+)\])?", bare or ".")
            extras = folder[1].split(",") if folder and folder[1] else []
            must(
                set(extras) <= set(EXTRAS),
                f"setup.cfg has not all of the extras {extras}",
            )
            is_wheel = re.fullmatch(r"(\./|/grader/)minipipe_mpi-\S*\.whl", bare)
            if not (folder or is_wheel or bare in PACKAGES or word in options):
                break  # the sentence goes on
            found += word not in options
        must(found, f"pip cannot install {' '.join(words[1:3])} from an index")
    else:
        must(
            words in ([], ["wheel", "--no-deps", "."]), f"pip {words} is not known here"
        )


def check_pytest(words):
    known = {
        "-n",
        "-m",
        "-k",
        "-x",
        "-q",
        "--hypothesis-profile",
        "--hypothesis-profile=thorough",
    }
    for word in words:
        must(not word.startswith("-") or word in known, f"pytest has no option {word}")
        must("/" not in word or (ROOT / word).exists(), f"there is no test {word}")


def check_file(words):
    must(not words or (ROOT / words[0]).exists(), f"there is no file {words[:1]}")


def check_extra(name):
    """Return the check of a tool that comes with an extra."""
    return lambda words: must(name in REQUIRED, f"no extra of setup.cfg has {name}")


def accept(words):
    """Take a command of the system as it is."""


PROGRAMS = {
    "minipipe": check_minipipe,
    **dict.fromkeys(("mpirun", "mpiexec", "srun"), check_launcher),
    **dict.fromkeys(("python", "python3"), check_python),
    "pip": check_pip,
    "pytest": check_pytest,
    **dict.fromkeys(("sbatch", "qsub"), check_file),
    **{
        tool: check_extra(package)
        for tool, package in {"ruff": "ruff", "mypy": "mypy", "twine": "twine"}.items()
    },
    "sphinx-build": check_extra("sphinx"),
    **dict.fromkeys(
        (
            ".",
            "source",
            "cd",
            "export",
            "module",
            "apt-get",
            "docker",
            "eval",
            "kill",
            "chmod",
        ),
        accept,
    ),
    "register-python-argcomplete": check_extra("argcomplete"),
}
