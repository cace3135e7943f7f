"""Similar submissions: copies in disguise are found, and honest answers are not."""

import json
import random
import zipfile

import pytest

from minipipe.cli import main
from minipipe.coursework.exercise import exercises_in, find_source
from minipipe.coursework.similarity import (
    _LEAST,
    GRAM,
    WINDOW,
    _hashes,
    _winnowed,
    compared,
    similarities,
)
from minipipe.coursework.submission import LONGEST_FILE

EXERCISES = {each.name: each for each in exercises_in(find_source())}
BUBBLE = EXERCISES["05_bubble"]
OTHER = """
def bubble_fraction(num_ranks, num_microbatches):
    idle = num_ranks - 1
    return idle / (idle + num_microbatches)


def microbatches_for(num_ranks, bubble):
    count = 1
    step = 1 << 60
    while step:
        if bubble_fraction(num_ranks, count + step) > bubble:
            count += step
        step >>= 1
    if bubble_fraction(num_ranks, count) > bubble:
        return count + 1
    return count
"""


def disguised(text):
    """Rename variables, add remarks and empty lines, and change a number."""
    text = text.replace("enough", "m").replace("# the quotient", "# now")
    lines = text.replace("max(1,", "max(  2 ,").splitlines()
    return "\n\n".join(f"{line}  # {number}" for number, line in enumerate(lines))


def found(one, two, stub=""):
    matches, problems = compared("05_bubble", {"ada": one, "bob": two}, stub)
    assert not problems
    return matches


def test_a_disguised_copy_is_found_with_its_lines():
    answer = BUBBLE.answer.split('"""\n', 1)[1]
    (match,) = found(answer, disguised(answer), BUBBLE.stub)
    assert match.similarity > 0.95 and match.tokens > 50
    mine, copy = answer.splitlines(), disguised(answer).splitlines()
    code = [line for line in mine if "return enough" in line or "while" in line]
    aligned = {mine[a - 1]: copy[b - 1] for a, b in match.lines}
    for line in code:
        assert aligned[line].startswith(line.replace("enough", "m"))


def test_functions_in_another_order_are_found():
    parts = BUBBLE.answer.split("def ")
    moved = "def ".join([parts[0], parts[2] + "\n\n", parts[1]])
    (match,) = found(BUBBLE.answer, moved, BUBBLE.stub)
    assert match.similarity > 0.7


def test_two_ways_to_the_answer_are_not_similar():
    assert all(each.similarity < _LEAST for each in found(BUBBLE.answer, OTHER))


def test_the_stub_is_subtracted():
    assert found(BUBBLE.stub, BUBBLE.stub, BUBBLE.stub) == []
    assert found(BUBBLE.stub, BUBBLE.stub) != []
    assert found(BUBBLE.stub, BUBBLE.answer, BUBBLE.stub) == []


def test_code_of_many_submissions_is_no_evidence():
    texts = {f"student {number}": BUBBLE.answer for number in range(11)}
    assert compared("05_bubble", texts, BUBBLE.stub) == ([], [])
    del texts["student 0"]
    assert len(compared("05_bubble", texts, BUBBLE.stub)[0]) == 45


