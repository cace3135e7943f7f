"""A small pipeline on thread ranks."""

from minipipe import Pipeline, nn, spawn


def mlp(width=4, linears=4):
    layers = [
        layer for _ in range(linears) for layer in (nn.Linear(width, width), nn.Tanh())
    ]
    return nn.Sequential(*layers, nn.Linear(width, 2))


def on_ranks(num_ranks, act, model=None, **options):
    """Make a pipeline on thread ranks and return what ``act(pipeline)`` gives on
    each.
    """
    model = mlp() if model is None else model
    options = {"num_microbatches": 4, **options}
    return spawn(
        lambda group: act(Pipeline(model, group, loss=nn.MSELoss(), **options)),
        num_ranks,
    )
