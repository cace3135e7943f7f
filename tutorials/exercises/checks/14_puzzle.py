"""Tests of 14_puzzle."""

import numpy as np

from minipipe import (
    Costs,
    Pipeline,
    Schedule,
    functional,
    nn,
    schedules,
    simulate,
    spawn,
)
from minipipe.coursework import (
    Level,
    expect_at_most,
    expect_close,
    expect_equal,
    expect_legal,
    expect_type,
)
from minipipe.testing import one_process_step

LEVELS = {
    1: Level(3, 4, Costs([1, 2, 1], [2, 4, 2], 0), 3, 27),
    2: Level(3, 5, Costs([2, 2, 1], [1, 2, 2], [2, 2, 1]), 3, 32),
    3: Level(3, 5, Costs([1, 2, 1], [1, 2, 1], [2, 2, 1], latency=1), 3, 32),
    4: Level(4, 6, Costs([1, 2, 1, 1], [1, 2, 1, 2], 1, latency=1), 4, 39),
    5: Level(4, 8, Costs(), 3, 31),
}


def built(task, number):
    """Return the level and the student's schedule for it, if that is legal and within
    the memory limit.
    """
    level = LEVELS[number]
    text = getattr(task, f"level_{number}")()
    expect_type(text, str, f"level_{number}()")
    schedule = Schedule.from_text(text, name=f"level {number}")
    sizes = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    expect_equal(
        sizes,
        (level.num_ranks, level.num_ranks, level.num_microbatches),
        "ranks, stages and microbatches",
    )
    expect_equal(
        schedule.is_forward_only, False, f"whether level_{number}() has forwards only"
    )
    expect_legal(schedule, f"level_{number}()", level.memory_limit)
    return level, schedule


def check(task, number, most):
    level, schedule = built(task, number)
    makespan = simulate(schedule, level.costs).makespan
    expect_at_most(
        makespan, most, f"makespan of level_{number}(), whose par is {level.par:g}"
    )


def as_fast_as_1f1b(number):
    level = LEVELS[number]
    return simulate(
        schedules.one_f_one_b(level.num_ranks, level.num_microbatches), level.costs
    ).makespan


def near_par(number):
    return (as_fast_as_1f1b(number) + LEVELS[number].par) / 2


def test_level_1_is_legal_and_no_slower_than_1f1b(task):
    """Level 1, first point: legal, at most 3 pairs held, no more than 28 units.

    Hint: start from the rows of 1F1B, and use `minipipe show` to see which rank waits
    for which.
    """
    check(task, 1, as_fast_as_1f1b(1))


def test_level_1_is_near_par(task):
    """Level 1, second point: at least halfway from 1F1B to par."""
    check(task, 1, near_par(1))


def test_level_1_is_par(task):
    """Level 1, third point: 27 units.

    Hint: the middle rank has 24 units of work, and rank 0 has to run before and after
    it. It must never wait.
    """
    check(task, 1, LEVELS[1].par)


def test_level_2_is_legal_and_no_slower_than_1f1b(task):
    """Level 2, first point: legal, at most 3 pairs held, no more than 37 units."""
    check(task, 2, as_fast_as_1f1b(2))


def test_level_2_is_near_par(task):
    """Level 2, second point: at least halfway from 1F1B to par.

    Hint: a W can be postponed until its rank would be idle, but its pair is held until
    then.
    """
    check(task, 2, near_par(2))


def test_level_2_is_par(task):
    """Level 2, third point: 32 units, 2 until the middle rank starts, and then no idle
    time on it.
    """
    check(task, 2, LEVELS[2].par)


def test_level_3_is_legal_and_no_slower_than_1f1b(task):
    """Level 3, first point: legal, at most 3 pairs held, no more than 40 units."""
    check(task, 3, as_fast_as_1f1b(3))


def test_level_3_is_near_par(task):
    """Level 3, second point: at least halfway from 1F1B to par.

    Hint: which rank has the most work? The others may wait; that one must not.
    """
    check(task, 3, near_par(3))


def test_level_3_is_par(task):
    """Level 3, third point: 32 units, although each message takes one."""
    check(task, 3, LEVELS[3].par)


def test_level_4_is_legal_and_no_slower_than_1f1b(task):
    """Level 4, first point: legal, at most 4 pairs held, no more than 47 units."""
    check(task, 4, as_fast_as_1f1b(4))


def test_level_4_is_near_par(task):
    """Level 4, second point: at least halfway from 1F1B to par.

    Hint: while a message is in flight, run something else: another forward, or a W.
    """
    check(task, 4, near_par(4))


def test_level_4_is_par(task):
    """Level 4, third point: 39 units, of which rank 0 has to wait for 21."""
    check(task, 4, LEVELS[4].par)


def test_level_5_is_legal_and_no_slower_than_1f1b(task):
    """Level 5, first point: legal, at most 3 pairs held, no more than the 33 units of
    1F1B, which holds 4.
    """
    check(task, 5, as_fast_as_1f1b(5))


def test_level_5_is_near_par(task):
    """Level 5, second point: at least halfway from 1F1B to par.

    Hint: a pair is held until its W. When memory is full, which W makes room for the
    next F soonest?
    """
    check(task, 5, near_par(5))


def test_level_5_is_par(task):
    """Level 5, third point: 31 units, the least that there is.

    Hint: a greedy schedule, which prefers an I to an F, takes 33. Sometimes the F is
    more urgent: the ranks after this one have nothing else to do.
    """
    check(task, 5, LEVELS[5].par)


