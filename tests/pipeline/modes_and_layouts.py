"""Layouts of a training over ranks, modes of a step, and which of them exclude each
other: the tables of a matrix.
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np

from minipipe import Grid, Pipeline, nn, optim, schedules, watch_everything
from minipipe.core.schedules.action import U

NUM_STEPS, NUM_SAMPLES, LENGTH, WIDTH, CLASSES = 3, 8, 4, 6, 8
X = np.random.default_rng(0).standard_normal((NUM_STEPS, NUM_SAMPLES, LENGTH, WIDTH))
Y = np.random.default_rng(1).integers(0, CLASSES, (NUM_STEPS, NUM_SAMPLES, LENGTH))


# -- layouts ---------------------------------------------------------------------------


class Layout(NamedTuple):
    """How many ranks, the schedule, their grid if they have one, options of the
    pipeline, ``stash`` of its runs.
    """

    num_ranks: int
    schedule: Any
    grid: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    stash: bool | None = None

    @property
    def is_asynchronous(self):
        return U in self.schedule.kinds


SLICED = schedules.seq1f1b(1, 4, num_slices=2)
HALF_OF_THE_MICROBATCHES = schedules.gpipe(1, 2)  # of each of two replicas
LAYOUTS = {
    "one rank": Layout(1, schedules.gpipe(1, 4)),
    "1f1b": Layout(2, schedules.one_f_one_b(2, 4)),
    "zb-h1": Layout(2, schedules.zb_h1(2, 4)),
    "interleaved": Layout(2, schedules.interleaved_1f1b(2, 4, 2)),
    "replicas": Layout(2, HALF_OF_THE_MICROBATCHES, options={"replicas": 2}),
    "data": Layout(2, HALF_OF_THE_MICROBATCHES, {"data": 2}),
    "pipeline and data": Layout(4, schedules.zb_h1(2, 2), {"pipeline": 2, "data": 2}),
    "tensor": Layout(2, schedules.zb_h1(1, 4), {"tensor": 2}),
    "fully sharded": Layout(
        2, HALF_OF_THE_MICROBATCHES, {"data": 2, "fully_sharded": True}
    ),
    "fully sharded stages": Layout(
        4, schedules.zb_h1(2, 2), {"pipeline": 2, "data": 2, "fully_sharded": True}
    ),
    "fully sharded parts": Layout(
        4, HALF_OF_THE_MICROBATCHES, {"data": 2, "tensor": 2, "fully_sharded": True}
    ),
    "slices": Layout(2, schedules.seq1f1b(2, 4, num_slices=2)),
    "slices of replicas": Layout(
        2, schedules.seq1f1b(1, 2, num_slices=2), options={"replicas": 2}
    ),
    "pipedream": Layout(2, schedules.pipedream(2, 12)),
    "two-buffered": Layout(2, schedules.two_buffered(2, 12, 4)),
    "paci": Layout(2, schedules.paci(2, 12), stash=False),
    "two-buffered replicas": Layout(
        4, schedules.two_buffered(2, 6, 2), options={"replicas": 2}
    ),
    "two-buffered parts": Layout(
        4, schedules.two_buffered(2, 12, 4), {"pipeline": 2, "tensor": 2}
    ),
}
# Layouts that are none, and what their error says.
NO_LAYOUTS = {
    "slices of fully sharded": (
        Layout(2, SLICED, {"data": 2, "fully_sharded": True}),
        (
            r"Grid\(fully_sharded=True\), is not supported by a schedule that "
            r"divides sequences into slices"
        ),
    ),
    "slices of parts": (
        Layout(2, SLICED, {"tensor": 2}),
        (
            r"Grid\(tensor=…\), is not supported by a schedule that divides "
            r"sequences into slices"
        ),
    ),
    "versions of fully sharded": (
        Layout(
            4,
            schedules.two_buffered(2, 6, 2),
            {"pipeline": 2, "data": 2, "fully_sharded": True},
        ),
        (
            "2bw, 2 replicas keeps versions of weights, but a fully sharded replica "
            "keeps a shard"
        ),
    ),
}


# -- modes -----------------------------------------------------------------------------


class Mode(NamedTuple):
    """What one mode changes, and whether it adds numbers, or changes those of the
    training.
    """

    options: dict[str, Any] = {}
    schedule: Callable[[Any], Any] = lambda schedule: schedule
    layer: Callable[[nn.Module], nn.Module] = lambda layer: layer
    step: dict[str, Any] = {}
    around: Callable[[], Any] = nullcontext
    before: Callable[..., Any] = lambda pipeline, x, y, note: None
    after: Callable[..., Any] = lambda pipeline, x, y, note: None
    adds: bool = False


def accuracy(outputs, targets):
    return float((outputs.argmax(-1) == targets).mean())


def measure_bytes(pipeline, x, y, note):
    pipeline.measures_memory = True


def measure_memory(pipeline, x, y, note):
    pipeline.measure_memory(x, y)


def measure_costs(pipeline, x, y, note):
    pipeline.measure_costs(x, y, num_steps=1)


def evaluate(pipeline, x, y, note):
    note("evaluation", float(pipeline.evaluate(x, y)))
    note("prediction", pipeline.predict(x))


def add_another(pipeline, x, y, note):
    note("another loss", float(pipeline.step(x[::-1], y[::-1], accumulate=True)))


def clip(pipeline, x, y, note):
    note("norm", pipeline.clip_grad_norm(0.1))


def take_input_gradients(pipeline, x, y, note):
    note("input gradients", pipeline.input_gradients)


MODES = {
    "watch": Mode(around=watch_everything),
    "measures_memory": Mode(before=measure_bytes),
    "measure_memory": Mode(before=measure_memory),
    "measure_costs": Mode(before=measure_costs),
    "recompute": Mode(options={"recompute": True}),
    "nn.Recompute": Mode(layer=nn.Recompute),
    "R": Mode(schedule=schedules.recomputed),
    "offload": Mode(schedule=lambda schedule: schedules.offloaded(schedule, 1)),
    "stacked": Mode(options={"stack_weight_gradients": True}),
    "compile": Mode(options={"compile": "where-possible"}),
    "check_finite": Mode(options={"check_finite": "off"}),
    "wait": Mode(step={"wait": False}),
    "outputs": Mode(step={"outputs": True}, adds=True),
    "everywhere": Mode(step={"outputs": "everywhere"}, adds=True),
    "metrics": Mode(step={"metrics": {"accuracy": accuracy}}, adds=True),
    "scale": Mode(step={"scale": 0.5}, adds=True),
    "accumulate": Mode(after=add_another, adds=True),
    "clip": Mode(after=clip, adds=True),
    "evaluate": Mode(before=evaluate, adds=True),
    "inputs_require_grad": Mode(
        options={"inputs_require_grad": True}, after=take_input_gradients, adds=True
    ),
}
OF_STEPS = ("wait", "outputs", "everywhere", "metrics", "scale", "accumulate", "clip")
RECOMPUTING = ("recompute", "nn.Recompute", "R")


def exclusion(layout, mode):
    """Return what the error says if a mode does not go with a layout; empty if it
    does.
    """
    schedule = LAYOUTS[layout].schedule
    if schedule.num_slices > 1:
        words = {
            "recompute": (
                "recompute=True is not supported by a schedule that divides sequences"
            ),
            "nn.Recompute": "nn.Recompute is not supported by a schedule that divides sequences",
            "R": "An R is not supported by a schedule that divides sequences",
            "offload": "has slices, whose keys and values later slices need",
            "inputs_require_grad": (
                "inputs_require_grad=True is not supported by a schedule that "
                "divides sequences"
            ),
        }
        return words.get(mode, "")
    if LAYOUTS[layout].is_asynchronous and mode in OF_STEPS:
        return "updates weights itself.* Train with pipeline.run"
    if LAYOUTS[layout].is_asynchronous and mode == "inputs_require_grad":
        return "inputs_require_grad=True does not work with"
    if layout == "paci" and mode in RECOMPUTING:
        return (
            "Recomputation with newer weights than the forward gives different "
            "activations"
        )
    return ""


# -- a training ------------------------------------------------------------------------


def layers(modes):
    made = [
        nn.Linear(WIDTH, 8, dtype=np.float64),
        nn.TransformerBlock(8, 2, True, dropout=0.2, dtype=np.float64),
        nn.LayerNorm(8, dtype=np.float64),
        nn.Linear(8, CLASSES, dtype=np.float64),
    ]
    for mode in modes:
        made[:2] = map(mode.layer, made[:2])
    return nn.Sequential(*made)


def trained(group, layout, names):
    """Return the numbers of a training by name: losses, values, and what the modes
    add.
    """
    modes, schedule = [MODES[name] for name in names], layout.schedule
    options = dict(layout.options)
    for mode in modes:
        schedule = mode.schedule(schedule)
        options |= mode.options
    if layout.grid is not None:
        group = Grid(group, **layout.grid)
    pipeline = Pipeline(
        layers(modes), group, loss=nn.CrossEntropyLoss(), schedule=schedule, **options
    )
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1, momentum=0.9)
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode.around())
        if layout.is_asynchronous:
            found = run(pipeline, optimiser, modes, layout.stash)
        else:
            found = take_steps(pipeline, optimiser, modes)
    pipeline.timeline()
    return found | {
        f"value of {name}": value for name, value in pipeline.state_dict().items()
    }


def run(pipeline, optimiser, modes, stash):
    """Train without flushes. What a mode does in a step it does before the run."""
    found = {}
    for mode in modes:
        if mode.step:
            pipeline.step(X[0], Y[0], **mode.step)
        mode.before(pipeline, *whole_run(), found.__setitem__)
        if mode.after is not take_input_gradients:
            mode.after(pipeline, X[0], Y[0], found.__setitem__)
    losses = pipeline.run(zip(X, Y), optimiser, stash=stash)
    return found | {"losses": list(map(float, losses))}


def whole_run():
    """Return a batch that has a sample for each microbatch of a run."""
    return np.concatenate(X), np.concatenate(Y)


def take_steps(pipeline, optimiser, modes):
    found, losses = {}, []
    asked = {name: value for mode in modes for name, value in mode.step.items()}
    for number, (x, y) in enumerate(zip(X, Y)):

        def note(name, value, number=number):
            if value is not None:
                found[f"{name} of step {number}"] = np.array(value)

        for mode in modes:
            mode.before(pipeline, x, y, note)
        losses.append(pipeline.step(x, y, **asked))
        for mode in modes:
            mode.after(pipeline, x, y, note)
        optimiser.step()
    for number, pending in enumerate(losses):
        loss = pending.wait() if asked.get("wait") is False else pending
        losses[number] = float(loss)
        if loss.outputs is not None:
            found[f"outputs of step {number}"] = loss.outputs
        for name, value in loss.metrics.items():
            found[f"{name} of step {number}"] = value
    return found | {"losses": losses}
