"""A class: submissions as folders and archives, graded in parallel; hostile archives;
lateness.
"""

import json
import os
import random
import re
import stat
import zipfile

import pytest

from minipipe.cli import main
from minipipe.coursework import several
from minipipe.coursework.several import grade_all
from minipipe.coursework.submission import LONGEST_FILE, open_submission
from minipipe.errors import CourseworkError, FileError
from tests.coursework.small_course import CHECKS, SOLUTION, double
from tests.launch import slowly

FILE = "01_double.py"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source" / "checks").mkdir(parents=True)
    (tmp_path / "source" / FILE).write_text(SOLUTION)
    (tmp_path / "source" / "checks" / FILE).write_text(CHECKS)
    return tmp_path / "source"


@pytest.fixture
def classroom(tmp_path):
    """Return a function that adds a submission to a class."""
    (tmp_path / "class").mkdir()

    def add(name, text):
        folder = tmp_path / "class" / name
        folder.mkdir()
        (folder / FILE).write_text(text)

    add.folder = tmp_path / "class"
    return add


def zipped(path, *members, **options):
    """Write a zip archive of pairs of a name, or a ZipInfo, and a text."""
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, text in members:
            archive.writestr(name, text)
    return path


def points(reports):
    return {report["submission"]: report["points"] for report in reports}


@pytest.mark.slow
def test_a_folder_stands_for_its_submissions_in_the_order_of_names_for_any_number_of_jobs(
    source, classroom
):
    classroom("zoe", SOLUTION)
    classroom("ada", double("return 4"))
    zipped(
        classroom.folder / "bob.zip",
        (f"mine/{FILE}", SOLUTION),
        ("mine/notes.txt", "…"),
    )
    (classroom.folder / "nobody").mkdir()
    (classroom.folder / "grades.csv").write_text("")
    one, three = (
        grade_all([classroom.folder], source=source, jobs=jobs) for jobs in (1, 3)
    )
    assert one == three and list(points(one).items()) == [
        ("ada", 1),
        ("bob", 3),
        ("nobody", 0),
        ("zoe", 3),
    ]
    assert "holds none of 01_double.py" in one[2]["tasks"][0]["problem"]


@pytest.mark.slow
def test_a_link_in_a_folder_is_no_submission(source, classroom, tmp_path):
    """A link to the work of another student, or to the solutions, would earn their
    points.
    """
    classroom("ada", SOLUTION)
    (classroom.folder / "eve").symlink_to("ada")
    (classroom.folder / "mallory").symlink_to(source)
    zipped(tmp_path / "bob.zip", (FILE, SOLUTION))
    (classroom.folder / "zack.zip").symlink_to(tmp_path / "bob.zip")
    reports = grade_all([classroom.folder], source=source)
    assert points(reports) == {"ada": 3, "eve": 0, "mallory": 0, "zack": 0}
    assert all(
        "it is a link" in report["tasks"][0]["problem"] for report in reports[1:]
    )
    # whoever types it means it
    assert points(grade_all([classroom.folder / "eve"], source=source)) == {"eve": 3}


def test_two_submissions_of_one_name_are_refused(source, classroom, tmp_path):
    classroom("ada", SOLUTION)
    zipped(classroom.folder / "ada.zip", (FILE, SOLUTION))
    with pytest.raises(
        CourseworkError, match="have the same name, ada; points are listed by name"
    ):
        grade_all([classroom.folder], source=source)


@pytest.mark.slow
def test_a_grader_that_ends_costs_the_points_of_its_submission_alone(source, classroom):
    """Its process is ended by a test that is itself at fault; the other submission has
    its points.
    """
    ends = (
        'def test_it_ends(task):\n    "It ends."\n    if task.double(1) == 7:\n      '
        "  import os\n        os._exit(3)\n"
    )
    (source / "checks" / FILE).write_text(
        CHECKS.replace("# HIDDEN\n", f"# HIDDEN\n{ends}\n\n")
    )
    classroom("ada", SOLUTION)
    classroom("eve", double("return 7"))
    reports = grade_all([classroom.folder], source=source)
    assert points(reports) == {"ada": 4, "eve": 0}
    assert "the grader ended with exit status 3" in reports[1]["tasks"][0]["problem"]


@pytest.mark.slow
def test_no_module_of_the_current_directory_is_run_by_the_processes(
    source, classroom, monkeypatch
):
    classroom("ada", SOLUTION)
    for module in ("json", "subprocess", "concurrent", "minipipe", "numpy"):
        (classroom.folder / "ada" / f"{module}.py").write_text(
            "raise SystemExit('hijacked')\n"
        )
    monkeypatch.chdir(classroom.folder / "ada")
    assert points(grade_all(["."], source=source)) == {"ada": 3}


# -- archives --------------------------------------------------------------------------


