"""Replicas of a pipeline: each takes its share of a batch, and their gradients are
summed, to the bit.
"""

import sys
import warnings

import numpy as np
import pytest

from minipipe import Pipeline, Plan, init_process_group, nn, optim, schedules, spawn
from minipipe.core.comm.host import limit_blas_threads
from minipipe.errors import (
    ArgumentError,
    MicrobatchError,
    NotFiniteError,
    RankError,
    ScheduleError,
)
from minipipe.parallel.pairwise import sum_in_pairs
from minipipe.testing import same_bits
from tests.launch import covering, mpirun, needs_mpi, slowly
from tests.pipeline.tied_models import SYMBOLS, language_model

X, Y = np.random.default_rng(0).standard_normal((2, 24, 6)).astype(np.float32)


def model(width=8):
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.Tanh())]
    layers = [nn.Linear(6, width), nn.Tanh(), nn.Dropout(0.25), *hidden]
    return nn.Sequential(*layers, nn.Linear(width, width), nn.Linear(width, 6))


def trained(
    group,
    num_steps=3,
    accumulate=False,
    make=model,
    clip=None,
    x=X,
    y=Y,
    loss=None,
    **options,
):
    """Train a few steps; return the losses, all values, an evaluation and
    predictions.
    """
    pipeline = Pipeline(make(), group, loss=loss or nn.MSELoss(), **options)
    optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.05)
    losses = []
    for _ in range(num_steps):
        losses.append(pipeline.step(x, y))
        if accumulate:
            pipeline.step(x, y, accumulate=True)
        if clip:
            losses.append(pipeline.clip_grad_norm(clip))
        optimiser.step()
    return (
        losses,
        pipeline.state_dict(),
        pipeline.evaluate(x, y),
        pipeline.predict(x[:3]),
    )


def assert_alike(found, expected):
    for losses, state, evaluated, outputs in found:
        assert losses == expected[0] and all(
            same_bits(state[name], expected[1][name]) for name in expected[1]
        )
        assert evaluated == pytest.approx(expected[2]) and np.allclose(
            outputs, expected[3], atol=1e-6
        )


# -- the bits --------------------------------------------------------------------------

SHAPES = [
    ("1f1b", 1, 2),
    ("gpipe", 2, 2),
    ("1f1b", 4, 2),
    ("zb-h1", 2, 2),
    ("interleaved-1f1b", 2, 4),
    ("zb-v", 2, 2),
]


@pytest.mark.parametrize(
    ("name", "num_ranks", "replicas"),
    [shape if i % 2 else slowly(*shape) for i, shape in enumerate(SHAPES)],
)
def test_replicas_leave_the_bits_of_one_process_with_as_many_blocks_of_microbatches(
    name, num_ranks, replicas
):
    options = {
        "num_microbatches": 8 // replicas,
        "schedule": name,
        "replicas": replicas,
    }
    expected = spawn(
        lambda group: trained(group, num_microbatches=8, gradient_blocks=replicas), 1
    )[0]
    assert_alike(
        spawn(lambda group: trained(group, **options), num_ranks * replicas), expected
    )


@pytest.mark.parametrize(
    ("replicas", "accumulate"),
    [
        (1, False),
        (2, True),
        *map(slowly, (1, 2), (True, False)),
        *(slowly(4, accumulate) for accumulate in (False, True)),
    ],
)
def test_with_four_blocks_any_number_of_replicas_leaves_the_same_bits(
    replicas, accumulate
):
    options = {"gradient_blocks": 4, "accumulate": accumulate}
    expected = spawn(lambda group: trained(group, num_microbatches=8, **options), 1)[0]
    found = spawn(
        lambda group: trained(
            group, num_microbatches=8 // replicas, replicas=replicas, **options
        ),
        2 * replicas,
    )
    assert_alike(found, expected)


def test_the_bits_are_those_of_gradients_that_are_added_in_pairs_by_hand():
    """Nothing of the sums is used here: one process, four lists of gradients, and two
    additions of two sums.
    """
    found = spawn(
        lambda group: gradients_of(
            group, replicas=4, num_microbatches=2, schedule="1f1b"
        ),
        8,
    )
    with limit_blas_threads(1):
        twin, blocks = deterministic().initialise(0), []
        for block in range(4):
            twin.zero_grad()
            for k in (2 * block, 2 * block + 1):
                part = slice(3 * k, 3 * k + 3)
                nn.MSELoss()(twin(X[part]), Y[part]).backward(3 / 24)
            blocks.append([parameter.grad for parameter in twin.parameters()])
    expected = [(a + b) + (c + d) for a, b, c, d in zip(*blocks)]
    names = [name for name, _ in twin.named_parameters()]
    others = [((a + b) + c) + d for a, b, c, d in zip(*blocks)]
    assert not all(map(same_bits, expected, others))  # so that the order can be told
    for gradients in found:
        assert gradients and all(
            same_bits(gradients[n], g)
            for n, g in zip(names, expected)
            if n in gradients
        )


