"""Training without flushes: the schedule updates the weights, and the bits are those of
the papers' formulas.
"""

import itertools
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import (
    Costs,
    Microbatches,
    Pipeline,
    Plan,
    Schedule,
    init_process_group,
    nn,
    optim,
    schedules,
    simulate,
    spawn,
)
from minipipe.core.flow import flow_of
from minipipe.core.schedules.action import B, U
from minipipe.errors import (
    ArgumentError,
    MicrobatchError,
    NotFiniteError,
    ScheduleError,
)
from minipipe.schedules.analysis.copies import copies_held
from minipipe.testing import same_bits
from tests.launch import covering, mpirun, needs_mpi, slowly
from tests.pipeline import formulas
from tests.strategies import batch, examples, stacks

RULES = {
    "sgd": partial(optim.SGD, learning_rate=0.01, momentum=0.9),
    "adam": partial(optim.Adam, learning_rate=0.01),
    "muon": partial(optim.Muon, learning_rate=0.01),
    "nesterov": partial(optim.SGD, learning_rate=0.01, momentum=0.9, nesterov=True),
    "nadamw": partial(
        optim.AdamW, learning_rate=0.01, betas=(0.99, 0.999), nesterov=True
    ),
}
INPUTS = [batch(12, 6, seed)[0] for seed in range(4)]
BATCHES = [(x, np.roll(x, 1, axis=1)) for x in INPUTS]


def table(name, p, m, a):
    if name in ("pipedream", "vertical-sync"):
        return schedules.build(name, p, m)
    return schedules.build(name, p, m, microbatches_per_update=a)


def model(width=6, linears=5, **options):
    return nn.Sequential(
        *[
            layer
            for _ in range(linears)
            for layer in (nn.Linear(width, width, **options), nn.Tanh())
        ]
    )


def run(group, make, batches, rule, stash=None, **options):
    """Train; return the losses of all microbatches, the values and the partition."""
    pipeline = Pipeline(make(), group, loss=nn.MSELoss(), **options)
    losses = pipeline.run(batches, rule(pipeline.parameters()), stash=stash)
    return (
        [loss for each in losses for loss in each.losses],
        pipeline.state_dict(),
        pipeline.partition,
    )


def assert_formulas(name, p, make, batches, each, rule, a=1, **options):
    given = table(name, p, each * len(batches), a)
    found = spawn(
        lambda group: run(
            group, make, batches, rule, name != "paci", schedule=given, **options
        ),
        p,
    )
    microbatches = [
        pair
        for x, y in batches
        for pair in zip(np.array_split(x, each), np.array_split(y, each))
    ]
    expected = formulas.trained(
        name, make(), found[0][2], microbatches, rule, nn.MSELoss(), a
    )
    assert_alike(found, expected)


def assert_alike(found, expected):
    for losses, state, *_ in found:
        assert losses == expected[0] and all(
            same_bits(state[name], expected[1][name]) for name in expected[1]
        )


# -- the bits --------------------------------------------------------------------------


UPDATES = [("pipedream", 1), ("vertical-sync", 1), ("2bw", 4), ("paci", 1), ("paci", 3)]


@pytest.mark.parametrize(
    ("update", "p", "rule"), covering(UPDATES, [1, 2, 4], RULES, strength=1)
)
def test_a_run_has_the_bits_of_the_formulas(update, p, rule):
    name, a = update
    assert_formulas(name, p, model, BATCHES, 4, RULES[rule], a)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_delayed_nesterov_is_pipedream_with_a_momentum_that_looks_ahead(p):
    """By equation 10 of the paper, and but for the order of its operations in
    rounding.
    """
    rate, momentum, batches = (
        0.05,
        0.9,
        [(x.astype(np.float64), y.astype(np.float64)) for x, y in BATCHES],
    )
    make = lambda: model(dtype=np.float64)
    rule = partial(
        optim.SGD, learning_rate=rate * (1 - momentum), momentum=momentum, nesterov=True
    )
    options = {"schedule": schedules.pipedream(p, 16)}
    losses, state, parts = spawn(
        lambda group: run(group, make, batches, rule, **options), p
    )[0]
    microbatches = [
        pair
        for x, y in batches
        for pair in zip(np.array_split(x, 4), np.array_split(y, 4))
    ]
    paper = partial(formulas.DelayedNesterov, rate=rate, momentum=momentum)
    expected = formulas.trained(
        "pipedream", make(), parts, microbatches, paper, nn.MSELoss()
    )
    np.testing.assert_allclose(losses, expected[0], rtol=1e-13)
    for name, values in expected[1].items():
        np.testing.assert_allclose(state[name], values, rtol=1e-11, atol=1e-14)
    without = spawn(
        lambda group: run(
            group, make, batches, partial(rule, nesterov=False), **options
        ),
        p,
    )[0][0]
    assert abs(without[-1] / losses[-1] - 1) > 1e-5  # so the look-ahead is no rounding


