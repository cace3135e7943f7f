"""The number that ranks compare for the steps of their optimisers: equal for equal
steps, another for any other.
"""

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, optim
from minipipe.execution.checks.updates import Updates
from tests.execution.checks.changes import Powers, PowersElse


def digest_after(*changes, rule=optim.SGD, **numbers):
    """Return the digest after three steps; before the second one the changes are
    made.
    """
    parameter = nn.Parameter(np.ones(2))
    updates = Updates([parameter])
    optimiser = rule([parameter], **numbers)
    for step in range(3):
        if step == 1:
            for change in changes:
                change(optimiser)
        parameter.grad = np.ones(2, parameter.data.dtype)
        optimiser.step()
    return updates.marks()["optimiser"]


def set_rate(rate):
    return lambda optimiser: setattr(optimiser.groups[0], "learning_rate", rate)


CHANGES = {
    "a learning rate": set_rate(0.2),
    "a momentum": lambda optimiser: setattr(optimiser.groups[0], "momentum", 0.5),
    "the factor of a schedule": lambda optimiser: setattr(
        optimiser, "rate_factor", 0.5
    ),
    "a loaded state": lambda optimiser: optimiser.load_state_dict(
        optimiser.state_dict()
    ),
    "a step more": lambda optimiser: optimiser.step(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_steps_changes_the_digest(name):
    usual = digest_after(learning_rate=0.1)
    assert digest_after(learning_rate=0.1) == usual
    assert digest_after(CHANGES[name], learning_rate=0.1) not in (usual, 0)
    assert digest_after(CHANGES[name], learning_rate=0.1) == digest_after(
        CHANGES[name], learning_rate=0.1
    )


def test_a_change_for_one_step_is_not_forgotten_when_it_is_taken_back():
    def there_and_back(optimiser):
        optimiser.learning_rate = 0.2
        optimiser.step()
        optimiser.learning_rate = 0.1

    assert digest_after(there_and_back, learning_rate=0.1) != digest_after(
        CHANGES["a step more"], learning_rate=0.1
    )


@pytest.mark.parametrize(
    "change",
    [lambda rule: setattr(rule, "power", 2.0), lambda rule: setattr(rule, "new", 1)],
)
def test_attributes_of_a_custom_rule_count_in_every_step(change):
    usual = digest_after(rule=Powers)
    assert digest_after(rule=Powers) == usual != digest_after(change, rule=Powers)
    assert digest_after(rule=PowersElse) != usual


def digest_in_a_pipeline(rule, is_sharded):
    with init_process_group() as group:
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(2, 2)), group, loss=nn.MSELoss(), num_microbatches=1
        )
        updates = Updates(pipeline.parameters())
        if is_sharded:
            optimiser = pipeline.sharded(rule, learning_rate=0.1)
        else:
            optimiser = rule(pipeline.parameters(), learning_rate=0.1)
        for _ in range(2):
            pipeline.step(np.ones((1, 2)), np.ones((1, 2)))
            optimiser.step()
        return updates.marks()["optimiser"]


def test_rules_that_are_equal_but_for_their_class_differ_sharded_or_not():
    digests = {
        digest_in_a_pipeline(rule, is_sharded)
        for rule in (optim.SGD, optim.Adam)
        for is_sharded in (0, 1)
    }
    assert len(digests) == 4
