"""Any number of modules on any number of ranks: the same bits as one process, and what
does not fit says what does.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Plan, nn, spawn, verify
from minipipe.errors import RankError
from tests.launch import covering
from tests.strategies import examples

STRAIGHT = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
LOOPED = ("sequential", "interleaved-1f1b", "looped-bfs", "interleaved-zb")


def modules(count, width=5):
    return [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)]


def schedule_of_modules(count, num_ranks, schedule, num_microbatches):
    return Plan.of_modules(
        modules(count), num_ranks, schedule, num_microbatches
    ).schedule


def step(group, count, **options):
    """Return loss, gradients by name, and the stages of this rank."""
    generator = np.random.default_rng(0)
    inputs, targets = generator.standard_normal((2, 12, 5)).astype(np.float32)
    pipeline = Pipeline.from_modules(
        modules(count), group, loss=nn.MSELoss(), num_microbatches=6, **options
    )
    loss = pipeline.step(inputs, targets)
    return (
        loss,
        {name: p.grad for name, p in pipeline.named_parameters()},
        pipeline.local_stages,
    )


def check_same(count, num_ranks, **options):
    (loss, gradients, _), *_ = spawn(lambda group: step(group, count), 1)
    found = spawn(lambda group: step(group, count, **options), num_ranks)
    assert {part[0] for part in found} == {loss}
    together = {
        name: gradient for _, part, _ in found for name, gradient in part.items()
    }
    assert set(together) == set(gradients)
    assert all(np.array_equal(together[name], gradients[name]) for name in gradients)
    return [stages for _, _, stages in found]


@pytest.mark.parametrize(
    ("count", "num_ranks", "stages"),
    [
        (3, 1, [(0, 1, 2)]),
        (5, 3, [(0, 3), (1, 4), (2,)]),
        (2, 3, [(0,), (1,), ()]),
        (7, 2, [(0, 2, 4, 6), (1, 3, 5)]),
    ],
)
def test_module_i_is_on_rank_i_modulo_the_ranks_by_default(count, num_ranks, stages):
    assert check_same(count, num_ranks) == stages


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    covering([*STRAIGHT, *LOOPED], [(3, 1), (5, 3), (2, 3)], strength=1),
)
def test_every_straight_and_looped_schedule_takes_any_number_of_modules(
    schedule, sizes
):
    count, num_ranks = sizes
    stages = check_same(count, num_ranks, schedule=schedule)
    assert sorted(stage for own in stages for stage in own) == list(range(count))


@pytest.mark.parametrize(
    ("count", "num_ranks", "sizes"),
    [(4, 3, [2, 1, 1]), (9, 8, [2] + [1] * 7), (7, 3, [3, 2, 2])],
)
@pytest.mark.parametrize("schedule", STRAIGHT)
def test_over_a_straight_schedule_modules_spread_evenly_and_no_rank_is_idle(
    schedule, count, num_ranks, sizes
):
    """The story: 4 modules on 3 ranks were 2, 2 and none, and the last rank idled
    without a word.
    """
    found = schedule_of_modules(count, num_ranks, schedule, 6)
    verify(found)
    assert [
        len(found.stages_of(rank)) for rank in range(num_ranks)
    ] == sizes and found.is_reproducible


@pytest.mark.parametrize(("count", "num_ranks"), [(4, 2), (3, 2)])
def test_over_a_v_the_placement_is_that_of_the_schedule(count, num_ranks):
    assert check_same(count, num_ranks, schedule="zb-v") == (
        [(0, 3), (1, 2)] if count == 4 else [(0,), (1, 2)]
    )


@examples(60)
@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([*STRAIGHT, *LOOPED]),
)
def test_the_schedule_of_any_number_of_modules_is_legal_and_reproducible(
    count, num_ranks, microbatches, name
):
    schedule = schedule_of_modules(count, num_ranks, name, microbatches)
    verify(schedule)
    assert (schedule.num_stages, schedule.num_ranks, schedule.num_microbatches) == (
        count,
        num_ranks,
        microbatches,
    )
    assert schedule.is_reproducible


@pytest.mark.parametrize("count", [1, 2, 5])
def test_by_default_there_are_eight_microbatches(count):
    assert schedule_of_modules(count, 2, None, None).num_microbatches == 8


def test_chunks_of_one_are_honoured_where_the_schedule_has_two_by_default():
    assert schedule_of_modules(2, 2, "interleaved-1f1b", 4).num_stages == 2
    stages = spawn(lambda group: step(group, 2, schedule="interleaved-1f1b")[2], 2)
    assert stages == [(0,), (1,)]


def test_no_module_and_a_v_of_another_length_are_refused_with_what_fits():
    with pytest.raises(RankError, match="There is no module"):
        schedule_of_modules(0, 2, None, None)
    for count, chunks in ((5, 3), (2, 1)):
        words = (
            f"{count} modules on 2 ranks are up to {chunks} on a rank.*exactly 2 "
            "chunks.*Expected 3 to 4 modules"
        )
        with pytest.raises(RankError, match=words):
            schedule_of_modules(count, 2, "zb-v", None)


@pytest.mark.parametrize("name", ["pipedream", "chimera", "seq1f1b"])
def test_schedules_without_chunks_take_a_module_for_each_rank(name):
    """The story: of three modules on two ranks, chimera "expected 3 to 4 modules"; and
    it refused two.
    """
    assert (
        schedule_of_modules(2, 2, name, None)
        == Plan(nn.Sequential(*modules(2)), name, num_ranks=2).schedule
    )
    with pytest.raises(
        RankError,
        match=f"up to 2 on a rank. {name} takes no .* Expected at most 2 modules",
    ):
        schedule_of_modules(3, 2, name, None)


@pytest.mark.parametrize("name", ["model", "group", "schedule", "partition"])
def test_what_a_pipeline_is_made_of_cannot_be_set(name):
    """The story: ``pipeline.schedule = other`` was accepted, and timeline() printed the
    new name over the old run.
    """

    def change(group):
        pipeline = Pipeline(nn.Sequential(*modules(2)), group, loss=nn.MSELoss())
        before = getattr(pipeline, name)
        with pytest.raises(AttributeError):
            setattr(pipeline, name, before)
        assert getattr(pipeline, name) == before or getattr(pipeline, name) is before

    spawn(change, 2)
