"""A small language model with a tied embedding, trained in one process and on ranks.
For test_shared_parameters.py.
"""

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim
from minipipe.core.comm.host import limit_blas_threads
from minipipe.testing import one_process_step
from tests.strategies import build

SYMBOLS, WIDTH, LENGTH, NUM_STEPS = 13, 8, 5, 5


def language_model(is_tied=True, wrap=lambda layer: layer):
    """Return ten layers, of which the first and the last share their matrix."""
    embedding = nn.Embedding(SYMBOLS, WIDTH, nn.initialisers.normal(0.3))
    return nn.Sequential(
        wrap(embedding),
        nn.PositionalEmbedding(LENGTH, WIDTH),
        *(
            nn.TransformerBlock(WIDTH, 2, is_causal=True, hidden=9, dropout=0.1)
            for _ in range(5)
        ),
        nn.Linear(WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
        wrap(nn.Unembedding(embedding))
        if is_tied
        else nn.Linear(WIDTH, SYMBOLS, bias=False),
    )


def text(step):
    """Return symbols of shape (n, t), and the symbol after each."""
    symbols = np.random.default_rng(step).integers(0, SYMBOLS, (9, LENGTH + 1))
    return symbols[:, :-1], symbols[:, 1:]


def optimiser_of(parameters):
    return optim.AdamW(parameters, learning_rate=0.02, weight_decay=0.1)


def train_alone(num_microbatches, **options):
    """Return the losses of five steps in one process, and the values after them."""
    with limit_blas_threads(1):
        model = language_model(**options).initialise(0)
        optimiser, losses = optimiser_of(model.parameters()), []
        for step in range(NUM_STEPS):
            done = one_process_step(
                model,
                nn.CrossEntropyLoss(),
                *text(step),
                num_microbatches,
                seed=0,
                step=step,
            )
            losses.append(done.loss)
            optimiser.step()
        return losses, model.state_dict()


def train_on(group, schedule, recompute=False, **options):
    """Return the losses of five steps on this rank, its own values after them, and
    those of the whole model.
    """
    pipeline = Pipeline(
        language_model(**options),
        group,
        loss=nn.CrossEntropyLoss(),
        schedule=schedule,
        layer_costs=[1] * 10,
        recompute=recompute,
    )
    optimiser, losses = optimiser_of(pipeline.parameters()), []
    for step in range(NUM_STEPS):
        losses.append(pipeline.step(*text(step)))
        optimiser.step()
    return (
        losses,
        {name: p.numpy() for name, p in pipeline.named_parameters()},
        pipeline.state_dict(),
    )


if __name__ == "__main__":
    with init_process_group(timeout=30) as group:
        losses, own, whole = train_on(group, build("zb-h1", group.size, 4))
        assert all(np.array_equal(value, whole[name]) for name, value in own.items())
        lines = group.all_gather(
            np.array([*losses, float(np.abs(whole["0.weight"]).sum())])
        )
        if group.rank == 0:
            for line in lines:
                print(repr(([float(loss) for loss in line[:-1]], float(line[-1]))))
