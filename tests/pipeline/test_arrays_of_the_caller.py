"""Arrays that a caller fills again right after a call, and results that a caller
overwrites: neither changes a number.

Each case trains twice, undisturbed and with such changes (``disturbs``), and returns
what it found.
"""

import warnings
from copy import deepcopy

import numpy as np
import pytest

from minipipe import (
    Microbatches,
    Pipeline,
    Replicated,
    checkpoint,
    data,
    nn,
    optim,
    spawn,
)
from tests.launch import for_each, mpirun, needs_mpi, slowly

NUM_BATCHES = 6  # so many that compiled steps are among them
RANDOM = np.random.default_rng(44)
X = RANDOM.normal(size=(NUM_BATCHES, 8, 4)).astype(np.float32)
Y = RANDOM.normal(size=(NUM_BATCHES, 8, 2)).astype(np.float32)
WITHOUT_FLUSHES = ("pipedream", "2bw", "vertical-sync", "paci")


def made(group, **options):
    layers = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)]
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, **options}
    return Pipeline(nn.Sequential(*layers), group, **options)


def overwrite(given):
    """Fill all arrays in something with NaN."""
    if isinstance(given, np.ndarray):
        given[...] = np.nan if given.dtype.kind == "f" else 0
    elif isinstance(given, dict):
        overwrite(list(given.values()))
    elif isinstance(given, list | tuple | Microbatches):
        for part in given:
            overwrite(part)


def refilled(parts, disturbs, given=lambda *arrays: arrays):
    """Yield ``given`` of the arrays of each part: new arrays, or one that is filled
    again and again.
    """
    buffers = [np.empty_like(array) for array in parts[0]]
    for part in parts:
        for buffer, array in zip(buffers, part):
            buffer[...] = array
        yield given(*(buffers if disturbs else map(np.array, part)))


class Refilling(list):
    """A list whose iterator does so."""

    def __init__(self, *given):
        super().__init__(given[0])
        self._given = given

    def __iter__(self):
        return refilled(*self._given)


# -- what a call is given --------------------------------------------------------------


def steps(group, disturbs, wait=True, schedule="1f1b"):
    pipeline, losses = made(group, schedule=schedule), []
    optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.1)
    for x, y in zip(X.copy(), Y.copy()):
        losses.append(pipeline.step(x, y, wait=wait))
        if disturbs:
            overwrite([x, y])
        optimiser.step()
    return list(map(float, losses)), pipeline.state_dict()


def runs(
    group, disturbs, schedule="pipedream", given=lambda *arrays: arrays, read=refilled
):
    pipeline = made(group, schedule=schedule)
    batches = read(list(zip(X, Y)), disturbs, given)
    losses = pipeline.run(batches, optim.SGD(pipeline.parameters(), learning_rate=0.1))
    return list(losses), pipeline.state_dict()


def in_microbatches(x, y):
    return Microbatches(np.split(x, 4)), Microbatches(np.split(y, 4))


class Sum(nn.Module):
    def forward(self, given):
        return given["x"] + given["shift"]


def runs_of_bundles(group, disturbs):
    model = nn.Sequential(Sum(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), num_microbatches=4, schedule="2bw"
    )
    parts = [(x, y, x[0]) for x, y in zip(X, Y)]
    batches = refilled(
        parts, disturbs, lambda x, y, shift: ({"x": x, "shift": Replicated(shift)}, y)
    )
    losses = pipeline.run(batches, optim.SGD(pipeline.parameters(), learning_rate=0.1))
    return list(losses), pipeline.state_dict()


def microbatches_of_a_generator(group, disturbs):
    pipeline, losses = made(group), []
    for x, y in zip(X, Y):
        given = (
            refilled(
                [(part,) for part in np.split(whole, 4)], disturbs, lambda part: part
            )
            for whole in (x, y)
        )
        losses.append(pipeline.step(*map(Microbatches, given)))
    return losses, [parameter.grad for parameter in pipeline.parameters()]