def deterministic():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))


def gradients_of(group, **options):
    pipeline = Pipeline(deterministic(), group, loss=nn.MSELoss(), **options)
    pipeline.step(X, Y)
    return {name: parameter.grad for name, parameter in pipeline.named_parameters()}


@pytest.mark.parametrize("name", ["chimera", *map(slowly, ("dualpipe", "bitpipe"))])
def test_a_schedule_with_replicas_of_its_own_trains_like_one_process_with_two_blocks(
    name,
):
    expected = spawn(
        lambda group: trained(group, num_microbatches=8, gradient_blocks=2), 1
    )[0]
    assert_alike(
        spawn(lambda group: trained(group, num_microbatches=8, schedule=name), 4),
        expected,
    )


@pytest.mark.slow
def test_copies_of_chimera_sum_over_four_replicas():
    expected = spawn(
        lambda group: trained(group, num_microbatches=8, gradient_blocks=4), 1
    )[0]
    found = spawn(
        lambda group: trained(
            group, num_microbatches=4, schedule="chimera", replicas=2
        ),
        4,
    )
    assert_alike(found, expected)


@needs_mpi
@pytest.mark.parametrize(
    ("num_ranks", "name", "replicas"),
    [
        (4, "1f1b", 2),
        slowly(8, "1f1b", 2),
        slowly(8, "zb-h1", 4),
        slowly(4, "chimera", 1),
        slowly(4, "dualpipe", 1),
    ],
)
@pytest.mark.slow
def test_so_they_are_through_mpirun(num_ranks, name, replicas):
    done = mpirun(
        num_ranks, "-m", "tests.pipeline.test_data_parallel", name, replicas, limit=120
    )
    assert done.code == 0, done.err
    blocks = 2 if replicas == 1 else replicas
    losses = spawn(
        lambda group: trained(group, num_microbatches=8, gradient_blocks=blocks), 1
    )[0][0]
    assert done.out.split() == [repr(float(loss)) for loss in losses]


SWITCHES = [
    {"wait": False},
    {"compile": True},
    {"measures_memory": True},
    {"recompute": True},
    {"dtype": np.float16},
]


@pytest.mark.parametrize(
    ("name", "options"), covering(["1f1b", "chimera"], SWITCHES, strength=1)
)
def test_no_switch_changes_a_bit_of_a_longer_training(name, options):
    """Six steps, some of them compiled; halves with a loss scale, which all replicas
    find too large alike.
    """

    def run(group, wait=True, measures_memory=False, dtype=np.float32, **options):
        layers = [
            layer
            for _ in range(4)
            for layer in (nn.Linear(6, 6, dtype=dtype), nn.Tanh(), nn.Dropout(0.2))
        ]
        pipeline = Pipeline(nn.Sequential(*layers), group, loss=nn.MSELoss(), **options)
        pipeline.measures_memory = measures_memory
        optimiser, losses, scale = (
            optim.Adam(pipeline.parameters(), learning_rate=0.01),
            [],
            optim.LossScale(),
        )
        for _ in range(6):
            is_half = dtype is np.float16
            losses.append(
                pipeline.step(X, Y, wait=wait, scale=scale.value if is_half else 1.0)
            )
            if not is_half or pipeline.unscale_gradients(scale):
                optimiser.step()
        return list(map(float, losses)), pipeline.state_dict()

    options = dict(options)
    losses, state = spawn(
        lambda group: run(group, num_microbatches=4, gradient_blocks=2, **options), 1
    )[0]
    copies = (
        {"replicas": 2, "num_microbatches": 2}
        if name == "1f1b"
        else {"num_microbatches": 4}
    )
    for found, values in spawn(
        lambda group: run(group, schedule=name, **copies, **options), 4
    ):
        assert found == losses and all(
            same_bits(values[key], state[key]) for key in state
        )


