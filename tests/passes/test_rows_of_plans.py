"""The rows of a plan: which stages share parameters, and what a call asks for."""

from minipipe import Plan, nn
from minipipe.passes.rows import rows_of


def tied_model():
    first = nn.Linear(4, 4)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(4, 4), first)


def ends_of(plan, **options):
    rows = rows_of(plan, **options)
    return [" ".join(map(str, row[-4:])) for row in rows]


def test_stages_that_share_a_parameter_exchange_its_gradients():
    plan = Plan(tied_model(), num_ranks=4, num_microbatches=2)
    assert ends_of(plan) == [
        "REDUCE_TIED FINITE LOSS 0U1",
        "1SEND_B1 FINITE LOSS 1U1",
        "2SEND_B1 FINITE LOSS 2U1",
        "REDUCE_TIED FINITE LOSS 3U1",
    ]


def test_a_model_without_tied_weights_exchanges_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = Plan(model, num_ranks=2, num_microbatches=1)
    options = {"check_finite": False, "clip": True, "update": False}
    assert ends_of(plan, **options) == [
        "0RECV_B0 0B0 LOSS NORM",
        "1B0 1SEND_B0 LOSS NORM",
    ]


def test_replicas_gather_the_gradients_of_the_inputs_if_they_are_asked_for():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = Plan(
        model,
        num_ranks=4,
        num_microbatches=1,
        replicas=2,
        inputs_require_grad=True,
    )
    assert ends_of(plan, update=False) == [
        "0REDUCE_GRAD0 GATHER_INPUT_GRADS FINITE LOSS",
        "1REDUCE_GRAD0 GATHER_RESULTS FINITE LOSS",
        "0REDUCE_GRAD1 GATHER_INPUT_GRADS FINITE LOSS",
        "1REDUCE_GRAD1 GATHER_RESULTS FINITE LOSS",
    ]
