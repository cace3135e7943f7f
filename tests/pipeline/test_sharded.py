"""ZeRO-1: replicas divide the state of their optimiser, and have the bits of one that
keeps all of it.
"""

import sys
import warnings
from weakref import ref

import array_api_strict
import numpy as np
import pytest

from minipipe import (
    Pipeline,
    checkpoint,
    functional,
    init_process_group,
    nn,
    optim,
    spawn,
)
from minipipe.errors import ArgumentError, MessageError, RankError, TensorError
from minipipe.pipeline.sharding import ShardedOptimiser, Sharing
from minipipe.testing import same_bits
from tests.launch import covering, mpirun, needs_mpi, slowly
from tests.pipeline.tied_models import SYMBOLS, language_model

X, Y = np.random.default_rng(0).standard_normal((2, 24, 6)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, SYMBOLS, (24, 4))


def model(dtype=np.float32):
    layers = [
        nn.Linear(6, 7, dtype=dtype),
        nn.Tanh(),
        nn.Dropout(0.25),
        nn.Linear(7, 5, dtype=dtype),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Linear(5, 6, dtype=dtype))


RULES = {
    "SGD": (optim.SGD, {"learning_rate": 0.05}),
    "momentum": (
        optim.SGD,
        {"learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    ),
    "Adam": (optim.Adam, {"learning_rate": 0.05, "weight_decay": 0.01}),
    "AdamW": (optim.AdamW, {"learning_rate": 0.05}),
    "Muon": (optim.Muon, {"learning_rate": 0.05}),
}


def made(
    group, rule="Adam", shards=True, make=model, loss=None, groups=None, **options
):
    replicas = options.get("replicas", 1)
    options = {"num_microbatches": 8 // replicas, "gradient_blocks": 4, **options}
    pipeline = Pipeline(make(), group, loss=loss or nn.MSELoss(), **options)
    kind, numbers = RULES[rule]
    parameters = groups(pipeline) if groups else list(pipeline.parameters())
    if shards:
        return pipeline, pipeline.sharded(kind, parameters, **numbers)
    return pipeline, kind(parameters, **numbers)


def trained(
    group,
    rule="Adam",
    shards=True,
    num_steps=3,
    x=X,
    y=Y,
    clip=None,
    scales=False,
    **options,
):
    """Train; return losses and norms, all values, and the optimiser's state by name."""
    pipeline, optimiser = made(group, rule, shards, **options)
    rates, scale = (
        optim.LearningRateSchedule(optimiser, optim.cosine(10, 2)),
        optim.LossScale(2.0**24),
    )
    losses = []
    for _ in range(num_steps):
        losses.append(pipeline.step(x, y, scale=scale.value if scales else 1.0))
        if scales and not pipeline.unscale_gradients(scale):
            continue
        if clip:
            losses.append(pipeline.clip_grad_norm(clip))
        optimiser.step()
        rates.step()
    names = {id(parameter): name for name, parameter in pipeline.named_parameters()}
    states = optimiser.state_dict()
    by_name = dict(
        zip(
            (names[id(parameter)] for parameter in optimiser.parameters),
            states["states"],
        )
    )
    return losses, pipeline.state_dict(), by_name, states["num_steps"]


def assert_alike(found, expected):
    losses, values, states, num_steps = expected
    for its, own, kept, count in found:
        assert its == losses and count == num_steps
        assert all(same_bits(own[name], values[name]) for name in values)
        for name, state in kept.items():
            assert state.keys() == states[name].keys()
            assert all(
                same_bits(np.asarray(state[what]), np.asarray(states[name][what]))
                for what in state
            )


def check(num_ranks, options, **both):
    """Ranks with shards have the bits of one process without."""
    expected = spawn(lambda group: trained(group, shards=False, **both), 1)[0]
    assert_alike(
        spawn(lambda group: trained(group, **both, **options), num_ranks), expected
    )


# -- the bits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "num_ranks", "replicas"),
    [
        ("momentum", 2, 2),
        ("Adam", 4, 2),
        ("AdamW", 4, 4),
        ("Muon", 4, 4),
        *[slowly(rule, 8, 4) for rule in RULES],
    ],
)
def test_shards_leave_the_bits_and_the_state_of_a_whole_optimiser(
    rule, num_ranks, replicas
):
    check(num_ranks, {"replicas": replicas}, rule=rule)


def test_a_rank_that_has_no_replica_keeps_all_of_its_state():
    check(2, {}, rule="Adam")


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_two_replicas_of_a_stage_may_be_in_one_pipeline(schedule):
    expected = spawn(lambda group: trained(group, shards=False, gradient_blocks=2), 1)[
        0
    ]
    assert_alike(
        spawn(lambda group: trained(group, schedule=schedule, gradient_blocks=2), 2),
        expected,
    )


@pytest.mark.parametrize("replicas", [slowly(1), 2])
def test_a_parameter_that_stages_share_is_divided_among_all_of_their_replicas(replicas):
    both = {
        "make": language_model,
        "x": TOKENS,
        "y": TOKENS,
        "loss": nn.CrossEntropyLoss(),
        "clip": 0.5,
    }
    check(2 * replicas, {"replicas": replicas}, **both)


def test_master_values_of_halves_are_divided_under_a_loss_scale_that_overflows_first():
    both = {"make": lambda: model(np.float16), "scales": True, "num_steps": 8}
    whole = spawn(lambda group: trained(group, shards=False, **both), 1)[0]
    assert 0 < whole[3] < 8 and "master" in whole[2]["0.weight"]
    check(4, {"replicas": 2}, **both)


def test_a_step_keeps_no_gradient_and_outdates_earlier_graphs():
    def run(group):
        pipeline, optimiser = made(group, replicas=2)
        pipeline.step(X, Y)
        weight = optimiser.parameters[0]
        before = functional.total(weight * weight)
        gradient = ref(weight.grad)
        optimiser.step()
        with pytest.raises(TensorError, match="changed"):
            before.backward()
        weight.grad = None
        return gradient()

    assert spawn(run, 2) == [None, None]


def test_groups_keep_their_numbers_and_frozen_parameters_have_no_state():
    def frozen():
        found = model()
        found[3].freeze()
        return found

    def two(pipeline):
        named = dict(pipeline.named_parameters())
        weights = [
            parameter for name, parameter in named.items() if name.endswith("weight")
        ]
        biases = [
            parameter for name, parameter in named.items() if name.endswith("bias")
        ]
        return [
            {"parameters": weights, "weight_decay": 0.5},
            {"parameters": biases, "learning_rate": 0.2},
        ]

    check(4, {"replicas": 2}, rule="AdamW", make=frozen, groups=two)


@needs_mpi
@pytest.mark.parametrize(("num_ranks", "replicas"), [slowly(4, 2), slowly(4, 4)])
def test_so_they_do_through_mpirun(num_ranks, replicas):
    done = mpirun(num_ranks, "-m", "tests.pipeline.test_sharded", replicas, limit=120)
    assert done.code == 0, done.err
    losses = spawn(lambda group: trained(group, shards=False), 1)[0][0]
    assert done.out.split() == [repr(float(loss)) for loss in losses]


@pytest.mark.parametrize("rule", ["Adam", "Muon"])
def test_arrays_of_the_array_api_standard_are_divided_too(rule):
    both = {"device": array_api_strict, "num_steps": 2}
    check(2, {"replicas": 2}, rule=rule, **both)


def test_matrices_in_half_precision_have_one_owner_each():
    both = {"make": lambda: model(np.float16), "scales": True, "num_steps": 8}
    check(4, {"replicas": 2}, rule="Muon", **both)


def test_replicas_own_about_equally_many_elements_of_matrices():
    shapes = [(8, 8), (3, 3), (8, 8), (4, 8), (2, 5), (6, 6)]
    parameters = [nn.Parameter(np.zeros(shape)) for shape in shapes]
    sharing = Sharing([0, 1, 2], parameters, are_whole=True)
    shares = [sharing.share(place) for place in range(3)]
    for i, one in enumerate(parameters):
        stops = [share[i].stop for share in shares]
        assert sorted(stops) == [0, 0, one.size]
    assert [sum(each.stop for each in share) for share in shares] == [74, 73, 68]


def test_values_that_are_not_sent_are_found(monkeypatch):
    """A mutant: each rank has the update of its own share only."""
    monkeypatch.setattr(ShardedOptimiser, "_gather", lambda self, wholes, what: None)
    with pytest.raises(AssertionError):
        check(2, {"replicas": 2}, rule="SGD")


# -- memory ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state_of", "replicas"),
    covering([("SGD", 0), ("momentum", 1), ("Adam", 2)], [1, 2, 4], strength=1),
)
def test_a_rank_keeps_the_state_of_one_share_within_an_element(state_of, replicas):
    rule, of_each = state_of

    def kept(group):
        pipeline, optimiser = made(
            group, rule, replicas=replicas, gradient_blocks=replicas
        )
        assert optimiser.nbytes == 0
        pipeline.step(X, Y)
        optimiser.step()
        return optimiser.nbytes, sum(
            parameter.size for parameter in pipeline.parameters()
        )

    ranks = spawn(kept, 2 * replicas)
    for stage in range(2):
        found, (size, *_) = zip(*ranks[stage::2])
        assert sum(found) == 4 * of_each * size
        assert max(found) - min(found) <= 4 * of_each


# -- its state -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((2, True), (1, False)),
        ((1, False), (4, True)),
        slowly((4, True), (2, True)),
        slowly((2, False), (2, True)),
    ],
)
def test_a_checkpoint_goes_on_with_other_shards_or_none(tmp_path, first, then):
    def run(group, layout, num_steps):
        pipeline, optimiser = made(group, "Adam", shards=layout[1], replicas=layout[0])
        restored = checkpoint.restore(tmp_path, pipeline, optimiser, required=False)
        for _ in range(restored.step if restored else 0, num_steps):
            pipeline.step(X, Y)
            optimiser.step()
        checkpoint.save(tmp_path, pipeline, optimiser, step=num_steps)
        return pipeline.state_dict(), optimiser.nbytes

    def undisturbed(group):
        pipeline, optimiser = made(group, "Adam", shards=False)
        for _ in range(4):
            pipeline.step(X, Y)
            optimiser.step()
        return pipeline.state_dict(), optimiser.nbytes

    expected, nbytes = spawn(undisturbed, 1)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spawn(lambda group: run(group, first, 2), first[0])
        found = spawn(lambda group: run(group, then, 4), then[0])
    assert all(
        same_bits(values[name], expected[name])
        for values, _ in found
        for name in expected
    )
    assert sum(own for _, own in found) == nbytes * (1 if then[1] else then[0])


