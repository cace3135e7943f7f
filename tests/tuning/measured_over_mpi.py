"""All ranks take the partition that rank 0 measured, and train with the bits of one
process. Run under mpirun.
"""

import numpy as np

from minipipe import Pipeline, init_process_group, nn
from minipipe.testing import one_process_step, same_bits


def model():
    embedding = nn.Embedding(31, 16)
    blocks = [nn.TransformerBlock(16, 2, is_causal=True, dropout=0.1) for _ in range(5)]
    return nn.Sequential(
        embedding, *blocks, nn.LayerNorm(16), nn.Unembedding(embedding)
    )


def main():
    ids = np.random.default_rng(0).integers(0, 31, (8, 6))
    with init_process_group(timeout=30) as group:
        for schedule in ("1f1b", "zb-v"):
            sample = (ids, ids) if group.rank == 0 else None
            options = {
                "loss": nn.CrossEntropyLoss(),
                "schedule": schedule,
                "num_microbatches": 4,
                "seed": 2,
            }
            pipeline = Pipeline(
                model(), group, partition="measured", sample=sample, **options
            )
            ends = np.array([part.stop for part in pipeline.partition])
            assert all(np.array_equal(other, ends) for other in group.all_gather(ends))
            expected = one_process_step(
                model().initialise(2), nn.CrossEntropyLoss(), ids, ids, 4, seed=2
            )
            assert pipeline.step(ids, ids) == expected.loss
            for name, parameter in pipeline.named_parameters():
                assert same_bits(parameter.grad, expected.gradients[name]), name
        print("one partition", flush=True)


if __name__ == "__main__":
    main()