@needs_mpi
@pytest.mark.parametrize(
    ("name", "replicas"), [("chimera", 1), slowly("1f1b", 2), slowly("dualpipe", 1)]
)
@pytest.mark.slow
def test_sums_that_take_two_messages_wait_for_no_rank_that_is_at_another_one(
    name, replicas
):
    """The story: in the sum of stage 3, rank 0 waited until rank 3 took its part; rank
    3 was at the sum of stage 0.
    """
    done = mpirun(
        4, "-m", "tests.pipeline.test_data_parallel", name, replicas, 128, limit=120
    )
    assert done.code == 0, done.err
    losses = spawn(
        lambda group: trained(
            group, make=lambda: model(128), num_microbatches=8, gradient_blocks=2
        ),
        1,
    )[0][0]
    assert done.out.split() == [repr(float(loss)) for loss in losses]


# -- what else a step does -------------------------------------------------------------


def test_ragged_microbatches_counted_by_tokens_and_a_clipped_norm_are_those_of_one_process():
    rows = np.random.default_rng(1).integers(0, 7, (13, 5))
    targets = np.where(
        np.arange(5) < np.arange(13)[:, None] % 5 + 1, np.roll(rows, -1, 1), -1
    )
    make = lambda: nn.Sequential(
        nn.Embedding(7, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 7)
    )
    options = {
        "make": make,
        "x": rows,
        "y": targets,
        "clip": 0.1,
        "loss": nn.CrossEntropyLoss(ignore_index=-1),
    }
    expected = spawn(
        lambda group: trained(group, num_microbatches=4, gradient_blocks=2, **options),
        1,
    )[0]
    assert_alike(
        spawn(
            lambda group: trained(group, num_microbatches=2, replicas=2, **options), 4
        ),
        expected,
    )


@pytest.mark.slow
def test_a_parameter_that_two_stages_share_is_summed_by_use_and_then_over_the_uses():
    tokens = np.random.default_rng(2).integers(0, SYMBOLS, (8, 4))
    options = {
        "make": language_model,
        "x": tokens,
        "y": tokens,
        "loss": nn.CrossEntropyLoss(),
    }
    expected = spawn(
        lambda group: trained(group, num_microbatches=4, gradient_blocks=2, **options),
        1,
    )[0]
    for name, replicas in (("1f1b", 2), ("chimera", 1)):
        found = spawn(
            lambda group, n=name, r=replicas: trained(
                group, num_microbatches=4 // r, schedule=n, replicas=r, **options
            ),
            4,
        )
        assert_alike(found, expected)


def test_frozen_stages_have_no_sum():
    def frozen():
        made = model()
        made[0].freeze()
        return made

    expected = spawn(
        lambda group: trained(
            group, num_microbatches=4, gradient_blocks=2, make=frozen
        ),
        1,
    )[0]
    found = spawn(
        lambda group: trained(
            group,
            num_microbatches=2,
            replicas=2,
            make=frozen,
            partition=[range(1), range(1, 9)],
        ),
        4,
    )
    assert_alike(found, expected)


def test_masks_differ_between_replicas_and_agree_with_one_process():
    def outputs(group, **options):
        pipeline = Pipeline(
            nn.Sequential(nn.Dropout(0.5), nn.Identity()),
            group,
            loss=nn.MSELoss(),
            **options,
        )
        return pipeline.step(
            np.ones((8, 16)), np.ones((8, 16)), outputs="everywhere"
        ).outputs

    expected = spawn(lambda group: outputs(group, num_microbatches=4), 1)[0]
    found = spawn(lambda group: outputs(group, num_microbatches=2, replicas=2), 4)
    assert all(same_bits(each, expected) for each in found) and not np.array_equal(
        expected[:4], expected[4:]
    )


def test_metrics_and_gradients_of_the_inputs_are_those_of_the_whole_batch():
    def step(group, **options):
        pipeline = Pipeline(
            model().eval(),
            group,
            loss=nn.MSELoss(),
            inputs_require_grad=True,
            **options,
        )
        found = pipeline.step(
            X, Y, metrics={"error": lambda a, b: np.abs(a - b).mean()}
        )
        return found, found.losses, found.metrics, pipeline.input_gradients

    whole = spawn(lambda group: step(group, num_microbatches=4), 1)[0]
    found = spawn(lambda group: step(group, num_microbatches=2, replicas=2), 4)
    assert all(each[:3] == whole[:3] for each in found)
    assert same_bits(found[0][3], whole[3]) and all(
        each[3] is None for each in found[1:]
    )