def test_each_long_common_run_has_a_common_fingerprint():
    """The guarantee of winnowing, for runs of GRAM + WINDOW - 1 tokens."""
    generator = random.Random(0)

    def tokens(count):
        return [(generator.choice("abcdefgh"), 1) for _ in range(count)]

    def fingerprints(words):
        hashes = _hashes(words)
        return {hashes[position] for position in _winnowed(hashes)}

    for _ in range(100):
        common = tokens(GRAM + WINDOW - 1)
        one = tokens(generator.randrange(30)) + common + tokens(generator.randrange(9))
        two = tokens(generator.randrange(30)) + common + tokens(generator.randrange(9))
        assert fingerprints(one) & fingerprints(two)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\0\xff\xfe", "it is not text in UTF-8"),
        (b"x = '''", "it is not Python"),
        (b"(" * 5000, "it is not Python"),
        (b"x = 1\n" * 10_000, "more than 20,000 tokens, the limit"),
        (b"#" * (LONGEST_FILE + 1), "1,048,576"),
    ],
)
def test_what_cannot_be_compared_is_named_and_the_others_are(tmp_path, content, said):
    for name in ("ada", "bob", "eve"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "05_bubble.py").write_text(BUBBLE.answer)
    (tmp_path / "eve" / "05_bubble.py").write_bytes(content)
    (tmp_path / "link").symlink_to("ada")
    (tmp_path / "mallory.zip").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "zoe.zip", "w") as archive:
        archive.writestr("mine/05_bubble.py", BUBBLE.answer)
    report = similarities(sorted(tmp_path.iterdir()), [BUBBLE])
    assert [match.names for match in report.matches] == [
        ("ada", "bob"),
        ("ada", "zoe"),
        ("bob", "zoe"),
    ]
    eve, link, mallory = sorted(report.problems)
    assert "eve: 05_bubble.py is not compared" in eve and said in eve
    assert "it is a link" in link and "mallory is not compared" in mallory


def test_a_file_of_one_repeated_token_is_compared_soon():
    texts = {"ada": "x " * 19_000, "bob": "y " * 18_000}
    (match,) = compared("05_bubble", texts, "")[0]
    assert match.similarity == 1


@pytest.mark.usefixtures("in_process")
def test_the_command_writes_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (("ada", BUBBLE.answer), ("bob", disguised(BUBBLE.answer))):
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / "05_bubble.py").write_text(text)
    words = ["class", "--only", "05_bubble", "--similarity", "similar.txt"]
    main(["grade", *words, "--json"])
    (match,) = json.loads(capsys.readouterr().out)["similarity"]
    assert match["names"] == ["ada", "bob"] and match["similarity"] > 0.9
    text = (tmp_path / "similar.txt").read_text()
    assert "a hint, not a verdict" in text and "05_bubble: ada and bob, 9" in text
    assert main(["grade", "class/ada", *words[1:]]) == 2
    assert "--similarity compares submissions" in capsys.readouterr().err


# -- published solutions ---------------------------------------------------------------

