"""Training with an output layer that is divided by words over all ranks."""

import numpy as np
import pytest

from minipipe import Grid, Plan, checkpoint, nn, optim, spawn
from minipipe.errors import (
    ArgumentError,
    ModelError,
    NotFiniteError,
    PartitionError,
    ScheduleError,
    TensorError,
)
from minipipe.execution import vocabulary as handlers
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.pipeline.vocabulary_over_mpi import (
    BOTH,
    WORDS,
    X,
    Y,
    apart,
    made,
    model,
    train,
)


@pytest.mark.parametrize("reduction", ["mean", slowly("sum")])
@pytest.mark.parametrize("how", BOTH)
@pytest.mark.parametrize(
    ("num_ranks", "schedule"),
    [(1, "1f1b"), (2, "zb-h1"), slowly(3, "1f1b"), slowly(4, "gpipe")],
)
def test_it_trains_as_the_plain_model(num_ranks, schedule, how, reduction):
    plain = spawn(lambda group: train(group, None, reduction), 1)[0]
    divided = spawn(lambda g: train(g, how, reduction, schedule=schedule), num_ranks)
    for result in divided:
        assert apart(result, plain) < 1e-12


def test_with_two_barriers_1_2_and_4_ranks_have_the_same_bits():
    one, two, four = (spawn(lambda g: train(g, BOTH[0]), n)[0] for n in (1, 2, 4))
    for name in one:
        assert same_bits(one[name], two[name]) and same_bits(one[name], four[name])


@pytest.mark.parametrize("how", BOTH)
def test_a_microbatch_without_labels_adds_nothing(how):
    """Its mean over no labels was not a number, and stopped the step."""
    y = Y.copy()
    y[:3] = -100

    def trained(group, how):
        pipeline = made(group, how)
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        loss = pipeline.step(X, y)
        optimiser.step()
        return {**pipeline.state_dict(), "loss": np.array([loss])}

    plain = spawn(lambda group: trained(group, None), 1)[0]
    assert apart(spawn(lambda group: trained(group, how), 2)[0], plain) < 1e-12


@pytest.mark.slow
@needs_mpi
def test_it_trains_as_the_plain_model_over_mpi():
    job = mpirun(2, "-m", "tests.pipeline.vocabulary_over_mpi")
    assert job.code == 0, job.err
    differences = dict(line.split() for line in job.out.splitlines())
    assert list(differences) == BOTH and max(map(float, differences.values())) < 1e-12


@needs_mpi
@pytest.mark.slow
def test_two_ranks_gain_from_a_vocabulary_that_dominates():
    job = mpirun(2, "-m", "tests.pipeline.vocabulary_over_mpi", "gain")
    assert job.code == 0, job.err
    gains = dict(line.split() for line in job.out.splitlines())
    # Operations alone allow nearly 2; other programs may use the cores.
    assert max(map(float, gains.values())) > 1.1, gains


