"""``Pipeline(…, schedule="auto")``: rank 0 measures and decides, all ranks run the
same.
"""

from dataclasses import replace

import pytest

from minipipe import Pipeline, Plan, nn, optim, schedules, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, ModelError, PartitionError, ScheduleError
from minipipe.testing import same_bits
from minipipe.tuning import advising, race
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.small_pipelines import mlp
from tests.strategies import batch

X, Y = batch(8, 4)


@pytest.fixture(autouse=True)
def searches_are_short(monkeypatch):
    monkeypatch.setattr("minipipe.tuning.advising.SECONDS", 0.1)
    monkeypatch.setattr(race, "RACE_SECONDS", 0.2)


def stepped(group, **options):
    pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), **options)
    loss = pipeline.step(X, Y)
    return (
        loss,
        {name: parameter.grad for name, parameter in pipeline.named_parameters()},
        pipeline,
    )


def alike(ones, others):
    assert len(ones) == len(others)
    for (loss, gradients, _), (other, of_other, _) in zip(ones, others):
        assert loss == other and gradients.keys() == of_other.keys()
        assert all(same_bits(gradients[name], of_other[name]) for name in gradients)


def test_it_has_the_bits_of_the_same_schedule_by_name():
    # with which no schedule is searched
    given = {"chunks_per_rank": 1, "num_microbatches": 4}
    auto = spawn(
        lambda g: stepped(
            g, schedule="auto", sample=None if g.rank else (X, Y), **given
        ),
        2,
    )
    chosen = auto[0][2]
    assert all(
        each[2].schedule == chosen.schedule and each[2].partition == chosen.partition
        for each in auto
    )
    best = chosen.advice.data["best"]
    named = {
        "schedule": best["schedule"],
        "partition": chosen.partition,
        "replicas": best["replicas"],
    }
    named["num_microbatches"] = 4 // best["replicas"]
    assert named["schedule"] in schedules.REGISTRY
    alike(auto, spawn(lambda g: stepped(g, **named), 2))


@pytest.mark.parametrize("schedule", ["auto", "1f1b"])
@pytest.mark.slow
def test_with_replicas_given_it_has_as_many_and_so_has_a_measured_partition(schedule):
    given = {"replicas": 2, "num_microbatches": 2, "sample": (X, Y)}
    given |= {"partition": "measured"} if schedule == "1f1b" else {"chunks_per_rank": 1}
    auto = spawn(lambda g: stepped(g, schedule=schedule, **given), 4)
    chosen = auto[0][2]
    assert len(chosen.plan.pipelines) % 2 == 0 and chosen.schedule.num_microbatches == 4
    named = {"schedule": chosen.schedule, "partition": chosen.partition}
    alike(auto, spawn(lambda g: stepped(g, **named), 4))
    if schedule == "auto":
        assert ", 2 replicas, 4 microbatches" in str(chosen).splitlines()[-1]


@pytest.mark.slow
def test_a_choice_that_computes_activations_again_reaches_every_rank(monkeypatch):
    """Which choice that is depends on times. So here it is the only one."""
    monkeypatch.setattr(
        race,
        "weigh",
        lambda question, *given: advising.weigh(
            replace(question, recompute=True), *given
        ),
    )
    model = nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.GELU(), nn.Tanh()))
    )

    def step(group, **options):
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            partition=[range(0, 6), range(6, 12)],
            **options,
        )
        held = pipeline.measure_memory(X, X).activation
        return (
            pipeline.step(X, X),
            [p.grad for p in pipeline.parameters()],
            pipeline.schedule,
            held,
        )

    auto = spawn(
        lambda g: step(g, schedule="auto", sample=(X, X), num_microbatches=1), 2
    )
    plain = spawn(lambda g: step(g, schedule=auto[0][2]), 2)
    for (loss, gradients, _, held), (other, of_other, _, more) in zip(auto, plain):
        assert loss == other and all(map(same_bits, gradients, of_other))
        assert all(map(int.__lt__, held, more))


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (
            mlp(),
            {},
            ArgumentError,
            (
                r'schedule="auto" needs a batch to measure: pass sample=\(inputs, '
                r"targets\)"
            ),
        ),
        (mlp(), {"sample": X}, ArgumentError, "needs a batch to measure"),
        (
            mlp(),
            {"sample": (X, Y), "layer_costs": [1]},
            ArgumentError,
            "leave layer_costs out",
        ),
        (
            mlp(),
            {"sample": (X, Y), "gradient_blocks": 2},
            ArgumentError,
            "leave gradient_blocks out",
        ),
        (
            mlp(),
            {"sample": (X, Y), "memory_limit": "much"},
            ArgumentError,
            "memory_limit is 'much'",
        ),
        slowly(
            mlp(),
            {"sample": (X, Y), "memory_limit": 100},
            ScheduleError,
            "No choice needs at most 100 B on every rank",
        ),
        (
            mlp(),
            {"sample": (X, Y), "chunks_per_rank": 10},
            ArgumentError,
            "No schedule fits 9 layers on 1 rank",
        ),
        (
            mlp(),
            {"sample": (X, Y), "speed": 2},
            ArgumentError,
            "Pipeline takes no speed=",
        ),
        (
            nn.Linear(4, 4),
            {"sample": (X, Y)},
            ModelError,
            "partitions an nn.Sequential",
        ),
        (Plan(mlp(), num_ranks=1), {}, ModelError, "The stages determine"),
    ],
)
def test_what_cannot_be_decided_is_refused(model, options, error, words):
    with pytest.raises(error, match=words):
        Pipeline(model, OneRankGroup(), loss=nn.MSELoss(), schedule="auto", **options)


