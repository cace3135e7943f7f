"""A small training that is saved, broken and restored, and what of it must be the same
bits.
"""

import numpy as np

from minipipe import Pipeline, checkpoint, nn, optim
from minipipe.pipeline.checkpoint.state import take

INPUTS, TARGETS = np.random.default_rng(1).standard_normal((2, 8, 4)).astype(np.float32)
EXTRA = {"epoch": 3, "position": [1, 2], "best": 0.1}


def model():
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 4))


def pipeline_of(group, seed=0):
    pipeline = Pipeline(
        model(), group, loss=nn.MSELoss(), num_microbatches=4, seed=seed
    )
    return pipeline, optim.Adam(pipeline.parameters(), 0.01)


def train(pipeline, optimiser, num_steps=1):
    for _ in range(num_steps):
        pipeline.step(INPUTS, TARGETS)
        optimiser.step()


def bits(pipeline, **optimisers):
    """Return all that the next steps depend on, of this rank, in a form that can be
    compared.
    """
    own = [name for name, _ in pipeline.named_parameters()]
    arrays, told = take(pipeline, optimisers, own)
    return (
        {
            key: (array.tobytes(), array.dtype, array.shape)
            for key, array in arrays.items()
        },
        told,
        pipeline.num_steps,
    )


def scramble(pipeline, optimiser):
    """Change all of it, so that nothing can be right by chance."""
    for parameter in pipeline.parameters():
        parameter.data[...] = 9
    for state in optimiser._states.values():
        state.clear()
    # a change on the way, not another script
    optimiser.first = [group.hyper_parameters for group in optimiser.groups]
    optimiser.learning_rate, optimiser.history, pipeline.num_steps = 0.5, (88, 0), 77


def save_two(group, folder, seed=0):
    """Train and save two checkpoints; return the pipeline, the optimiser, and the bits
    of both by their step.
    """
    pipeline, optimiser = pipeline_of(group, seed)
    saved = {}
    for step in (1, 2):
        train(pipeline, optimiser)
        checkpoint.save(folder, pipeline, optimiser, step=step, extra=EXTRA)
        saved[step] = bits(pipeline, optimiser=optimiser)
    return pipeline, optimiser, saved
