"""An optimiser changes parameters that lie side by side as one array, and nobody can
tell.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn, optim
from minipipe.core.autograd import backend
from minipipe.nn import arena as arenas
from minipipe.nn.arena import Arena, Block
from minipipe.optim import runs
from minipipe.optim.runs import Run, Walk, side_by_side
from tests.launch import covering
from tests.numerics.two_layouts import (
    CHANGES,
    DTYPES,
    RULES,
    STEPS,
    Inherited,
    Training,
    compare,
)

# Now and then no parameter at all has a gradient, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:optimiser.step")
some_dtypes = st.lists(st.sampled_from(sorted(DTYPES)), min_size=1, max_size=2)
FULL = "all_have_gradients"


@pytest.mark.parametrize(("rule", "dtype"), covering(RULES, DTYPES, strength=1))
def test_every_rule_leaves_the_bits_of_an_update_one_by_one(rule, dtype):
    for act in STEPS:
        compare(rule, [dtype], [FULL, act, act, FULL])
        compare(rule, [dtype], [act, "make_arena", FULL, FULL])


@given(
    st.sampled_from(sorted(RULES)),
    some_dtypes,
    st.lists(
        st.sampled_from(STEPS) | st.sampled_from(CHANGES), min_size=2, max_size=12
    ),
    st.integers(0, 2**32 - 1),
)
def test_nobody_can_tell_who_has_an_arena(rule, dtypes, acts, seed):
    compare(rule, dtypes, acts, seed)


# -- that it is done, and how often ----------------------------------------------------


def updates_of(training, monkeypatch, act):
    """Return the number of elements of each update of a step."""
    sizes, kind = [], type(training.optimiser)
    update = kind._update

    def noting(self, data, gradient, state, group):
        sizes.append(data.size)
        update(self, data, gradient, state, group)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "_update", noting)
        getattr(training, act)(np.random.default_rng(0))
    return sizes


@pytest.mark.parametrize(
    ("rule", "dtypes", "num_updates"),
    [
        ("SGD", ["float32"], 1),
        ("Adam", ["float16"], 1),
        ("AdamW", ["float32", "float64"], 2),
        ("averaged", ["float64"], 1),
        ("halves of a list", ["float32"], 2),
        ("turned", ["float32"], 1),
        ("two groups", ["float32"], 7),  # no two neighbours are in one group
        ("normed", ["float32"], 7),
        ("inherited", ["float32"], 7),
    ],
)
def test_one_update_for_each_run(rule, dtypes, num_updates, monkeypatch):
    training = Training(rule, dtypes, has_arena=True)
    for _ in range(3):
        assert len(updates_of(training, monkeypatch, FULL)) == num_updates


@pytest.mark.parametrize("is_frozen", [False, True])
def test_an_arena_that_is_made_between_steps_is_noticed(is_frozen, monkeypatch):
    training = Training("SGD", ["float32"], has_arena=True)
    training.arena.close()
    training.arena = None
    training.parameters[0].requires_grad = not is_frozen
    before = len(updates_of(training, monkeypatch, FULL))
    training.make_arena(None)
    assert (before, len(updates_of(training, monkeypatch, FULL))) == (7 - is_frozen, 1)
    training.parameters[2].load(np.ones((), np.float32), "p")
    assert len(updates_of(training, monkeypatch, FULL)) == 1
    training.parameters[2].data = np.ones((), np.float32)
    assert len(updates_of(training, monkeypatch, FULL)) == 7 - is_frozen
    training.make_arena(None)
    assert len(updates_of(training, monkeypatch, FULL)) == 1


def test_a_step_in_which_some_have_none_goes_one_by_one_and_the_next_does_not(
    monkeypatch,
):
    training = Training("SGD, momentum", ["float32"], has_arena=True)
    acts = [FULL, "the_same_have_none", FULL, FULL]
    assert [len(updates_of(training, monkeypatch, act)) for act in acts] == [1, 5, 1, 1]


def test_those_that_missed_a_step_count_their_own_from_then_on(monkeypatch):
    training = Training("Adam", ["float32"], has_arena=True)
    acts = [FULL, "the_same_have_none", FULL, FULL]
    # A | b | C D | e | F G
    assert [len(updates_of(training, monkeypatch, act)) for act in acts] == [1, 5, 5, 5]


def test_runs_that_never_have_gradients_together_are_separate(monkeypatch):
    training = Training("AdamW", ["float32"], has_arena=True)
    acts = ["the_same_have_none"] * 3
    assert [len(updates_of(training, monkeypatch, act)) for act in acts] == [3, 3, 3]


def test_steps_with_other_gradients_do_not_copy_the_state(monkeypatch):
    training = Training("Adam", ["float32"], has_arena=True)
    getattr(training, FULL)(np.random.default_rng(0))
    # still alive, but the gradients are others
    training.arena, arena = None, training.arena
    getattr(training, FULL)(np.random.default_rng(0))
    kept = [
        id(array)
        for state in training.optimiser._states.values()
        for array in state.values()
        if np.ndim(array)
    ]
    planned = []
    monkeypatch.setattr(runs, "_kind", lambda *given: planned.append(given))
    for _ in range(3):
        getattr(training, FULL)(np.random.default_rng(0))
    assert not planned and arena.is_intact()
    now = [
        id(array)
        for state in training.optimiser._states.values()
        for array in state.values()
        if np.ndim(array)
    ]
    assert now == kept


def test_the_state_of_each_parameter_is_a_view_of_one_array():
    training = Training("AdamW", ["float32"], has_arena=True)
    getattr(training, FULL)(np.random.default_rng(0))
    bases = {
        id(state[name].base)
        for state in training.optimiser._states.values()
        for name in ("mean", "mean_square")
    }
    assert len(bases) == 2


def test_tied_parameters_may_have_their_sum_in_an_arena(monkeypatch):
    weight, bias = nn.Parameter(np.ones((4, 4))), nn.Parameter(np.ones(4))
    other_use = weight.alias()
    arena = Arena([weight, bias])
    for gradient in arena.gradients:
        gradient[...] = 1
    arena.assign_gradients()
    assert weight.grad is arena.gradients[0] is other_use.grad
    optimiser = optim.SGD([weight, bias], 0.5)
    optimiser.step()
    assert (weight.data == 0.5).all() and (bias.data == 0.5).all()
    weight.grad_of_use(0)[...] = 2
    # another use has a gradient of its own: the sum is another array
    other_use.node.grad = np.ones((4, 4))
    optimiser.step()
    assert (weight.data == -1).all() and (bias.data == 0).all()
    assert weight.node.changed == other_use.node.changed > 0


def test_runs_are_parameters_that_follow_each_other_and_have_a_kind_in_common():
    a, b, c, d, e = [nn.Parameter(np.ones(4)) for _ in range(5)]
    kept = c.data
    # c stays where it is, so that b and d follow each other
    arena = Arena([a, b, c, d, e])
    states = {id(p): {"count": int(p is e)} for p in (a, b, c, d, e)}
    lists = [
        [p for p in (a, b, c, d, e) if p in run]
        for run in side_by_side([d, a, b, c, e], states)
    ]
    assert sorted(map(len, lists)) == [1, 1, 3] and [a, b, d] in lists
    states[id(e)]["count"] = 0
    assert sorted(map(len, side_by_side([a, d, e], states))) == [1, 2]
    states[id(b)]["master"] = kept
    assert sorted(map(len, side_by_side([a, b, d, e], states))) == [1, 1, 2]
    del states[id(b)]["master"]
    states[id(b)]["list"] = []
    assert sorted(map(len, side_by_side([a, b, d, e], states))) == [1, 1, 2]
    arena.close()
    assert len(side_by_side([a, b, d, e], states)) == 4


def test_a_gap_repeats_the_element_before_it():
    parameters = [nn.Parameter(np.ones(length, np.float32)) for length in (3, 5, 2)]
    arena = Arena(parameters)
    for number, gradient in enumerate(arena.gradients):
        gradient[...] = number + 1
    arena.assign_gradients()
    run = Run(parameters, {id(p): {} for p in parameters})
    assert run.grad.tolist() == [1] * 4 + [2] * 8 + [3] * 2
    parameters[0].data[...] = 9
    assert run.data.tolist() == [9] * 4 + [1] * 10


# -- mutants: each of these must be noticed --------------------------------------------


def remade_as_a_whole(self, one, gradient, state, group):
    """Make the master values of all neighbours again if those of one parameter were
    changed by hand.
    """
    data, master = one.data, state.pop("master", None)
    if master is None or not (master.astype(data.dtype) == data).all():
        master = data.astype(np.float32)
    self._update(master, backend.as_array(gradient, np.float32), state, group)
    data[...] = state["master"] = master


def without_new_walks(self, state, load=optim.Optimiser.load_state_dict):
    """Load a state, and go on with the arrays that were joined before."""
    walks = dict(self._walks)
    load(self, state)
    self._walks = walks


def walks_of_all_groups(self, parameters):
    """Keep the walks over groups that are not trained any more."""
    walk = self._walks[id(parameters)] = Walk(parameters, self._states)
    return walk.units(parameters)


VALUES = ("has_values", "has_all")  # both look
MUTANTS = {
    "a gap has any element": (
        Run,
        "_filled",
        lambda self, array: array,
        "sign",
        [FULL],
    ),
    "numbers stay in the run": (
        Run,
        "_hand_out",
        lambda self, name, value: None,
        "Adam",
        [FULL],
    ),
    "a change is not noted": (
        Run,
        "note_change",
        lambda self, order: None,
        "SGD",
        [FULL],
    ),
    "gradients are not looked at": (
        Block,
        "has_all",
        Block.has_values,
        "SGD",
        [FULL, "the_same_have_none"],
    ),
    "values are not looked at": (
        Block,
        VALUES,
        (lambda *_: True, Block.has_gradients),
        "SGD",
        [FULL, "replace", FULL],
    ),
    "a divided run goes on": (
        Run,
        "is_divided",
        property(lambda self: False, lambda self, value: None),
        "Adam",
        [FULL, "the_same_have_none", FULL],
    ),
    "all are of one kind": (
        runs,
        "_kind",
        lambda *_: 0,
        "Adam",
        [FULL, "the_same_have_none", FULL],
    ),
    "all values are moved": (
        *(arenas, "_references", lambda p: arenas._references_of_one()[0]),
        *(
            "SGD",
            ["close", "load_values", "load_values", "keep_values", "make_arena", FULL],
        ),
    ),
    "kept gradients are written": (
        Arena,
        "gradients_are_free",
        lambda self: True,
        "SGD",
        [FULL] * 20,
    ),
    "an alias is overlooked": (
        Arena,
        "close",
        lambda self: None,
        "SGD",
        ["alias", FULL],
    ),
    "masters are made again for all": (
        *(optim.Optimiser, "_update_half", remade_as_a_whole),
        *("SGD", [FULL, FULL, "change_in_place", FULL, FULL]),
    ),
    "the state of objects is shared": (
        runs.copy,
        "deepcopy",
        lambda value: value,
        "counting",
        [FULL, "some_have_none"],
    ),
    "a state that was loaded is not used": (
        *(optim.Optimiser, "load_state_dict", without_new_walks),
        *("Adam", [FULL, "save", FULL, "restore_state", FULL]),
    ),
    "groups of earlier steps go on": (
        *(optim.Optimiser, "_new_units", walks_of_all_groups),
        *("SGD, momentum", [FULL, "regroup", FULL, "regroup", FULL]),
    ),
    "a rule inherits that it is elementwise": (
        Inherited,
        "is_elementwise",
        True,
        "inherited",
        [FULL],
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name, monkeypatch):
    owner, attribute, mutated, rule, acts = MUTANTS[name]
    dtype = "float16" if "masters" in name else "float32"
    compare(rule, [dtype], acts)
    if isinstance(attribute, str):
        attribute, mutated = [attribute], [mutated]
    for each in zip(attribute, mutated):
        # an attribute of objects has none of its class
        monkeypatch.setattr(owner, *each, raising=False)
    with pytest.raises((AssertionError, FloatingPointError)):
        compare(rule, [dtype], acts)
