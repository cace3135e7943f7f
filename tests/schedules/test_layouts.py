"""Layouts of layers: Megatron's strings, read as Megatron's own tests and recipes read
them, and torchtitan's module names.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import ScheduleError
from minipipe.schedules.layouts import Layout

# from tests/unit_tests/transformer/test_transformer_block.py of Megatron-LM, and from
# its configurations in tests/functional_tests
MEGATRON = {
    ("E|t|t*2|t||(t|)*2,t*2,L", 4): ["E", "t", "tt", "t", "", "t", "t", "ttL"],
    ("Et*3|(tt|)*29,m|L", 8): ["Ettt", *["tt"] * 29, "m", "L"],
    ("Et*2|(tt|)*29,t|mL", 16): ["Ett", *["tt"] * 29, "t", "mL"],
    ("Et*2|(tt|)*5t|tmL", 4): ["Ett", *["tt"] * 5, "t", "tmL"],
    ("Et*7|t*7mL", 2): ["Ettttttt", "tttttttmL"],
    ("Et*3|(tt|)*6tmL", 2): ["Ettt", *["tt"] * 6, "tmL"],
}


@pytest.mark.parametrize(("text", "ranks"), MEGATRON)
def test_a_layout_has_the_stages_that_megatron_reads(text, ranks):
    layout = Layout.parse(text)
    assert list(layout.stages) == MEGATRON[text, ranks]
    layout.check(ranks)
    expected = tuple(stage % ranks for stage in range(len(layout.stages)))
    assert layout.placement(ranks) == expected


stages = st.lists(st.text("tm", max_size=6), min_size=1, max_size=9)


@given(stages)
def test_the_string_of_a_layout_is_read_as_this_layout(letters):
    layout = Layout(tuple(letters))
    assert Layout.parse(layout.to_megatron()) == layout


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9))
def test_numbers_of_layers_are_the_partition_and_name_each_module_once(sizes):
    layout = Layout.of_sizes(sizes)
    assert list(map(len, layout.partition)) == sizes
    names = [name for stage in layout.to_torchtitan() for name in stage]
    inner = [f"layers.{i}" for i in range(sum(sizes) - 2)]
    assert names == ["tok_embeddings", *inner, "norm", "lm_head"]
    assert Layout.parse(",".join(map(str, sizes))) == layout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("E(tt|*29,m|L", "character 2 is '(': its group has no ')*N'"),
        ("Et|t)*3L", "character 5 is ')': it closes no group"),
        ("((tt|)*2)*3L", "character 2 is '('"),
        ("E(tt|)L", "character 2 is '('"),
        ("Et,t|x|L", "character 6 is 'x': expected E (embedding), t (transformer"),
        ("ett|L", "character 1 is 'e': expected E: capitals matter"),
        ("Et3|L", "character 3 is '3': expected * before a number"),
        ("Et*|L", "character 3 is '*': a repetition is a letter or a group"),
        ("E t|L", "character 2 is ' ': leave blanks out"),
    ],
)
def test_a_wrong_character_is_refused_with_its_position_and_the_remedy(text, reason):
    with pytest.raises(ScheduleError) as caught:
        Layout.parse(text)
    assert caught.value.code == "syntax" and reason in str(caught.value)


@pytest.mark.parametrize("text", ["Et*999999999|L", "E(t*9999|)*9999L", "5,999999999"])
def test_a_layout_too_large_for_any_model_is_refused(text):
    with pytest.raises(ScheduleError, match="too-large"):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("text", "ranks", "reason"),
    [
        ("Et|t|L", 2, "3 stages, which 2 ranks do not divide; write 1 more '|' or"),
        ("t|L", 1, "0 times E; it must begin with E"),
        ("Et|LL", 1, "2 times L"),
        ("tE|L", 1, "must begin with E, the embedding; move its E there"),
        ("EL|t", 1, "must end with L"),
        ("Em|tL", 1, "Stage 1 has t after an m"),
        ("Et|m|mL", 3, "Stages 1, 2 have m"),
        ("Et|m|t|L", 2, "Stage 2 has t after an m"),
        ("Etm||L|", 2, "Stage 0 has m and is not the last stage of its rank"),
    ],
)
def test_a_layout_that_megatron_refuses_is_refused(text, ranks, reason):
    with pytest.raises(ScheduleError) as caught:
        Layout.parse(text).check(ranks)
    assert caught.value.code == "placement" and reason in str(caught.value)


def test_an_empty_stage_has_no_partition_and_m_no_name_in_torchtitan():
    empty = Layout.parse("Et||tL")
    for call in (lambda: empty.partition, empty.to_torchtitan):
        with pytest.raises(ScheduleError, match="Stage 1 of the layout is empty"):
            call()
    with pytest.raises(ScheduleError, match="no name for MTP layers"):
        Layout.parse("Et|mL").to_torchtitan()
    for sizes in ([1], [2, 0], [0]):
        with pytest.raises(ScheduleError, match="expected at least one each"):
            Layout.of_sizes(sizes)