def test_a_state_of_another_rule_is_refused_and_changes_nothing():
    def load(group):
        pipeline, optimiser = made(group, "Adam", replicas=2)
        pipeline.step(X, Y)
        optimiser.step()
        before = optimiser.state_dict()
        other = optim.SGD(pipeline.parameters(), 0.1).state_dict()
        with pytest.raises(ArgumentError, match="the state's groups have"):
            optimiser.load_state_dict(other)
        after = optimiser.state_dict()
        optimiser.load_state_dict(after)
        again = optimiser.state_dict()
        return [
            [
                {k: np.asarray(v).tobytes() for k, v in one.items()}
                for one in s["states"]
            ]
            for s in (before, again)
        ]

    assert all(before == again for before, again in spawn(load, 2))


# -- mistakes --------------------------------------------------------------------------


class Lamb(optim.Adam):
    """Scales its update by norms of the whole parameter; that it inherits from an
    elementwise rule says nothing.
    """


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda pipeline: pipeline.sharded(Lamb),
            "Lamb may read a parameter as a whole",
        ),
        (
            lambda pipeline: pipeline.sharded(lambda p: optim.Adam(p)),
            "expected a class of optimisers",
        ),
        (
            lambda pipeline: pipeline.sharded(optim.Adam, lr=0.1),
            "here it is learning_rate=",
        ),
        (
            lambda pipeline: pipeline.sharded(optim.Adam, [nn.Parameter([1.0])]),
            r"shape \(1,\) that is not of this",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(make, words):
    with pytest.raises(ArgumentError, match=words):
        spawn(
            lambda group: make(Pipeline(model(), group, loss=nn.MSELoss(), replicas=2)),
            2,
        )


def test_a_rule_that_says_that_it_is_elementwise_is_taken():
    class Signs(optim.Optimiser):
        is_elementwise = True

        def _update(self, data, gradient, state, group):
            data -= group.learning_rate * np.sign(gradient)

    def train(group, shards):
        pipeline = Pipeline(
            model(), group, loss=nn.MSELoss(), replicas=2, num_microbatches=2
        )
        numbers = {"learning_rate": 0.1}
        optimiser = (
            pipeline.sharded(Signs, **numbers)
            if shards
            else Signs(pipeline.parameters(), **numbers)
        )
        pipeline.step(X, Y)
        optimiser.step()
        return pipeline.state_dict()

    (whole, _), (shared, _) = (
        spawn(lambda group, s=shards: train(group, s), 2) for shards in (False, True)
    )
    assert all(same_bits(whole[name], shared[name]) for name in whole)


def test_ranks_of_which_one_keeps_all_of_its_state_are_told_so():
    def train(group):
        pipeline, optimiser = made(group, shards=group.rank != 1, replicas=2)
        pipeline.step(X, Y)
        optimiser.step()

    with pytest.raises(MessageError, match=r"in step\(\), .*but rank 0 in sharded\(\)"):
        spawn(train, 2)


def test_another_learning_rate_on_one_rank_is_refused():
    def train(group):
        pipeline, optimiser = made(group, replicas=2)
        optimiser.learning_rate = 0.05 * (1 + (group.rank == 1))
        for _ in range(2):
            pipeline.step(X, Y)
            optimiser.step()

    with pytest.raises(RankError, match="learning rate"):
        spawn(train, 2)


if __name__ == "__main__":
    with init_process_group(timeout=30) as ranks:
        losses, *_ = trained(ranks, replicas=int(sys.argv[1]))
        if ranks.rank == 0:
            print(*map(float, losses))