def check_drawn(drawn, p, each, num_batches, name, a, rule, size, cuts):
    made, width = drawn
    a = (
        1
        if name in ("pipedream", "vertical-sync")
        else max(a, p)
        if name == "2bw"
        else a
    )
    parts = [range(i, j) for i, j in zip([0, *cuts], [*cuts, len(made)])]
    batches, rule = (
        [batch(size, width, seed) for seed in range(num_batches)],
        partial(RULES[rule], learning_rate=1e-5),
    )
    plan = Plan(made, "1f1b", num_ranks=p, partition=parts)
    is_tied = any(len(set(stages.values())) > 1 for stages in plan.uses.values())
    recomputes = name == "paci" and any(
        isinstance(module, nn.Recompute) for module in made.modules()
    )
    if is_tied or recomputes:
        words = (
            "Several stages share the parameter"
            if is_tied
            else "Recomputation with newer weights"
        )
        options = {"schedule": name, "num_microbatches": each, "partition": parts}
        with pytest.raises(ScheduleError, match=words):
            spawn(
                lambda group: run(group, lambda: made, batches, rule, False, **options),
                p,
            )
    else:
        assert_formulas(name, p, lambda: made, batches, each, rule, a, partition=parts)


@given(
    drawn=stacks(min_layers=4, max_layers=8),
    p=st.integers(1, 4),
    each=st.integers(1, 3),
    num_batches=st.integers(1, 4),
    name=st.sampled_from(["pipedream", "vertical-sync", "2bw", "paci"]),
    a=st.integers(1, 5),
    rule=st.sampled_from(list(RULES)),
    size=st.integers(3, 8),
    data=st.data(),
)
@examples(30)
def test_so_has_any_model_on_any_number_of_ranks(
    drawn, p, each, num_batches, name, a, rule, size, data
):
    cuts = sorted(data.draw(st.permutations(range(1, len(drawn[0]))))[: p - 1])
    check_drawn(drawn, p, each, num_batches, name, a, rule, size, cuts)


@pytest.mark.parametrize("name", ["pipedream", "vertical-sync", "2bw", "paci"])
def test_a_schedule_by_its_name_is_built_for_the_microbatches_of_all_batches(name):
    whole, rule = table(name, 2, 16, 2), RULES["adam"]
    named = spawn(
        lambda group: run(
            group, model, BATCHES, rule, schedule=name, num_microbatches=4
        ),
        2,
    )
    given = spawn(
        lambda group: run(group, model, BATCHES, rule, name != "paci", schedule=whole),
        2,
    )
    assert_alike(named, given[0])


def test_a_table_with_a_flush_after_each_batch_is_steps_and_updates():
    steps, rule = schedules.repeat(schedules.one_f_one_b(2, 3), 4), RULES["adam"]
    rows = [
        [
            each
            for a in row
            for each in [a, a._replace(kind=U)][
                : 1 + (a.kind is B and a.microbatch % 3 == 2)
            ]
        ]
        for row in steps.actions
    ]
    flushed = Schedule("flushes", (0, 1), 12, rows)
    found = spawn(lambda group: run(group, model, BATCHES, rule, schedule=flushed), 2)
    assert_alike(
        found,
        spawn(lambda group: run(group, model, BATCHES, rule, num_microbatches=3), 2)[0],
    )


@pytest.mark.parametrize(
    ("name", "stash"),
    [("pipedream", False), slowly("2bw", False), ("paci", True)],
)
def test_with_the_other_kind_of_weights_a_backward_leaves_other_bits(name, stash):
    given = table(name, 4, 16, 4)
    found = [
        spawn(
            lambda group, s=s: run(
                group, model, BATCHES, RULES["sgd"], s, schedule=given
            ),
            4,
        )[0]
        for s in (stash, not stash)
    ]
    assert found[0][0][0] == found[1][0][0] and found[0][0] != found[1][0]


