"""Every public class is copied and pickled with all that it holds, or refuses in words
that say what to do instead.
"""

import copy
import pickle
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np
import pytest

from minipipe import (
    Pipeline,
    Tensor,
    checkpoint,
    comm,
    errors,
    functional,
    nn,
    optim,
    pipeline,
    schedules,
)
from minipipe.autograd import Leaf, Node, StageInput
from minipipe.comm import ProcessGroup
from minipipe.core.autograd.backend import is_array
from minipipe.coursework import Task
from minipipe.errors import MinipipeError
from minipipe.execution import BatchLoss
from tests.launch import for_each
from tests.nn.one_of_each import (
    ABSTRACT,
    COPIED,
    OPTIMISERS,
    OTHERWISE,
    OVER_RANKS,
    REFUSED,
    leaf,
    pending,
    public_classes,
    trained,
    weight_work,
)


def test_every_public_class_is_in_a_table():
    listed = {
        *ABSTRACT,
        *OVER_RANKS,
        *OPTIMISERS,
        *REFUSED,
        *OTHERWISE,
        *(kind for kind, _ in COPIED),
    }
    assert {
        name for kind, name in public_classes().items() if kind not in listed
    } == set()
    assert all(name in globals() for name in OTHERWISE.values())


# -- all that something holds, as what can be compared ---------------------------------


ATOMS = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    type,
    ModuleType,
    PurePath,
    range,
    slice,
    np.dtype,
    ProcessGroup,
)
FROZEN = (tuple, partial, frozenset)  # whether two are one or equal makes no difference


def contents(value, seen=None):
    """Return all that a value holds, arrays by their bytes; a part that is met again,
    by its number.
    """
    seen = {} if seen is None else seen
    if isinstance(value, ATOMS) and not isinstance(value, BatchLoss):
        return repr(value) if isinstance(value, float) else value  # NaN, too
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return value
    if id(value) in seen:
        return "again", seen[id(value)][0]
    if not isinstance(value, FROZEN) and not (
        is_dataclass(value) and type(value).__dataclass_params__.frozen
    ):
        # kept, so that no other value gets its identity
        seen[id(value)] = len(seen), value
    if is_array(value):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, MethodType):
        return value.__func__, contents(value.__self__, seen)
    return type(value), [contents(part, seen) for part in parts_of(value)]


def parts_of(value):
    """Yield everything directly inside of a value."""
    if isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, dict):
        for item in value.items():
            yield from item
    elif isinstance(value, tuple | list | set | frozenset):
        yield from (
            sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        )
    elif isinstance(value, float | str):
        yield value.hex() if isinstance(value, float) else str(value)
    if isinstance(value, nn.Parameter):
        yield from (
            value.use,
            value.requires_grad,
            value.owner.__getstate__() if value.owner is value else value.owner,
        )
    elif isinstance(value, Tensor):
        yield from (value.data, value.requires_grad, value.grad)
    elif isinstance(value, schedules.Schedule | schedules.Program | optim.Optimiser):
        yield value.__getstate__()
    elif isinstance(value, BaseException):
        yield from (str(value), value.args)
    elif is_dataclass(value):  # not what it keeps of properties that were asked for
        yield from (getattr(value, field.name) for field in fields(value))
    elif not isinstance(value, tuple | list | dict | set | frozenset | partial):
        yield from object_attributes(value)


def object_attributes(value):
    names = [
        name
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", ())
        if name[:2] != "__"
    ]
    yield from (getattr(value, name, None) for name in names)
    yield from (item for item in getattr(value, "__dict__", {}).items())


# -- the laws --------------------------------------------------------------------------


def pickled(value):
    return pickle.loads(pickle.dumps(value))


DEEP = {"deepcopy": copy.deepcopy, "pickle": pickled}
of_values = pytest.mark.parametrize(
    ("kind", "make"), COPIED, ids=lambda value: getattr(value, "__name__", "")
)


@for_each(way=list(DEEP))
@of_values
def test_a_deep_copy_and_a_pickle_hold_all_that_the_value_holds(kind, make, way):
    value = make()
    assert isinstance(value, kind)
    before = contents(value)
    twin = DEEP[way](value)
    assert type(twin) is type(value) and contents(twin) == before == contents(value)
    if isinstance(value, nn.Module | Tensor):
        assert repr(twin) == repr(value) and twin is not value