def gradient_of_a_function(group, disturbs):
    pipeline, buffer = (
        made(group, schedule="gpipe", loss=None),
        np.empty((2, 2), np.float32),
    )

    def gradient(outputs):
        buffer[...] = 0.5 * outputs
        return buffer if disturbs else buffer.copy()

    for x in X:
        pipeline.forward_backward(x, gradient)
    return [parameter.grad for parameter in pipeline.parameters()]


def gradient_as_an_array(group, disturbs):
    pipeline, found = made(group, loss=None, inputs_require_grad=True), []
    for x, y in zip(X.copy(), Y.copy()):
        outputs = pipeline.forward_backward(x, y)
        if disturbs:
            overwrite([x, y])
        found.append((outputs, pipeline.input_gradients))
    return found, [parameter.grad for parameter in pipeline.parameters()]


def loaded_values(group, disturbs):
    pipeline = made(group)
    state = {
        name: np.full_like(value, 0.5) for name, value in pipeline.state_dict().items()
    }
    pipeline.load_state_dict(state)
    if disturbs:
        overwrite(state)
    return pipeline.state_dict()


def values_of_the_model(group, disturbs):
    values, model = (
        np.full((4, 2), 0.5, np.float32),
        nn.Sequential(nn.Linear(4, 2), nn.Identity()),
    )
    model[0].weight = nn.Parameter(values)
    if disturbs:
        overwrite(values)
    pipeline = Pipeline(model, group, loss=nn.MSELoss())
    if disturbs:
        overwrite(model[0].weight.data)
    return pipeline.step(X[0], Y[0]), pipeline.state_dict()


def state_of_an_optimiser(group, disturbs):
    pipeline = made(group)
    first, second = optim.Adam(pipeline.parameters()), optim.Adam(pipeline.parameters())
    pipeline.step(X[0], Y[0])
    first.step()
    state = first.state_dict()
    second.load_state_dict(state)
    if disturbs:
        overwrite(state["states"])
        state["groups"][0]["learning_rate"] = state["first"][0]["learning_rate"] = 7.0
    second.step()
    first.step()
    return pipeline.state_dict(), first.state_dict(), second.state_dict()


def weights_of_classes(group, disturbs):
    weights = np.array([1.0, 3.0], np.float32)
    loss = nn.CrossEntropyLoss(class_weights=weights)
    if disturbs:
        overwrite(weights)
    return made(group, loss=loss).step(X[0], (Y[0] > 0)[:, 0].astype(int))


def assigned_gradients(group, disturbs):
    """One array as the gradient of two parameters, to which a step adds."""
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    pipeline = Pipeline(
        nn.Sequential(*layers), group, loss=nn.MSELoss(), schedule="gpipe"
    )
    array = np.full((4, 4), 0.5, np.float32)
    for parameter in pipeline.parameters():
        if parameter.shape == array.shape:
            parameter.grad = array if disturbs else array.copy()
    pipeline.step(X[0], X[0], accumulate=True)
    return [parameter.grad for parameter in pipeline.parameters()], array


def kept_by_a_metric(group, disturbs):
    """Return the outputs that a metric saw: copies, or the arrays themselves after
    later steps.
    """
    pipeline, seen = made(group), []

    def keep(outputs, targets):
        seen.append(outputs if disturbs else outputs.copy())
        return 0.0

    for x, y in zip(X.copy(), Y):
        pipeline.step(x, y, metrics={"nothing": keep})
        pipeline.evaluate(x, y, metrics={"nothing": keep})
        if disturbs:
            overwrite(x)
    return seen


def drawn(group, disturbs):
    inputs, found = X[0].copy(), []
    for epoch in range(2):
        for x, _ in data.batches(inputs, None, 4, epoch=epoch):
            found.append(x.copy())
            if disturbs:
                overwrite(x)
    return found, inputs