# HIDDEN
def check_training(task, number):
    """Run one step of a small network on thread ranks with the schedule, and compare
    with one process.
    """
    level, schedule = built(task, number)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(level.num_ranks)]
    model = nn.Sequential(*layers).initialise(0)
    generator = np.random.default_rng(number)
    inputs, targets = generator.standard_normal(
        (2, 2 * level.num_microbatches, 4), dtype=np.float32
    )

    def step(group):
        pipeline = Pipeline(
            model, group, loss=functional.mean_squared_error, schedule=schedule
        )
        loss = pipeline.step(inputs, targets)
        return loss, {
            name: parameter.grad for name, parameter in pipeline.named_parameters()
        }

    by_rank = spawn(step, level.num_ranks)
    expected = one_process_step(
        model, functional.mean_squared_error, inputs, targets, level.num_microbatches
    )
    for loss, gradients in by_rank:
        expect_close(
            loss, expected.loss, f"loss of a step by level_{number}()", tolerance=1e-6
        )
        for name, gradient in gradients.items():
            expect_close(
                gradient,
                expected.gradients[name],
                f"level_{number}(): gradient of {name}",
                tolerance=1e-5,
            )


def test_levels_1_and_2_train(task):
    """A network trained with the schedules, on real ranks, has the gradients of one
    process.
    """
    check_training(task, 1)
    check_training(task, 2)


def test_levels_3_and_4_train(task):
    """The same for the larger ones."""
    check_training(task, 3)
    check_training(task, 4)


def test_level_5_trains(task):
    """The same for the one with the least memory."""
    check_training(task, 5)


def with_rows(end, schedule):
    """Return the end of a docstring, and the same followed by a return of rows."""
    return f'{end}"""\n', f'{end}"""\n    return """{schedule.to_text()}"""\n'


GREEDY = schedules.greedy(6, LEVELS[4].costs, range(4), 4, "IFW")
WRONG_ANSWERS = [
    (
        "1F1B as in the paper, made for equal stages",
        *with_rows("with whole backwards.", schedules.one_f_one_b(3, 4)),
    ),
    (
        "ZB-H1, the best for equal stages: close to par, but not par",
        *with_rows("with backwards in two halves.", schedules.zb_h1(3, 5)),
    ),
    (
        "all forwards first: hides all latency, but holds all microbatches",
        *with_rows("whose messages take time.", schedules.gpipe(3, 5)),
    ),
    (
        "greedy, which never looks ahead: nearly as good as par",
        *with_rows("than fit in your head.", GREEDY),
    ),
    (
        "1F1B, which is as fast as was asked, but holds a microbatch too many",
        *with_rows("less than 1F1B.", schedules.one_f_one_b(4, 8)),
    ),
    (
        (
            "two actions swapped to fill a gap: rank 1 then waits for a gradient "
            "that waits for rank 1"
        ),
        "2F0 2B0 2F1 2F2",
        "2F1 2B0 2F0 2F2",
    ),
]

VARIANTS = [
    [
        (
            (
                "1      3      4             1:2:1    2:4:2    0:0:0    0        3   "
                "    28    27"
            ),
            "--ranks 3 --microbatches 4",
            "Level(3, 4, Costs([1, 2, 1], [2, 4, 2], 0), 3, 27)",
            "Level 1, first point: legal, at most 3 pairs held, no more than 28 units",
            "Level 1, third point: 27 units",
            "the middle rank has 24 units of work",
            "one_f_one_b(3, 4)",
            "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n",
            "1F0 1F1 1F2 1B0 1B1 1F3 1B2 1B3\n",
            "2F0 2B0 2F1 2F2 2B1 2B2 2F3 2B3\n",
        ),
        (
            (
                "1      3      5             1:2:1    2:4:2    0:0:0    0        3   "
                "    34    33"
            ),
            "--ranks 3 --microbatches 5",
            "Level(3, 5, Costs([1, 2, 1], [2, 4, 2], 0), 3, 33)",
            "Level 1, first point: legal, at most 3 pairs held, no more than 34 units",
            "Level 1, third point: 33 units",
            "the middle rank has 30 units of work",
            "one_f_one_b(3, 5)",
            "0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0B3 0B4\n",
            "1F0 1F1 1F2 1B0 1B1 1F3 1B2 1F4 1B3 1B4\n",
            "2F0 2B0 2F1 2F2 2B1 2B2 2F3 2B3 2F4 2B4\n",
        ),
        (
            (
                "1      3      6             1:2:1    2:4:2    0:0:0    0        3   "
                "    40    39"
            ),
            "--ranks 3 --microbatches 6",
            "Level(3, 6, Costs([1, 2, 1], [2, 4, 2], 0), 3, 39)",
            "Level 1, first point: legal, at most 3 pairs held, no more than 40 units",
            "Level 1, third point: 39 units",
            "the middle rank has 36 units of work",
            "one_f_one_b(3, 6)",
            "0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0F5 0B3 0B4 0B5\n",
            "1F0 1F1 1F2 1B0 1B1 1F3 1B2 1F4 1B3 1F5 1B4 1B5\n",
            "2F0 2B0 2F1 2F2 2B1 2B2 2F3 2B3 2F4 2B4 2F5 2B5\n",
        ),
    ],
]
