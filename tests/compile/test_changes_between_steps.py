"""A change between steps has the effect on compiled steps that it has on eager ones."""

import gc
from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, init_process_group, nn, optim
from minipipe.errors import MinipipeError, ModelError
from minipipe.execution.objective import BatchObjective

WIDTH, NUM_STEPS, CHANGED = 4, 10, 5


class Factor:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Scaled(nn.Module):
    """Multiplies by the value of an object that is no module."""

    is_compilable = True

    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x * float(self.factor.value)


class Masked(nn.Module):
    """Reads an array that it holds, outside of the program."""

    not_trained = ("mask",)

    is_compilable = True

    def __init__(self):
        self.mask = np.ones(WIDTH, np.float32)

    def forward(self, x):
        return x * float(self.mask.sum())


class Twice(nn.Module):
    """Contributes to its weight twice."""

    is_compilable = True

    def __init__(self):
        self.weight = nn.Parameter((WIDTH, WIDTH), nn.initialisers.he_uniform(WIDTH))

    def forward(self, x):
        return functional.tanh(x @ self.weight) @ self.weight


def layers():
    middle = Scaled(Factor(2.0)), Masked(), nn.ReLU(), nn.Dropout(0.5), Twice()
    last = nn.Linear(WIDTH, WIDTH), nn.GELU()
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle, *last)


def parts_of(pipeline, kind):
    modules = (
        part for stage in pipeline._stages.values() for part in stage.module.modules()
    )
    return [part for part in modules if isinstance(part, kind)]


def trained(how, change=None, model=layers, group=None, **options):
    """Return what some steps leave, and the pipeline; change it before one of them."""
    if group is None:
        with init_process_group() as alone:
            return trained(how, change, model, alone, **options)
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, **options}
    pipeline, found = Pipeline(model(), group, compile=how, **options), []
    optimiser = optim.SGD(pipeline.parameters(), 0.01)
    random = np.random.default_rng(0)
    for step in range(NUM_STEPS):
        if step == CHANGED and change is not None:
            change(pipeline)
        x = random.normal(size=(12, WIDTH)).astype(np.float32)
        found.append(pipeline.step(x, x[:, ::-1].copy()))
        for parameter in pipeline.parameters():
            gradient = parameter.grad
            found.append(None if gradient is None else gradient.tobytes())
        optimiser.step()
    return found, pipeline


def another_object(pipeline):
    """Replace an object, if possible by one with the same id."""
    (part,) = parts_of(pipeline, Scaled)
    number, part.factor = id(part.factor), None
    gc.collect()
    others = [Factor(3.0) for _ in range(1000)]
    part.factor = next((each for each in others if id(each) == number), others[0])


def another_value(pipeline):
    parts_of(pipeline, Scaled)[0].factor.value = 3.0


def another_mask(pipeline):
    parts_of(pipeline, Masked)[0].mask[0] = 0


def another_probability(pipeline):
    parts_of(pipeline, nn.Dropout)[0].probability = 0.25


def another_mode(pipeline):
    pipeline.eval()


def another_loss(pipeline):
    """Replace the loss, if possible by one with the same id."""
    number, pipeline._objective = id(pipeline._objective.args[0]), None
    gc.collect()
    others = [nn.MSELoss("sum") for _ in range(1000)]
    loss = next((each for each in others if id(each) == number), others[0])
    pipeline._objective = partial(BatchObjective, loss, None)


def freeze_some(pipeline):
    for parameter in list(pipeline.parameters())[::2]:
        parameter.requires_grad = False


def another_array(pipeline):
    for parameter in pipeline.parameters():
        parameter.data = np.array(parameter.data * 2, order="F")


def other_values(pipeline):
    for parameter in pipeline.parameters():
        parameter.data[...] *= 2


def another_state(pipeline):
    state = pipeline.state_dict()
    pipeline.load_state_dict({name: 2 * values for name, values in state.items()})


def true_for_one(pipeline):
    parts_of(pipeline, Scaled)[0].factor.value = True


def another_step(pipeline):
    pipeline.num_steps = 100


EFFECTIVE = [
    *(another_object, another_value, another_mask, another_probability, another_mode),
    *(another_loss, freeze_some, another_array, other_values, another_state),
    *(true_for_one, another_step),
]


@pytest.mark.parametrize("change", EFFECTIVE)
def test_a_change_between_steps_has_its_effect(change):
    compiled, pipeline = trained(True, change)
    assert compiled == trained(False, change)[0]
    assert compiled != trained(False)[0]
    assert pipeline.compile_report() == "step: stage 0 is compiled"


def test_the_guards_of_a_program_keep_the_objects_that_they_compare():
    """Otherwise another object might get the id of the old one."""
    _, pipeline = trained(True)
    (part,) = parts_of(pipeline, Scaled)
    factor, part.factor = part.factor, None
    holders = gc.get_referrers(factor)
    assert any(each is factor for one in holders for each in gc.get_referents(one))
    assert pipeline.compile_report() == "step: stage 0 is compiled"


class Called(nn.Module):
    """Calls a function that it holds, of which only the identity can be compared."""

    is_compilable = True

    def __init__(self):
        self.function = None

    def forward(self, x):
        return self.function(x)


