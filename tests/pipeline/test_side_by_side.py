"""Ranks whose parameters and gradients lie side by side train like others, and
understand them.
"""

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, checkpoint, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import NotFiniteError, RankError
from minipipe.execution.checks.finite import FiniteCheck
from minipipe.nn.arena import Arena
from tests.launch import covering
from tests.pipeline.tied_models import SYMBOLS, language_model

X, Y = np.random.default_rng(0).standard_normal((2, 8, 6)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, SYMBOLS, (8, 4))
RULES = {
    "SGD": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, 0.1),
    "Muon": lambda p: optim.Muon(p, 0.1),
}


def mlp():
    return nn.Sequential(
        nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 6)
    )


class SideBySide:
    """What a compiled step does: its gradients lie in an arena, which is made again if
    values were replaced.
    """

    def __init__(self, pipeline, is_used=True):
        self.parameters, self.arena, self.is_used = (
            list(pipeline.parameters()),
            None,
            is_used,
        )

    def collect(self):
        if not self.is_used:
            return
        gradients = [parameter.node.grad for parameter in self.parameters]
        if self.arena is None or not self.arena.is_intact():
            self.arena = Arena(self.parameters)
        for parameter, gradient, own in zip(
            self.parameters, gradients, self.arena.gradients
        ):
            if gradient is not None and own is not None:
                own[...] = gradient
                parameter.node.grad = own


def trained(
    group,
    rule="SGD",
    make=mlp,
    is_used=True,
    num_steps=4,
    clips=False,
    sharded=False,
    **options,
):
    """Return losses, values and optimiser state of a training."""
    x, y, loss = (
        (X, Y, nn.MSELoss()) if make is mlp else (TOKENS, TOKENS, nn.CrossEntropyLoss())
    )
    pipeline = Pipeline(make(), group, loss=loss, **{"num_microbatches": 4, **options})
    make_optimiser = partial(pipeline.sharded, optim.Adam) if sharded else RULES[rule]
    optimiser = make_optimiser(pipeline.parameters())
    own, losses = SideBySide(pipeline, is_used=is_used), []
    for _ in range(num_steps):
        losses.append(float(pipeline.step(x, y)))
        own.collect()
        if clips:
            losses.append(pipeline.clip_grad_norm(0.1))
        optimiser.step()
    return losses, bits(pipeline.state_dict()), bits(optimiser.state_dict())


def bits(value):
    if isinstance(value, dict):
        return {name: bits(each) for name, each in value.items()}
    if isinstance(value, list):
        return [bits(each) for each in value]
    return value.tobytes() if isinstance(value, np.ndarray) else value


OPTIONS = {
    "one rank": (1, {}),
    "two ranks": (2, {"clips": True}),
    "tied": (2, {"make": language_model}),
    "tied on one rank": (1, {"make": language_model, "clips": True}),
    "replicas": (2, {"replicas": 2}),
    "ZeRO-1": (2, {"replicas": 2, "sharded": True}),
    "zero bubble": (2, {"schedule": "zb-v"}),
    "recomputed": (2, {"recompute": True}),
}


@pytest.mark.parametrize(("rule", "name"), covering(RULES, OPTIONS, strength=1))
def test_ranks_with_an_arena_train_like_others_and_with_others(rule, name):
    num_ranks, options = OPTIONS[name]
    expected = spawn(
        lambda group: trained(group, rule, is_used=False, **options), num_ranks
    )
    assert spawn(lambda group: trained(group, rule, **options), num_ranks) == expected
    if num_ranks > 1:
        mixed = spawn(
            lambda group: trained(group, rule, is_used=group.rank == 1, **options),
            num_ranks,
        )
        assert mixed == expected


def test_a_run_with_updates_inside_the_schedule_goes_on_from_an_arena():
    def run(group, is_used):
        pipeline = Pipeline(
            mlp(), group, loss=nn.MSELoss(), schedule="pipedream", num_microbatches=4
        )
        own, optimiser = (
            SideBySide(pipeline, is_used=is_used),
            RULES["AdamW"](pipeline.parameters()),
        )
        own.collect()
        losses = [
            loss
            for each in pipeline.run([(X, Y)] * 3, optimiser)
            for loss in each.losses
        ]
        own.collect()
        pipeline.run([(Y, X)], optimiser)
        return losses, bits(pipeline.state_dict()), bits(optimiser.state_dict())

    assert spawn(lambda group: run(group, True), 2) == spawn(
        lambda group: run(group, False), 2
    )


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_checkpoint_is_the_same_with_and_without_an_arena(which, num_ranks, tmp_path):
    def part(group, is_used, num_steps, restores):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4)
        optimiser, own = (
            RULES["AdamW"](pipeline.parameters()),
            SideBySide(pipeline, is_used=is_used),
        )
        losses = []
        for step in range(num_steps):
            # after a step, so that there is an arena already
            if restores and step == 1:
                checkpoint.restore(tmp_path, pipeline, optimiser)
            losses.append(float(pipeline.step(X, Y)))
            own.collect()
            optimiser.step()
        if not restores:
            checkpoint.save(tmp_path, pipeline, optimiser, step=num_steps)
        return (
            losses,
            bits(pipeline.state_dict()),
            bits(optimiser.state_dict()["states"]),
        )

    saving, restoring = which
    whole = spawn(lambda group: part(group, False, 6, False), num_ranks)
    spawn(lambda group: part(group, saving, 3, False), num_ranks)
    rest = spawn(lambda group: part(group, restoring, 4, True), num_ranks)
    for (losses, *end), (later, *same) in zip(whole, rest):
        assert later[1:] == losses[3:] and same == end