@of_values
def test_a_shallow_copy_holds_the_very_same_parts(kind, make):
    value = make()
    twin = copy.copy(value)
    if isinstance(value, nn.Parameter):
        assert twin.owner is value and twin.data is value.data  # another use of it
    else:
        assert type(twin) is type(value) and contents(twin) == contents(value)
    if isinstance(value, nn.Module):
        assert list(map(id, twin.parameters())) == list(map(id, value.parameters()))


@pytest.mark.parametrize("kind", OVER_RANKS)
def test_copies_share_a_group_of_ranks_and_a_pickle_of_it_is_refused(kind):
    value = OVER_RANKS[kind]()
    for way in (copy.copy, copy.deepcopy):
        assert contents(way(value)) == contents(value)
    with pytest.raises(
        MinipipeError,
        match=r"OneRankGroup cannot be copied or pickled: it is rank 0 of 1",
    ) as caught:
        pickle.dumps(value)
    assert caught.value.code == "not-copyable" and "init_process_group()" in str(
        caught.value
    )


@pytest.mark.parametrize("way", DEEP)
@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_copy_of_an_optimiser_has_parameters_and_state_of_its_own(kind, way):
    optimiser = OPTIMISERS[kind]()
    before = contents(optimiser.state_dict())
    twin = DEEP[way](optimiser)
    assert contents(twin) == contents(optimiser)
    assert contents(twin.state_dict()) == before
    for one, other in zip(optimiser.parameters, twin.parameters, strict=True):
        assert not np.shares_memory(one.data, other.data)
        other.grad = np.ones(other.shape, np.float32)
    twin.step()
    assert contents(optimiser.state_dict()) == before
    assert all(
        (one.data != other.data).all()
        for one, other in zip(optimiser.parameters, twin.parameters)
    )


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_shallow_copy_of_an_optimiser_is_refused(kind):
    with pytest.raises(
        errors.ModelError, match=r"copy\.deepcopy\(\(model, optimiser\)\)"
    ):
        copy.copy(OPTIMISERS[kind]())


WORDS = {
    Pipeline: (
        "A Pipeline cannot be copied or pickled: .* load_state_dict.* checkpoint.save"
    ),
    pipeline.Stage: "A RecomputingStage cannot .* copy.deepcopy",
    checkpoint.BackgroundSaver: "A BackgroundSaver cannot be copied or pickled: .* Make a new one",
    comm.Request: "A Receive cannot be copied or pickled: .* wait",
    Task: "A Task cannot be copied or pickled: .* student's process",
    Node: "A (Watched)?Node belongs to its graph, and .* x.detach",
    Leaf: "A Leaf belongs to its graph, .* copy.deepcopy",
    StageInput: "A StageInput belongs to its graph",
}


@for_each(way=[copy.copy, *DEEP.values()])
@for_each(kind=list(REFUSED))
def test_what_is_no_value_refuses_in_words(kind, way):
    value = REFUSED[kind]()
    assert isinstance(value, kind)
    with pytest.raises(MinipipeError, match=WORDS[kind]) as caught:
        way(value)
    assert caught.value.code == "not-copyable"


@pytest.mark.parametrize("way", DEEP)
def test_a_graph_is_not_copied(way):
    x = leaf()
    for value in (x * 2, weight_work(), [x, x.sum()], {"x": functional.relu(x)}):
        with pytest.raises(errors.TensorError, match="graph") as caught:
            DEEP[way](value)
        assert caught.value.code == "not-copyable"
    assert contents(DEEP[way]((x * 2).detach())) == contents((x * 2).detach())


@pytest.mark.parametrize("way", [copy.copy, *DEEP.values()])
def test_a_pending_loss_becomes_its_number(way):
    loss = pending()
    assert type(way(loss)) is float and way(loss) == float(loss)


def test_a_shallow_copy_of_a_learning_rate_schedule_sets_the_same_optimiser():
    optimiser = trained(optim.SGD)
    twin = copy.copy(optim.LearningRateSchedule(optimiser, optim.linear(4)))
    twin.step()
    assert optimiser.learning_rate == 0.75 * 0.25 and twin.last_step == 1
