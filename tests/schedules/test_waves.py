"""Waves: the order of microbatches that move by a stage in each slot, and the figures
of the papers that have them.
"""

import pytest

from minipipe import Costs, schedules, simulate, verify
from minipipe.errors import ScheduleError
from minipipe.schedules import theory
from minipipe.schedules.placements import v_placement

UNITS = Costs(1, 0.5, 0.5)  # a whole backward takes as long as a forward


def by_tokens(pipelines, unit, shares):
    """Move microbatches by one stage in each slot, until all are back: another rule
    than that of start slots.

    In each pipeline one enters in every other slot, as many as a unit has. Having
    reached the last stage, it stays there for a slot, B after F, and goes back. The
    next unit enters when the first microbatch of the last one has left. Returns the
    rows, as (pipeline, stage, kind, place of the microbatch in its pipeline), and the
    number of slots.
    """
    rows, slot = [[] for _ in range(1 + max(pipelines[0]))], 0
    inside = [[] for _ in pipelines]  # of each pipeline, [microbatch, stage, kind]
    entered, of_unit, entry = (
        [0] * len(pipelines),
        [0] * len(pipelines),
        [0] * len(pipelines),
    )
    while sum(entered) < sum(shares) or any(inside):
        busy = set()
        for way, ranks in enumerate(pipelines):
            for token in inside[way]:
                if token[1:] == [len(ranks) - 1, "F"]:
                    token[2] = "B"
                else:
                    token[1] += 1 if token[2] == "F" else -1
            gone = [token for token in inside[way] if token[1] < 0]
            inside[way] = [token for token in inside[way] if token[1] >= 0]
            if gone and gone[0][0] % unit == 0:
                of_unit[way], entry[way] = 0, slot
            if (
                entered[way] < shares[way]
                and of_unit[way] < unit
                and slot == entry[way]
            ):
                inside[way].append([entered[way], 0, "F"])
                entered[way], of_unit[way], entry[way] = (
                    entered[way] + 1,
                    of_unit[way] + 1,
                    slot + 2,
                )
            for microbatch, stage, kind in inside[way]:
                assert ranks[stage] not in busy  # one action of a rank in a slot
                busy.add(ranks[stage])
                rows[ranks[stage]].append((way, stage, kind, microbatch))
        slot += 1
    return rows, slot


def pipelines_of(name, p, num_waves=1):
    down = tuple(range(p)) if name == "chimera" else v_placement(p, num_waves)
    return [down] if name == "hanayo" else [down, tuple(p - 1 - rank for rank in down)]


