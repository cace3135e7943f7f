"""The same training twice: parameters one by one, and side by side in an arena. Every
act must leave the same bits.
"""

import copy
import pickle
from contextlib import suppress

import ml_dtypes
import numpy as np

from minipipe import nn, optim
from minipipe.core.autograd.backend import is_half
from minipipe.errors import ArgumentError
from minipipe.nn.arena import Arena

SHAPES = [(3, 4), (4,), (), (5,), (0, 2), (2, 3), (1, 7)]
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


class Averaged(optim.Optimiser):
    """A rule that replaces its arrays and numbers, removes some, and declares
    nothing.
    """

    is_elementwise = True

    def _update(self, data, gradient, state, group):
        # of a scalar, too
        state["mean"] = np.asarray(0.9 * state.get("mean", 0.0) + gradient)
        state["num_steps"] = state.get("num_steps", 0) + 1
        state["phase"] = ("odd", "even")[state["num_steps"] % 2]
        state.pop("extra", None)
        if state["num_steps"] % 3 == 0:
            state["extra"] = np.float64(state["num_steps"])
        data -= group.learning_rate * state["mean"] / state["num_steps"]


class Counting(optim.Optimiser):
    """A rule that keeps an array that is not of the parameter's shape, and changes it
    in place.
    """

    is_elementwise = True

    def _update(self, data, gradient, state, group):
        state.setdefault("count", np.zeros(()))[...] += 1
        state.setdefault("log", []).append(float(state["count"]))
        data -= group.learning_rate * gradient / float(state["count"])


class Sign(optim.Optimiser):
    """A rule that raises for a gradient of 0, as a division does."""

    is_elementwise = True

    def _update(self, data, gradient, state, group):
        with np.errstate(all="raise"):
            data -= group.learning_rate * (gradient / abs(gradient))


class Optimistic(optim.Optimiser):
    """A rule that keeps the last gradient itself, no copy."""

    is_elementwise = True

    def _update(self, data, gradient, state, group):
        data -= group.learning_rate * (2 * gradient - state.get("last", gradient))
        state["last"] = gradient


class Normed(optim.Optimiser):
    """A rule that reads a parameter as a whole."""

    def _update(self, data, gradient, state, group):
        data -= group.learning_rate * gradient / (1 + float(abs(gradient).sum()))


class Inherited(optim.SGD):
    """A subclass does not inherit that a rule is elementwise."""

    def _update(self, data, gradient, state, group):
        super()._update(data, gradient * float(data.size), state, group)