def test_optimisers_that_differ_are_refused_in_the_same_words():
    def run(group, is_used):
        pipeline = Pipeline(mlp(), group, loss=nn.MSELoss(), num_microbatches=4)
        own = SideBySide(pipeline, is_used=is_used and group.rank == 1)
        optimiser = optim.SGD(pipeline.parameters(), 0.1 + 0.1 * group.rank)
        for _ in range(3):
            pipeline.step(X, Y)
            own.collect()
            optimiser.step()

    words = []
    for is_used in (True, False):
        with pytest.raises(RankError) as caught:
            spawn(lambda group, is_used=is_used: run(group, is_used), 2)
        words.append((caught.value.code, str(caught.value)))
    assert words[0] == words[1] and "learning rate" in words[0][1]


# -- the finite check ------------------------------------------------------------------


def check_of(pipeline):
    return FiniteCheck("stop", pipeline._plan, pipeline._stages, OneRankGroup(), np)


AWKWARD = st.sampled_from([np.nan, np.inf, -np.inf, 1e30, 3e38, 0.0])
PLACES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), AWKWARD), max_size=3)


@given(PLACES, PLACES, st.sampled_from([None, "arena", "partly"]), st.booleans())
def test_the_first_gradient_that_is_not_finite_is_found_in_any_layout(
    before, places, layout, is_frozen
):
    model = mlp()
    if is_frozen:
        model[0].freeze()
    pipeline = Pipeline(model, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=4)
    check, parameters = check_of(pipeline), list(pipeline.parameters())
    arena = Arena(parameters) if layout else None
    optimiser = optim.SGD(parameters, 0.0)
    # gaps of an arena repeat elements of the step before
    for awkward in (before, places):
        numbers = [np.ones(parameter.shape, np.float32) for parameter in parameters]
        for which, element, value in awkward:
            numbers[which].flat[element % numbers[which].size] = value
        for i, (parameter, gradient) in enumerate(zip(parameters, numbers)):
            own = arena.gradients[i] if arena and (layout == "arena" or i % 2) else None
            if own is not None:
                own[...] = gradient
                gradient = own
            # also of a frozen one, whose gradient is checked as it is
            parameter.grad = gradient
        wrong = [
            i for i, gradient in enumerate(numbers) if not np.isfinite(gradient).all()
        ]
        assert check.first_not_finite() == (wrong[0] if wrong else -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimiser.step()


@pytest.mark.parametrize("make", [mlp, language_model])
def test_no_gradient_is_counted_twice_or_left_out(make, monkeypatch):
    pipeline = Pipeline(make(), OneRankGroup(), loss=nn.MSELoss(), num_microbatches=4)
    check, parameters = check_of(pipeline), list(pipeline.parameters())
    leaves = [leaf for parameter in parameters for leaf in parameter.leaves.values()]
    for leaf in leaves:
        leaf.grad = np.ones(leaf.shape, np.float32)
    expected = sum(array.size for array in check._gradients())
    arena = Arena(parameters)
    for leaf in leaves:
        if (own := arena.gradient_of(leaf)) is not None:
            own[...] = 1
            leaf.grad = own
    arrays = check._gradients()
    assert sum(float(array.sum()) for array in arrays) == expected and len(
        arrays
    ) < len(leaves)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_error_of_a_compiled_step_names_the_same_layer():
    def run(group, is_compiled):
        pipeline = Pipeline(
            mlp(), group, loss=nn.MSELoss(), num_microbatches=4, compile=is_compiled
        )
        for step in range(4):
            if step == 3:
                dict(pipeline.named_parameters())["2.weight"].data[0, 0] = np.inf
            pipeline.step(X, Y)

    words = []
    for is_compiled in (True, False):
        with pytest.raises(NotFiniteError) as caught:
            run(OneRankGroup(), is_compiled)
        words.append((caught.value.code, str(caught.value)))
    assert words[0] == words[1] and "2.weight" in words[0][1]
