"""A layer anywhere in the model may add to the loss: the total on every rank, and the
gradients of one process.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Tensor, functional, nn, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, RankError, TensorError
from minipipe.testing import check_same_as_one_process, one_process_step
from tests.launch import of_each_kind
from tests.strategies import NAMES, build, examples

WIDTH = 4


def mean_square(x):
    return (x * x).mean()


class Experts(nn.Module):
    """Two experts, weighed by a gate, which an auxiliary loss keeps equally busy."""

    def __init__(self):
        self.gate, self.experts = (
            nn.Linear(WIDTH, 2),
            [nn.Linear(WIDTH, WIDTH) for _ in range(2)],
        )
        self.balance = nn.AuxiliaryLoss(
            lambda busy: ((busy.mean(axis=0) - 0.5) ** 2).sum(), weight=0.7
        )
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        busy = self.balance(functional.softmax(self.gate(x)))
        first, second = (expert(x) for expert in self.experts)
        return self.dropout(busy[:, :1] * first + busy[:, 1:] * second)


def model(places=(0, 2, 5), kind=Experts):
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    for place in places:
        layers[place] = kind()
    return nn.Sequential(*layers)


def batch(samples=6):
    generator = np.random.default_rng(0)
    return [
        generator.standard_normal((samples, WIDTH)).astype(np.float32) for _ in range(2)
    ]


@examples(60)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sets(st.integers(0, 7)),
    st.sampled_from(
        [
            Experts,
            lambda: nn.Recompute(Experts()),
            lambda: nn.AuxiliaryLoss(mean_square, 0.3),
        ]
    ),
    st.booleans(),
)
def test_wherever_it_is_the_bits_are_those_of_one_process(
    name, num_ranks, m, places, kind, recompute
):
    schedule = build(name, num_ranks, m)
    check_same_as_one_process(
        model(places, kind), nn.MSELoss(), *batch(), schedule, recompute=recompute
    )


def test_the_total_is_the_mean_over_the_batch_and_evaluation_leaves_it_out():
    x, y = batch()
    layers = nn.Sequential(
        nn.Identity(), nn.AuxiliaryLoss(mean_square, 0.5), nn.Identity()
    )
    plain = float(((x - y) ** 2).mean())

    def train(group):
        pipeline = Pipeline(layers, group, loss=nn.MSELoss(), num_microbatches=3)
        loss, checked = pipeline.step(x, y), pipeline.evaluate(x, y)
        return (
            loss,
            checked,
            pipeline.evaluate(x, y, is_training=True),
            pipeline.eval().step(x, y),
            pipeline.predict(x),
        )

    for loss, checked, training, switched_off, outputs in spawn(train, 3):
        assert (
            loss
            == training
            == pytest.approx(plain + 0.5 * float((x * x).mean()), rel=1e-6)
        )
        assert checked == switched_off == pytest.approx(plain, rel=1e-6)
        assert np.array_equal(outputs, x)


def test_it_changes_the_gradients_by_those_of_the_function_alone():
    x, y = batch()
    gradients = []
    for weight in (0.0, 2.0):
        twin = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.AuxiliaryLoss(mean_square, weight), nn.Tanh()
        ).initialise(0)
        gradients.append(
            one_process_step(twin, nn.MSELoss(), x, y, 2).gradients["0.weight"]
        )
    hidden = x @ twin[0].weight.numpy()
    expected = 2.0 * 2 * x.T @ hidden / hidden.size
    np.testing.assert_allclose(
        gradients[1] - gradients[0], expected, rtol=1e-4, atol=1e-6
    )


def test_beside_a_given_gradient_it_is_a_mean_over_the_batch_too():
    """The story: its share of a microbatch could be any number here, and no test
    noticed: what a given gradient adds to is a sum over samples, and an auxiliary loss
    is a mean."""
    x, y = batch()

    def train(group):
        layers = nn.Sequential(
            nn.Linear(WIDTH, WIDTH),
            nn.AuxiliaryLoss(mean_square, 0.5),
            nn.Linear(WIDTH, WIDTH),
        )
        pipeline, gradients = (
            Pipeline(layers, group, loss=nn.MSELoss(), num_microbatches=3),
            [],
        )
        for run in (
            pipeline.step,
            lambda x, y: pipeline.forward_backward(
                x, 2 * (pipeline.predict(x) - y) / y.size
            ),
        ):
            run(x, y)
            gradients.append(
                {
                    name: parameter.grad.copy()
                    for name, parameter in pipeline.named_parameters()
                }
            )
        return gradients

    for of_loss, of_gradient in spawn(train, 2):
        assert of_loss and of_loss.keys() == of_gradient.keys()
        for name, expected in of_loss.items():
            np.testing.assert_allclose(
                of_gradient[name], expected, rtol=1e-5, atol=1e-7
            )


def test_a_loss_that_lost_its_gradient_is_caught(monkeypatch):
    schedule, layers = (
        build("1f1b", 2, 2),
        model((1,), lambda: nn.AuxiliaryLoss(mean_square, 0.3)),
    )
    check_same_as_one_process(layers, nn.MSELoss(), *batch(), schedule)
    monkeypatch.setattr(
        "minipipe.execution.building.carrying_losses", lambda forward, *_: forward
    )
    with pytest.raises(AssertionError, match="differs from one process"):
        check_same_as_one_process(layers, nn.MSELoss(), *batch(), schedule)


def test_mistakes_are_named():
    with pytest.raises(
        ArgumentError,
        match="AuxiliaryLoss takes a function of its input; this is of type float",
    ):
        nn.AuxiliaryLoss(0.1)
    layers = nn.Sequential(nn.AuxiliaryLoss(lambda x: x * x))
    with pytest.raises(
        TensorError,
        match=r"must be a tensor with one element; it is a tensor of shape \(1, 4\)",
    ):
        Pipeline(layers, OneRankGroup(), loss=nn.MSELoss(), num_microbatches=6).step(
            *batch()
        )


def test_ranks_that_add_other_losses_are_told():
    def train(group):
        layers = nn.Sequential(
            nn.AuxiliaryLoss(mean_square if group.rank else (lambda x: x.sum())),
            nn.Identity(),
        )
        Pipeline(layers, group, loss=nn.MSELoss())

    with pytest.raises(RankError, match="The model of rank 1 differs"):
        spawn(train, 2)


def test_outside_a_pipeline_they_are_collected_on_request():
    layers = nn.Sequential(
        nn.AuxiliaryLoss(mean_square, 0.5), nn.AuxiliaryLoss(mean_square)
    )
    with nn.auxiliary_losses() as found:
        outputs = layers(Tensor([[2.0, 2.0]]))
    assert [loss.item() for loss in found] == [2.0, 4.0]
    assert found.added_to(outputs.mean()).item() == 8.0
    with nn.auxiliary_losses() as found:
        layers.eval()(Tensor([[2.0, 2.0]]))
    assert found == [] and found.added_to(outputs.mean()).item() == 2.0


def test_its_weight_is_shown_as_it_is_now():
    layer = nn.AuxiliaryLoss(mean_square, 0.5)
    layer.weight = 0.25
    assert repr(layer).endswith("mean_square, weight=0.25)")


@pytest.mark.filterwarnings(
    "ignore:invalid value:RuntimeWarning"
)  # of sqrt(0) * inf, which does not count
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_with_a_weight_of_0_an_infinite_one_changes_no_bit(num_ranks):
    def bits(group, layer):
        layers = [
            nn.Linear(WIDTH, WIDTH),
            layer,
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        ]
        pipeline = Pipeline(
            nn.Sequential(*layers), group, loss=nn.MSELoss(), num_microbatches=3
        )
        losses = [pipeline.step(*batch()) for _ in range(8)]
        return losses, [parameter.grad.tobytes() for parameter in pipeline.parameters()]

    endless = nn.AuxiliaryLoss(
        lambda x: functional.sqrt(x * 0).sum() * np.inf, weight=0.0
    )
    assert spawn(lambda group: bits(group, endless), num_ranks) == spawn(
        lambda g: bits(g, nn.Identity()), num_ranks
    )


@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_an_auxiliary_loss_beside_a_gradient_from_outside_counts_the_same_in_any_number_of_microbatches(
    name,
):
    found = []
    for m in (1, 2, 4):
        layers = nn.Sequential(
            nn.Linear(2, 2),
            nn.AuxiliaryLoss(lambda x: (x * x).mean()),
            *[nn.Identity()] * 6,
        )

        def run(group, m=m, layers=layers):
            pipeline = Pipeline(layers, group, schedule=build(name, 2, m))
            pipeline.forward_backward(np.ones((8, 2)), np.zeros((8, 2)))
            return {
                key: parameter.grad for key, parameter in pipeline.named_parameters()
            }

        found.append(
            next(grads["0.weight"] for grads in spawn(run, 2) if "0.weight" in grads)
        )
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.CrossEntropyLoss()])
@pytest.mark.parametrize("place", [0, 2])
def test_an_auxiliary_loss_of_halves_meets_a_loss_in_float32(loss, place):
    layers = [nn.Linear(2, 2, dtype=np.float16) for _ in range(3)]
    layers.insert(place, nn.AuxiliaryLoss(lambda x: (x * x).mean()))
    y = (
        np.ones(4, int)
        if isinstance(loss, nn.CrossEntropyLoss)
        else np.ones((4, 2), np.float16)
    )
    check_same_as_one_process(
        nn.Sequential(*layers),
        loss,
        np.ones((4, 2), np.float16),
        y,
        build("1f1b", 3, 2),
    )