@pytest.mark.parametrize("bad", [0, 20])
def test_a_value_that_is_not_finite_stops_all_replicas_before_any_of_them_updates(bad):
    def step(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), replicas=2, num_microbatches=2
        )
        x = X.copy()
        x[bad] = np.nan
        with pytest.raises(
            NotFiniteError, match=f"the inputs have nan, first in sample {bad}"
        ) as caught:
            pipeline.step(x, Y)
        return caught.value.code, [
            parameter.grad for parameter in pipeline.parameters()
        ]

    for code, gradients in spawn(step, 4):
        assert code == "inputs" and all(gradient is None for gradient in gradients)


def test_each_rank_of_a_first_or_last_stage_reads_the_batch():
    needs = spawn(
        lambda group: Pipeline(model(), group, loss=nn.MSELoss(), replicas=2).needs, 4
    )
    assert needs == [(True, False), (False, True)] * 2


def test_the_timeline_has_a_measured_sum_for_each_stage():
    def measured(group):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), replicas=2, num_microbatches=2
        )
        pipeline.step(X, Y)
        pipeline.step(X, Y)
        return pipeline.timeline(num_steps=2)

    timeline = spawn(measured, 4)[0]
    assert [found.ranks for found in timeline.sums] == [(0, 2)] * 2 + [(1, 3)] * 2
    assert all(found.begin <= found.end for found in timeline.sums)
    assert {span.action.kind.value for row in timeline.spans for span in row} == {
        "F",
        "B",
    }


def test_sums_in_pairs_contain_those_of_aligned_blocks():
    values = [np.float32(x) for x in np.random.default_rng(3).standard_normal(13)]
    whole = sum_in_pairs(values)
    for size in (2, 4, 8):
        blocks = [sum_in_pairs(values[i : i + size]) for i in range(0, 13, size)]
        assert sum_in_pairs(blocks) == whole
    assert sum_in_pairs([None, None]) is None and sum_in_pairs([None, 2.0]) == 2.0


# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"num_ranks": 4, "replicas": 3},
            RankError,
            "4 ranks cannot be divided among 3 replicas",
        ),
        ({"num_ranks": 4, "replicas": 0}, ArgumentError, "replicas is 0"),
        (
            {"num_ranks": 4, "replicas": 2, "gradient_blocks": 3},
            ArgumentError,
            "gradient_blocks is 3, for 2 replicas",
        ),
        (
            {"num_ranks": 6, "replicas": 2, "gradient_blocks": 6},
            ArgumentError,
            "expected 1, 2, 4, 8 … blocks for each",
        ),
        (
            {"schedule": schedules.lower(schedules.gpipe(2, 4)), "replicas": 2},
            ScheduleError,
            "has sends and receives",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_there_are_ranks(options, error, words):
    with pytest.raises(error, match=words):
        Plan(model(), **{"schedule": "1f1b", **options})


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"num_microbatches": 3, "gradient_blocks": 2},
            MicrobatchError,
            "3 microbatches of stage 0 .* into 2 blocks",
        ),
        (
            {"num_microbatches": 4, "gradient_blocks": 2, "schedule": "backwards"},
            ScheduleError,
            "one block of 2",
        ),
    ],
)
def test_blocks_that_the_microbatches_do_not_make_are_refused(options, error, words):
    if options.get("schedule") == "backwards":
        table = schedules.gpipe(1, 4)
        options = {
            **options,
            "schedule": schedules.Schedule(
                "backwards",
                (0,),
                4,
                [[*table.actions[0][:4], *table.actions[0][:3:-1]]],
            ),
        }
    with pytest.raises(error, match=words), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spawn(
            lambda group: Pipeline(
                deterministic(), group, loss=nn.MSELoss(), **options
            ),
            1,
        )


def test_inputs_that_differ_in_length_between_replicas_are_refused():
    def step(group):
        pipeline = Pipeline(
            model(),
            group,
            loss=nn.MSELoss(),
            replicas=2,
            num_microbatches=2,
            check_agreement=False,
        )
        pipeline.step(X[: 24 - 4 * (group.rank == 2)], Y)

    with pytest.raises(
        MicrobatchError, match=r"24 inputs \(on rank 0\), but 20 inputs \(on rank 2\)"
    ):
        spawn(step, 4)


if __name__ == "__main__":
    with init_process_group(timeout=30) as ranks:
        name, copies, width = sys.argv[1], int(sys.argv[2]), int([*sys.argv, "8"][3])
        options = {
            "num_microbatches": 8 // copies,
            "schedule": name,
            "replicas": copies,
        }
        losses, state, *_ = trained(ranks, make=lambda: model(width), **options)
        if ranks.rank == 0:
            print(*map(float, losses))
