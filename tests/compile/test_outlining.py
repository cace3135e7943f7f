"""Repeated lines are found, and a function of them computes what they compute."""

from textwrap import indent

from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe.compile import outlining
from minipipe.compile.outlining import conditional, outlined
from minipipe.compile.repeats import best_repeat
from minipipe.compile.statements import Statement, substituted, written
from tests.strategies import examples

LOCAL = ["a", "b", "c"]
GLOBAL = ["g", "h"]


@st.composite
def programs(draw):
    """Draw statements, many of them alike, that read only what is there."""
    block = draw(
        st.lists(st.sampled_from(["make", "note", "choose"]), min_size=2, max_size=4)
    )
    kinds = [
        *draw(st.lists(st.sampled_from(["make", "note"]), max_size=2)),
        *block * draw(st.integers(1, 4)),
        *draw(st.lists(st.sampled_from(["make", "note"]), max_size=2)),
    ]
    made, found = list(LOCAL), []
    for number, kind in enumerate(kinds):
        one, other = (draw(st.sampled_from([*made[-4:], *GLOBAL])) for _ in range(2))
        if kind == "make":
            own = f"v{number}"
            layer = f"{{layer:{draw(st.integers(1, 2))}}}"
            text = f"{{{own}}} = {{{one}}} + {{{other}}} * {layer}"
            found.append(Statement(text, (own,)))
            made.append(own)
        elif kind == "note":
            found.append(Statement(f"log.append({{{one}}} - {{{other}}})"))
        else:
            first, later = f"log.append({{{one}}})", f"log.append({{{other}}} + 1)"
            found.append(Statement(conditional([first], [later])))
    found.append(Statement(f"return {{{draw(st.sampled_from(made))}}}"))
    return found


def result_of(source, statements, first):
    """Return what a function of statements returns and notes."""
    names = {"log": [], "g": 5, "h": 7}
    body = indent("\n".join(written(each.text) for each in statements), "    ")
    exec(f"{source}\n\ndef program(first, a, b, c):\n{body}\n", names)
    return names["program"](first, 1, 2, 3), names["log"]


@examples(400)
@given(programs(), st.booleans())
def test_a_program_with_a_function_of_its_blocks_computes_the_same(own, first):
    least, outlining.LEAST = outlining.LEAST, 2
    try:
        source, statements = outlined(own, {*LOCAL, "first"}, "block")
    finally:
        outlining.LEAST = least
    assert result_of(source, statements, first) == result_of("", own, first)


@examples(200)
@given(programs())
def test_the_body_of_a_repeat_with_the_names_of_a_call_is_the_part_of_the_call(own):
    repeat = best_repeat(
        own, lambda size, count: size * count, lambda *_: True, lambda each: each.start
    )
    assume(repeat is not None)
    texts = [
        substituted(each.text, lambda name, call=call: f"{{{call[name]}}}")
        for call in repeat.calls
        for each in repeat.body
    ]
    assert texts == [each.text for each in own[repeat.start : repeat.end]]
    assert len(repeat.calls) > 1