def saved_in_the_background(group, disturbs, folder):
    pipeline, extra = made(group), {"numbers": np.arange(3.0), "list": [1]}
    optimiser = optim.Adam(pipeline.parameters())
    pipeline.step(X[0], Y[0])
    optimiser.step()
    with checkpoint.BackgroundSaver(
        folder / f"{group.size} {disturbs}", pipeline, optimiser
    ) as saver:
        saver.save(1, extra)
        if disturbs:
            overwrite(
                [
                    extra["numbers"],
                    *(parameter.data for parameter in pipeline.parameters()),
                ]
            )
            extra["list"].append(2)
            overwrite(optimiser.state_dict())
            optimiser.learning_rate = 7.0
            optimiser.step()
    again = made(group)
    restored = checkpoint.restore(
        folder / f"{group.size} {disturbs}",
        again,
        other := optim.Adam(again.parameters()),
    )
    return restored.extra, again.state_dict(), other.state_dict()


def messages(group, disturbs):
    def swapped(array):
        group.send(array, (group.rank + 1) % group.size)
        return group.recv((group.rank - 1) % group.size)

    def of_rank_0(array):
        return group.broadcast(array if group.rank == 0 else None)

    found = []
    for call in (group.all_gather, group.all_reduce, of_rank_0, swapped):
        array = np.arange(3.0) + group.rank
        found.append(call(array))
        if disturbs:
            overwrite(array)
    return found


GIVEN = {
    "step": steps,
    **{
        f"step without waiting, {name}": lambda g, d, name=name: steps(
            g, d, False, name
        )
        for name in ("1f1b", "zb-h1")
    },
    **{
        f"run of {name}": lambda g, d, name=name: runs(g, d, name)
        for name in ("1f1b", *WITHOUT_FLUSHES)
    },
    "run of microbatches": lambda g, d: runs(g, d, given=in_microbatches),
    "run of a subclass of list": lambda g, d: runs(g, d, read=Refilling),
    "run of bundles": runs_of_bundles,
    "Microbatches of a generator": microbatches_of_a_generator,
    "a function for forward_backward": gradient_of_a_function,
    "an array for forward_backward": gradient_as_an_array,
    "load_state_dict": loaded_values,
    "values of parameters": values_of_the_model,
    "state of an optimiser": state_of_an_optimiser,
    "class_weights": weights_of_classes,
    "accumulate after p.grad = q.grad": assigned_gradients,
    "a metric that keeps its arguments": kept_by_a_metric,
    "batches of data": drawn,
    "messages": messages,
}


# -- what a call returns ---------------------------------------------------------------


def results(group, disturbs, call):
    pipeline, found = made(group, inputs_require_grad=True), []
    optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.1)
    for x, y in zip(X, Y):
        result = call(pipeline, x, y)
        found.append(deepcopy(result))
        if disturbs:
            overwrite(result)
        pipeline.step(x, y)
        optimiser.step()
    return [
        list(one) if isinstance(one, Microbatches) else one for one in found
    ], pipeline.state_dict()


def kept_results(group, disturbs, call):
    """Return what the first call returned, after other calls or at once."""
    pipeline = made(group, inputs_require_grad=True)
    for _ in range(NUM_BATCHES):
        pipeline.step(X[0], Y[0])
    result = call(pipeline, X[0], Y[0])
    for x, y in zip(X, Y) if disturbs else ():
        call(pipeline, x, y)
        pipeline.step(x, y, accumulate=True)
    return [list(result) if isinstance(result, Microbatches) else result]


def gradients(pipeline, x, y):
    pipeline.step(x, y)
    return [parameter.grad for parameter in pipeline.parameters()]


def input_gradients(pipeline, x, y):
    pipeline.step(x, y)
    return pipeline.input_gradients


def input_gradients_of_microbatches(pipeline, x, y):
    pipeline.step(*in_microbatches(x, y))
    return pipeline.input_gradients


