"""The documents, lessons and messages are written in plain English: counts of hard
phrases may only fall.
"""

import pytest

from tests.language import AREAS, PATTERNS, files_of, hits_of, limit_of, texts_of

SLACK = 5  # so far may a count be below its limit

EXAMPLES = {
    "statement begins with What/Who": (
        "What fits is legal.",
        "What fits? A schedule that is legal.",
    ),
    "that of / those of": ("the time of F and that of B", "the times of F and B"),
    "where for if/when": (
        "a default where no name is passed",
        "a default if no name is passed",
    ),
    "Of/By without a verb": ("Of one activation.", "Size of one activation in bytes."),
    "trailing too": ("A small one fits, too.", "A small one also fits."),
    "is there": ("once its gradient is there", "once its gradient has arrived"),
}


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_hard_phrases_become_fewer(pattern, area):
    if not files_of(area):
        pytest.skip("no git here, which knows the files of the project")
    hits, limit = hits_of(area)[pattern], limit_of(pattern, area)
    listed = "\n  ".join(hits)
    assert len(hits) <= limit, (
        f"{area}: {len(hits)} times '{pattern}', the limit is {limit}:\n  {listed}"
    )
    assert len(hits) >= limit - SLACK, (
        f"{area}: only {len(hits)} times '{pattern}': lower the limit of {limit}"
    )


FORMS = {
    "text.md": "{}\n",
    "docstring.py": '"""{}"""\n',
    "comment.py": "x = 1  # {}\n",
    "message.py": 'show(f"{} {{count}} times")\n',
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", FORMS)
def test_a_hard_phrase_is_found_in_every_kind_of_text(
    tmp_path, monkeypatch, pattern, name
):
    for text, expected in zip(EXAMPLES[pattern], (1, 0), strict=True):
        path = tmp_path / f"{expected}_{name}"
        path.write_text(FORMS[name].format(text))
        monkeypatch.setattr("tests.language.ROOT", tmp_path)
        monkeypatch.setattr("tests.language.files_of", lambda area, path=path: [path])
        found = hits_of.__wrapped__("package")
        assert {key: len(hits) for key, hits in found.items()} == {
            key: expected * (key == pattern) for key in PATTERNS
        }
        assert (
            found[pattern] == [f"{path.name}:1: {path.read_text().strip()}"] * expected
        )


def test_code_in_a_docstring_is_no_prose(tmp_path):
    (tmp_path / "x.py").write_text(
        '"""Read ``what is there``.\n\n>>> where(a, there=is there)\n"""\n'
    )
    [(first, text)] = texts_of(tmp_path / "x.py")
    assert first == 1 and text.split() == ["Read", "."]