def called_with_two_functions(how):
    """Return the losses of a function, and of one with its id if nothing keeps it."""
    with init_process_group() as group:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Called())
        options = {"loss": nn.MSELoss(), "num_microbatches": 1, "compile": how}
        pipeline = Pipeline(model, group, **options)
        (part,) = parts_of(pipeline, Called)
        random, losses, number = np.random.default_rng(0), [], None
        for factor in (2, 3):
            part.function = None
            gc.collect()
            others = [lambda x, factor=factor: x * factor for _ in range(1000)]
            same = (each for each in others if id(each) == number)
            part.function = next(same, others[0])
            number = id(part.function)
            del others
            for _ in range(5):
                x = random.normal(size=(3, WIDTH)).astype(np.float32)
                losses.append(pipeline.step(x, x))
        expected = "step: stage 0 is compiled"
        assert not how or pipeline.compile_report() == expected
        return losses


def test_a_new_function_with_the_id_of_the_old_one_is_another_function():
    assert called_with_two_functions(True) == called_with_two_functions(False)


class Apart(nn.Module):
    """A loss of two named targets."""

    is_compilable = True

    def forward(self, outputs, targets):
        second = targets["second"] * 2
        return ((outputs - targets["first"]) * (outputs - second)).mean()


def weight_of(targets):
    return len(targets["first"])


def test_targets_in_another_order_are_a_batch_of_another_form():
    def run(how):
        with init_process_group() as group:
            model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            options = {"loss": Apart(), "loss_weight": weight_of, "num_microbatches": 2}
            pipeline = Pipeline(model, group, compile=how, **options)
            random, losses = np.random.default_rng(0), []
            one, other = ("first", "second"), ("second", "first")
            for names in (*4 * [one], *4 * [other], one):
                x, *arrays = random.normal(size=(3, 8, WIDTH)).astype(np.float32)
                losses.append(pipeline.step(x, dict(zip(names, arrays))))
            expected = "step: stage 0 is compiled"
            assert not how or pipeline.compile_report() == expected
            return losses

    assert run(True) == run(False)


class Draws(nn.Module):
    is_compilable = True

    def __init__(self):
        self.numbers = iter(range(1000))

    def forward(self, x):
        return x * float(next(self.numbers))


class Counts(nn.Module):
    is_compilable = True

    def __init__(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * float(self.calls % 3)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [(Draws, "may change unnoticed"), (Counts, "sets an attribute")],
)
def test_a_layer_whose_state_cannot_be_compared_is_refused_or_runs_eagerly(
    layer, reason
):
    def model():
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer())

    compiled, pipeline = trained("where-possible", model=model)
    assert compiled == trained(False, model=model)[0]
    assert reason in pipeline.compile_report()
    with pytest.raises(ModelError, match=reason):
        trained(True, model=model)


def failing(how, wrong):
    """Return the error of a step with a label that does not exist."""
    with init_process_group() as group:
        layers = nn.Embedding(5, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 5)
        model = nn.Sequential(*layers)
        options = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 2}
        pipeline = Pipeline(model, group, compile=how, **options)
        for step in range(6):
            ids = np.random.default_rng(step).integers(0, 5, 8)
            labels = np.arange(8) % 5
            if step == 5:
                expected = "step: stage 0 is compiled"
                assert not how or pipeline.compile_report() == expected
                (ids if wrong == "inputs" else labels)[-1] = 7
            try:
                pipeline.step(ids, labels)
            except MinipipeError as error:
                return str(error), error.__notes__


@pytest.mark.parametrize("wrong", ["inputs", "labels"])
def test_an_error_in_a_compiled_step_names_layer_microbatch_and_action(wrong):
    """The story: dropout had no random numbers when the layers computed again."""
    message, notes = failing(True, wrong)
    assert (message, notes) == failing(False, wrong)
    assert wrong == "labels" or any("in layer 0" in note for note in notes)
    assert any("microbatch 1, action 0F1" in note for note in notes)


class Fails(nn.Module):
    """Not compiled, and fails in one of its calls."""

    def __init__(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 11:
            raise RuntimeError("the eleventh call")
        return x


def test_an_error_of_an_eager_layer_is_raised_once():
    """The story: it was computed again, as if it were compiled, on other arrays."""

    def run(how):
        layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), Fails()
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "chunks_per_rank": 2}
        with init_process_group() as group:
            options |= {"compile": how, "schedule": "interleaved-1f1b"}
            pipeline = Pipeline(nn.Sequential(*layers), group, **options)
            x = np.ones((4, WIDTH), np.float32)
            for _ in range(5):
                pipeline.step(x, x)
            with pytest.raises(RuntimeError, match="the eleventh call") as caught:
                pipeline.step(x, x)
        return caught.value.__notes__

    assert run("where-possible") == run(False)


def test_measurements_between_compiled_steps_change_nothing():
    def run(how):
        with init_process_group() as group:
            options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": how}
            pipeline = Pipeline(layers(), group, **options)
            random, found = np.random.default_rng(0), []
            for step in range(8):
                x = random.normal(size=(8, WIDTH)).astype(np.float32)
                found.append(pipeline.step(x, x))
                if step == 4:
                    pipeline.measure_memory(x, x)
                    pipeline.measure_costs(x, x, num_steps=1)
                    with pytest.raises(MinipipeError):
                        pipeline.measure_memory(x, Tensor(x[:1]))
                pipeline.measures_memory = step == 5
            return found

    assert run(True) == run(False)
