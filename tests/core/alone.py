"""A program that trains an MLP with the core alone: see test_alone.py.

``python alone.py one|threads|mpi`` prints, as JSON, the bits of a training under each
schedule of the core, and the modules of minipipe that it has loaded.
"""

import hashlib
import json
import sys
import zlib
from time import perf_counter
from types import SimpleNamespace

import numpy as np
from minipipe.core.autograd.backend import clock_of
from minipipe.core.comm.launch import init_process_group, spawn
from minipipe.core.errors import ScheduleError
from minipipe.core.framing import all_gradients, framing_kind, with_rank_kind
from minipipe.core.nn.basic import Identity, Linear, ReLU, Tanh
from minipipe.core.nn.losses import CrossEntropyLoss, MSELoss
from minipipe.core.nn.sequential import Sequential
from minipipe.core.pipeline import Pipeline
from minipipe.core.schedules.action import Action
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.analysis.verifier import verify
from minipipe.core.schedules.fill_drain import gpipe
from minipipe.core.schedules.interleaved import interleaved_1f1b
from minipipe.core.schedules.one_f_one_b import one_f_one_b
from minipipe.core.schedules.zero_bubble import zb_h1
from minipipe.core.sgd import SGD
from minipipe.core.simulation import simulate
from minipipe.core.values import KINDS, Uses

BUILDERS = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved-1f1b": interleaved_1f1b,
    "zb-h1": zb_h1,
}
NUM_MICROBATCHES = 4
NUM_STEPS = 3
_RANDOM = np.random.default_rng(0)
INPUTS = _RANDOM.normal(size=(10, 6))
TARGETS = _RANDOM.normal(size=(10, 3))
LABELS = np.arange(10) % 3


def model():
    """Return an MLP of nine layers."""
    middle = [
        layer
        for _ in range(3)
        for layer in (Linear(8, 8), Tanh(), Linear(8, 8), ReLU())
    ]
    return Sequential(Linear(6, 8), Identity(), *middle, Linear(8, 3))


def sgd(parameters):
    """Return the optimiser of a training."""
    return SGD(parameters, learning_rate=0.1, momentum=0.9)


LOSSES = {
    "mse": (MSELoss(), TARGETS),
    "cross-entropy": (CrossEntropyLoss(), LABELS),
    "noise": (MSELoss(), TARGETS),  # on the gradients, by a kind of this program
}


# -- a kind that is not of the core ----------------------------------------------------


def noise(site):
    """NOISE reads the gradients of all stages of its rank."""
    return Uses(reads=all_gradients(site))


NOISE = framing_kind("NOISE", noise, "noise on the gradients")


def with_noise(program):
    """A pass: return a program in which each rank adds noise before its updates."""
    if program.is_forward_only:
        return program
    return with_rank_kind(program, "NOISE", range(program.num_ranks), before="U")


def add_noise(named_parameters, step):
    """Add noise to the gradients, whatever the rank of a parameter."""
    for name, parameter in named_parameters:
        random = np.random.default_rng([step, zlib.crc32(name.encode())])
        noise = random.normal(scale=0.01, size=parameter.shape)
        parameter.grad = parameter.grad + noise.astype(parameter.dtype)


def run_noise(executor, action):
    """Run a NOISE."""
    for stage in executor.stages.values():
        add_noise(stage.parameters.items(), executor.batch.training_step)


NOISY = {"passes": [with_noise], "handlers": {"NOISE": run_noise}}


def bits(losses, state, evaluated, outputs):
    """Return the results of a training as text that tells all bits."""
    digest = hashlib.sha256()
    for name, values in state.items():
        digest.update(name.encode() + values.tobytes())
    digest.update(outputs.tobytes())
    return [*map(float.hex, (*losses, evaluated)), digest.hexdigest()]


def train(group, schedule, loss):
    """Return the bits of a training on a rank."""
    function, targets = LOSSES[loss]
    seams = NOISY if loss == "noise" else {}
    pipeline = Pipeline(model(), group, schedule, function, optimiser=sgd, **seams)
    losses = [pipeline.step(INPUTS, targets) for _ in range(NUM_STEPS)]
    evaluated = pipeline.evaluate(INPUTS, targets)
    return bits(losses, pipeline.state_dict(), evaluated, pipeline.predict(INPUTS))


def check_refusals():
    """Check that what other packages would explain is refused with the core's code."""
    try:
        Action.parse("0G0")
    except ScheduleError as error:
        assert error.code == "syntax", error
        return
    raise AssertionError("0G0 is no action")


class Event:
    """An event of a device, which comes to it a second after the host."""

    def record(self):
        self.time = perf_counter() + 1
        self.is_over = False

    def synchronize(self):
        self.is_over = True


def elapsed(begin, end):
    """Return milliseconds, of events that are over."""
    assert begin.is_over and end.is_over
    return 1000 * (end.time - begin.time)


def check_times():
    """Check that work of a module with events is timed, and its launch is not."""
    cuda = SimpleNamespace(Event=Event, get_elapsed_time=elapsed)
    now = clock_of(SimpleNamespace(cuda=cuda))
    begin, end = now(), now()
    assert not begin.event.is_over and not end.event.is_over
    begin.event.time -= 2.5
    assert abs(float(end) - float(begin) - 2.5) < 0.1
    assert clock_of(np) is perf_counter


def read_back(schedule):
    """Verify, write, read and simulate a schedule; return its times
    and peaks."""
    verify(schedule)
    again = Schedule.from_text(str(schedule), name=schedule.name)
    assert again.actions == schedule.actions
    result = simulate(schedule)
    return [result.makespan, *result.peak_activations]


def main(kind):
    """Print the results of all trainings on one kind of group."""
    num_ranks = 1 if kind == "one" else 4
    results, predicted = {}, {}
    check_refusals()
    check_times()
    KINDS["NOISE"] = NOISE
    for name, build in BUILDERS.items():
        schedule = build(num_ranks, NUM_MICROBATCHES)
        predicted[name] = read_back(schedule)
        for loss in LOSSES:
            if kind != "mpi":
                found = spawn(lambda group: train(group, schedule, loss), num_ranks)
            else:
                found = None
            results[f"{name}, {loss}"] = found
    if kind == "mpi":
        with init_process_group() as group:
            assert group.size == num_ranks
            for name, build in BUILDERS.items():
                schedule = build(num_ranks, NUM_MICROBATCHES)
                for loss in LOSSES:
                    results[f"{name}, {loss}"] = [train(group, schedule, loss)]
            is_printed = group.rank == 0
    else:
        is_printed = True
    loaded = sorted(
        name for name in sys.modules if name.partition(".")[0] == "minipipe"
    )
    if is_printed:
        print(json.dumps([results, predicted, loaded]))


if __name__ == "__main__":
    main(sys.argv[1])
