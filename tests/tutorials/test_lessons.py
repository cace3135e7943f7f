"""The lessons run as a student runs them, claim nothing that they do not check, and the
page beside them is true.
"""

import ast
import inspect
import re
import sys

import pytest

from minipipe import Grid, Pipeline
from tests.launch import ROOT, run, slowly
from tests.tutorials.percent_script import imported_names, printed_without_assert
from tutorials.notebooks import Cell, read_cells

LESSONS = sorted((ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
PAGE = (ROOT / "tutorials" / "README.md").read_text()
LONG = (
    "02",
    "03",
    "04",
    "05",
    "06",
    "07",
    "08",
    "09",
    "10",
    "11",
    "12",
    "13",
    "14",
    "15",
    "16",
    "17",
    "18",
    "19",
    "20",
    "21",
    "23",
    "24",
)  # by number: .ci/run runs them
every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)

WITHOUT_MPI = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "mpi4py" else find(name, *rest)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.fixture(autouse=True)
def as_at_home(monkeypatch):
    """Let NumPy use as many threads as it does on a student's computer."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)


def title_of(path):
    """Return the number and the title at the head of a lesson."""
    return re.match(
        r"# %% \[markdown\]\n# # (\d\d) · (.+)\n", path.read_text()
    ).groups()


def coursework_of(path):
    """Return the tasks that a lesson's exercise names."""
    return re.findall(r"`(\d\d_\w+)`", path.read_text().split("\n# ## Exercise\n")[1])


def answers_of(path):
    """Return the code of the answers that are folded at the end of a lesson."""
    text = re.sub(
        r"^# ?", "", read_cells(path.read_text())[-1].text, flags=re.MULTILINE
    )
    return re.findall(r"^```python\n(.+?)^```$", text, flags=re.MULTILINE | re.DOTALL)


# -- the lessons -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        slowly(path, id=path.stem)
        if path.stem[:2] in LONG
        else pytest.param(path, id=path.stem)
        for path in LESSONS
    ],
)
def test_a_lesson_runs_as_a_script_and_its_folded_answers_behind_it(path, tmp_path):
    answers = answers_of(path)
    assert all("assert" in answer for answer in answers)
    script = tmp_path / path.name
    script.write_text("\n".join([path.read_text(), *answers]))
    # It complains of nothing but of the machine, which may be busy where a lesson
    # measures.
    quiet = "ignore:These costs were measured on a busy machine"
    done = run([sys.executable, script], PYTHONWARNINGS=quiet)
    assert (done.code, done.err) == (0, "")
    assert done.out


@every_lesson
def test_each_question_of_an_exercise_has_an_answer_and_its_check(path):
    parts = read_cells(path.read_text())[-1].text.split(
        "# <details>\n# <summary>Answers</summary>\n"
    )
    exercise, answers = (
        re.findall(r"^# (\d)\. ((?:.|\n#    )+)", part, flags=re.MULTILINE)
        for part in parts
    )
    # Who is sent to the coursework and asked nothing more has an answer there.
    asked = [
        number
        for number, text in exercise
        if "?" in text or "coursework task" not in text
    ]
    assert (
        asked == [number for number, _ in answers]
        and len(asked) == len(answers_of(path)) > 0
    )
    assert (
        parts[1].count("# </details>\n#\n# Next")
        + parts[1].count("# </details>\n#\n# This was the last")
        == 1
    )


@pytest.mark.slow
def test_without_mpi_a_lesson_says_that_a_cell_has_nothing_to_run():
    done = run(
        [sys.executable, "-c", WITHOUT_MPI, "tutorials/03_ranks_and_messages.py"]
    )
    assert (done.code, done.err) == (0, "")
    assert (
        "This cell needs MPI: pip install -e '.[mpi]'. Continue with the next cell."
        in done.out
    )


@every_lesson
def test_a_lesson_opens_as_a_notebook(path):
    source = path.read_text()
    cells = read_cells(source)
    number, _ = title_of(path)
    assert number == path.name[:2]
    for cell in cells:
        assert re.fullmatch(
            r"# %%( \[markdown\])?", source.splitlines()[cell.line - 1]
        ), cell.line
        assert cell.text.strip(), f"the cell at line {cell.line} is empty"
        if cell.is_markdown:
            assert all(
                re.match(r"#( |$)", line) for line in cell.text.strip().splitlines()
            ), cell.line
        else:
            ast.parse(cell.text)  # no cell ends in the middle of something
            assert len(cell.text.strip().splitlines()) <= 65, (
                f"the cell at line {cell.line} is long"
            )


@every_lesson
def test_a_lesson_ends_with_an_exercise_its_coursework_and_what_comes_next(path):
    last = read_cells(path.read_text())[-1]
    assert last.is_markdown and "\n# ## Exercise\n" in f"\n{last.text}"
    assert path is LESSONS[-1] or re.match(
        r"# Next\b", last.text.strip().split("\n#\n")[-1]
    )


@every_lesson
def test_what_a_lesson_prints_is_what_it_asserts(path):
    source = path.read_text()
    for cell in read_cells(source):
        if not cell.is_markdown:
            assert printed_without_assert(cell, imported_names(source)) == [], (
                f"in the cell at line {cell.line}"
            )