@pytest.mark.parametrize(
    ("name", "num_waves", "ranks"),
    [
        ("chimera", None, (2, 4, 6, 8)),
        ("bitpipe", None, (2, 4, 6)),
        *(("hanayo", w, (1, 2, 3, 4, 5)) for w in (1, 2, 3)),
    ],
)
def test_the_order_is_what_microbatches_do_that_move_by_a_stage_in_each_slot(
    name, num_waves, ranks
):
    for p in ranks:
        pipelines = pipelines_of(name, p, num_waves or 1)
        unit = p // len(pipelines)
        for m in {1, 2, 3, p - 1 or 1, p, p + 1, p + 2, 2 * p, 2 * p + 3, 3 * p}:
            share = -(-m // len(pipelines))
            rows, num_slots = by_tokens(
                pipelines, unit, [share, m - share][: len(pipelines)]
            )
            schedule = schedules.build(name, p, m, num_waves and 2 * num_waves)
            expected = [
                [f"{stage}{kind}{way * share + k}" for way, stage, kind, k in row]
                for row in rows
            ]
            assert [list(map(str, row)) for row in schedule.actions] == expected, (p, m)
            verify(schedule)
            assert simulate(schedule, UNITS).makespan <= num_slots


@pytest.mark.parametrize(
    ("p", "m", "of_units", "of_doubles"),
    [(4, 4, 10, 16), (4, 8, 18, 30), (8, 8, 22, 36), (8, 16, 38, 66)],
)
def test_chimera_has_the_figures_of_its_paper(p, m, of_units, of_doubles):
    """Table 2: p - 2 slots of bubbles, and from p/2 + 1 to p microbatches held, where F
    and B take as long.
    """
    schedule = schedules.chimera(p, m)
    timeline = simulate(schedule, UNITS)
    assert timeline.makespan == of_units == 2 * m + p - 2
    assert {sum(slot.end - slot.start for slot in row) for row in timeline.idle} == {
        p - 2
    }
    assert (min(timeline.peak_activations), max(timeline.peak_activations)) == (
        p // 2 + 1,
        p,
    )
    assert simulate(schedule).makespan == of_doubles == theory.makespan("chimera", p, m)
    assert (
        simulate(schedules.one_f_one_b(p, m)).makespan == 3 * (m + p - 1) > of_doubles
    )


@pytest.mark.parametrize("p", [4, 6, 8])
def test_bitpipe_has_half_of_chimeras_bubble(p):
    """Where a backward takes twice as long: (p - 2)/(3/2 m + p - 2) and (p - 2)/(3m + p
    - 2) of the time, for m = p.
    """
    chimera, bitpipe = (
        simulate(schedules.chimera(p, p)),
        simulate(schedules.bitpipe(p, p), Costs().cut(2)),
    )
    assert chimera.bubble_fraction == pytest.approx((p - 2) / (1.5 * p + p - 2))
    assert bitpipe.bubble_fraction == pytest.approx((p - 2) / (3 * p + p - 2))
    # of half stages: the same memory
    assert max(bitpipe.peak_activations) == 2 * max(chimera.peak_activations)


# -- Hanayo ----------------------------------------------------------------------------


def test_hanayo_as_on_paper():
    """Two ranks, two waves, two microbatches: the stages 0 to 7 are on the ranks 0 1 1
    0 0 1 1 0.
    """
    drawn = """
        0F0  .  0F1 3F0 4F0 3F1 4F1 7F0 7B0 7F1 7B1 4B0 3B0 4B1 3B1 0B0  .  0B1
         .  1F0 2F0 1F1 2F1 5F0 6F0 5F1 6F1 6B0 5B0 6B1 5B1 2B0 1B0 2B1 1B1  .
    """
    schedule = schedules.hanayo(2, 2, chunks_per_rank=4)
    assert schedule.placement == (0, 1, 1, 0, 0, 1, 1, 0)
    rows = [line.replace(".", "").split() for line in drawn.strip().splitlines()]
    assert [list(map(str, row)) for row in schedule.actions] == rows


def test_with_one_wave_hanayo_is_the_first_half_of_chimera_on_twice_as_many_ranks():
    """Rank r of Chimera has stage r of the pipeline down, and stage 2p - 1 - r of the
    one up. Here they are one.
    """
    for p in range(1, 6):
        for m in (1, p, p + 1, 3 * p):
            whole = schedules.chimera(2 * p, 2 * m)
            halved = [
                [(stage, kind, k % m) for stage, kind, k in row]
                for row in whole.actions[:p]
            ]
            assert schedules.hanayo(p, m).actions == tuple(map(tuple, halved))


@pytest.mark.parametrize("p", [2, 4, 8])
def test_more_waves_leave_smaller_bubbles_in_the_memory_of_1f1b(p):
    shares = [
        simulate(schedules.hanayo(p, p, 2 * w), Costs().cut(2 * w)) for w in (1, 2, 4)
    ]
    for w, timeline in zip((1, 2, 4), shares):
        assert timeline.makespan == pytest.approx(3 * p + 2 * (p - 1) / w)
        assert max(timeline.peak_activations) / (2 * w) == p
    assert simulate(schedules.one_f_one_b(p, p)).makespan == 3 * p + 3 * (p - 1)


@pytest.mark.parametrize("chunks", [1, 3, 5])
def test_half_a_wave_is_refused(chunks):
    with pytest.raises(ScheduleError) as caught:
        schedules.hanayo(4, 8, chunks)
    assert caught.value.code == "value"
    assert f"chunks_per_rank is {chunks}; hanayo has two chunks for each wave" in str(
        caught.value
    )