_SWITCHES = [
    (name, switch)
    for name in ("pipedream", "vertical-sync", "2bw", "paci")
    for switch in ("compile", "recompute")
]


# Without a stash, what is computed again would find newer weights, and is refused.
@pytest.mark.parametrize(
    ("name", "switch"),
    [
        case if i in (0, 5) else slowly(*case)
        for i, case in enumerate(_SWITCHES)
        if case != ("paci", "recompute")
    ],
)
def test_no_switch_changes_a_bit_of_several_runs(name, switch):
    """Several runs: a compiled stage reads the weights of the microbatch that it
    serves.
    """

    def train(group, **options):
        layers = [
            layer
            for _ in range(4)
            for layer in (nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2))
        ]
        pipeline = Pipeline(
            nn.Sequential(*layers), group, loss=nn.MSELoss(), schedule=name, **options
        )
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
        losses = [pipeline.run(BATCHES, optimiser) for _ in range(4)]
        return losses, pipeline.state_dict(), pipeline.compile_report()

    options = {switch: True}
    found, plain = (
        spawn(lambda group, o=o: train(group, num_microbatches=4, **o), 2)
        for o in (options, {})
    )
    if switch == "compile":
        assert all("is compiled" in each[2] for each in found)
    assert_alike(found, plain[0])


@pytest.mark.parametrize(
    "name", ["pipedream", *map(slowly, ("vertical-sync", "2bw", "paci"))]
)
def test_a_run_is_compiled_once_it_has_recorded_itself(name):
    """The story: a long run was one step to a stage, which recorded nothing before the
    third run.
    """
    layers = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2))
    ]

    def train(group, **options):
        pipeline = Pipeline(
            nn.Sequential(*layers),
            group,
            loss=nn.MSELoss(),
            schedule=table(name, 2, 48, 4),
            **options,
        )
        losses = pipeline.run(
            [(x, y) for x, y in BATCHES * 3],
            RULES["adam"](pipeline.parameters()),
            stash=name != "paci",
        )
        return (
            [loss for each in losses for loss in each.losses],
            pipeline.state_dict(),
            pipeline.compile_report(),
        )

    found, plain = (
        spawn(lambda group, o=o: train(group, **o), 2) for o in ({"compile": True}, {})
    )
    assert all("is compiled" in each[2] for each in found)
    assert_alike(found, plain[0])


def test_the_mean_of_an_update_counts_tokens_and_batches_may_be_bundles_or_cut():
    rows = np.random.default_rng(1).integers(0, 7, (12, 5))
    targets = np.where(
        np.arange(5) < np.arange(12)[:, None] % 5 + 1, np.roll(rows, -1, 1), -1
    )
    make = lambda: nn.Sequential(
        nn.Take("x"), nn.Embedding(7, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 7)
    )
    loss, rule = nn.CrossEntropyLoss(ignore_index=-1), RULES["sgd"]

    def train(group, batches):
        pipeline = Pipeline(make(), group, loss=loss, schedule=schedules.paci(2, 6, 3))
        return pipeline.run(
            batches, rule(pipeline.parameters()), stash=False
        ), pipeline.state_dict()

    whole = [({"x": rows[i : i + 6]}, targets[i : i + 6]) for i in (0, 6)]
    pieces = [
        (
            Microbatches([{"x": part} for part in np.split(x["x"], 3)]),
            Microbatches(np.split(y, 3)),
        )
        for x, y in whole
    ]
    found, again = (
        spawn(lambda group, b=b: train(group, b), 2) for b in (whole, pieces)
    )
    assert_alike(again, found[0])
    (one, two), _ = found[0]
    counts = [float((part >= 0).sum()) for part in np.split(targets[:6], 3)]
    assert (
        one
        == pytest.approx(sum(a * b for a, b in zip(one.losses, counts)) / sum(counts))
        and len(two.losses) == 3
    )
    twin = make().initialise(0)
    for part in np.split(np.arange(6), 3):
        value = loss(twin({"x": rows[part]}), targets[part])
        value.backward(float((targets[part] >= 0).sum()) / sum(counts))
    optimiser = rule(list(twin.parameters()))
    optimiser.step()
    first = spawn(lambda group: after_first_update(group, make, loss, whole, rule), 2)[
        0
    ]
    assert all(
        same_bits(first[key], np.array(p.data)) for key, p in twin.named_parameters()
    )


