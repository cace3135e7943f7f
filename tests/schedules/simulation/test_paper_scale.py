"""Training times that papers published, predicted from the shape of the model and one
set of rates.

What is asserted is the error of each row as the model has it, so that nobody changes a
rate unseen.
"""

from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import schedules, simulate, verify
from minipipe.errors import ArgumentError
from minipipe.schedules.simulation import paper_scale
from minipipe.schedules.simulation.paper_scale import (
    A100,
    TABLES,
    TERMS,
    Run,
    costs_of,
    predict,
    published_runs,
)
from tests.launch import slowly

RUNS = [run for table in TABLES for run in published_runs(table)]
# In %: of the time of an iteration, predicted over published.
ERRORS = [
    *(0.1, -1.3, -1.4, -2.5, 1.1, -5.5, -3.1, -2.1, -1.0, 1.4),
    *(0.2, 0.7, 1.3, 0.3, 0.9, 1.7),
    *(0.8, -3.1, -1.4, -5.0, 1.3, -3.1, 2.6, 1.1),
]
# In %, over all rows without a term: the mean and the largest error.
ABLATION = {
    "recomputation": (21.5, 28.5),
    "memory": (6.5, 13.9),
    "attention": (11.7, 39.7),
    "operands": (11.2, 17.2),
    "tensor-sums": (9.3, 19.3),
    "bubble": (5.2, 9.5),
    "head": (3.5, 8.4),
    "accumulation": (3.0, 7.2),
    "optimiser": (2.6, 11.6),
    "latency": (2.1, 6.9),
    "replica-sums": (1.9, 8.1),
    "messages": (2.0, 6.5),
}
SMALL = Run("mine", "small", 8, 1024, 12, 2, 3, 2, 12, 24, 2, "full", "nothing", "")


def quick(runs):
    """All runs in the long run, those of few actions in the short one."""
    return [
        run if run.pipeline * run.chunks * run.num_microbatches < 3000 else slowly(run)
        for run in runs
    ]


def errors(without=()):
    return [100 * (predict(run, without=without) / run.seconds() - 1) for run in RUNS]


def test_the_expected_errors_keep_what_was_asked():
    assert len(RUNS) == len(ERRORS) == 24
    sizes = [abs(error) for error in ERRORS]
    assert max(sizes) < 7 and median(sizes) < 2.5 and mean(sizes[16:]) < 3


@pytest.mark.parametrize(
    "run",
    quick(RUNS),
    ids=lambda run: f"{run.table}-{run.model}-{run.gpus}-{run.recompute}",
)
def test_each_published_time_is_predicted_with_its_error(run):
    error = 100 * (predict(run) / run.seconds() - 1)
    assert round(error, 1) == ERRORS[RUNS.index(run)]


@pytest.mark.slow
@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_worth_what_the_errors_say_without_it(term):
    sizes = list(map(abs, errors([term])))
    assert (round(mean(sizes), 1), round(max(sizes), 1)) == ABLATION[term]


@pytest.mark.parametrize(
    "run",
    quick(RUNS),
    ids=lambda run: f"{run.table}-{run.model}-{run.gpus}-{run.recompute}",
)
def test_the_simulator_agrees_with_the_closed_formula(run):
    """m (v (f + b) + head) + (p - 1)(f + b): the last rank has no idle time but that
    before its first forward.
    """
    costs, p, v, m = costs_of(run), run.pipeline, run.chunks, run.num_microbatches
    whole = [
        sum(times)
        for times in zip(costs.forward, costs.backward_input, costs.backward_weight)
    ]
    inner = costs_of(run, without=["head"])
    of_stage = inner.forward[-1] + inner.backward_input[-1] + inner.backward_weight[-1]
    formula = m * (v * of_stage + whole[-1] - of_stage) + (p - 1) * of_stage
    assert simulate(run.schedule(), costs).makespan == pytest.approx(formula, rel=0.01)


@pytest.mark.slow
def test_sizes_of_the_published_runs_fit_and_their_schedules_are_legal():
    for run in RUNS:
        assert run.replicas * run.tensor * run.pipeline == run.gpus
        assert run.num_microbatches * run.replicas * run.microbatch == run.batch
        schedule = run.schedule()
        assert (
            schedule.num_stages == run.pipeline * run.chunks
            and run.layers % schedule.num_stages == 0
        )
        if run.num_microbatches < 100:
            verify(schedule)


