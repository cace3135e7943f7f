"""Every reader of a file from outside, with every kind of damage: read, or refused with
a documented error.
"""

import functools
import io as streams
import json
import os
import re
import struct
import warnings
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save

from minipipe import Costs, checkpoint, nn, schedules
from minipipe import io as files
from minipipe.cli.supervision.launching import read_hosts
from minipipe.coursework import exercise
from minipipe.coursework.deadline import read_times
from minipipe.coursework.leaderboard import Leaderboard
from minipipe.coursework.submission import open_submission
from minipipe.errors import MinipipeError
from minipipe.schedules import read_schedule
from minipipe.schedules.simulation.paper_scale import Run, read_runs
from minipipe.search.certificate import read_certificate
from tests.coursework import small_course
from tests.fuzz import CERTIFICATE
from tests.launch import for_each, slowly
from tests.pipeline.checkpoint import forging

# -- readers ---------------------------------------------------------------------------

PUBLISHED = (
    ",".join(Run._fields)
    + "\nmine,1.7B,24,2304,24,1,1,1,32,512,16,full,replicas,137TF\n"
)
GRADESCOPE = {
    "created_at": "2026-11-30T23:59:00Z",
    "users": [{"email": "a@b"}],
    "assignment": {"due_date": None},
}
WEIGHTS = save({"0.weight": np.zeros((2, 1)), "0.bias": np.zeros(1)})