RULES = {
    "SGD": lambda p: optim.SGD(p, 0.1),
    "SGD, decay": lambda p: optim.SGD(p, 0.1, weight_decay=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1),
    "SGD, Nesterov": lambda p: optim.SGD(p, 0.1, 0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, 0.1),
    "Adam, decay": lambda p: optim.Adam(p, 0.1, weight_decay=0.1, nesterov=True),
    "AdamW": lambda p: optim.AdamW(p, 0.1, weight_decay=0.1),
    "Muon": lambda p: optim.Muon(p, 0.1),
    "averaged": lambda p: Averaged(p, learning_rate=0.1),
    "counting": lambda p: Counting(p, learning_rate=0.1),
    "sign": lambda p: Sign(p, learning_rate=0.1),
    "optimistic": lambda p: Optimistic(p, learning_rate=0.1),
    "normed": lambda p: Normed(p, learning_rate=0.1),
    "inherited": lambda p: Inherited(p, 0.1),
    "two groups": lambda p: optim.Adam(
        [{"parameters": p[::2]}, {"parameters": p[1::2], "learning_rate": 0.3}]
    ),
    "halves of a list": lambda p: optim.SGD(
        [
            {"parameters": p[len(p) // 2 :]},
            {"parameters": p[: len(p) // 2], "momentum": 0.5},
        ],
        0.1,
    ),
    "turned": lambda p: optim.AdamW(p[::-1], 0.1),
}


def bits(value):
    """Return a value with its dtypes, arrays as bytes."""
    if isinstance(value, dict):
        return {name: bits(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    if hasattr(value, "dtype"):
        array = np.asarray(value)
        return array.dtype.name, array.shape, array.tobytes()
    return type(value), value


class Training:
    """Parameters, an optimiser, and perhaps an arena.

    Parameters
    ----------
    rule : str
    dtypes : list of str
        Of the parameters in turn.
    """

    def __init__(self, rule, dtypes, has_arena, seed=0):
        generator = np.random.default_rng(seed)
        numbers = [generator.standard_normal(shape) for shape in SHAPES]
        kinds = [DTYPES[dtypes[i % len(dtypes)]] for i in range(len(SHAPES))]
        self.parameters = [
            nn.Parameter(each.astype(kind)) for each, kind in zip(numbers, kinds)
        ]
        self.optimiser = RULES[rule](self.parameters)
        self.scale = optim.LossScale(8.0, growth_interval=2)
        self.has_arena, self.arena, self.kept, self.saved = has_arena, None, [], None
        self.other_groups = None
        self.make_arena(None)

    # -- acts: each gets a generator, equal in both trainings
    # ---------------------------------------------

    def make_arena(self, generator):
        if self.has_arena:
            self.arena = Arena(self.parameters)

    def close(self, generator):
        if self.arena is not None:
            self.arena.close()

    def drop(self, generator):
        self.arena = None

    def all_have_gradients(self, generator):
        self._step(generator, lambda i: "side by side")

    def the_same_have_none(self, generator):
        self._step(generator, lambda i: None if i in (1, 4) else "side by side")

    def some_have_none(self, generator):
        self._step(generator, lambda i: generator.choice([None, "side by side"]))

    def some_have_others(self, generator):
        self._step(
            generator,
            lambda i: generator.choice(
                [None, "other", "side by side"], p=[0.1, 0.3, 0.6]
            ),
        )

    def clipped(self, generator):
        self._step(
            generator,
            lambda i: "side by side",
            lambda: optim.clip_grad_norm(self.parameters, 0.5),
        )

    def unscaled(self, generator):
        self._step(
            generator,
            lambda i: "side by side",
            lambda: self.scale.unscale(self.parameters),
        )

    def _step(self, generator, where, change=lambda: None):
        gradients = (
            self.arena.gradients
            if self.arena is not None and self.arena.is_intact()
            else None
        )
        if gradients is not None and not self.arena.gradients_are_free():
            self.arena.renew_gradients()
            gradients = self.arena.gradients
        for i, parameter in enumerate(self.parameters):
            wide = np.float32 if is_half(parameter.dtype) else parameter.dtype
            gradient = generator.standard_normal(parameter.shape).astype(wide)
            place = where(i)
            parameter.grad = None
            if place and parameter.requires_grad:
                if (
                    place == "side by side"
                    and gradients is not None
                    and gradients[i] is not None
                ):
                    gradients[i][...] = gradient
                    gradient = gradients[i]
                parameter.grad = np.asarray(gradient)
        change()
        self.optimiser.step()
        if generator.random() < 0.2:
            self.kept.append(
                [(p.grad, bits(p.grad)) for p in self.parameters if p.grad is not None][
                    :2
                ]
            )
        self.optimiser.zero_grad()

    def keep_values(self, generator):
        self.kept_values = self.parameters[2].data

    def set_rate(self, generator):
        self.optimiser.groups[-1].learning_rate = float(generator.random())

    def regroup(self, generator):
        """Train only some of the parameters from now on, in a new group, or all
        again.
        """
        optimiser = self.optimiser
        self.other_groups = self.other_groups or [
            optim.ParameterGroup(
                optimiser.parameters[:4], optimiser.groups[0].hyper_parameters
            )
        ]
        optimiser.groups, self.other_groups = self.other_groups, optimiser.groups

    def change_in_place(self, generator):
        self.parameters[int(generator.integers(len(SHAPES)))].data[...] = float(
            generator.random()
        )

    def replace(self, generator):
        parameter = self.parameters[int(generator.integers(len(SHAPES)))]
        parameter.data = np.asarray(parameter.data + parameter.data.dtype.type(1))

    def load_values(self, generator):
        parameter = self.parameters[int(generator.integers(len(SHAPES)))]
        parameter.load(
            generator.standard_normal(parameter.shape).astype(np.float32), "p"
        )

    def alias(self, generator):
        self.other_use = self.parameters[3].alias()

    def freeze(self, generator):
        self.parameters[1].requires_grad = not self.parameters[1].requires_grad

    def save(self, generator):
        self.saved = (
            [p.data.copy() for p in self.parameters],
            self.optimiser.state_dict(),
        )

    def restore(self, generator):
        if self.saved is not None:
            for parameter, values in zip(self.parameters, self.saved[0]):
                parameter.load(values, "p")
        self.restore_state(generator)

    def restore_state(self, generator):
        with suppress(ArgumentError):  # of another grouping
            if self.saved is not None:
                self.optimiser.load_state_dict(self.saved[1])

    def copied(self, generator):
        self.parameters, self.optimiser = copy.deepcopy(
            (self.parameters, self.optimiser)
        )
        self.arena = self.saved = self.other_groups = None

    def pickled(self, generator):
        self.parameters, self.optimiser = pickle.loads(
            pickle.dumps((self.parameters, self.optimiser))
        )
        self.arena = self.saved = self.other_groups = None

    # -- comparison
    # ----------------------------------------------------------------------------------

    def looks(self):
        """Return everything that a user may see."""
        for kept in self.kept:
            for gradient, before in kept:
                assert bits(gradient) == before, "a gradient that was kept has changed"
        changed = [
            [leaf.changed >= 0 for leaf in p.leaves.values()] for p in self.parameters
        ]
        return {
            "values": [bits(p.data) for p in self.parameters],
            "state": bits(self.optimiser.state_dict()),
            "kept": [bits(state) for state in self.optimiser._states.values()],
            "nbytes": self.optimiser.nbytes,
            "changed": changed,
            "scale": self.scale.value,
            "same": getattr(self, "kept_values", None) is not None
            and bits(self.kept_values),
        }


STEPS = [
    "all_have_gradients",
    "the_same_have_none",
    "some_have_none",
    "some_have_others",
    "clipped",
    "unscaled",
]
CHANGES = [
    *(
        "make_arena",
        "close",
        "drop",
        "keep_values",
        "set_rate",
        "regroup",
        "change_in_place",
        "replace",
        "load_values",
    ),
    *("alias", "freeze", "save", "restore", "restore_state", "copied", "pickled"),
]


def compare(rule, dtypes, acts, seed=0):
    """Train twice, and assert after every act that nobody can tell which has an
    arena.
    """
    both = [Training(rule, dtypes, has_arena) for has_arena in (False, True)]
    for number, act in enumerate(acts):
        for training in both:
            getattr(training, act)(np.random.default_rng((seed, number)))
        plain, flat = (training.looks() for training in both)
        for name, value in plain.items():
            assert flat[name] == value, f"{name} after {acts[: number + 1]}"
    return both
