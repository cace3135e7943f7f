"""What reaches a terminal or a message is printable, whatever it was."""

from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import quoted
from minipipe.io import printable, printable_lines
from tests.strategies import examples


@examples(400)
@given(st.text(st.characters(codec=None), max_size=30))
def test_a_printable_text_has_one_line_no_control_characters_and_can_be_encoded(text):
    shown = printable(text)
    assert (
        all(c.isprintable() or c.isspace() for c in shown)
        and len(shown.splitlines() or [""]) == 1
    )
    assert shown.encode("utf-8")[:0] == b"" and printable(shown) == shown
    if text.isprintable():
        assert shown == text


def test_no_character_escapes():
    blocks = (0, 0x3100), (0xD7F0, 0xE010), (0xFE00, 0x10000), (0xE0000, 0xE0080)
    every = "".join(chr(code) for first, last in blocks for code in range(first, last))
    forbidden = (
        {c for c in every if not c.isprintable()}
        - set(" \xa0\u1680\u202f\u205f\u3000")
        - set(map(chr, range(0x2000, 0x200B)))
    )
    assert (
        "\x1b" in forbidden
        and "\u202e" in forbidden
        and "\u2028" in forbidden
        and "\ud800" in forbidden
    )
    assert not forbidden & set(printable(every))


def test_letters_of_all_languages_and_their_blanks_stay():
    for text in ("größe", "事前\u3000学習", "é\xa0è", "модель", "🚀", ""):
        assert printable(text) == text


def test_lines_stay_lines():
    assert printable_lines("a\r\nb\x1b") == "a\\r\nb\\x1b"


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


def test_anything_can_be_quoted():
    for value in (
        10**5000,
        Broken(),
        "x" * 10**6,
        b"\xff" * 10**6,
        [Broken()],
        "\x1b[2J",
        None,
        1.5,
    ):
        assert len(quoted(value)) <= 60 and quoted(value).isprintable()
        assert len(quoted(value, 20)) <= 20