HELPER = """
def smallest(is_enough, high):
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
"""
HANDED_OUT = (
    HELPER
    + """

def bubble_fraction(num_ranks, num_microbatches):
    return 1 - num_microbatches / (num_microbatches + num_ranks - 1)


def microbatches_for(num_ranks, bubble):
    return smallest(lambda m: bubble_fraction(num_ranks, m) <= bubble, 1 << 60)
"""
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in a folder of a class, and solutions that were published elsewhere."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def against(here, folder="published"):
    """Return the matches with published solutions, and the problems."""
    paths = sorted((here / "class").iterdir())
    report = similarities(paths, [BUBBLE], here / folder)
    return [match for match in report.matches if "published" in match.names[1]], report


def test_planted_copies_of_a_published_solution_are_found_and_honest_answers_not(here):
    for number in range(11):  # more than _COMMON, so they are no evidence together
        put(here / "class" / f"copy {number:02}" / "05_bubble.py", BUBBLE.answer)
    put(here / "class" / "disguised" / "05_bubble.py", disguised(BUBBLE.answer))
    put(here / "class" / "honest" / "05_bubble.py", OTHER)
    put(here / "class" / "untouched" / "05_bubble.py", BUBBLE.stub)
    put(here / "published" / "fork" / "05_bubble.py", BUBBLE.answer)
    put(here / "published" / "fork 2" / "05_bubble.py", BUBBLE.answer)
    matches, report = against(here)
    assert report.matches == matches  # neither the class nor the forks among themselves
    copies = {f"copy {number:02}" for number in range(11)} | {"disguised"}
    forks = ("published/fork", "published/fork 2")
    names = [match.names for match in matches]
    assert sorted(names) == sorted((each, fork) for each in copies for fork in forks)
    assert all(match.similarity > 0.9 for match in matches)
    assert "05_bubble: copy 00 and published/fork, 96%" in str(report)


def test_published_copies_do_not_make_code_of_the_class_common(here):
    for number in range(9):
        put(here / "class" / str(number) / "05_bubble.py", BUBBLE.answer)
        put(here / "published" / f"fork {number}" / "05_bubble.py", BUBBLE.answer)
    matches, report = against(here)
    assert (len(matches), len(report.matches)) == (9 * 9, 9 * 9 + 9 * 8 // 2)


def test_the_folder_of_solutions_may_be_a_link(here):
    put(here / "class" / "ada" / "05_bubble.py", BUBBLE.answer)
    put(here / "elsewhere" / "05_bubble.py", BUBBLE.answer)
    (here / "published").symlink_to("elsewhere")
    matches, report = against(here)
    assert len(matches) == 1 and report.problems == []


def test_the_files_of_the_exercises_are_solutions_as_they_stand(here):
    """With their stubs in comments, which do not matter."""
    put(here / "class" / "ada" / "05_bubble.py", disguised(BUBBLE.answer))
    report = similarities([here / "class" / "ada"], [BUBBLE], find_source())
    (match,) = report.matches
    assert match.names == ("ada", f"published/{find_source().name}")


@pytest.mark.parametrize("name", ["notes.py", "week 2/05_bubble.py", "05_bubble.py"])
def test_code_of_the_handout_is_not_counted(here, name):
    put(here / "class" / "ada" / "05_bubble.py", HANDED_OUT)
    put(here / "class" / "bob" / "05_bubble.py", HELPER + OTHER)
    put(here / "published" / "fork" / "05_bubble.py", f"{HELPER}\n\n{OTHER}")
    names = [match.names for match in against(here)[1].matches]
    assert sorted(names) == [
        ("ada", "bob"),
        ("ada", "published/fork"),
        ("bob", "published/fork"),
    ]
    put(here / "published" / "handout" / name, HELPER)
    report = against(here)[1]
    assert [match.names for match in report.matches] == [("bob", "published/fork")]
    assert report.problems == []


def test_a_folder_with_a_handout_alone_is_no_problem(here):
    put(here / "class" / "ada" / "05_bubble.py", HANDED_OUT)
    put(here / "class" / "bob" / "05_bubble.py", HANDED_OUT)
    assert against(here, "none")[1].problems
    put(here / "published" / "handout" / "notes.py", HANDED_OUT)
    report = against(here)[1]
    assert (report.matches, report.problems) == ([], [])


@pytest.mark.parametrize("text", ["x = '''", "x = 1\n" * 10_000, "\udcff"])
def test_what_cannot_be_read_of_the_handout_is_named(here, text):
    put(here / "class" / "ada" / "05_bubble.py", BUBBLE.answer)
    put(here / "published" / "fork" / "05_bubble.py", BUBBLE.answer)
    (here / "published" / "handout").mkdir()
    bad = here / "published" / "handout" / "bad.py"
    bad.write_bytes(text.encode("utf-8", "surrogateescape"))
    matches, report = against(here)
    assert len(matches) == 1 and "bad.py is left out: " in report.problems[0]


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_one_submission_can_be_compared_with_solutions(here, capsys):
    put(here / "ada" / "05_bubble.py", BUBBLE.answer)
    put(here / "published" / "05_bubble.py", BUBBLE.answer)
    words = ["grade", "ada", "--only", "05_bubble", "--against", "published"]
    main([*words, "--similarity", "similar.txt"])
    text = (here / "similar.txt").read_text()
    assert "05_bubble: ada and published/published, 96%" in text
    capsys.readouterr()
    assert main(words) == 2
    assert "a folder of solutions, for --similarity FILE" in capsys.readouterr().err
    assert main([*words[:-1], "nowhere", "--similarity", "similar.txt"]) == 2
    assert "got 'nowhere'" in capsys.readouterr().err
