"""All ranks take the choice of rank 0, and train with the bits of one process. Run
under mpirun.
"""

import json

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim
from minipipe.testing import one_process_step, same_bits
from minipipe.tuning import race
from tests.pipeline.small_pipelines import mlp
from tests.strategies import batch


def main():
    race.RACE_SECONDS = 1.0
    inputs, targets = batch(8, 4)
    with init_process_group(timeout=60) as group:
        sample = (inputs, targets) if group.rank == 0 else None
        options = {
            "loss": nn.MSELoss(),
            "schedule": "auto",
            "sample": sample,
            "seed": 2,
            "optimiser": optim.Adam,
        }
        pipeline = Pipeline(mlp(), group, memory_limit="1 MB", **options)
        count = pipeline.schedule.num_microbatches
        expected = one_process_step(
            mlp().initialise(2), nn.MSELoss(), inputs, targets, count, seed=2
        )
        assert pipeline.step(inputs, targets) == expected.loss
        for name, parameter in pipeline.named_parameters():
            assert same_bits(parameter.grad, expected.gradients[name]), name
        assert 'schedule="auto" chose' in str(pipeline)
        said = np.frombuffer(json.dumps(pipeline.advice).encode(), np.uint8)
        assert all(same_bits(said, other) for other in group.all_gather(said))
        print("one choice", flush=True)


if __name__ == "__main__":
    main()