def after_first_update(group, make, loss, batches, rule):
    pipeline = Pipeline(make(), group, loss=loss, schedule=schedules.paci(2, 3, 3))
    pipeline.run(batches[:1], rule(pipeline.parameters()))
    return pipeline.state_dict()


def on_ranks(group, name, replicas):
    """Train stages whose gradients are too large for MPI to send them before they are
    received.
    """
    layers = [layer for _ in range(4) for layer in (nn.Linear(96, 96), nn.Tanh())]
    make = lambda: nn.Sequential(nn.Linear(6, 96), *layers, nn.Linear(96, 6))
    options = {
        "schedule": name,
        "num_microbatches": 4 // replicas,
        "replicas": replicas,
    }
    return run(group, make, BATCHES, RULES["adam"], **options)[0]


UPDATING = ("pipedream", "vertical-sync", "2bw", "paci")


def losses_on_threads(name, replicas, num_ranks=4):
    return list(
        map(repr, spawn(lambda group: on_ranks(group, name, replicas), num_ranks)[0])
    )


@needs_mpi
@pytest.mark.slow  # in short: test_over_mpi.py
def test_so_it_is_through_mpirun():
    cases = list(itertools.product(UPDATING, (1, 2, 4)))
    words = [f"{name}:{replicas}" for name, replicas in cases]
    done = mpirun(4, "-m", "tests.pipeline.test_asynchronous", *words, limit=120)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == len(cases)
    for case, line in zip(cases, lines):
        assert line.split() == losses_on_threads(*case), case


# -- memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pipedream", "vertical-sync", "2bw", "paci"])
def test_versions_and_sums_take_the_bytes_that_the_table_says(name):
    given = table(name, 4, 16, 4)

    def train(group):
        pipeline = Pipeline(model(), group, loss=nn.MSELoss(), schedule=given)
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.01)
        copies = pipeline.run(BATCHES, optimiser, stash=name != "paci").copies
        return copies, sum(parameter.nbytes for parameter in pipeline.parameters())

    found = spawn(train, 4)
    costs = Costs(activation=0, weights=[size for _, size in found])
    predicted = simulate(given, costs).peak_memory
    for stage, (copies, size) in enumerate(found):
        held = [
            copies for both in copies_held(flow_of(given), stage) for copies in both
        ]
        versions, sums = (
            max(each.versions for each in held),
            max(each.sums for each in held),
        )
        if name == "paci":
            assert copies == {stage: (1, 0, sums * size)}
        else:
            assert copies == {stage: (versions, (versions - 1) * size, sums * size)}
            assert (
                predicted[stage]
                == max(each.versions - 1 + max(0, each.sums - 1) for each in held)
                * size
            )
    expected = {"2bw": [2, 2, 2, 1], "paci": [1] * 4}.get(name, [4, 3, 2, 1])
    assert [
        copies[stage].versions for stage, (copies, _) in enumerate(found)
    ] == expected


# -- after a run, and mistakes ---------------------------------------------------------


def test_a_run_leaves_a_timeline_no_gradients_and_a_pipeline_that_evaluates_and_goes_on():
    def train(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), schedule="pipedream", num_microbatches=2
        )
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
        before = pipeline.evaluate(*BATCHES[0])
        pipeline.run(BATCHES, optimiser)
        timeline, gradients = (
            pipeline.timeline(),
            [p.grad for p in pipeline.parameters()],
        )
        pipeline.run(BATCHES[:2], optimiser)
        return (
            pipeline.evaluate(*BATCHES[0]) < before,
            timeline,
            gradients,
            pipeline.num_steps,
            optimiser.history,
        )

    for is_better, timeline, gradients, num_steps, history in spawn(train, 2):
        assert (
            is_better
            and num_steps == 6
            and set(gradients) == {None}
            and history == (12, 0)
        )
        names = [str(span.action) for span in timeline.spans[1]]
        assert names == [str(action) for action in schedules.pipedream(2, 8).actions[1]]