def restored(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another number of microbatches is worth one
        return FORGE[0].restore(path.read_bytes())


def read_source(path):
    """Read a file of exercises, as solution and as checks."""
    folder = path.parent / "source"
    (folder / "checks").mkdir(parents=True, exist_ok=True)
    for place, text in (
        (folder, small_course.SOLUTION),
        (folder / "checks", small_course.CHECKS),
    ):
        (place / "01_double.py").write_text(text)
    for place in (folder, folder / "checks"):
        kept = (place / "01_double.py").read_bytes()
        (place / "01_double.py").unlink()
        (place / "01_double.py").symlink_to(path)
        try:
            exercise.exercises_in(folder)
        finally:
            (place / "01_double.py").unlink()
            (place / "01_double.py").write_bytes(kept)


@functools.cache
def puzzle():
    return exercise.named(exercise.exercises_in(exercise.find_source()), "14_puzzle")


def leaderboard_of(path):
    return Leaderboard(path, [puzzle()], False).read()


def archive_of(content):
    written = streams.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        archive.writestr("01_double.py", content)
    return written.getvalue()


def read_archive(path):
    return open_submission(path, ["01_double.py"]).read("01_double.py")


BOARD = json.dumps(
    {"format": "minipipe leaderboard 1", "puzzle": "14_puzzle", "entries": []}
)
# By name: the reader of a path, the ending of its file, and a valid content.
READERS = {
    "a schedule as text": (
        read_schedule,
        ".txt",
        schedules.one_f_one_b(2, 2).to_text(),
    ),
    "a schedule as CSV": (read_schedule, ".csv", schedules.one_f_one_b(2, 2).to_csv()),
    "a quoted schedule": (read_schedule, ".csv", '"0F0","0F1","0B0","0B1"\n'),
    "slices": (read_schedule, ".txt", schedules.seq1f1b(2, 2).to_text()),
    "costs": (
        Costs.load,
        ".json",
        '{"format": "minipipe costs", "version": 1, "forward": [2, 3], "latency": 0.5}',
    ),
    "a certificate": (
        lambda path: read_certificate(files.read_text(path)),
        ".json",
        CERTIFICATE,
    ),
    "hosts of MPICH": (read_hosts, ".txt", "# two\nfirst:4\nsecond : 2\n"),
    "hosts of Open MPI": (read_hosts, ".txt", "first slots=4 max_slots=8\nsecond\n"),
    "published runs": (
        lambda path: read_runs(files.read_text(path)),
        ".csv",
        PUBLISHED,
    ),
    "a leaderboard": (leaderboard_of, ".json", BOARD),
    "times": (read_times, ".csv", "submission,time\nada,2026-11-30T23:59:00+01:00\n"),
    "Gradescope's times": (read_times, ".json", json.dumps(GRADESCOPE)),
    "exercises": (read_source, ".py", small_course.SOLUTION),
    "checks": (
        read_source,
        ".py",
        small_course.CHECKS.replace("Twice two", "Points: 2.5\n\n    Twice two"),
    ),
    "an archive": (read_archive, ".zip", archive_of(small_course.SOLUTION)),
    "weights": (
        lambda path: checkpoint.load_weights(path, nn.Sequential(nn.Linear(2, 1))),
        ".safetensors",
        WEIGHTS,
    ),
    "a manifest": (restored, ".json", None),
}
FORGE = []


@pytest.fixture(scope="module", autouse=True)
def forge(tmp_path_factory):
    FORGE.append(forging.Forge(tmp_path_factory.mktemp("forge")))
    yield
    FORGE.clear()


def content_of(reader):
    content = READERS[reader][2]
    if content is None:
        content = json.dumps(FORGE[0].manifest)
    return content if isinstance(content, bytes) else content.encode()


def outcome(reader, path):
    """Return what a reader says of a file; anything but a documented error is
    raised.
    """
    try:
        READERS[reader][0](path)
    except MinipipeError as error:
        assert (
            error.code
            and str(error) == files.printable_lines(str(error))
            and len(str(error)) < 3000
        )
        return str(error)
    return "read"


# -- damage ----------------------------------------------------------------------------

NUMBERS = [
    *(
        "9" * 5000,
        "1" * 400,
        "9" * 20,
        "1e999",
        "-1e999",
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "inf",
    ),
    *("-1", "-0", "+1", "1.5", "1e5", "0x1", "01", "1_0", "\u00b2", "\uff11", "\u0663"),
    *("", " ", "null", "true", '"1"', "[]", "1\0"),
]
LONG = "x" * 200_000  # beyond the limit of csv.reader for a cell
CONTENTS = {
    "nothing": lambda whole: b"",
    "a blank": lambda whole: b" ",
    "a NUL": lambda whole: b"\0",
    "NULs": lambda whole: b"\0" * len(whole),
    "a NUL in front": lambda whole: b"\0" + whole,
    "a NUL within": lambda whole: (
        whole[: len(whole) // 2] + b"\0" + whole[len(whole) // 2 :]
    ),
    "a BOM": lambda whole: b"\xef\xbb\xbf" + whole,
    "CRLF": lambda whole: whole.replace(b"\n", b"\r\n"),
    "CR": lambda whole: whole.replace(b"\n", b"\r"),
    "other ends of lines": lambda whole: whole.replace(
        b"\n", "\u2028\x85\x0b\x0c\x1c".encode()
    ),
    "UTF-16": lambda whole: whole.decode("latin-1").encode("utf-16"),
    "Latin-1": lambda whole: whole + "é".encode("latin-1"),
    "a surrogate": lambda whole: whole + b"\xed\xa0\x80",
    "half": lambda whole: whole[: len(whole) // 2],
    "all but the last": lambda whole: whole[:-1],
    "twice": lambda whole: whole * 2,
    "a quote": lambda whole: b'"' + whole,
    "a long cell": lambda whole: LONG.encode() + b"," + whole,
    "a long quoted cell": lambda whole: b'"' + LONG.encode() + b'",' + whole,
    "a long line behind": lambda whole: whole + LONG.encode(),
    "many commas": lambda whole: whole + b"," * 100_000,
    "many lines": lambda whole: whole + b"\n" * 100_000,
    "deep lists": lambda whole: b"[" * 100_000,
    "closed deep lists": lambda whole: b"[" * 100_000 + b"]" * 100_000,
    "deep mappings": lambda whole: b'{"a":' * 100_000,
    "deep brackets": lambda whole: whole + b"(" * 100_000,
    "deep signs": lambda whole: whole + b"\nx = " + b"-" * 100_000 + b"1\n",
    "a long sum": lambda whole: whole + b"\nx = 1" + b" + 1" * 100_000 + b"\n",
    "a list": lambda whole: b"[]",
    "null": lambda whole: b"null",
    "a text": lambda whole: b'"\\ud800"',
    "escape sequences": lambda whole: whole + b"\n\x1b[2J\x1b]0;title\x07",
    "another file": lambda whole: b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "an empty archive": lambda whole: archive_of(b"")[:-30],
    "a header of 2**62 bytes": lambda whole: struct.pack("<Q", 2**62) + whole[8:],
}


@for_each(damage=CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_takes_a_damaged_content_or_refuses_it_in_words(
    reader, damage, tmp_path
):
    path = tmp_path / f"file{READERS[reader][1]}"
    path.write_bytes(damage(content_of(reader)))
    outcome(reader, path)


def with_numbers(content, words):
    """Yield a content with each of its numbers replaced by each word."""
    for place in re.finditer(rb"\d+(\.\d+)?", content):
        for word in words:
            yield content[: place.start()] + word.encode() + content[place.end() :]


@pytest.mark.parametrize("words", [NUMBERS[:6:5], slowly(NUMBERS)])
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_takes_another_number_or_refuses_it_in_words(reader, words, tmp_path):
    path = tmp_path / f"file{READERS[reader][1]}"
    for content in with_numbers(content_of(reader), words):
        path.write_bytes(content)
        outcome(reader, path)


# The argument of their readers is a folder, in which only regular files are listed.
FOUND_IN_A_FOLDER = ("a manifest", "exercises", "checks")
IN_JSON = [name for name, (_, ending, _) in READERS.items() if ending == ".json"]


@pytest.mark.parametrize("reader", IN_JSON)
def test_a_reader_of_json_rejects_duplicate_keys_at_any_depth(reader, tmp_path):
    """The story: of a leaderboard, the last of two members of one name counted, and the
    first could be seen.
    """
    path = tmp_path / "file.json"
    text = content_of(reader).decode()
    keys = list(re.finditer(r'"(\w+)": ?', text))
    assert keys
    for key in keys:
        path.write_text(
            text[: key.start()] + f'"{key[1]}": null, ' + text[key.start() :]
        )
        assert f"{key[1]!r} occurs twice" in outcome(reader, path)


@pytest.mark.parametrize(
    "place",
    [
        "a directory",
        "a pipe",
        "a device",
        "nothing",
        "a loop",
        "many holes",
        "a long name",
    ],
)
@pytest.mark.parametrize(
    "reader", [name for name in READERS if name not in FOUND_IN_A_FOLDER]
)
def test_a_reader_refuses_what_is_no_file(reader, place, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIPE_TIMEOUT", 0.05)
    path = tmp_path / f"file{READERS[reader][1]}"
    if place == "a directory":
        path.mkdir()
    elif place == "a pipe":
        os.mkfifo(path)
    elif place == "a device":
        path.symlink_to("/dev/zero")
    elif place == "a loop":
        path.symlink_to(path)
    elif place == "a long name":
        path = tmp_path / ("x" * 300 + path.suffix)
    elif place == "many holes":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    assert outcome(reader, path) != "read"
