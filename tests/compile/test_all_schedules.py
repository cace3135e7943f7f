"""Every synchronous schedule with every feature: compiled steps have eager bits."""

from functools import cache, partial
from itertools import cycle, starmap

import numpy as np
import pytest

from minipipe import Microbatches, Pipeline, nn, optim, schedules, spawn
from minipipe.core.schedules.action import U
from minipipe.errors import MinipipeError
from tests.launch import mpirun, needs_mpi, sample_of, slowly
from tests.strategies import build

WIDTH, NUM_MICROBATCHES, NUM_STEPS = 4, 4, 6
RAGGED = (3, 1, 2, 4)


def chain(*between):
    """Return layers for up to 16 stages."""
    parts = [
        (nn.Linear(WIDTH, WIDTH), *(make() for make in between)) for _ in range(16)
    ]
    return [layer for part in parts for layer in part]


def tied():
    layers = chain(nn.Tanh)
    layers[-2].weight = layers[0].weight
    return layers


def frozen():
    layers = chain(nn.Tanh)
    for layer in layers[:5]:
        layer.freeze()
    return layers


def frozen_inside():
    """The story: an I without a W was looked for among the I of split backwards."""
    layers = chain(nn.Tanh)
    for layer in layers[1:-1]:
        layer.freeze()
    return layers


def normal():
    return chain(nn.Tanh)


class Feature:
    """A way to train: the layers, options of the pipeline, and of a step."""

    def __init__(self, layers=normal, ranks=1, step=None, clips=False, **options):
        self.layers, self.factor, self.options = layers, ranks, options
        self.step, self.clips = step or {}, clips
        self.is_ragged = False

    def batch(self, step, count):
        random = np.random.default_rng(step)
        if not self.is_ragged:
            return random.normal(size=(2, 2 * count + 3, WIDTH)).astype(np.float32)
        lengths = [RAGGED[k % len(RAGGED)] for k in range(count)]
        x, y = ([random.normal(size=(n, WIDTH)) for n in lengths] for _ in range(2))
        return Microbatches(x), Microbatches(y)


def ragged():
    feature = Feature()
    feature.is_ragged = True
    return feature


FEATURES = {
    "plain": Feature(),
    "tied": Feature(tied),
    "replicas": Feature(ranks=2, replicas=2),
    "dropout": Feature(partial(chain, partial(nn.Dropout, 0.3), nn.GELU)),
    "recompute": Feature(partial(chain, partial(nn.Dropout, 0.3)), recompute=True),
    "ragged": ragged(),
    "frozen": Feature(frozen),
    "frozen inside": Feature(frozen_inside),
    "clipping": Feature(clips=True),
    "wait": Feature(step={"wait": False}),
    "inputs_require_grad": Feature(inputs_require_grad=True),
}
SCHEDULES = [
    name
    for name in schedules.REGISTRY
    if U not in build(name, 2, 4).kinds and build(name, 2, 4).num_slices == 1
]


def trained(group, schedule, feature, how):
    """Return losses, gradients and values of some steps, and the report."""
    options = {"loss": nn.MSELoss(), "schedule": schedule, **feature.options}
    model = nn.Sequential(*feature.layers())
    pipeline, losses, found = Pipeline(model, group, compile=how, **options), [], []
    optimiser = optim.AdamW(pipeline.parameters(), 0.01)
    count = schedule.num_microbatches * feature.factor
    for step in range(NUM_STEPS):
        x, y = feature.batch(step, count)
        losses.append(pipeline.step(x, y, **feature.step))
        if feature.clips:
            found.append(float(pipeline.clip_grad_norm(0.1)))
        for parameter in pipeline.parameters():
            gradient = parameter.grad
            found.append(None if gradient is None else gradient.tobytes())
        if "inputs_require_grad" in feature.options:
            gradients = pipeline.input_gradients
            found.append(None if gradients is None else gradients.tobytes())
        optimiser.step()
    pipeline.wait()
    found += [values.tobytes() for values in pipeline.state_dict().values()]
    return list(map(float, losses)), found, pipeline.compile_report()


@cache
def eager(name, num_ranks, feature):
    """Return the results without compilation; None if the cell does not exist."""
    try:
        schedule = build(name, num_ranks, NUM_MICROBATCHES)
        train = partial(
            trained, schedule=schedule, feature=FEATURES[feature], how=False
        )
        return spawn(train, num_ranks * FEATURES[feature].factor)
    except MinipipeError:
        return None


def compiled(name, num_ranks, feature):
    """Return the results with compilation."""
    schedule = build(name, num_ranks, NUM_MICROBATCHES)
    train = partial(trained, schedule=schedule, feature=FEATURES[feature], how=True)
    return spawn(train, num_ranks * FEATURES[feature].factor)


def check(name, num_ranks, feature):
    expected = eager(name, num_ranks, feature)
    if expected is None:  # there is no such schedule, compiled or not
        with pytest.raises(MinipipeError):
            compiled(name, num_ranks, feature)
        return
    found = compiled(name, num_ranks, feature)
    for rank, (own, other) in enumerate(zip(found, expected)):
        assert own[0] == other[0], f"losses of rank {rank}"
        assert own[1] == other[1], f"gradients or values of rank {rank}"
        for line in own[2].splitlines():
            assert line.startswith("step: stage ") and line.endswith(" is compiled")


QUICK = [("1f1b", 2), ("zb-h1", 2), ("interleaved-1f1b", 1)]
SAMPLE = {(*cell, feature) for cell, feature in zip(cycle(QUICK), FEATURES)}
# Every schedule with every feature, and either on every number of ranks.
OTHERS = [
    cell for cell in sample_of(SCHEDULES, (1, 2, 4), FEATURES) if cell not in SAMPLE
]


@pytest.mark.parametrize(
    ("name", "num_ranks", "feature"),
    [*sorted(SAMPLE), *starmap(slowly, OTHERS)],
)
def test_a_compiled_training_has_the_bits_of_an_eager_one(name, num_ranks, feature):
    check(name, num_ranks, feature)


def test_most_cells_of_the_table_exist():
    cells = [cell for cell in QUICK if eager(*cell, "plain") is not None]
    assert cells == QUICK and len(SCHEDULES) >= 12


@needs_mpi
@pytest.mark.parametrize(
    ("name", "num_ranks", "features"),
    [
        slowly("1f1b", 2, ("plain", "dropout", "wait")),
        # every feature once; on threads every schedule has every feature
        slowly("zb-h1", 2, tuple(FEATURES)[::3]),
        slowly("interleaved-1f1b", 2, tuple(FEATURES)[1::3]),
        slowly("zb-v", 2, tuple(FEATURES)[2::3]),
        slowly("1f1b", 4, ("plain", "tied", "wait")),
    ],
)
def test_so_it_has_through_mpirun(name, num_ranks, features):
    for factor in (1, 2):
        own = [each for each in features if FEATURES[each].factor == factor]
        if own:
            program = "-m", "tests.compile.all_schedules_over_mpi"
            job = mpirun(num_ranks * factor, *program, name, num_ranks, *own, limit=120)
            assert job.code == 0 and f"same bits in {len(own)} trainings" in job.out, (
                job
            )