def test_each_rank_has_its_words_and_a_checkpoint_all_of_them(tmp_path):
    def save(group):
        pipeline = made(group, BOTH[0])
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
        pipeline.step(X, Y)
        optimiser.step()
        checkpoint.save(tmp_path, pipeline, optimiser, step=1)
        return dict(pipeline.named_parameters())["8.0.weight"].shape

    def go_on(group, how):
        pipeline = made(group, how)
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
        checkpoint.restore(tmp_path, pipeline, optimiser)
        pipeline.step(X, Y)
        optimiser.step()
        return pipeline.state_dict()

    assert spawn(save, 2) == [(6, WORDS // 2)] * 2
    plain = spawn(lambda group: go_on(group, None), 2)[0]
    assert plain["8.0.weight"].shape == (6, WORDS)
    assert apart(spawn(lambda group: go_on(group, BOTH[1]), 4)[0], plain) < 1e-12


def test_the_timeline_shows_s_and_t_of_each_rank():
    def measured(group):
        pipeline = made(group, BOTH[0])
        pipeline.step(X, Y)
        return pipeline.timeline(), str(pipeline.rows)

    timeline, rows = spawn(measured, 2)[0]
    kinds = [[span.action.kind for span in row] for row in timeline.spans]
    assert all(row.count("S") == row.count("T") == 4 for row in kinds)
    assert timeline.peak_activations == (4, 3)
    assert "1F0 1SPREAD0 1S0 1SUM_S0" in rows and rows.count("SUM_T") == 8


@pytest.mark.parametrize("how", BOTH)
def test_a_part_of_the_gradient_that_is_missing_is_noticed(how, monkeypatch):
    def without_the_last(terms):
        return sum(terms[:-1], 0 * terms[-1])

    def forgetting(hidden, products, known, totals):
        return original(hidden, products[:-1], known[:-1], totals)

    original = handlers.sum_of_products
    plain = spawn(lambda group: train(group, None), 1)[0]
    monkeypatch.setattr(handlers, "sum_in_pairs", without_the_last)
    monkeypatch.setattr(handlers, "sum_of_products", forgetting)
    assert apart(spawn(lambda group: train(group, how), 2)[0], plain) > 1e-6


def test_a_value_that_is_not_finite_stops_all_ranks_and_is_located():
    x = X.copy()
    x[5] = np.nan
    with pytest.raises(NotFiniteError, match="first in sample 5") as stopped:
        spawn(lambda group: made(group, BOTH[0]).step(x, Y), 2)
    assert "No parameter was changed" in str(stopped.value)


def frozen():
    layers = model()
    layers[0].freeze()
    return layers


DEEP = [nn.Linear(6, 6), nn.Linear(6, 6)]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"how": "vocabulary-3"},
            PartitionError,
            "'vocabulary-3'; expected a list of range, or one of measured, vocabulary,",
        ),
        ({"compile": True}, ArgumentError, "compile=True does not work with a divided"),
        ({"recompute": True}, ArgumentError, "recompute=True does not work"),
        ({"replicas": 2}, ArgumentError, "replicas=2 does not work"),
        ({"loss_weight": len}, ArgumentError, "loss_weight=.* does not work"),
        ({"schedule": "zb-v"}, ScheduleError, "expected stage i on rank i alone"),
        ({"loss": nn.MSELoss()}, ModelError, "the loss is MSELoss; expected nn.Cross"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, ModelError, "smoothing"),
        (
            {"model": nn.Sequential(*DEEP, nn.Tanh())},
            ArgumentError,
            "takes an nn.Linear",
        ),
        ({"model": model(words=7)}, ArgumentError, "of the 7 words.*pad them to 8"),
        ({"model": model(dtype=np.float16)}, ModelError, "half precision"),
        ({"model": nn.Sequential(*DEEP)}, PartitionError, "1 layer cannot make 2"),
        ({"model": frozen()}, ModelError, "some parameters are frozen"),
        (
            {"model": Plan(model(), num_ranks=2)},
            ModelError,
            "determine .*partition; leave it out",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, words):
    how = options.pop("how", BOTH[0])
    with pytest.raises(error, match=words):
        spawn(lambda group: made(group, how, **options), 2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p: p.step(X, Y, outputs=True), ArgumentError, "call evaluate"),
        (lambda p: p.step(X, Y, metrics={"n": max}), ArgumentError, "call evaluate"),
        (lambda p: p.forward_backward(X, lambda y: y), ArgumentError, "has its words"),
        (lambda p: p.measure_memory(X, Y), ModelError, "measure_memory.. runs"),
        (
            lambda p: p.measure_costs(X, Y),
            ModelError,
            "measure_costs.. .*only step.*eva",
        ),
        (lambda p: p.step(X, Y + WORDS), TensorError, "expected 0 to 47"),
        (lambda p: p.step(X, Y * 1.0), TensorError, "expected whole numbers"),
        (lambda p: p.step(X, Y[:, :2]), ModelError, "one label for each hidden state"),
    ],
)
def test_calls_that_need_all_scores_or_other_labels_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        spawn(lambda group: call(made(group, BOTH[0])), 2)


def test_device_meshes_and_plans_of_their_own_are_refused():
    with pytest.raises(ArgumentError, match="pass a process group"):
        spawn(lambda group: made(Grid(group, data=2), BOTH[0]), 2)
    with pytest.raises(PartitionError, match="also takes 'measured', 'vocabulary', 'v"):
        Plan(model(), num_ranks=2, partition="vocabulary")
