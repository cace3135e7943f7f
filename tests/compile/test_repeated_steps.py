"""Steps like the last one: one printed function, or an ordinary step."""

import gc
import sys
import weakref

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, optim, spawn
from minipipe.errors import NotFiniteError
from tests.launch import slowly

WIDTH, ROWS, STEPS = 3, 8, 9


def layers():
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    ).initialise(0)


def batches():
    random = np.random.default_rng(0)
    shape = STEPS, ROWS, WIDTH
    return [random.normal(size=shape).astype(np.float32) for _ in range(2)]


def plainly(pipeline, x, y):
    return pipeline.step(x, y)


def of_fewer_rows(pipeline, x, y):
    return pipeline.step(x[:6], y[:6])


def in_float64(pipeline, x, y):
    return pipeline.step(x.astype(np.float64), y)


def with_other_strides(pipeline, x, y):
    return pipeline.step(np.asfortranarray(x), y)


def of_lists(pipeline, x, y):
    return pipeline.step(x.tolist(), y.tolist())


def with_a_scale(pipeline, x, y):
    return pipeline.step(x, y, scale=4.0)


def with_a_metric(pipeline, x, y):
    error = {"error": lambda outputs, targets: abs(outputs - targets).max()}
    return pipeline.step(x, y, metrics=error)


def with_outputs(pipeline, x, y):
    return pipeline.step(x, y, outputs="everywhere")


def without_waiting(pipeline, x, y):
    return pipeline.step(x, y, wait=False).wait()


def without_waiting_for_long(pipeline, x, y):
    pipeline.step(x, y, wait=False)
    return 0.0


def accumulating(pipeline, x, y):
    pipeline.step(x, y)
    return pipeline.step(x, y, accumulate=True)


def after_an_evaluation(pipeline, x, y):
    pipeline.eval()
    pipeline.evaluate(x, y)
    pipeline.train()
    return pipeline.step(x, y)


def after_another_number(pipeline, x, y):
    pipeline.num_steps += 5
    return pipeline.step(x, y)


CALLS = [
    *(plainly, of_fewer_rows, in_float64, with_other_strides, of_lists, with_a_scale),
    *(with_a_metric, with_outputs, without_waiting, without_waiting_for_long),
    *(accumulating, after_an_evaluation, after_another_number),
]


