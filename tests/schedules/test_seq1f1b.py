"""Seq1F1B: 1F1B over slices of sequences, its figures, and slices of equal work."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Schedule, schedules, simulate, verify
from minipipe.cli import main
from minipipe.render import draw_html, draw_svg, draw_text, perfetto_trace
from minipipe.render.stepper.description import draw_snapshot
from minipipe.render.stepper.walkthrough import Walkthrough
from minipipe.schedules import equal_work_cuts, seq1f1b, slice_work, theory
from minipipe.schedules.simulation.comparison import figures, gaps
from tests.refusals import refusal
from tests.strategies import examples

PAPER = """
    rank 0: F0.0 F0.1 F1.0      B0.1 F1.1 B0.0      B1.1 B1.0
    rank 1:      F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0
"""


# -- the schedule ----------------------------------------------------------------------


def test_it_is_the_schedule_as_on_paper():
    assert seq1f1b(2, 2) == Schedule.from_text(PAPER, name="seq1f1b")


@pytest.mark.parametrize(
    ("k", "bubble", "peaks"),
    [(1, 9, (4, 3, 2, 1)), (2, 4.5, (5, 4, 3, 2)), (4, 2.25, (7, 6, 5, 4))],
)
def test_k_slices_have_a_kth_of_the_bubble_and_less_memory(k, bubble, peaks):
    """Sun et al. 2024: (p - 1)(tF + tB) / k, and p + k - 1 slices on rank 0: 4, 2.5 and
    1.75 sequences.
    """
    timeline = simulate(seq1f1b(4, 8, k))
    assert (
        timeline.makespan - 8 * 3
        == theory.span_bubble("seq1f1b", 4, 8, num_slices=k)
        == bubble
    )
    assert (
        timeline.peak_activations
        == theory.peak_activations("seq1f1b", 4, 8, num_slices=k)
        == peaks
    )
    assert (
        timeline.peak_memory
        == theory.peak_memory("seq1f1b", 4, 8, num_slices=k)
        == tuple(x / k for x in peaks)
    )
    assert figures(seq1f1b(4, 8, k), Costs())["peak"] == {1: 4, 2: 2.5, 4: 1.75}[k]


@examples(100)
@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from([(1, 1, 1), (2, 1, 3), (3, 2, 0), (1, 4, 2)]),
)
def test_its_closed_forms_are_what_the_simulator_counts(p, m, k, times):
    schedule, named = (
        seq1f1b(p, m, k),
        dict(zip(("forward", "backward_input", "backward_weight"), times)),
    )
    verify(schedule, max_versions=1)
    timeline = simulate(schedule, Costs(**named))
    assert timeline.makespan == pytest.approx(
        theory.makespan("seq1f1b", p, m, num_slices=k, **named), rel=1e-12
    )
    assert timeline.peak_activations == theory.peak_activations(
        "seq1f1b", p, m, num_slices=k
    )
    assert schedule.is_reproducible and schedule.num_microbatches == m * k


@given(st.integers(1, 6), st.integers(1, 9))
def test_one_slice_is_1f1b(p, m):
    assert replace(seq1f1b(p, m, 1), name="1f1b") == schedules.one_f_one_b(p, m)


@examples(50)
@given(st.integers(2, 5), st.integers(1, 5), st.integers(2, 4), st.data())
def test_two_neighbours_of_a_sequence_swapped_are_refused(p, m, k, data):
    schedule = seq1f1b(p, m, k)
    rank = data.draw(st.integers(0, p - 1))
    row = list(schedule.actions[rank])
    first = data.draw(st.sampled_from([a for a in row if a.microbatch.part < k - 1]))
    sequence, part = first.microbatch
    i, j = row.index(first), row.index(first._replace(microbatch=(sequence, part + 1)))
    row[i], row[j] = row[j], row[i]
    rows = [*schedule.actions[:rank], row, *schedule.actions[rank + 1 :]]
    assert refusal(verify, replace(schedule, actions=rows)).code == "order"


@pytest.mark.parametrize(
    "wrong", [(0, 8, 2), (4, 0, 2), (4, 8, 0), (4, 8, 1.5), (4, 8, "2")]
)
def test_wrong_sizes_are_refused(wrong):
    assert refusal(seq1f1b, *wrong).code == "value"
    assert refusal(seq1f1b, 4, 10**5, 10**4).code == "too-large"


def test_only_seq1f1b_takes_slices():
    assert schedules.build("seq1f1b", 4, 8, num_slices=4) == seq1f1b(4, 8, 4)
    assert (
        "1f1b takes no num_slices; leave it out. Schedules that take it: seq1f1b"
        in str(refusal(schedules.build, "1f1b", 4, num_slices=2))
    )
    assert refusal(theory.makespan, "1f1b", 4, 8, num_slices=2).code == "unsupported"
    assert theory.makespan("1f1b", 4, 8, num_slices=1) == 33
    assert refusal(theory.makespan, "seq1f1b", 4, 8, num_slices=0).code == "value"


# -- costs -----------------------------------------------------------------------------


def test_a_slice_takes_an_equal_part_of_a_sequence():
    costs = Costs(
        forward=[2, 4, 2, 2],
        message_size=8,
        latency=0.5,
        overhead=0.1,
        activation=6,
        update=3,
    )
    part = costs.sliced(2)
    assert (part.forward, part.backward_input, part.message_size, part.activation) == (
        (1, 2, 1, 1),
        0.5,
        4,
        3,
    )
    assert (part.latency, part.overhead, part.update) == (0.5, 0.1, 3) and costs.sliced(
        1
    ) is costs
    timeline = simulate(seq1f1b(4, 2), replace(costs, bandwidth=2))
    assert timeline.spans[1][0][1:] == pytest.approx((1 + 0.5 + 4 / 2, 3.5 + 2))


@pytest.mark.parametrize("more", [{}, {"cores": 4}, {"cores": 3, "latency": 0.25}])
def test_slices_may_have_other_parts_of_the_work(more):
    timeline = simulate(
        seq1f1b(4, 2), Costs(slice_work=[3, 1], cores=more.get("cores", None))
    )
    times = {
        (a.kind.value, a.microbatch.part): end - start
        for a, start, end in timeline.spans[3]
    }
    if more.get("cores") != 3:
        assert times == {("F", 0): 0.75, ("F", 1): 0.25, ("B", 0): 1.5, ("B", 1): 0.5}
    equal = simulate(seq1f1b(4, 2), Costs(slice_work=[0.25, 0.25], **more))
    assert equal.makespan == simulate(seq1f1b(4, 2), Costs(**more)).makespan


def test_joined_slices_take_their_parts_as_well():
    joined = Schedule.from_text(
        "0F0.0 0F0.1 (0F1.0;0B0.1)OVERLAP_F_B 0B0.0 0F1.1 0B1.1 0B1.0"
    )
    spans = simulate(joined, Costs(slice_work=[3, 1], overlap=1)).spans[0]
    assert spans[2].end - spans[2].start == 0.75 and spans[2][1:] == spans[3][1:]


@pytest.mark.parametrize("wrong", [[1], [1, 2, 3], 3])
def test_there_is_a_part_of_the_work_for_each_slice(wrong):
    error = refusal(simulate, seq1f1b(2, 2), Costs(slice_work=wrong))
    assert error.code == "value" and "expected 2 numbers, one for each slice" in str(
        error
    )
    assert simulate(schedules.gpipe(2, 2), Costs(slice_work=wrong)).makespan == 9


@pytest.mark.parametrize(
    "wrong",
    [[0, 0], [1, -1], [1, float("nan")], [1, float("inf")], [1, 1e308], [1, None], []],
)
def test_parts_of_the_work_are_numbers(wrong):
    error = refusal(simulate, seq1f1b(2, 2), Costs(slice_work=wrong))
    assert error.code == "value" and "expected numbers, at least 0" in str(error)


def test_costs_measured_of_slices_are_those_of_the_sequence():
    costs = Costs(forward=[2, 3], backward_input=[4, 5], latency=0.25)
    found = Costs.measured(
        simulate(seq1f1b(2, 4), costs), simulate(schedules.one_f_one_b(2, 4), costs)
    )
    assert found.forward == [2, 3] and found.latency == 0.25


def test_text_and_files_carry_the_parts(tmp_path):
    costs = Costs.parse("F=2,slice_work=3:1")
    assert costs.slice_work == (3, 1)
    assert Costs.load(
        Costs(forward=[1, 2, 3], slice_work=[3, 1]).save(tmp_path / "mine.json")
    ).slice_work == (3, 1)


def test_a_gap_is_stated_for_equal_slices_alone():
    schedule = seq1f1b(4, 8)
    assert [gap.bound.value for gap in gaps(schedule, Costs(), simulate(schedule))] == [
        25.5,
        25,
    ]
    uneven = Costs(slice_work=[1, 3])
    assert gaps(schedule, uneven, simulate(schedule, uneven)) == ()


# -- slices of equal work --------------------------------------------------------------


def exact_work(cuts, attention):
    """Return the work of each slice as a sum over tokens, in rational numbers: token t
    attends to t + 1/2 of s / 2.
    """
    s, a = cuts[-1], Fraction(attention)
    of = [(1 - a) / s + a * (2 * t + 1) / s**2 for t in range(s)]
    return [sum(of[start:end]) for start, end in zip(cuts, cuts[1:])]


@examples(200)
@given(st.integers(1, 8), st.integers(8, 200), st.sampled_from([0, 0.25, 0.5, 0.75, 1]))
def test_slices_have_equal_work_but_for_one_token(k, length, attention):
    cuts = equal_work_cuts(num_tokens := k * length, k, attention)
    assert (cuts[0], cuts[-1], len(cuts)) == (0, num_tokens, k + 1) and list(
        cuts
    ) == sorted(set(cuts))
    work = exact_work(cuts, attention)
    assert sum(work) == 1 and slice_work(cuts, attention) == pytest.approx(
        list(map(float, work)), abs=1e-12
    )
    assert all(
        abs(part - Fraction(1, k)) <= Fraction(1 + Fraction(attention), num_tokens)
        for part in work
    )


@pytest.mark.parametrize("attention", [0, 0.125, 0.5, 1])
@pytest.mark.parametrize(("num_tokens", "k"), [(12, 3), (20, 3), (24, 2), (16, 4)])
def test_no_other_cuts_are_better_by_more_than_a_token(num_tokens, k, attention):
    found = max(exact_work(equal_work_cuts(num_tokens, k, attention), attention))
    every = (
        (0, *cuts, num_tokens) for cuts in combinations(range(1, num_tokens), k - 1)
    )
    best = min(max(exact_work(cuts, attention)) for cuts in every)
    assert best <= found <= best + Fraction(1 + Fraction(attention), num_tokens)


def test_the_cuts_have_a_closed_form():
    assert equal_work_cuts(1000, 4, attention=0) == (0, 250, 500, 750, 1000)
    # the root of j / 4
    assert equal_work_cuts(1000, 4, attention=1) == (0, 500, 707, 866, 1000)
    # the golden ratio: x² + x = 1
    assert equal_work_cuts(1000, 2, attention=0.5) == (0, 618, 1000)
    assert equal_work_cuts(4, 4, attention=1) == (0, 1, 2, 3, 4) and equal_work_cuts(
        5, 4, 1
    ) == (0, 2, 3, 4, 5)


def test_slices_of_equal_length_may_take_longer_than_no_slices():
    one = simulate(schedules.one_f_one_b(4, 8)).makespan
    uneven = simulate(
        seq1f1b(4, 8), Costs(slice_work=slice_work((0, 500, 1000), 0.5))
    ).makespan
    even = simulate(
        seq1f1b(4, 8), Costs(slice_work=slice_work(equal_work_cuts(1000, 2, 0.5), 0.5))
    ).makespan
    assert uneven == 34.875 > one == 33 > even == pytest.approx(28.5, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: equal_work_cuts(3, 4, 0.5), "num_tokens is 3"),
        (lambda: equal_work_cuts(8, 0, 0.5), "num_slices is 0"),
        (
            lambda: equal_work_cuts(8, 2, 1.5),
            "attention is 1.5; expected its fraction of the work, from 0 to 1",
        ),
        (lambda: equal_work_cuts(8, 2, float("nan")), "attention is nan"),
        (lambda: slice_work((0, 4, 8), "half"), "attention is 'half'"),
        (
            lambda: slice_work((1, 8), 0.5),
            "cuts is (1, 8); expected ascending numbers of tokens",
        ),
        (lambda: slice_work((0, 8, 8), 0.5), "cuts is (0, 8, 8)"),
        (lambda: slice_work((0,), 0.5), "cuts is (0,)"),
    ],
)
def test_what_cannot_be_cut_is_refused(call, words):
    error = refusal(call)
    assert error.code == "value" and words in str(error)


# -- pictures and words ----------------------------------------------------------------


def test_pictures_name_sequence_and_slice():
    schedule = seq1f1b(2, 2)
    assert draw_text(schedule, width=80).splitlines()[0] == (
        "rank 0 F0.0F0.1F1.0········B0.1====F1.1B0.0====····B1.1====B1.0===="
    )
    svg, page = draw_svg(schedule), draw_html(schedule)
    assert (
        "<title>0F0.1: forward of microbatch 0.1 on stage 0, 0.5 to 1 units</title>"
        in svg
        and ">B1.1</text>" in svg
    )
    assert '[0,"F","0.1",0.5,1.0]' in page and '"holds":[[0,"0.0",0.0,' in page
    names = {
        event["name"] for event in json.loads(perfetto_trace(schedule))["traceEvents"]
    }
    assert {"F0.0", "F0.1", "B1.1"} <= names


def test_beside_whole_microbatches_activations_are_those_of_a_sequence():
    drawn = draw_text(schedules.one_f_one_b(4, 8), seq1f1b(4, 8))
    assert (
        "seq1f1b, predicted: makespan 28.5 units, bubble 15.8 %, peak "
        "activations by rank 2.5, 2, 1.5, 1"
    ) in (" ".join(drawn.split()))
    assert "peak activations by rank 2.5, 2, 1.5, 1" in " ".join(
        draw_text(seq1f1b(4, 8)).split()
    )
    # a pair of stages, a pair of slices
    drawn = " ".join(draw_text(schedules.zb_v(4, 8), seq1f1b(4, 8)).split())
    assert (
        "by rank 4, 4, 4, 4 microbatches" in drawn
        and "by rank 2.5, 2, 1.5, 1 microbatches" in drawn
    )


def test_a_walk_names_what_is_held():
    walkthrough = Walkthrough(seq1f1b(2, 2), Costs(activation=4))
    assert "holds 3 (0.0-1.0) 6 units" in draw_snapshot(
        walkthrough, walkthrough[walkthrough.at_time(1.5)]
    )
    assert "begins 0B0.1: backward of microbatch 0.1 on stage 0" in "".join(
        draw_snapshot(walkthrough, walkthrough[i]) for i in range(len(walkthrough))
    )


def test_later_steps_name_their_slices_as_well():
    spans = simulate(seq1f1b(2, 2), num_steps=2).spans[0]
    assert [str(span.action) for span in spans[-2:]] == ["0B3.1", "0B3.0"]


@pytest.mark.parametrize("cores", [None, 1])
def test_an_update_is_of_no_slice(cores):
    mine = Schedule.from_text("0F0.0 0F0.1 0B0.1 0B0.0 0U0.1")
    spans = simulate(mine, Costs(slice_work=[3, 1], update=8, cores=cores)).spans[0]
    assert [span.end - span.start for span in spans] == [0.75, 0.25, 0.5, 1.5, 8]


def test_the_command_line_counts_sequences_and_names_slices(capsys, tmp_path):
    path = tmp_path / "mine.txt"
    assert (
        main(
            [
                "show",
                "seq1f1b",
                "--ranks",
                "2",
                "--slices",
                "3",
                "--format",
                "rows",
                "-o",
                str(path),
            ]
        )
        == 0
    )
    assert Schedule.from_file(path) == replace(seq1f1b(2, 8, 3), name="mine")
    assert main(["check", str(path), "--microbatches", "8"]) == 0
    assert "8 sequences of 3 slices" in capsys.readouterr().out
    assert main(["simulate", "seq1f1b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_microbatches"], found["num_slices"], found["makespan"]) == (
        16,
        2,
        28.5,
    )
    for wrong in (["check", str(path), "--slices", "2"], ["show", "gpipe", "--slices", "2"],
                  ["check", str(path), "--microbatches", "24"]):  # fmt: skip
        assert main(wrong) == 2
    assert (
        main(["show", "seq1f1b", "--format", "csv"]) == 1
        and "PyTorch's CSV has none" in capsys.readouterr().err
    )
