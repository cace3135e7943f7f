"""Nested bundles, and masks, over cuts between MPI ranks, there and back. Run under
mpirun.
"""

import itertools

import numpy as np

from minipipe import Pipeline, init_process_group, nn
from minipipe.testing import one_process_step, same_bits
from tests.pipeline.test_bundles import model, square_of_all
from tests.pipeline.test_transformers import sentences, translator


def nested():
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((7, 2)).astype(np.float32) for _ in range(5)]
    return {"a": arrays[0], "b": (arrays[1], [arrays[2]])}, (
        arrays[3],
        {"y": arrays[4]},
    )


def main():
    cases = (
        (model, square_of_all, nested()),
        # truth values and whole numbers
        (translator, nn.CrossEntropyLoss(ignore_index=-100), sentences(7)),
    )
    with init_process_group(timeout=30) as group:
        for (make, loss, (inputs, targets)), schedule in itertools.product(
            cases, ("gpipe", "zb-v")
        ):
            expected = one_process_step(make().initialise(0), loss, inputs, targets, 3)
            pipeline = Pipeline(
                make(), group, loss=loss, schedule=schedule, num_microbatches=3
            )
            assert pipeline.step(inputs, targets) == expected.loss
            for name, parameter in pipeline.named_parameters():
                assert same_bits(parameter.grad, expected.gradients[name]), name
        print("the same bits", flush=True)


if __name__ == "__main__":
    main()
