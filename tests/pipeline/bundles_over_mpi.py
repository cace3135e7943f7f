"""Nested bundles over cuts between MPI ranks, there and back. Run under mpirun."""

import numpy as np

from minipipe import Pipeline, init_process_group
from minipipe.testing import one_process_step, same_bits
from tests.pipeline.test_bundles import model, square_of_all


def main():
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((7, 2)).astype(np.float32) for _ in range(5)]
    inputs, targets = {"a": arrays[0], "b": (arrays[1], [arrays[2]])}, (arrays[3], {"y": arrays[4]})
    with init_process_group(timeout=30) as group:
        for schedule in ("gpipe", "zb-v"):
            expected = one_process_step(model().initialise(0), square_of_all, inputs, targets, 3)
            pipeline = Pipeline(model(), group, loss=square_of_all, schedule=schedule, num_microbatches=3)
            assert pipeline.step(inputs, targets) == expected.loss
            for name, parameter in pipeline.named_parameters():
                assert same_bits(parameter.grad, expected.gradients[name]), name
        print("the same bits", flush=True)


if __name__ == "__main__":
    main()