CALLS = {
    "outputs": lambda pipeline, x, y: pipeline.step(x, y, outputs=True).outputs,
    "outputs everywhere": lambda pipeline, x, y: (
        pipeline.evaluate(x, y, outputs="everywhere").outputs
    ),
    "outputs of microbatches": lambda pipeline, x, y: (
        pipeline.step(*in_microbatches(x, y), outputs=True).outputs
    ),
    "predict": lambda pipeline, x, y: pipeline.predict(x),
    "forward_backward": lambda pipeline, x, y: pipeline.forward_backward(x, y),
    "state_dict": lambda pipeline, x, y: pipeline.state_dict(),
    "gradients": gradients,
    "input_gradients": input_gradients,
    "input_gradients of microbatches": input_gradients_of_microbatches,
}


# -- the theorems ----------------------------------------------------------------------


def assert_undisturbed(case, num_ranks):
    with warnings.catch_warnings():
        # of PACI, which has other last bits than one process
        warnings.simplefilter("ignore")
        expected, found = (
            spawn(lambda group, d=d: case(group, d), num_ranks) for d in (False, True)
        )
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("num_ranks", [slowly(1), 2])
@for_each(name={name: name for name in GIVEN})
def test_an_array_may_be_filled_again_once_the_call_has_returned(name, num_ranks):
    assert_undisturbed(GIVEN[name], num_ranks)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_checkpoint_in_the_background_is_that_of_the_moment_of_the_call(
    num_ranks, tmp_path
):
    assert_undisturbed(
        lambda group, disturbs: saved_in_the_background(group, disturbs, tmp_path),
        num_ranks,
    )


@pytest.mark.parametrize("num_ranks", [slowly(1), 2])
@for_each(name={name: name for name in CALLS})
def test_a_result_that_is_overwritten_changes_no_later_call(name, num_ranks):
    assert_undisturbed(
        lambda group, disturbs: results(group, disturbs, CALLS[name]), num_ranks
    )


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [slowly(1), 2])
@for_each(name={name: name for name in CALLS})
def test_a_result_is_not_changed_by_later_calls(name, num_ranks):
    assert_undisturbed(
        lambda group, disturbs: kept_results(group, disturbs, CALLS[name]), num_ranks
    )


def test_the_arrays_of_a_list_of_batches_are_not_copied():
    """A run over a list takes no memory for a second copy of the data."""
    batches, seen = list(zip(X, Y)), []

    class Look(nn.Module):
        def forward(self, x):
            seen.append(any(np.shares_memory(x.data, given) for given, _ in batches))
            return x

    def act(group):
        pipeline = Pipeline(
            nn.Sequential(Look(), nn.Linear(4, 2)),
            group,
            loss=nn.MSELoss(),
            schedule="pipedream",
        )
        pipeline.run(batches, optim.SGD(pipeline.parameters(), learning_rate=0.1))

    spawn(act, 1)
    assert seen and all(seen)


def test_two_inputs_that_were_added_have_gradients_of_their_own():
    def act(group):
        model = nn.Sequential(Sum(), nn.Linear(4, 2))
        pipeline = Pipeline(
            model,
            group,
            loss=nn.MSELoss(),
            num_microbatches=1,
            inputs_require_grad=True,
        )
        pipeline.step(Microbatches([{"x": X[0], "shift": X[1]}]), Microbatches([Y[0]]))
        return pipeline.input_gradients

    ((found,),) = spawn(act, 1)
    assert np.array_equal(found["x"], found["shift"]) and not np.shares_memory(
        found["x"], found["shift"]
    )


@needs_mpi
@pytest.mark.slow  # in short: test_over_mpi.py
def test_a_large_array_may_be_filled_again_where_ranks_are_processes():
    done = mpirun(2, "-m", "tests.pipeline.refilling_over_mpi")
    assert done.code == 0, done.err
    assert sorted(set(done.out.splitlines())) == ["rank 0: alike", "rank 1: alike"]
