"""An argument of a collective call that one rank gives otherwise: it is named, and no
rank waits for another.

The table has an entry for each parameter of each collective method of a pipeline;
`test_arguments_of_one_rank.py` does the same for its constructor.
"""

import inspect
import re

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, MessageError, RankError, TensorError
from tests.launch import for_each

X = np.random.default_rng(44).normal(size=(8, 4)).astype(np.float32)
METRIC = {"mean": lambda outputs, targets: outputs.mean()}


def made(group, **options):
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh()]
    return Pipeline(
        nn.Sequential(*layers),
        group,
        **{"loss": nn.MSELoss(), "num_microbatches": 4, **options},
    )


def scale(value):
    return optim.LossScale(value)


# By method and parameter: what one rank gives, what the others give, and a part of the
# message; or why it may differ.
BATCH = {
    "inputs": (X + 1, X, "The inputs of rank 1 differs"),
    "targets": (X + 1, X, "The targets of rank 1 differs"),
}
ASKED = {
    "outputs": (
        "everywhere",
        False,
        "The request for metrics and outputs of rank 1 differs",
    ),
    "metrics": (METRIC, None, "The request for metrics and outputs of rank 1 differs"),
}
CALLS = {
    "step": {
        **BATCH,
        **ASKED,
        "wait": (
            "may differ: where it does, a step that is not finite is not run once more"
        ),
        "accumulate": (
            True,
            False,
            (
                r"Rank 1 is in step\(accumulate=True\), call 3 .* but rank 0 in "
                r"step\(\), call 3"
            ),
        ),
        "scale": (
            2.0,
            1.0,
            r"The scale of rank 1 \(2.0\) differs from that of rank 0 \(1.0\)",
        ),
    },
    "forward_backward": {
        "inputs": BATCH["inputs"],
        "gradient": (X + 1, X, "The targets of rank 1 differs"),
        "outputs": ASKED["outputs"],
        "accumulate": (
            True,
            False,
            r"Rank 1 is in forward_backward\(accumulate=True\)",
        ),
    },
    "evaluate": {
        **BATCH,
        **ASKED,
        "is_training": (True, False, r"The mode of rank 1 \(train\(\)\) differs"),
    },
    "predict": {
        "inputs": BATCH["inputs"],
        "is_training": (
            True,
            False,
            (
                r"The mode of rank 1 \(train\(\)\) differs from that of rank 0 "
                r"\(eval\(\)\)"
            ),
        ),
    },
    "run": {
        "batches": (
            [(X, X)] * 2,
            [(X, X)] * 3,
            "The microbatches of the run of rank 1 differs",
        ),
        "optimiser": "is compared by its class and its numbers below",
        "stash": (False, True, "The stash of rank 1 differs from that of rank 0"),
    },
    "timeline": {
        "num_steps": (
            2,
            1,
            r"The num_steps of rank 1 \(2\) differs from that of rank 0 \(1\)",
        )
    },
    "measure_memory": BATCH,
    "measure_costs": {
        **BATCH,
        "num_steps": (
            2,
            1,
            r"The num_steps of rank 1 \(2\) differs from that of rank 0 \(1\)",
        ),
    },
    "clip_grad_norm": {
        "max_norm": (
            2.0,
            1.0,
            r"The max_norm of rank 1 \(2.0\) differs from that of rank 0 \(1.0\)",
        )
    },
    "unscale_gradients": {
        "scale": (
            scale(8.0),
            scale(4.0),
            r"The loss scales of the ranks are \[4.0, 8.0\]",
        )
    },
    "sharded": {
        "rule": (optim.AdamW, optim.Adam, "The sharded optimiser of rank 1 differs"),
        "parameters": (
            1,
            2,
            "The optimiser of rank 1 lacks 0.bias, which the optimiser of rank 0 has",
        ),
        "numbers": (0.2, 0.1, "The sharded optimiser of rank 1 differs"),
    },
    "load_state_dict": {
        "state": (1.0, 2.0, "The loaded state of rank 1 differs from that of rank 0")
    },
    "train": {
        "mode": (
            False,
            True,
            (
                r"The mode of rank 1 \(eval\(\)\) differs from that of rank 0 "
                r"\(train\(\)\)"
            ),
        )
    },
}
WITHOUT_ARGUMENTS = {"state_dict", "eval"}
LOCAL = {
    "wait",
    "named_parameters",
    "parameters",
    "compile_report",
    "replay_report",
    "source",
}
USUAL = {"inputs": X, "targets": X, "gradient": X, "batches": [(X, X)] * 3}


def called(group, method, name, value):
    """Call a method of a pipeline with one argument as given, and those that it needs;
    then train for a step.
    """
    if method == "run":
        pipeline = made(group, schedule="pipedream")
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        pipeline.run(
            **{"batches": USUAL["batches"], "optimiser": optimiser, name: value}
        )
        return
    pipeline = made(group, **({"replicas": 2} if method == "sharded" else {}))
    pipeline.step(X, X)
    pipeline.step(X, X)
    if method == "sharded":
        given = {"rule": optim.Adam, "numbers": 0.1, "parameters": 4, name: value}
        few = list(pipeline.parameters())[: given["parameters"]]
        pipeline.sharded(given["rule"], few, learning_rate=given["numbers"])
    elif method == "load_state_dict":
        pipeline.load_state_dict(
            {
                key: np.full_like(own, value)
                for key, own in pipeline.state_dict().items()
            }
        )
    else:
        parameters = inspect.signature(getattr(Pipeline, method)).parameters.values()
        needed = {one.name: USUAL[one.name] for one in parameters if one.name in USUAL}
        getattr(pipeline, method)(**{**needed, name: value})
    pipeline.step(X, X)


