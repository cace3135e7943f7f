"""Pytrees between stages, some without a gradient, and custom losses: eager bits."""

import numpy as np
import pytest

from minipipe import Pipeline, Replicated, functional, nn, optim, spawn
from tests.launch import covering, slowly

WIDTH = 8


class Pair(nn.Module):
    """Passes on a dict."""

    is_compilable = True

    def forward(self, x):
        return {"whole": x, "bounded": functional.tanh(x)}


class Joined(nn.Module):
    is_compilable = True

    def forward(self, both):
        return both["whole"] + both["bounded"] * 2


class OnlyOne(nn.Module):
    """Leaves one tensor without a gradient."""

    is_compilable = True

    def forward(self, both):
        return both["whole"] * 2


class Masked(nn.Module):
    """Passes on whole numbers, which have no gradient."""

    is_compilable = True

    def forward(self, pair):
        x, mask = pair
        return functional.tanh(x) * 0.5, mask


class Product(nn.Module):
    is_compilable = True

    def forward(self, pair):
        x, mask = pair
        return x * mask


class Scaled(nn.Module):
    is_compilable = True

    def forward(self, both):
        return both["x"] * both["factor"]


class Fourth:
    """A loss that is no module."""

    is_compilable = True

    def __call__(self, outputs, targets):
        difference = outputs - targets
        return (difference * difference * difference * difference).mean()


class Weighted(nn.Module):
    is_compilable = True

    def forward(self, outputs, targets):
        difference = outputs - targets["y"]
        return (difference * difference * targets["weight"]).mean()


class Penalty(nn.Module):
    is_compilable = True

    def forward(self, x):
        return (x * x).mean()


def penalty(weight):
    return lambda: nn.AuxiliaryLoss(Penalty(), weight)


def linear():
    return nn.Linear(WIDTH, WIDTH)


def numbers(step):
    return np.random.default_rng(step).normal(size=(16, WIDTH)).astype(np.float32)


def plain(step):
    return numbers(step), np.tanh(numbers(step + 100))


def with_mask(step):
    return (numbers(step), (numbers(step) > 0).astype(np.int64)), plain(step)[1]


def with_weights(step):
    return numbers(step), {"y": plain(step)[1], "weight": numbers(step) ** 2}


def with_factor(step):
    return {"x": numbers(step), "factor": Replicated(1.5 + step)}, plain(step)[1]


def with_factors(step):
    factors = Replicated(numbers(step + 50)[0])
    return {"x": numbers(step), "factor": factors}, plain(step)[1]


CASES = {
    "pytree": ([linear, Pair, Joined, linear], plain, nn.MSELoss),
    "unused": ([linear, Pair, OnlyOne, linear], plain, nn.MSELoss),
    "mask": (
        [lambda: nn.On(0, linear()), Masked, Masked, Product],
        with_mask,
        nn.MSELoss,
    ),
    "no module": ([linear, nn.Tanh, linear, nn.Tanh], plain, Fourth),
    "weights": ([linear, nn.Tanh, linear, nn.Tanh], with_weights, Weighted),
    "number": ([Scaled, linear, nn.Tanh, linear], with_factor, nn.MSELoss),
    "array": ([Scaled, linear, nn.Tanh, linear], with_factors, nn.MSELoss),
}


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("weight", [0.01, 0.0])
@pytest.mark.parametrize("num_ranks", [slowly(1), 2, slowly(4)])
def test_auxiliary_losses_have_the_bits_of_eager_ones(num_ranks, weight, schedule):
    layers = [linear, linear, penalty(0.1), linear, nn.Tanh, penalty(weight), linear]

    def both(group):
        found = []
        for how in (False, True):
            model = nn.Sequential(*(make() for make in layers))
            options = {"num_microbatches": 4, "schedule": schedule, "compile": how}
            pipeline = Pipeline(model, group, loss=nn.MSELoss(), **options)
            optimiser, own = optim.SGD(pipeline.parameters(), 0.05), []
            for step in range(5):
                own.append(float(pipeline.step(*plain(step))))
                own += [each.grad.tobytes() for each in pipeline.parameters()]
                optimiser.step()
            found.append(own)
        assert found[0] == found[1]
        report = pipeline.compile_report()
        assert all(line.endswith("is compiled") for line in report.splitlines()), report

    spawn(both, num_ranks=num_ranks)


def test_a_function_as_an_auxiliary_loss_is_compiled_if_it_is_declared():
    def declared(x):
        return (x * x).mean()

    declared.is_compilable = True

    def run(group):
        found = []
        for function in (declared, lambda x: (x * x).mean()):
            layers = linear(), nn.AuxiliaryLoss(function, 0.1), linear()
            pipeline = Pipeline(
                nn.Sequential(*layers),
                group,
                loss=nn.MSELoss(),
                num_microbatches=2,
                compile="where-possible",
            )
            losses = [float(pipeline.step(*plain(step))) for step in range(4)]
            found.append((losses, pipeline.compile_report()))
        (losses, compiled), (same, eager) = found
        assert losses == same
        assert compiled.endswith("is compiled")
        assert "layer 1, AuxiliaryLoss, runs code of its own" in eager

    spawn(run, num_ranks=1)


@pytest.mark.parametrize(
    ("name", "schedule"), covering([*CASES], ["1f1b", "zb-h1"], strength=1)
)
def test_values_between_stages_have_the_bits_of_eager_ones(name, schedule):
    layers, batch, loss = CASES[name]

    def train(group, how):
        pipeline = Pipeline(
            nn.Sequential(*(make() for make in layers)),
            group,
            loss=loss(),
            schedule=schedule,
            num_microbatches=4,
            partition=[range(2), range(2, 4)],
            compile=how,
        )
        optimiser, found = optim.SGD(pipeline.parameters(), 0.05), []
        for step in range(5):
            found.append(float(pipeline.step(*batch(step))))
            found += [each.grad.tobytes() for each in pipeline.parameters()]
            optimiser.step()
            found.append(float(pipeline.evaluate(*batch(step))))
        return found, pipeline.compile_report()

    def both(group):
        eager, _ = train(group, False)
        found, report = train(group, True)
        assert found == eager
        assert all(line.endswith("is compiled") for line in report.splitlines()), report

    spawn(both, num_ranks=2)


def test_a_function_as_a_loss_runs_eagerly_and_says_so():
    def run(group):
        pipeline = Pipeline(
            nn.Sequential(linear()),
            group,
            loss=lambda outputs, targets: (outputs * targets).mean(),
            num_microbatches=2,
            compile="where-possible",
        )
        for step in range(3):
            pipeline.step(*plain(step))
        assert "the loss runs code of its own" in pipeline.compile_report()

    spawn(run, num_ranks=1)
