"""What one rank may do otherwise between the calls of a pipeline: updates and batches,
for programs.py.
"""

from itertools import islice

import numpy as np

from minipipe import data, optim

GENERATOR = np.random.default_rng(0)
X, Y = (GENERATOR.standard_normal((8, k)).astype(np.float32) for k in (4, 2))


class Powers(optim.Optimiser):
    """A rule of one's own, with attributes that are the same on all ranks, and one that
    is not.
    """

    not_compared = "mine"

    def __init__(self, parameters, power=0.5, ranges=(0, 1)):
        super().__init__(parameters, learning_rate=0.01)
        self.power, self.ranges, self.mine = power, ranges, id(self)
        self.noise = [np.random.default_rng().random(p.shape) for p in self.parameters]

    def _update(self, data, gradient, state, group):
        data -= group.learning_rate * np.sign(gradient) * np.abs(gradient) ** self.power


class PowersElse(Powers):
    def _update(self, data, gradient, state, group):
        data -= gradient


class Renamed(Powers):
    _update = PowersElse._update


Renamed.__qualname__ = "Powers"  # the class of the same name in another host's file


def sets_power(power):
    def update(pipeline, rule, number):
        rule.power = power if number else 0.5
        return rule

    return update


def behind_an_empty_cell(value):
    """Return a function whose first free name has no value, and whose second one
    has.
    """
    later = np.abs
    function = lambda x: later(x) if value is None else x * value  # noqa: F821, that is the point
    del later
    return function


def another(pipeline, rule, number):
    return (
        type(rule)(pipeline.parameters(), rule.learning_rate) if number == 1 else rule
    )


def forgets_all(pipeline, rule, number):
    rule.zero_grad()
    return rule


def forgets_one(pipeline, rule, number):
    next(pipeline.parameters()).grad = None
    return rule


def goes_back(to, at=2):
    """Return a function that loads, at one update, the state from before an earlier
    one.
    """
    kept = {}

    def update(pipeline, rule, number):
        # not setdefault: an optimiser before may have had the number
        kept[id(rule), number] = rule.state_dict()
        if number == at:
            rule.load_state_dict(kept[id(rule), to])
        return rule

    return update


def drawn(batch_size=4, **given):
    """Return a function that reads of each batch what the rank needs."""

    def batch(pipeline, number):
        batches = data.batches(X, Y, batch_size, needs=pipeline.needs, **given)
        return next(islice(batches, number % (8 // batch_size), None))

    return batch


def read_from(start):
    return lambda pipeline, number: next(
        data.batches(X, Y, 4, needs=pipeline.needs, start=start)
    )


def window(key):
    """Return a function that draws windows of a text, of which the first rank reads x
    and the last one y.
    """

    def batch(pipeline, number):
        windows = data.text_windows(np.arange(50), 4, 8, (key, number))
        return [
            part.astype(np.float32)[:, :width] if is_needed else None
            for part, width, is_needed in zip(windows, (4, 2), pipeline.needs)
        ]

    return batch
