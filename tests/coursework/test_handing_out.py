"""What an instructor hands out or uploads: pages, an archive for Gradescope and Docker,
a workflow for Classroom.
"""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import zipfile
from html.parser import HTMLParser

import jsonschema
import pypdfium2
import pytest

from minipipe.cli import main
from minipipe.coursework import handouts
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.coursework.handouts import as_html
from tests.coursework.small_course import CHECKS, SOLUTION
from tests.coursework.test_results import SCHEMA

EXERCISES = exercises_in(find_source())
needs_chromium = pytest.mark.skipif(
    not any(map(shutil.which, handouts._BROWSERS)),
    reason="needs Chromium (apt-get install chromium)",
)
VOID = {"meta"}


class Page(HTMLParser):
    """The text of a page whose elements all end where they should."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text, self.tags = [], [], set()
        self.feed(page)
        assert not self.open
        self.text = "".join(self.text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def lines_of(text):
    return {line.strip() for line in text.splitlines() if len(line.strip()) > 32}


def test_a_handout_has_statements_stubs_and_visible_tests_and_nothing_that_is_the_instructor_s():
    text = Page(as_html(EXERCISES)).text
    for exercise in EXERCISES:
        assert exercise.title in text and exercise.stub.split('"""\n', 2)[
            -1
        ].strip() in text.replace("\n\n\n\n", "\n\n\n")
        shown = [
            test.name for test in exercise.tests if re.search(rf"\b{test.name}\b", text)
        ]
        assert shown == [test.name for test in exercise.tests if not test.is_hidden]
        solution = lines_of(
            "".join(
                re.findall(r"# SOLUTION\n(.*?)# STUB", exercise.solution, re.DOTALL)
            )
        )
        assert not lines_of(text) & solution


def test_a_solution_sheet_has_solutions_all_tests_and_why_wrong_answers_are_tempting():
    text = Page(as_html(EXERCISES, solutions=True)).text
    for exercise in EXERCISES:
        assert lines_of(exercise.answer.split('"""\n', 2)[-1]) <= lines_of(text)
        assert all(test.name in text for test in exercise.tests)
    assert (
        "a formula for 1F1B that is often copied" in text and "# SOLUTION" not in text
    )


def test_a_page_escapes_what_an_exercise_says_and_loads_nothing(tmp_path, capsys):
    (tmp_path / "checks").mkdir()
    evil = '"""01 a: <script>b</script>.\n\nLesson 01. `<img src=x>` & more.\n"""\n'
    evil += '# SOLUTION\nx = "</pre>"\n# STUB\n# x = 1\n# END\n'
    (tmp_path / "01_a.py").write_text(evil)
    (tmp_path / "checks" / "01_a.py").write_text(
        'def test_x(task):\n    "<b>."\n\n\n# HIDDEN\n'
    )
    assert (
        main(
            [
                "coursework",
                str(tmp_path / "page.html"),
                "--as",
                "solutions",
                "--source",
                str(tmp_path),
            ]
        )
        == 0
    )
    page = (tmp_path / "page.html").read_text()
    assert (
        not Page(page).tags & {"script", "img", "link", "iframe"}
        and 'x = "</pre>"' in Page(page).text
    )
    assert "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")


@needs_chromium
@pytest.mark.slow
def test_a_pdf_has_each_task_on_a_page_of_its_own(tmp_path, capsys):
    assert main(["coursework", str(tmp_path / "all.pdf"), "--as", "handout"]) == 0
    document = pypdfium2.PdfDocument(tmp_path / "all.pdf")
    pages = [page.get_textpage().get_text_range() for page in document]
    found = [
        next(at for at, text in enumerate(pages) if f"{each.name}.py · lesson" in text)
        for each in EXERCISES
    ]
    assert sorted(set(found)) == found and "bubble" in pages[found[4]]


def test_without_chromium_a_pdf_is_refused_with_what_to_do(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["coursework", str(tmp_path / "all.pdf"), "--as", "handout"]) == 2
    assert (
        "or write a .html file and print that from any browser"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "words",
    [
        ["page.txt", "--as", "handout"],
        ["mine", "--only", "05_bubble"],
        ["page.html", "--as", "handout", "--late-factor", "0.5"],
        ["a.zip", "--as", "autograder", "--late-factor", "1.5"],
        ["page.html", "--as", "handout", "--only", "05"],
        ["archive", "--as", "autograder"],
        ["workflow.zip", "--as", "classroom"],
    ],
)
def test_what_does_not_fit_together_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["coursework", *words]) == 2 and not list(tmp_path.iterdir())


# -- Gradescope and Docker -------------------------------------------------------------


@pytest.fixture
def archive(tmp_path):
    """Return the path of an archive with one task."""
    words = ["--as", "autograder", "--only", "05_bubble", "--late-factor", "0.5"]
    assert main(["coursework", str(tmp_path / "autograder.zip"), *words]) == 0
    return tmp_path / "autograder.zip"


def test_an_archive_has_its_scripts_at_the_root_a_wheel_and_the_task_and_the_same_bytes_each_time(
    archive, tmp_path
):
    names = {
        each.filename: stat.S_IMODE(each.external_attr >> 16)
        for each in zipfile.ZipFile(archive).infolist()
    }
    (wheel,) = [name for name in names if name.endswith("-py3-none-any.whl")]
    exercises = {"exercises/05_bubble.py", "exercises/checks/05_bubble.py"}
    assert (
        names.keys() == {"setup.sh", "run_autograder", "Dockerfile", wheel} | exercises
    )
    assert names["setup.sh"] == names["run_autograder"] == 0o755
    before = archive.read_bytes()
    main(
        [
            "coursework",
            str(archive),
            "--as",
            "autograder",
            "--only",
            "05_bubble",
            "--late-factor",
            "0.5",
        ]
    )
    assert archive.read_bytes() == before


