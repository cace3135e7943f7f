"""A language model's padded batch over MPI ranks: the mean over tokens, whatever the
microbatches. Run under mpirun.
"""

import numpy as np

from minipipe import Pipeline, init_process_group, nn
from minipipe.testing import one_process_step, same_bits


def model():
    layers = [nn.Linear(6, 6, dtype=np.float64), nn.Tanh()] * 3
    return nn.Sequential(
        nn.Embedding(9, 6, dtype=np.float64), *layers, nn.Linear(6, 9, dtype=np.float64)
    )


def main():
    generator = np.random.default_rng(0)
    tokens, labels = generator.integers(0, 9, (2, 12, 7))
    for row, length in zip(labels, generator.integers(1, 8, 12)):
        row[length:] = -100
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    whole = one_process_step(model().initialise(0), loss, tokens, labels, 1)
    with init_process_group(timeout=30) as group:
        for schedule, m in (("1f1b", 5), ("zb-h1", 12), ("gpipe", 1)):
            pipeline = Pipeline(
                model(), group, loss=loss, schedule=schedule, num_microbatches=m
            )
            cut = one_process_step(model().initialise(0), loss, tokens, labels, m)
            found = pipeline.step(tokens, labels)
            assert found == cut.loss and abs(found - whole.loss) < 1e-12
            for name, parameter in pipeline.named_parameters():
                assert same_bits(parameter.grad, cut.gradients[name]), name
                np.testing.assert_allclose(
                    parameter.grad, whole.gradients[name], rtol=1e-10, atol=1e-13
                )
        print("the same mean", flush=True)


if __name__ == "__main__":
    main()