def member(name, mode=0, **attributes):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    for attribute, value in attributes.items():
        setattr(info, attribute, value)
    return info


def bomb(path):
    """A member of 32 MiB that says that it has 5 bytes."""
    zipped(path, (FILE, b"\0" * (1 << 25)), compression=zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    at = content.rindex(b"PK\1\2") + 24
    path.write_bytes(content[:at] + (5).to_bytes(4, "little") + content[at + 4 :])


HOSTILE = {
    "a link": (
        lambda path: zipped(
            path, (member(FILE, stat.S_IFLNK | 0o777), "../../source/" + FILE)
        ),
        "not a regular file",
    ),
    "a folder": (lambda path: zipped(path, (f"{FILE}/", "")), "not a regular file"),
    "a pipe": (
        lambda path: zipped(path, (member(FILE, stat.S_IFIFO), "")),
        "not a regular file",
    ),
    "two copies": (
        lambda path: zipped(path, (f"a/{FILE}", SOLUTION), (f"b/{FILE}", SOLUTION)),
        "keep one folder",
    ),
    "large": (
        lambda path: zipped(
            path, (FILE, "#" * (LONGEST_FILE + 1)), compression=zipfile.ZIP_DEFLATED
        ),
        "more than 1,048,576 bytes",
    ),
    "a method of much memory": (
        lambda path: zipped(path, (FILE, SOLUTION), compression=zipfile.ZIP_LZMA),
        "deflate",
    ),
    "no archive": (lambda path: path.write_text(SOLUTION), "not a zip archive"),
    "an empty file": (lambda path: path.write_bytes(b""), "not a zip archive"),
    "too large": (
        lambda path: path.open("wb").truncate(9 << 20),
        "the limit is 8,388,608",
    ),
    "a pipe in its place": (os.mkfifo, "it is a pipe"),
}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "kind", [slowly(kind) if place % 3 else kind for place, kind in enumerate(HOSTILE)]
)
def test_a_hostile_archive_is_refused_in_words_and_nothing_is_unpacked(
    source, classroom, kind, tmp_path
):
    make, words = HOSTILE[kind]
    make(classroom.folder / "eve.zip")
    classroom("ada", SOLUTION)
    before = sorted(tmp_path.rglob("*"))
    reports = grade_all([classroom.folder], source=source)
    assert (
        points(reports) == {"ada": 3, "eve": 0}
        and words in reports[1]["tasks"][0]["problem"]
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_member_is_read_up_to_the_limit_whatever_size_it_claims(tmp_path):
    bomb(tmp_path / "eve.zip")
    with pytest.raises(
        FileError, match="cannot be read: 01_double.py (is damaged|has more than)"
    ):
        open_submission(tmp_path / "eve.zip", [FILE]).read(FILE)


def test_two_members_of_one_name_are_refused(tmp_path):
    """Which of them is graded, and which of them a person reads, would depend on the
    program.
    """
    with pytest.warns(UserWarning, match="Duplicate name"):
        zipped(tmp_path / "eve.zip", (FILE, SOLUTION), (FILE, double("return 7")))
    with pytest.raises(FileError, match="two of its files have the same name"):
        open_submission(tmp_path / "eve.zip", [FILE])


def test_names_that_lead_out_of_an_archive_are_no_files_of_a_student(tmp_path):
    zipped(
        tmp_path / "eve.zip",
        (FILE, SOLUTION),
        ("../../evil.py", "x"),
        ("/etc/evil.py", "x"),
        ("C:\\evil.py", "x"),
    )
    assert [
        name
        for name in open_submission(tmp_path / "eve.zip", [FILE]).files
        if "evil" not in name
    ] == [FILE]
    assert not list(tmp_path.parent.parent.glob("evil.py"))


def test_a_damaged_archive_is_a_file_error_whatever_byte_is_damaged(tmp_path):
    whole = zipped(
        tmp_path / "whole.zip",
        (f"mine/{FILE}", SOLUTION),
        compression=zipfile.ZIP_DEFLATED,
    ).read_bytes()
    generator, refused = random.Random(0), 0
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(generator.randint(1, 4)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        (tmp_path / "eve.zip").write_bytes(
            content[
                : generator.choice((len(content), generator.randrange(len(content))))
            ]
        )
        try:
            open_submission(tmp_path / "eve.zip", [FILE]).read(FILE)
        except (FileError, CourseworkError):
            refused += 1
    assert refused > 200


# -- the command -----------------------------------------------------------------------


def times(tmp_path, **late):
    lines = [f"{name},2026-12-{day}" for name, day in late.items()]
    (tmp_path / "times.csv").write_text("\n".join(["submission,time", *lines]))
    return [
        "--times",
        str(tmp_path / "times.csv"),
        "--deadline",
        "2026-12-01T00:00:00+01:00",
        "--late-factor",
        "0.5",
    ]


@pytest.mark.usefixtures("in_process")
def test_each_day_of_lateness_that_has_begun_costs_its_factor(
    source, classroom, tmp_path, capsys
):
    for name in ("in_time", "hour", "three_days"):
        classroom(name, SOLUTION)
    late = times(
        tmp_path,
        in_time="01T00:00:00+01:00",
        hour="01T00:00:00Z",
        three_days="03T01:00+01:00",
    )
    words = [
        "grade",
        str(classroom.folder),
        "--source",
        str(source),
        "--json",
        "--csv",
        str(tmp_path / "grades.csv"),
    ]
    assert main([*words, *late]) == 0
    reports = json.loads(capsys.readouterr().out)["submissions"]
    assert [
        (each["submission"], each["days_late"], each["score"]) for each in reports
    ] == [
        ("hour", 1, 1.5),
        ("in_time", 0, 3),
        ("three_days", 3, 0.375),
    ]
    assert (tmp_path / "grades.csv").read_text().splitlines()[1] == "hour,3,3,3,1,1.5,"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("ada,2026-12-01T00:00:00Z", "The file of --times has no line for 'bob'"),
        ("ada,yesterday", "'yesterday' is not a time; expected a time with its zone"),
        ("ada,2026-12-01T00:00:00", "is not a time; expected a time with its zone"),
        ("ada", "A line of '.*' is 'ada'; expected `submission,time`"),
    ],
)
def test_a_time_that_is_not_there_or_has_no_zone_is_refused_before_grading(
    source, classroom, tmp_path, lines, words, capsys
):
    classroom("ada", SOLUTION)
    classroom("bob", SOLUTION)
    (tmp_path / "times.csv").write_text(lines)
    options = [
        "--deadline",
        "2026-12-01T00:00:00Z",
        "--late-factor",
        "0.5",
        "--times",
        str(tmp_path / "times.csv"),
    ]
    assert (
        main(["grade", str(classroom.folder), "--source", str(source), *options]) == 2
    )
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--jobs", "0"], "--jobs is 0; expected a whole number, at least 1"),
        (["--deadline", "2026-12-01T00:00:00Z"], "add --late-factor F, such as 0.9"),
        (["--late-factor", "0.5"], "add --times FILE"),
    ],
)
def test_an_option_without_effect_is_refused_also_for_one_submission(
    source, classroom, options, words, capsys
):
    classroom("ada", SOLUTION)
    assert (
        main(
            ["grade", str(classroom.folder / "ada"), "--source", str(source), *options]
        )
        == 2
    )
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("in_process")
def test_gradescope_s_metadata_has_the_time_and_the_deadline(
    source, classroom, tmp_path, capsys
):
    classroom("submission", SOLUTION)
    users = [
        {"email": "zoe@x.edu", "id": 1, "name": "Zoë"},
        {"email": "ada@x.edu", "id": 2, "name": "Ada"},
    ]
    due = {
        "due_date": "2018-06-30T23:00:00.000000-07:00",
        "late_due_date": None,
        "total_points": "20.0",
    }
    metadata = {
        "id": 1,
        "created_at": "2018-07-01T14:22:32.365935-07:00",
        "assignment": due,
        "users": users,
    }
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    options = [
        "--times",
        str(tmp_path / "metadata.json"),
        "--late-factor",
        "0.5",
        "--source",
        str(source),
    ]
    assert main(["grade", str(classroom.folder), *options]) == 0
    assert "days late: 1, times 0.5 per day: 1.5 points" in capsys.readouterr().out
    (tmp_path / "metadata.json").write_text("[" * 100_000)
    assert main(["grade", str(classroom.folder), *options]) == 2
    assert "it is not Gradescope's metadata" in capsys.readouterr().err


def test_a_submission_that_one_types_wrongly_is_misuse_and_one_of_a_class_a_line(
    source, classroom, capsys
):
    (classroom.folder / "empty").mkdir()
    words = ["--source", str(source)]
    assert main(["grade", str(classroom.folder / "empty"), *words]) == 2
    capsys.readouterr()
    classroom("ada", SOLUTION)
    assert main(["grade", str(classroom.folder), *words]) == 1
    out = capsys.readouterr().out
    assert (
        "ada              3   3      3     1\n" in out
        and "holds none of" in out
        and "contained by" in out
    )


def test_the_package_that_grades_is_the_one_that_was_called(
    source, classroom, monkeypatch
):
    classroom("ada", SOLUTION)
    monkeypatch.setattr(several, "_ROOT", classroom.folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (classroom.folder / "minipipe.py").write_text(
        "raise SystemExit('another minipipe')"
    )
    (report,) = grade_all([classroom.folder / "ada"], source=source)
    assert "another minipipe" in report["tasks"][0]["problem"]