def test_ranks_with_several_stages_count_an_update_once():
    """Two stages on rank 0 and one on rank 1: their optimisers agree afterwards."""
    text = "0F0 1F0 1B0 1U0 0B0 0U0 0F1 1F1 1B1 1U1 0B1 0U1\n2F0 2B0 2U0 2F1 2B1 2U1"

    def train(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), schedule=Schedule.from_text(text)
        )
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
        pipeline.run(BATCHES[:2], optimiser)
        # state_dict compares what the optimisers did
        return pipeline.state_dict(), optimiser.history

    one = spawn(
        lambda group: run(group, model, BATCHES[:2], RULES["adam"], num_microbatches=1),
        1,
    )[0]
    for state, history in spawn(train, 2):
        assert history == (2, 0) and all(
            same_bits(state[name], one[1][name]) for name in state
        )


def pipelined(act, p=2, make=model, **options):
    return spawn(
        lambda group: act(Pipeline(make(), group, loss=nn.MSELoss(), **options)), p
    )


def tied():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 6), layer)


def adam(pipeline):
    return optim.Adam(pipeline.parameters())


@pytest.mark.parametrize(
    ("options", "act", "error", "words"),
    [
        (
            {},
            lambda p: p.step(*BATCHES[0]),
            ScheduleError,
            r"step\(\) would read.* Train with pipeline.run",
        ),
        (
            {},
            lambda p: p.clip_grad_norm(1.0),
            ScheduleError,
            r"clip_grad_norm\(\) would read",
        ),
        (
            {},
            lambda p: p.unscale_gradients(optim.LossScale()),
            ScheduleError,
            "unscale_gradients",
        ),
        (
            {},
            lambda p: p.forward_backward(INPUTS[0], INPUTS[0]),
            ScheduleError,
            "forward_backward",
        ),
        ({}, lambda p: p.run(BATCHES, None), ArgumentError, "run takes an optimiser"),
        ({}, lambda p: p.run([], adam(p)), MicrobatchError, "for a run of 0 batches"),
        (
            {},
            lambda p: p.run(BATCHES, p.sharded(optim.Adam)),
            ArgumentError,
            "ShardedOptimiser overrides step",
        ),
        ({"make": tied}, adam, ScheduleError, "Several stages share the parameter"),
        (
            {"inputs_require_grad": True},
            adam,
            ScheduleError,
            "inputs_require_grad=True does not work with pipedream",
        ),
        (
            {"replicas": 2, "p": 4, "gradient_blocks": 4},
            adam,
            ScheduleError,
            "gradient_blocks is 4, but .* sums the gradients of",
        ),
        (
            {"schedule": schedules.pipedream(2, 6)},
            lambda p: p.run(BATCHES, adam(p)),
            MicrobatchError,
            "6 microbatches",
        ),
        (
            {
                "schedule": Schedule.from_text(
                    "0F0 0F1 0B0 0U0 0B1 0U1 \n 1F0 1B0 1F1 1B1 1U1"
                )
            },
            adam,
            ScheduleError,
            "Stages 0 and 1 of .* update after different microbatches",
        ),
        (
            {"recompute": True, "schedule": "paci"},
            lambda p: p.run(BATCHES, adam(p)),
            ScheduleError,
            "Recomputation with newer weights",
        ),
    ],
)
def test_what_would_be_wrong_is_refused(options, act, error, words):
    with pytest.raises(error, match=words):
        pipelined(act, **{"schedule": "pipedream", **options})


def test_a_loss_that_is_not_finite_is_found_at_the_end():
    bad = [*BATCHES[:1], (np.full_like(INPUTS[0], np.nan), INPUTS[0])]
    with pytest.raises(
        NotFiniteError, match="microbatch 4 .* A schedule without flushes"
    ):
        pipelined(
            lambda p: p.run(bad, adam(p)), schedule="pipedream", num_microbatches=4
        )
    assert pipelined(
        lambda p: len(p.run(bad, adam(p))),
        schedule="pipedream",
        num_microbatches=4,
        check_finite="off",
    ) == [2, 2]


if __name__ == "__main__":
    with init_process_group(timeout=30) as ranks:
        for words in sys.argv[1:]:
            given_name, _, given_replicas = words.partition(":")
            losses = on_ranks(ranks, given_name, int(given_replicas))
            if ranks.rank == 0:
                print(*losses)
