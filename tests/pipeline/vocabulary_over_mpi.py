"""Training with a divided vocabulary, and without. As a program it prints how far they
are apart; with the argument "gain", what the busiest rank gains.
"""

import sys
from time import process_time

import numpy as np

from minipipe import Pipeline, init_process_group, nn, optim

BOTH = ["vocabulary", "vocabulary-one-barrier"]
WORDS = 48
X = np.random.default_rng(0).standard_normal((12, 3, 6))
Y = np.random.default_rng(1).integers(0, WORDS, (12, 3))
Y[::3, 1:] = -100


def model(width=6, words=WORDS, dtype=np.float64):
    body = []
    for _ in range(4):
        body += [nn.Linear(width, width, dtype=dtype), nn.Tanh()]
    return nn.Sequential(*body, nn.Sequential(nn.Linear(width, words, dtype=dtype)))


def made(group, how, reduction="mean", **options):
    if how is not None:
        options["partition"] = how
    loss = nn.CrossEntropyLoss(ignore_index=-100, reduction=reduction)
    options = {"loss": loss, "num_microbatches": 4, **options}
    return Pipeline(options.pop("model", None) or model(), group, **options)


def train(group, how, reduction="mean", **options):
    """Return losses, norms and values of some steps with Adam."""
    pipeline = made(group, how, reduction, **options)
    optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
    numbers = []
    for _ in range(2):
        numbers += [float(pipeline.step(X, Y)), pipeline.clip_grad_norm(0.5)]
        optimiser.step()
    pipeline.step(X, Y, scale=0.5, wait=False).wait()
    pipeline.step(X, Y, scale=0.5, accumulate=True)
    optimiser.step()
    numbers.append(float(pipeline.evaluate(X, Y)))
    return {
        **pipeline.state_dict(),
        "numbers": np.array(numbers),
        "outputs": pipeline.predict(X),
    }


def apart(some, others):
    """Return the largest difference, relative to the largest element of an array."""
    assert list(some) == list(others)
    return max(
        np.abs(some[n] - others[n]).max() / np.abs(others[n]).max() for n in some
    )


def gains(group):
    """Return how much less processor time the busiest rank needs: the best of some
    steps without division over the best one with it.
    """
    x = np.random.default_rng(0).standard_normal((512, 128)).astype(np.float32)
    y = np.arange(512) * 31 % 8192
    body = [nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128)]
    layers = nn.Sequential(*body, nn.Linear(128, 8192))
    loss = nn.CrossEntropyLoss()
    pipelines = {}
    for how in (None, *BOTH):
        options = {"loss": loss, "num_microbatches": 8, "model": layers}
        pipelines[how] = made(group, how, **options)
    best = dict.fromkeys(pipelines, np.inf)
    for _ in range(5):
        for how, pipeline in pipelines.items():
            begun = process_time()
            pipeline.step(x, y)
            best[how] = min(best[how], process_time() - begun)
    of_ranks = group.all_gather(np.array(list(best.values())))
    plain, *divided = np.max(of_ranks, axis=0)
    return [plain / one for one in divided]


def main(arguments):
    with init_process_group() as group:
        if arguments == ["gain"]:
            found = dict(zip(BOTH, gains(group)))
        else:
            plain = train(group, None)
            found = {how: apart(train(group, how), plain) for how in BOTH}
        if group.rank == 0:
            for how, number in found.items():
                print(how, number)


if __name__ == "__main__":
    main(sys.argv[1:])