def train(group, compiled, call, schedule="1f1b"):
    """Return everything that steps leave; every third one is made in another way."""
    options = {"loss": nn.MSELoss(), "num_microbatches": 2, "schedule": schedule}
    pipeline = Pipeline(layers(), group, compile=compiled, **options)
    rule, found = optim.Adam(pipeline.parameters(), 0.1), []
    for step, (x, y) in enumerate(zip(*batches())):
        loss = (call if step % 3 == 0 and step > 3 else plainly)(pipeline, x, y)
        found.append((float(loss), getattr(loss, "losses", ())))
        found.append([p.grad.tobytes() for p in pipeline.parameters()])
        rule.step()
    pipeline.wait()
    state = pipeline.state_dict()
    return found, {name: value.tobytes() for name, value in state.items()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("num_ranks", [slowly(1), 2])
def test_a_call_unlike_the_last_has_the_bits_of_an_eager_one(call, num_ranks):
    eager = spawn(lambda group: train(group, False, call), num_ranks)
    assert spawn(lambda group: train(group, True, call), num_ranks) == eager


def test_another_call_between_steps_is_not_taken_for_one():
    """Ranks without inputs see a smaller batch only once all have compared the call."""

    def run(group, compiled):
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": compiled}
        pipeline = Pipeline(layers(), group, **options)
        rule, found = optim.SGD(pipeline.parameters(), 0.1), []
        scale = optim.LossScale(2.0, growth_interval=100)
        sizes = [ROWS] * 4 + [ROWS - 2] * 3 + [ROWS] * 2
        for (x, y), size in zip(zip(*batches()), sizes, strict=True):
            found.append(pipeline.step(x[:size], y[:size], scale=scale.value))
            if pipeline.unscale_gradients(scale):
                rule.step()
            found.append([p.grad.tobytes() for p in pipeline.parameters()])
        return found

    eager = spawn(lambda group: run(group, False), 3)
    assert spawn(lambda group: run(group, True), 3) == eager


def test_the_printed_step_has_the_instructions_of_the_row():
    def sources(group, check):
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": True}
        pipeline = Pipeline(layers(), group, check_finite=check, **options)
        x, y = batches()
        for _ in range(3):
            pipeline.step(x[0], y[0])
        return pipeline.source()

    for check in ("stop", "off"):
        for rank, text in enumerate(spawn(lambda group: sources(group, check), 2)):
            step = text[text.index("def step(pipeline, inputs, targets, scale):") :]
            parts = [f"# rank {rank} of 1f1b", "calls.agree(", "program.run(rank)"]
            parts += ["finite.first_not_finite()"] * (check == "stop")
            parts += ["exchange(", "loss = BatchLoss("]
            places = [step.index(part) for part in parts]
            assert places == sorted(places)
            assert ("finite" in step) == (check == "stop")


def test_further_instructions_of_a_row_call_their_handlers():
    """Of tied weights, whose gradients are added up behind the schedule."""

    def run(group, compiled):
        inner = nn.Linear(WIDTH, WIDTH)
        tied = nn.Sequential(inner, nn.Linear(WIDTH, WIDTH), inner).initialise(0)
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": compiled}
        pipeline = Pipeline(tied, group, **options)
        rule, found = optim.SGD(pipeline.parameters(), 0.1), []
        for x, y in zip(*batches()):
            found.append(pipeline.step(x, y))
            found.append([p.grad.tobytes() for p in pipeline.parameters()])
            rule.step()
        return found, pipeline.source()

    eager = spawn(lambda group: run(group, False), 2)
    compiled = spawn(lambda group: run(group, True), 2)
    assert [found for found, _ in compiled] == [found for found, _ in eager]
    for _, text in compiled:
        assert (
            "reduce_tied(rank, "
            in text[text.index("def step(pipeline, inputs, targets, scale):") :]
        )


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_repeated_step_that_fails_leaves_what_an_eager_one_leaves(num_ranks):
    """Its number counts, its times do not, and the next step goes on."""

    def run(group, compiled):
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": compiled}
        pipeline = Pipeline(layers(), group, **options)
        rule, found = optim.SGD(pipeline.parameters(), 0.1), []
        for step, (x, y) in enumerate(zip(*batches())):
            y = np.where(step == 5, np.inf, y).astype(np.float32)
            try:
                found.append(pipeline.step(x, y))
                rule.step()
            except NotFiniteError as error:
                found += [error.code, str(error)]
            kept = [p.grad is None for p in pipeline.parameters()]
            found += [pipeline.num_steps, kept, len(pipeline._steps.records)]
        return found

    eager = spawn(lambda group: run(group, False), num_ranks)
    assert spawn(lambda group: run(group, True), num_ranks) == eager


@pytest.mark.parametrize(
    "rule", [slowly("momentum"), slowly("nesterov"), "adamw", "two groups"]
)
def test_updates_between_repeated_steps_have_the_bits_of_eager_ones(rule):
    """With clipping, a loss scale and a learning rate that changes."""

    def optimiser_of(parameters):
        if rule == "adamw":
            return optim.AdamW(parameters, 0.1)
        if rule == "two groups":
            groups = [{"parameters": parameters[::2]}, {"parameters": parameters[1::2]}]
            return optim.SGD([*groups], 0.1, momentum=0.5)
        return optim.SGD(parameters, 0.1, momentum=0.5, nesterov=rule == "nesterov")

    def run(group, compiled):
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": compiled}
        pipeline = Pipeline(layers(), group, **options)
        own = optimiser_of([*pipeline.parameters()])
        rates = optim.LearningRateSchedule(own, optim.cosine(STEPS, warmup_steps=2))
        scale, found = optim.LossScale(8.0, growth_interval=2), []
        for x, y in zip(*batches()):
            found.append(pipeline.step(x, y, scale=scale.value))
            if pipeline.unscale_gradients(scale):
                found.append(pipeline.clip_grad_norm(0.5))
                own.step()
            rates.step()
        arrays = [
            value for state in own.state_dict()["states"] for value in state.values()
        ]
        found += [np.asarray(each).tobytes() for each in arrays]
        return found, {n: v.tobytes() for n, v in pipeline.state_dict().items()}

    eager = spawn(lambda group: run(group, False), 2)
    assert spawn(lambda group: run(group, True), 2) == eager


def test_a_repeated_step_holds_no_batch_after_it():
    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": True}
        pipeline = Pipeline(layers(), group, **options)
        for _ in range(6):
            x, y = (each[0].copy() for each in batches())
            references = [weakref.ref(x), weakref.ref(y)]
            pipeline.step(x, y)
            del x, y
        gc.collect()
        assert [each() for each in references] == [None, None]


def test_a_repeated_step_calls_few_functions():
    """Thirty-four, with its sections and the step of the optimiser; NumPy's vary."""
    calls = []

    def note(frame, event, argument):
        if event == "call" and "numpy" not in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "num_microbatches": 4, "compile": True}
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        pipeline = Pipeline(model.initialise(0), group, **options)
        rule = optim.SGD(pipeline.parameters(), 0.1)
        x, y = batches()
        for step in range(6):
            if step == 5:
                sys.setprofile(note)
            pipeline.step(x[step], y[step][:, :1])
            rule.step()
        sys.setprofile(None)
    assert len(calls) <= 36, (len(calls), calls)
