"""So many steps of awkward models with every schedule; rank 0 prints every loss in
full. For test_same_bits.py.
"""

import sys

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim, schedules, simulate
from tests.strategies import (
    NAMES,
    ColumnMajor,
    Pooled,
    Summed,
    Turned,
    UsedTwice,
    WeightSide,
    batch,
    split_backward,
    v_shaped,
)

MICROBATCHES = 8  # enough for the steady phase of every schedule on four ranks


def model():
    return nn.Sequential(
        *(
            nn.Linear(6, 6),
            ColumnMajor(6),
            nn.Linear(6, 6),
            Turned(2, 3),
            nn.Linear(2, 4),
            nn.Tanh(),
            Pooled(),
        ),
        *(
            UsedTwice(4),
            nn.ReLU(),
            WeightSide(4),
            nn.Linear(4, 8),
            Turned(4, 2),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        *(Summed(), nn.Linear(1, 5), nn.Sigmoid(), nn.Linear(5, 2)),
    )


def losses(group, schedule):
    pipeline = Pipeline(
        model(),
        group,
        loss=nn.MSELoss(),
        schedule=schedule,
        num_microbatches=MICROBATCHES,
        layer_costs=[1] * 18,
        seed=5,
    )
    optimiser = optim.SGD(pipeline.parameters(), 0.02, momentum=0.9, weight_decay=1e-3)
    for step in range(int(sys.argv[1])):
        inputs, targets = batch(10 + step % 3, 6, seed=step)
        is_first, is_last = (
            0 in pipeline.local_stages,
            pipeline.num_stages - 1 in pipeline.local_stages,
        )
        yield pipeline.step(inputs if is_first else None, targets if is_last else None)
        optimiser.step()
    check_timeline(pipeline)
    yield float(np.abs(pipeline.predict(inputs)).sum())
    yield sum(float(np.abs(value).sum()) for value in pipeline.state_dict().values())


def check_timeline(pipeline):
    """What was recorded is what was predicted: the actions of each rank in order, and
    the most that it held.
    """
    measured, predicted = pipeline.timeline(), simulate(pipeline.schedule)
    for rank in range(measured.num_ranks):
        assert [s.action for s in measured.spans[rank]] == [
            s.action for s in predicted.spans[rank]
        ], rank
    assert measured.peak_activations == predicted.peak_activations


if __name__ == "__main__":
    with init_process_group(timeout=30) as group:
        for name in (*NAMES, "split", "v"):
            schedule = name
            if name == "split":
                schedule = split_backward(
                    schedules.one_f_one_b(group.size, MICROBATCHES), delay=2
                )
            if name == "v":
                schedule = v_shaped(group.size, MICROBATCHES)
            for value in losses(group, schedule):
                if group.rank == 0:
                    print(name, repr(value))