def test_the_wheel_has_each_file_with_its_digest_and_no_solution(archive):
    outer = zipfile.ZipFile(archive)
    (name,) = [name for name in outer.namelist() if name.endswith(".whl")]
    wheel = zipfile.ZipFile(io.BytesIO(outer.read(name)))
    (record,) = [
        each for each in wheel.namelist() if each.endswith(".dist-info/RECORD")
    ]
    rows = {
        row[0]: row[1:] for row in csv.reader(wheel.read(record).decode().splitlines())
    }
    assert rows.keys() == set(wheel.namelist())
    for each, (digest, size) in rows.items():
        if each != record:
            found = hashlib.sha256(wheel.read(each)).digest()
            assert (
                digest
                == f"sha256={base64.urlsafe_b64encode(found).decode().rstrip('=')}"
            )
            assert int(size) == len(wheel.read(each))
    assert {
        "minipipe/__init__.py",
        "minipipe/coursework/templates/student.md",
        "minipipe/py.typed",
    } <= rows.keys()
    assert not [each for each in rows if "exercises" in each or each.endswith(".pyc")]


@pytest.mark.slow
def test_the_archive_grades_as_gradescope_would_run_it(archive, tmp_path):
    """Its setup installs the wheel; its run grades without network, late, and also a
    student who handed in nothing.
    """
    home, solved = (
        tmp_path / "autograder",
        next(e for e in EXERCISES if e.name == "05_bubble"),
    )
    for folder in ("source", "results", "submission"):
        (home / folder).mkdir(parents=True)
    with zipfile.ZipFile(archive) as packed:
        for each in packed.infolist():
            os.chmod(packed.extract(each, home / "source"), each.external_attr >> 16)
    metadata = {
        "created_at": "2026-12-01T12:00:00Z",
        "assignment": {"due_date": "2026-12-01T00:00:00Z"},
    }
    metadata["users"] = [{"email": "ada@x.edu", "id": 1, "name": "Ada"}]
    (home / "submission_metadata.json").write_text(json.dumps(metadata))
    shutil.copy(home / "source" / "run_autograder", home)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    environment["AUTOGRADER"] = str(home)
    subprocess.run(
        [home / "source" / "setup.sh"], env=environment, check=True, capture_output=True
    )
    for text, score in ((None, 0), (solved.solution, 3.5), (solved.stub, 0)):
        if text is not None:
            (home / "submission" / "05_bubble.py").write_text(text)
        done = subprocess.run(
            [home / "run_autograder"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results = json.loads((home / "results" / "results.json").read_text())
        jsonschema.validate(results, SCHEMA)
        assert results["score"] == score
    spies = (
        f"import pathlib\nprint(pathlib.Path({str(home)!r}, "
        "'source/exercises/05_bubble.py').read_text())\n"
    )
    (home / "submission" / "05_bubble.py").write_text(spies + solved.solution)
    subprocess.run(
        [home / "run_autograder"], env=environment, capture_output=True, check=False
    )
    assert json.loads((home / "results" / "results.json").read_text())["score"] == 0


# -- Classroom -------------------------------------------------------------------------


def test_a_workflow_has_a_step_for_each_task_and_reports_each(tmp_path):
    assert (
        main(["coursework", str(tmp_path / "classroom.yml"), "--as", "classroom"]) == 0
    )
    text = (tmp_path / "classroom.yml").read_text()
    assert "@" not in re.sub(r"@v\d", "", text) and "\t" not in text
    commands = re.findall(
        r"^          command: minipipe (grade \. --hide-hidden --only (\w+))$",
        text,
        re.MULTILINE,
    )
    assert [name for _, name in commands] == [exercise.name for exercise in EXERCISES]
    scores = [
        int(points)
        for points in re.findall(r"^          max-score: (\d+)$", text, re.MULTILINE)
    ]
    assert scores == [exercise.points for exercise in EXERCISES]
    identifiers = re.findall(r"^        id: (\S+)$", text, re.MULTILINE)
    reported = dict(
        re.findall(
            r"^          (\S+)_RESULTS: \$\{\{ steps\.(\S+)\.outputs\.result \}\}$",
            text,
            re.MULTILINE,
        )
    )
    assert (
        list(reported.values()) == identifiers
        and [name.lower() for name in reported] == identifiers
    )
    assert f"          runners: {','.join(identifiers)}\n" in text


def test_a_workflow_of_other_exercises_runs_the_tests_that_a_repository_has(tmp_path):
    """The story: it graded minipipe's own exercises, which such a repository does not
    hold.
    """
    (tmp_path / "source" / "checks").mkdir(parents=True)
    (tmp_path / "source" / "01_double.py").write_text(SOLUTION)
    (tmp_path / "source" / "checks" / "01_double.py").write_text(CHECKS)
    words = [
        str(tmp_path / "classroom.yml"),
        "--as",
        "classroom",
        "--source",
        str(tmp_path / "source"),
    ]
    assert main(["coursework", *words]) == 0
    text = (tmp_path / "classroom.yml").read_text()
    assert (
        "command: python -m pytest test_01_double.py\n" in text
        and "max-score: 2\n" in text
    )
    assert " pytest\n" in text and "minipipe grade . " not in text