@pytest.mark.parametrize(
    ("text", "uncovered"),
    [
        ("x = f()\nprint(x)", ["x"]),
        ("x = f()\nprint(x)\nassert x == 3", []),
        ("x, y = f(), g()\nprint(x, y)\nassert x == 3", ["y"]),
        ("x = f()\nprint(f'{x:.2f}')\nassert y", ["x"]),
        ("for row in rows:\n    print(row)\nassert rows == [1, 2]", []),
        ("for row in rows:\n    print(row)\nassert columns == [1, 2]", ["row"]),
        (
            (
                "timeline = simulate(mine)\nrender.show(mine)\nassert "
                "timeline.makespan == 3"
            ),
            [],
        ),
        ("render.show(before, mine)\nassert mine.makespan == 3", []),
        ("render.show(before, mine)\nassert before_that", ["before", "mine"]),
        ("a = f(mine)\nb = g(mine)\nprint(a)\nassert b", ["a"]),
        ("print(f(3))", ["f"]),
        ("print(f(3))\nassert f(3) == 9", []),
        ("print('nothing but words')", []),
    ],
)
def test_a_printed_value_that_no_assert_is_about_is_found(text, uncovered):
    assert (
        printed_without_assert(Cell(1, False, text), frozenset({"render"})) == uncovered
    )


# -- the page --------------------------------------------------------------------------


def rows_of_the_path():
    row = r"^\| \[(\d\d)\]\((.+?)\) \| (.+?) \| .+? \| \d+ min \| .+? \| (.*?)\|$"
    return re.findall(row, PAGE, flags=re.MULTILINE)


def test_the_path_is_the_lessons_that_exist_with_their_titles():
    assert [(number, name, title) for number, name, title, _ in rows_of_the_path()] == [
        (path.name[:2], path.name, title_of(path)[1]) for path in LESSONS
    ]


@every_lesson
def test_the_path_names_the_coursework_of_each_lesson(path):
    named = {
        name: re.findall(r"`(\w+)`", tasks) for _, name, _, tasks in rows_of_the_path()
    }
    assert sorted(named[path.name]) == sorted(set(coursework_of(path)))


def test_every_task_of_the_coursework_belongs_to_a_lesson():
    tasks = {
        path.stem for path in (ROOT / "tutorials" / "exercises").glob("[0-9][0-9]_*.py")
    }
    assert tasks == {task for path in LESSONS for task in coursework_of(path)}


def test_the_path_says_which_lessons_use_mpi():
    said = dict(re.findall(r"\]\((\d\d_\w+\.py)\).*? min \| (.+?) \|", PAGE))
    assert {name for name, mpi in said.items() if mpi != "no"} == {
        path.name for path in LESSONS if 'find_spec("mpi4py")' in path.read_text()
    }


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^#)]+)\)", PAGE)
    assert {"train.py", "train_lm.py"} <= set(links)
    assert all((ROOT / "tutorials" / link).exists() for link in links)


def test_the_page_leads_to_the_recipe_for_microbatches_and_to_the_commands_of_others():
    goals = dict(
        re.findall(r"^\| (.+?) \| \[lesson \d\d\]\((.+?)\)", PAGE, flags=re.MULTILINE)
    )
    recipe, commands = (
        (ROOT / "tutorials" / goals[goal]).read_text()
        for goal in (
            "choose the number of microbatches for my batch",
            "know the PyTorch and Megatron-LM commands",
        )
    )
    assert (
        "## How many microbatches for my batch? A recipe\n" in recipe
        and "def best_number(" in recipe
    )
    for words in (
        "torchrun --nproc-per-node 4 train_torch.py",
        "--pipeline-model-parallel-size 4",
        "Schedule1F1B(",
    ):
        assert words in commands


@every_lesson
def test_each_program_in_the_text_of_a_lesson_is_python(path):
    for cell in read_cells(path.read_text()):
        if cell.is_markdown:
            for program in re.findall(
                r"^```python\n(.+?)^```$", cell.content, flags=re.MULTILINE | re.DOTALL
            ):
                ast.parse(program)


def test_what_is_said_to_be_built_here_is():
    row = re.search(
        r"^\| in minipipe \| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE, flags=re.MULTILINE
    )
    data, pipeline, tensor, sharded = row.groups()
    options = inspect.signature(Pipeline).parameters
    assert (
        "`Pipeline(…, replicas=R)`" in data
        and "replicas" in options
        and hasattr(Pipeline, "sharded")
    )
    assert (
        pipeline == "`Pipeline(model, group, …)`" and "`pipeline.sharded(…)`" in sharded
    )
    assert (
        "`Pipeline(model, Grid(group, tensor=T))`" in tensor
        and "tensor" in inspect.signature(Grid).parameters
    )
    assert (
        "fully_sharded=True" in sharded
        and "fully_sharded" in inspect.signature(Grid).parameters
    )


def test_the_glossary_is_in_order_and_has_each_term_once():
    terms = re.findall(
        r"^- \*\*(.+?)\*\*: ", PAGE.split("## Glossary")[1], flags=re.MULTILINE
    )
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=str.casefold)
