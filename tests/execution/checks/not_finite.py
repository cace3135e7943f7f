"""A layer that makes nan of finite values where it is told to, and who is blamed for
it. For test_finite.py.

mpirun -n 4 python -m tests.execution.checks.not_finite 0 1 2 3
"""

import sys

import numpy as np

from minipipe import Pipeline, init_process_group, nn
from minipipe.core.autograd.modes import current_place
from minipipe.core.tensor import record
from minipipe.errors import NotFiniteError

NUM_MICROBATCHES = 4
X, Y = (
    np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4),
    np.ones((8, 4), np.float32),
)


class Bad(nn.Module):
    """Hands its input on, but for one number in the forward ("F") or the backward ("B")
    of one microbatch.
    """

    def __init__(self, where, microbatch, value=np.nan):
        self.where, self.microbatch, self.value = where, microbatch, value

    def _spoilt(self, array, where, microbatch):
        array = array.copy()
        if (where, microbatch) == (self.where, self.microbatch):
            array[0, 0] = self.value
        return array

    def forward(self, x):
        k = current_place().microbatch
        return record(
            self._spoilt(x.data, "F", k), (x, lambda g: self._spoilt(g, "B", k))
        )


def model(num_stages, bad_stage, where, microbatch, value=np.nan):
    """Return three layers for each stage; the second one of a stage is the bad one."""
    layers = []
    for stage in range(num_stages):
        layers += [
            nn.Linear(4, 4),
            Bad(where, microbatch, value) if stage == bad_stage else nn.Tanh(),
            nn.Linear(4, 4),
        ]
    return nn.Sequential(*layers)


def made(group, layers, **options):
    options = {"num_microbatches": NUM_MICROBATCHES, **options}
    return Pipeline(layers, group, loss=nn.MSELoss(), **options)


def refused(pipeline, inputs=X, targets=Y, **options):
    """Take a step that is not finite; return the code and the sentence. Nothing has
    changed, and nothing is left.
    """
    before = {
        name: parameter.data.tobytes()
        for name, parameter in pipeline.named_parameters()
    }
    try:
        with np.errstate(all="ignore"):
            pipeline.step(inputs, targets, **options)
    except NotFiniteError as error:
        assert before == {
            name: parameter.data.tobytes()
            for name, parameter in pipeline.named_parameters()
        }
        assert all(parameter.grad is None for parameter in pipeline.parameters())
        return str(error.code), str(error)
    raise AssertionError("the step was not refused")


def check_culprit(group, stage, where, microbatch, num_stages=None, **options):
    """Let one layer fail; assert that every rank blames it, with stage, rank,
    microbatch, action and step.
    """
    num_stages = num_stages or group.size
    parts = [range(3 * s, 3 * s + 3) for s in range(num_stages)]
    pipeline = made(
        group, model(num_stages, stage, where, microbatch), partition=parts, **options
    )
    code, sentence = refused(pipeline)
    rank = pipeline.schedule.placement[stage]
    names = {
        str(action)
        for action in pipeline.schedule.actions[rank]
        if action.microbatch == microbatch
    }
    kinds = ["F"] if where == "F" else ["B", "I"]
    (action,) = (
        name for kind in kinds if (name := f"{stage}{kind}{microbatch}") in names
    )
    did = (
        "returned nan for finite inputs"
        if where == "F"
        else "returned nan in the gradient of its input, for a"
    )
    place = f"on rank {rank}, stage {stage}, microbatch {microbatch}, action {action}."
    assert code == {"F": "forward", "B": "backward"}[where]
    assert sentence.startswith(f"Step 1: layer {3 * stage + 1}, Bad(), {did}"), sentence
    assert (
        f"{place} No parameter was changed: every rank has stopped before the update."
        in sentence
    ), sentence


def main():
    with init_process_group(timeout=20) as group:
        for stage in range(group.size):
            for where in "FB":
                for microbatch in map(int, sys.argv[1:]):
                    check_culprit(group, stage, where, microbatch)
                    if group.rank == 0:
                        print(stage, where, microbatch)


if __name__ == "__main__":
    main()