def test_a_misspelt_option_is_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(
        race, "advice_on_ranks", lambda *given: pytest.fail("it has measured")
    )
    with pytest.raises(ArgumentError, match="Pipeline takes no memory_limt="):
        Pipeline(
            mlp(),
            OneRankGroup(),
            loss=nn.MSELoss(),
            schedule="auto",
            sample=(X, Y),
            memory_limt="1 MB",
        )


def test_fewer_layers_than_ranks_are_refused_on_every_rank():
    with pytest.raises(PartitionError, match="cannot make 3 stages"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        spawn(
            lambda g: Pipeline(
                model, g, loss=nn.MSELoss(), schedule="auto", sample=(X, Y)
            ),
            3,
        )


@pytest.mark.slow
def test_what_was_chosen_stands_below_the_pipeline_and_in_its_advice_on_every_rank(
    capsys,
):
    """The story: after a minute of silence, nothing said which schedule it was, or why;
    later only rank 0 knew.
    """
    given = {"chunks_per_rank": 1, "num_microbatches": 4, "progress": True}
    auto = spawn(lambda g: stepped(g, schedule="auto", sample=(X, Y), **given)[2], 2)
    assert auto[1].advice == auto[0].advice and auto[1].advice is not auto[0].advice
    best = auto[1].advice.data["best"]
    copies = f", {best['replicas']} replicas" * (best["replicas"] > 1)
    assert (
        auto[0].schedule.name == best["schedule"] + copies
        and best in auto[1].advice.data["choices"]
    )
    assert [[part.start, part.stop] for part in auto[0].partition] == best["layers"]
    told = (
        f'schedule="auto" chose {best["schedule"]}{copies}, 4 microbatches, '
        f"partitioned by {best['cut']}"
    )
    figures = (
        f"predicted {1e3 * best['time']:.3f} ms per step, measured "
        f"{1e3 * best['measured']:.3f} ms."
    )
    report = " ".join(str(auto[1].advice).split())
    assert (
        report.startswith(f"Recommended: {best['schedule']}{copies}")
        and auto[1].advice.data["reason"] in report
    )
    for pipeline in auto:
        table, _, line = str(pipeline).rpartition("\n\n")
        assert line.startswith(told) and table.startswith("layer")
        assert line.endswith(figures)
        assert told.replace('"', "&quot;") in pipeline._repr_html_()
    out, err = capsys.readouterr()
    said = err.splitlines()
    assert (
        out == ""
        and all(line.startswith("minipipe: ") for line in said)
        and f"minipipe: {line}" in said
    )
    for words in (
        "measuring messages between 2 ranks",
        "measuring layers on rank 0",
        "choices in turns, for 0.2 s",
    ):
        assert sum(words in line for line in said) == 1, words


@pytest.mark.slow
def test_rank_0_says_that_it_begins_and_what_was_chosen_unless_progress_is_false(
    capsys,
):
    """The story: under mpirun standard error is a pipe, and nothing was said for a
    minute.
    """
    given = {"schedule": "auto", "sample": (X, Y), "num_microbatches": 2}
    told = str(spawn(lambda g: stepped(g, **given)[2], 2)[1]).splitlines()[-1]
    out, err = capsys.readouterr()
    begin = (
        'minipipe: schedule="auto" measures choices on the ranks: about 0.3 s, more '
        "for a large model"
    )
    assert out == "" and err.splitlines() == [begin, f"minipipe: {told}"]
    quiet = stepped(OneRankGroup(), **given, progress=False)[2]
    plain = stepped(OneRankGroup(), schedule="1f1b")[2]
    assert capsys.readouterr() == ("", "") and "chose" in str(quiet)
    assert plain.advice is None and "chose" not in str(plain)


@pytest.mark.slow
def test_a_process_without_standard_error_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    pipeline = stepped(
        OneRankGroup(), schedule="auto", sample=(X, Y), num_microbatches=2
    )[2]
    assert capsys.readouterr().out == "" and "chose" in str(pipeline)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"schedule": "1f1b", "progress": True},
            'takes no progress=; only schedule="auto" uses it',
        ),
        (
            {"partition": "measured", "sample": (X, Y), "memory_limit": 1},
            'memory_limit=; only schedule="auto" uses it',
        ),
        (
            {"sample": (X, Y)},
            'takes no sample=; only partition="measured" and schedule="auto" use it',
        ),
        (
            {"schedule": "auto", "sample": (X, Y), "memory_limt": 1},
            "takes no memory_limt=; did you mean memory_limit=",
        ),
        (
            {"schedule": "auto", "optimizer": optim.SGD},
            "takes no optimizer=; did you mean optimiser=",
        ),
        ({"schedule": "auto", "num_ranks": 2}, "takes no num_ranks="),
    ],
)
def test_options_of_a_choice_belong_to_it_and_stand_in_every_list(options, words):
    """The story: the list of options lacked them, and nothing was near to a misspelt
    one.
    """
    with pytest.raises(ArgumentError, match=words) as caught:
        Pipeline(mlp(), OneRankGroup(), loss=nn.MSELoss(), **options)
    assert str(caught.value).endswith(
        '; with schedule="auto" also sample, memory_limit, optimiser, progress.'
    )


@needs_mpi
@pytest.mark.slow
def test_all_ranks_of_mpirun_take_the_choice_of_rank_0():
    done = mpirun(3, "-m", "tests.tuning.auto_over_mpi", limit=120)
    assert done.code == 0, done.err
    assert done.out.count("one choice") == 3
    assert [
        line.partition(" choices")[0]
        for line in done.err.splitlines()
        if "auto" in line
    ][:1] == ['minipipe: schedule="auto" measures']
    assert sum(line.startswith("minipipe: ") for line in done.err.splitlines()) == 2
