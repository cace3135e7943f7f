"""A gradient that comes back to a replayed microbatch: what does not fit is refused, and none at all goes on."""

import numpy as np
import pytest

from minipipe import nn, schedules
from minipipe.errors import MinipipeError
from minipipe.execution.payload import Payload
from minipipe.execution.replayed import Replayed
from minipipe.execution.replaying import ReplayingStage
from minipipe.execution.stage import Stage

WIDTH = 4


def stepped(kind, gradient, is_split):
    """Return what the backward of a seventh step returns for a gradient, and the weight's gradient."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).initialise()
    schedule = schedules.gpipe(2, 1)
    schedule = schedules.split_backward(schedule) if is_split else schedule
    stage = kind(model, 0, schedule, dict(model.named_parameters()))
    random = np.random.default_rng(0)
    for step in range(7):
        stage.begin()
        _, held = stage.forward(0, Payload([random.normal(size=(3, WIDTH)).astype(np.float32)], [True], None))
        given = Payload([gradient if step == 6 else np.ones((3, WIDTH), np.float32)], [True], None)
        assert kind is Stage or step < 6 or isinstance(held, Replayed)
        if is_split:
            result, work = stage.backward_input(0, held, given)
            stage.backward_weight(0, work)
        else:
            result = stage.backward(0, held, given)
    grad = model[0].weight.grad
    return [None if array is None else array.tobytes() for array in (*result.arrays, grad)]


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("kind", [Stage, ReplayingStage])
@pytest.mark.parametrize("wrong", [np.ones((3, WIDTH)), np.ones((2, WIDTH), np.float32), np.ones(WIDTH, np.float32)])
def test_a_gradient_of_another_dtype_or_shape_is_refused(kind, wrong, is_split):
    with pytest.raises(MinipipeError):
        stepped(kind, wrong, is_split)


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("gradient", [None, np.full((3, WIDTH), 2, np.float32), np.ones((WIDTH, 3), np.float32).T])
def test_no_gradient_and_one_in_another_order_go_on_as_with_graphs(gradient, is_split):
    assert stepped(ReplayingStage, gradient, is_split) == stepped(Stage, gradient, is_split)
