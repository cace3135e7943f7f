"""What is set on a finished object has an effect, or is refused."""

import inspect

import numpy as np
import pytest

from minipipe import (
    Pipeline,
    Plan,
    checkpoint,
    data,
    nn,
    optim,
    random_key,
    schedules,
    spawn,
)
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError
from tests.launch import for_each

OPTIONS = {
    name for kind in (Pipeline, Plan) for name in inspect.signature(kind).parameters
}
PROPERTIES = {
    name for name, value in vars(Pipeline).items() if isinstance(value, property)
}
CAN_BE_SET = {"num_steps", "measures_memory"}


def pipeline():
    return Pipeline(
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
        OneRankGroup(),
        loss=nn.MSELoss(),
    )


@for_each(
    name=sorted(
        (OPTIONS | PROPERTIES | {"learning_rate", "no_such_thing"}) - CAN_BE_SET
    )
)
def test_a_finished_pipeline_refuses_what_would_do_nothing(name):
    """The story: `pipeline.seed = 7` changed no mask, but went into the checkpoint, and
    resuming gave other bits.
    """
    made = pipeline()
    with pytest.raises(AttributeError, match=name):
        setattr(made, name, 7)


def given_and_read(group):
    """Return the properties of a pipeline that was given other options than the
    defaults, with what each must be.
    """
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).eval()
    plan = Plan(
        model,
        schedules.gpipe(2, 4),
        partition=[range(2), range(2, 3)],
        inputs_require_grad=True,
    )
    made = Pipeline(plan, group, loss=nn.MSELoss(), seed=3, dropout_seed=5)
    x = np.ones((4, 2), np.float32)
    before = made.input_gradients
    made.step(x, x)
    expected = {
        "seed": 3,
        "dropout_seed": 5,
        "plan": plan,
        "model": model,
        "schedule": plan.schedule,
        "group": group,
    }
    expected |= {
        "partition": [range(2), range(2, 3)],
        "num_stages": 2,
        "local_stages": (group.rank,),
    }
    expected |= {"is_training": False, "grid": None, "advice": None}
    needs, gradients = made.needs, made.input_gradients
    assert before is None and (needs.inputs, needs.targets) == (
        group.rank == 0,
        group.rank == 1,
    )
    assert (gradients is None) == (group.rank == 1) and (
        gradients is None or gradients.shape == x.shape
    )
    return {name: getattr(made, name) for name in expected}, expected


def test_each_property_says_what_was_given():
    for found, expected in spawn(given_and_read, 2):
        assert expected.keys() == PROPERTIES - {
            "needs",
            "input_gradients",
            "rows",
            "forward_rows",
        }
        assert {
            name: value == expected[name] for name, value in found.items()
        } == dict.fromkeys(expected, True)


def test_the_seed_of_dropout_is_that_of_first_values_unless_it_is_given():
    made = Pipeline(nn.Sequential(nn.Linear(2, 2)), OneRankGroup(), seed=3)
    assert (made.seed, made.dropout_seed) == (3, 3)


def test_what_can_be_set_does_something():
    x, y = np.ones((8, 2)), np.zeros((8, 2))
    one, other = pipeline(), pipeline()
    other.num_steps = 1
    assert one.step(x, y) != other.step(x, y)
    assert one.step(x, y) == (setattr(other, "num_steps", 1), other.step(x, y))[1]
    one.measures_memory = True
    one.step(x, y)
    assert one.timeline().peak_memory[0] > 0
    assert {
        name for name in Pipeline.__slots__ if not name.startswith("_")
    } == CAN_BE_SET


SEEDED = {
    "first values": lambda seed: Pipeline(
        nn.Sequential(nn.ReLU()), OneRankGroup(), seed=seed
    ),
    "masks": lambda seed: Pipeline(
        nn.Sequential(nn.ReLU()), OneRankGroup(), dropout_seed=seed
    ),
    "a module": lambda seed: nn.Linear(1, 1).initialise(seed),
    "an order": lambda seed: next(data.batches([1], [1], 1, seed=seed)),
    "an epoch": lambda seed: next(data.batches([1], [1], 1, epoch=seed)),
    "a division": lambda seed: data.split_examples(np.ones(2), np.ones(2), 0.5, seed),
    "a loop of one's own": random_key,
}


@pytest.mark.parametrize("name", SEEDED)
@for_each(wrong=[0.5, True, -1, "1", 2.0, np.array(1)])
def test_a_seed_is_a_whole_number_wherever_one_is_taken(name, wrong):
    """The story: ``Pipeline(seed=0.5)``, ``True`` and -1 passed, and each gave other
    first values.
    """
    with pytest.raises(
        ArgumentError, match=r"(seed|epoch) is .*; expected a whole number, at least 0"
    ) as caught:
        SEEDED[name](wrong)
    assert caught.value.code == "value"
    SEEDED[name](np.int64(1))


PARAMETER = nn.Parameter(np.ones(2))
OTHERS = {
    "PyTorch's lr": (lambda: optim.SGD([PARAMETER], 0.1), "lr"),
    "a group's number": (lambda: optim.SGD([PARAMETER], 0.1, momentum=0.9), "momentum"),
    "another group's number": (lambda: optim.AdamW([PARAMETER]), "weight_decay"),
    "the factor of a scale": (optim.LossScale, "factor"),
    "the step of a schedule": (
        lambda: optim.LearningRateSchedule(optim.Adam([PARAMETER]), optim.cosine(9)),
        "last_step",
    ),
    "the factor of a schedule": (
        lambda: optim.LearningRateSchedule(optim.Adam([PARAMETER]), optim.cosine(9)),
        "factor",
    ),
    "a saver": (lambda: checkpoint.BackgroundSaver("folder", pipeline()), "keep"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_so_do_optimisers_scales_schedules_and_savers(name):
    make, attribute = OTHERS[name]
    with pytest.raises(AttributeError, match=attribute):
        setattr(make(), attribute, 0.5)


def test_an_optimiser_of_ones_own_may_have_attributes():
    class Own(optim.SGD):
        pass

    own = Own([PARAMETER], 0.1)
    own.temperature = 0.5
    assert own.temperature == 0.5