def test_each_parameter_of_each_collective_call_is_in_the_table():
    public = {
        name
        for name, one in vars(Pipeline).items()
        if inspect.isfunction(one) and not name.startswith("_")
    }
    assert public == set(CALLS) | WITHOUT_ARGUMENTS | LOCAL
    for method, table in CALLS.items():
        assert set(inspect.signature(getattr(Pipeline, method)).parameters) - {
            "self"
        } == set(table), method
    for method in WITHOUT_ARGUMENTS:
        assert set(inspect.signature(getattr(Pipeline, method)).parameters) == {"self"}


@for_each(
    case={
        f"{method}({name}=…)": (method, name, *entry)
        for method, table in CALLS.items()
        for name, entry in table.items()
        if not isinstance(entry, str)
    }
)
def test_an_argument_of_a_call_that_differs_is_named(case):
    method, name, own, others, words = case
    with pytest.raises((RankError, MessageError)) as caught:
        spawn(
            lambda group: called(group, method, name, own if group.rank else others),
            2,
            timeout=10,
        )
    assert caught.value.code == "disagreement" and re.search(
        words, str(caught.value)
    ), str(caught.value)


@pytest.mark.slow
@for_each(
    case={
        "sharded": "sharded",
        **{name: name for name in CALLS if name not in ("run", "sharded")},
    }
)
def test_the_same_arguments_on_all_ranks_are_no_difference(case):
    """The mutant: were something always different, the tests above could not fail."""
    for name, entry in CALLS[case].items():
        if not isinstance(entry, str):
            spawn(
                lambda group, entry=entry, name=name: called(
                    group, case, name, entry[0]
                ),
                2,
                timeout=10,
            )


@for_each(
    rule={
        "class": (optim.Adam, optim.SGD),
        "number": (lambda own: optim.SGD(own, learning_rate=0.2), optim.SGD),
    }
)
def test_the_optimiser_of_a_run_is_compared_before_its_first_update(rule):
    def act(group):
        pipeline = made(group, schedule="pipedream")
        make = rule[0 if group.rank else 1]
        optimiser = make(
            pipeline.parameters(),
            **({"learning_rate": 0.1} if make in (optim.SGD, optim.Adam) else {}),
        )
        pipeline.run(USUAL["batches"], optimiser)

    with pytest.raises(
        RankError,
        match="The optimiser of the run of rank 1 differs from that of rank 0",
    ):
        spawn(act, 2, timeout=10)


def identity(num_microbatches=2, group=None, **options):
    layers = nn.Sequential(nn.Identity(), nn.Identity())
    return Pipeline(
        layers, group or OneRankGroup(), num_microbatches=num_microbatches, **options
    )


def test_a_rank_whose_batch_was_refused_does_not_pair_the_next_one_with_that_of_another():
    """It had not counted the call, so its second batch met the targets of the first."""

    def train(group):
        pipeline = identity(group=group, loss=nn.MSELoss())
        first, second = np.ones((4, 1)), np.full((4, 1), 2.0)
        if group.rank == 1:
            return pipeline.step(first, first)
        with pytest.raises(ArgumentError, match="needs the inputs, but got None"):
            pipeline.step(None, first)
        return pipeline.step(second, second)

    with pytest.raises(
        MessageError,
        match=r"Rank 1 is in step\(\), call 1 .*, but rank 0 in step\(\), call 2",
    ):
        spawn(train, 2)


def test_weights_do_not_fit_by_chance_when_there_are_as_many_samples_as_columns():
    x, y, w = np.ones((8, 2)), np.zeros((8, 2)), np.arange(8.0)
    for m in (1, 4, 8):
        with pytest.raises(
            TensorError,
            match=r"Weights of shape \(\d,\) do not fit a target of shape \(\d, 2\)",
        ):
            identity(m, loss=nn.MSELoss()).step(x, (y, w))


def test_a_metric_keeps_its_name_whatever_becomes_of_the_dictionary():
    metrics = {"a": lambda *_: 1.0}
    loss = identity(loss=nn.MSELoss()).step(
        np.ones((4, 1)), np.ones((4, 1)), wait=False, metrics=metrics
    )
    metrics.clear()
    metrics["b"] = None
    assert loss.wait().metrics == {"a": 1.0}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"metrics": len}, "metrics is .*; expected a dict of functions"),
        ({"metrics": {"a": "accuracy"}}, "metrics is .*; expected a dict of functions"),
        (
            {"scale": optim.LossScale()},
            r"scale is .*; expected a number. Give its value: scale=scale.value",
        ),
    ],
)
def test_what_is_asked_of_a_step_is_looked_at_before_it_begins(asked, words):
    with pytest.raises(ArgumentError, match=words):
        identity(loss=nn.MSELoss()).step(np.ones((4, 1)), np.ones((4, 1)), **asked)


def test_a_weight_that_is_no_number_is_named():
    pipeline = identity(loss=nn.MSELoss(), loss_weight=lambda targets: targets)
    with pytest.raises(
        TensorError,
        match=r"The weight of a loss must be a number; .* an array of shape \(2, 1\)",
    ):
        pipeline.step(np.ones((4, 1)), np.ones((4, 1)))