def test_operations_are_those_of_the_paper_s_own_days_of_training():
    """Section 5.1: 175 billion parameters, 300 billion tokens, 1,024 GPUs at 140 TF/s
    take 34 days.
    """
    of_batch = published_runs("megatron-table-2")[0]
    iterations = 300e9 / (of_batch.batch * paper_scale.SEQUENCE)
    days = iterations * of_batch.operations / (1024 * 140e12) / 86400
    assert 33 < days < 36


@given(
    st.sampled_from(sorted(set(TERMS) - {"bubble"})),
    st.sampled_from(["full", "selective"]),
)
def test_no_iteration_takes_longer_without_a_term(term, recompute):
    run = SMALL._replace(recompute=recompute)
    assert predict(run, without=[term]) < predict(run)


@given(st.sampled_from(A100._fields), st.floats(1.01, 10))
def test_faster_hardware_is_faster(name, factor):
    rate = getattr(A100, name)
    faster = (
        rate * factor
        if isinstance(rate, float)
        else rate._replace(bandwidth=rate.bandwidth * factor)
    )
    assert predict(SMALL, A100._replace(**{name: faster})) < predict(SMALL)


def test_without_a_bubble_the_busiest_rank_says_how_long_it_takes():
    run, costs = SMALL, costs_of(SMALL)
    timeline = simulate(run.schedule(), costs)
    less = predict(run) - predict(run, without=["bubble"])
    assert (
        less == pytest.approx(timeline.makespan - max(map(timeline.busy, range(3))))
        and less > 0
    )


def test_costs_serve_any_schedule_over_the_stages():
    run = SMALL._replace(chunks=1)
    one, split = (
        simulate(build(3, 6), costs_of(run))
        for build in (schedules.one_f_one_b, schedules.zb_h1)
    )
    assert split.makespan < one.makespan


HEAD = ",".join(Run._fields)
ROW = "mine,small,8,1024,12,2,3,2,12,24,2,full,nothing,"


def test_rows_of_one_s_own_are_read():
    assert paper_scale.read_runs(f"{HEAD}\n{ROW}\n\n{ROW}1.5s") == [
        SMALL,
        SMALL._replace(published="1.5s"),
    ]
    assert SMALL.seconds() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "The first line is ''; expected table,model,heads"),
        ("a,b\n1,2", "The first line is 'a,b'; expected table,model"),
        (f"{HEAD}\nmine,small", "The row of 'small' has a wrong cell"),
        (f"{HEAD}\n{ROW},1", "The row of 'small' has a wrong cell"),
        (
            f"{HEAD}\n{ROW.replace('1024', 'wide')}",
            "has a wrong cell; expected whole numbers in heads, hidden",
        ),
        (
            f"{HEAD}\n{ROW}fast",
            "published is 'fast'; expected a value such as 138TF or 1.42s, or nothing",
        ),
        (
            f"{HEAD}\n{ROW}0s",
            "published is '0s'; expected a value such as 138TF or 1.42s, or nothing",
        ),
        (
            f"{HEAD}\n{ROW}nanTF",
            "published is 'nanTF'; expected a value such as 138TF or 1.42s, or nothing",
        ),
        (f"{HEAD}\n{ROW.replace('12,2,3', '12,0,3')}", "has a number below 1"),
        (
            f"{HEAD}\n{ROW.replace('full', 'half')}",
            "recompute is 'half'; expected full or selective",
        ),
        (
            f"{HEAD}\n{ROW.replace('nothing', 'all')}",
            "overlap is 'all'; expected nothing or replicas or tensor",
        ),
        (
            f"{HEAD}\n{ROW.replace('2,12,24', '2,13,24')}",
            "gpus is 13; expected a multiple of tensor times pipeline, 6",
        ),
        (
            f"{HEAD}\n{ROW.replace('1024,12', '1024,13')}",
            "layers is 13; expected a multiple of pipeline times chunks",
        ),
        (
            f"{HEAD}\n{ROW.replace('8,1024', '9,1026')}",
            "heads is 9; expected a multiple of tensor, 2",
        ),
        (
            f"{HEAD}\n{ROW.replace('8,1024', '8,1025')}",
            "hidden is 1025; expected a multiple of heads, 8",
        ),
        (
            f"{HEAD}\n{ROW.replace('12,24,2', '12,25,2')}",
            "batch is 25; expected a multiple of replicas times micro",
        ),
        (
            f"{HEAD}\n{ROW.replace('12,24,2', '12,28,2')}",
            "num_microbatches is 7; expected a multiple of pipeline, 3",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_refused_in_words(text, words):
    with pytest.raises(ArgumentError) as caught:
        paper_scale.read_runs(text)
    assert words in str(caught.value)
