"""Changes between steps have their effect in compiled steps, and wrong programs other bits."""

import gc
import linecache
import re
import weakref
from functools import partial

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, functional, init_process_group, nn, optim, spawn
from minipipe.errors import MinipipeError
from minipipe.execution.objective import BatchObjective

WIDTH, NUM_STEPS, CHANGED = 4, 9, 5


class Factor:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Scaled(nn.Module):
    """Multiplies by what an object says that is no module."""

    is_compilable = True

    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x * float(self.factor.value)


class Masked(nn.Module):
    """Looks at an array that it holds, outside of the script."""

    is_compilable = True

    def __init__(self):
        self.mask = np.ones(WIDTH, np.float32)

    def forward(self, x):
        return x * float(self.mask.sum())


class Twice(nn.Module):
    """Contributes to its weight twice."""

    is_compilable = True

    def __init__(self):
        self.weight = nn.Parameter((WIDTH, WIDTH), nn.initialisers.he_uniform(WIDTH))

    def forward(self, x):
        return functional.tanh(x @ self.weight) @ self.weight


def layers():
    middle = (
        Scaled(Factor(2.0)),
        Masked(),
        nn.ReLU(),
        Twice(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
    )
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle)


def stages_of(pipeline):
    return list(pipeline._stages.values())


def parts_of(pipeline, kind):
    return [
        part
        for stage in stages_of(pipeline)
        for part in stage.module.modules()
        if isinstance(part, kind)
    ]


def programs_of(pipeline):
    """Return the programs of training steps."""
    compiler = pipeline._compiling._compilers["step"]
    return [program for program in compiler._programs.values() if program]


def trained(
    replay,
    change=None,
    model=layers,
    group=None,
    num_samples=lambda step: 12,
    **options,
):
    """Return what some steps leave, and the pipeline; change it before one of them."""
    if group is None:
        with init_process_group() as alone:
            return trained(replay, change, model, alone, num_samples, **options)
    options = {"loss": nn.MSELoss(), "num_microbatches": 4, **options}
    pipeline = Pipeline(model(), group, replay=replay, **options)
    optimiser, random, found = (
        optim.SGD(pipeline.parameters(), 0.01),
        np.random.default_rng(0),
        [],
    )
    for step in range(NUM_STEPS):
        if step == CHANGED and change is not None:
            change(pipeline)
        x = random.normal(size=(num_samples(step), WIDTH)).astype(np.float32)
        found.append(pipeline.step(x, x[:, ::-1].copy()))
        found += [
            None if p.grad is None else p.grad.tobytes() for p in pipeline.parameters()
        ]
        optimiser.step()
    return found, pipeline


def check_same(change=None, **options):
    replayed, pipeline = trained(True, change, **options)
    assert replayed == trained(False, change, **options)[0], pipeline.compile_report()
    assert programs_of(pipeline), pipeline.compile_report()
    return pipeline


# -- what changes between steps --------------------------------------------------------


def another_object(pipeline):
    (part,) = parts_of(pipeline, Scaled)
    number, part.factor = id(part.factor), None
    gc.collect()
    others = [Factor(3.0) for _ in range(1000)]
    part.factor = next((each for each in others if id(each) == number), others[0])


def another_value(pipeline):
    parts_of(pipeline, Scaled)[0].factor.value = 3.0


def another_mask(pipeline):
    parts_of(pipeline, Masked)[0].mask[0] = 0


def another_loss(pipeline):
    number, pipeline._objective = id(pipeline._objective.args[0]), None
    gc.collect()
    others = [nn.MSELoss("sum") for _ in range(1000)]
    loss = next((each for each in others if id(each) == number), others[0])
    pipeline._objective = partial(BatchObjective, loss, None)


def freeze_some(pipeline):
    for parameter in list(pipeline.parameters())[::2]:
        parameter.requires_grad = False


@pytest.mark.parametrize(
    "change", [another_object, another_value, another_mask, another_loss, freeze_some]
)
def test_a_change_between_steps_changes_a_replayed_step_as_an_eager_one(change):
    check_same(change)
    assert trained(False, change)[0] != trained(False)[0]


def test_the_keys_of_scripts_keep_what_they_name():
    (part,) = parts_of(pipeline := trained(True)[1], Scaled)
    factor = part.factor
    part.factor = None
    assert any(
        each is factor
        for holder in gc.get_referrers(factor)
        for each in gc.get_referents(holder)
    )
    del part, factor
    assert pipeline.compile_report().startswith("stage 0: replays")


class Called(nn.Module):
    """Calls a function that it holds, of which only the identity can be compared."""

    is_compilable = True

    def __init__(self):
        self.function = None

    def forward(self, x):
        return self.function(x)


def called_with_two_functions(replay):
    """Return the losses of a function, and then of another one that has its ``id`` if nothing keeps the first."""
    with init_process_group() as group:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Called())
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=1, replay=replay
        )
        (part,) = parts_of(pipeline, Called)
        random, losses, number = np.random.default_rng(0), [], None
        for factor in (2, 3):
            part.function = None
            gc.collect()
            others = [lambda x, factor=factor: x * factor for _ in range(1000)]
            part.function = next(
                (each for each in others if id(each) == number), others[0]
            )
            number = id(part.function)
            del others
            for _ in range(5):
                x = random.normal(size=(3, WIDTH)).astype(np.float32)
                losses.append(pipeline.step(x, x))
        assert not replay or programs_of(pipeline)
        return losses


class Apart(nn.Module):
    """A loss of two named targets."""

    is_compilable = True

    def forward(self, outputs, targets):
        return ((outputs - targets["first"]) * (outputs - targets["second"] * 2)).mean()


def test_targets_of_another_form_are_another_kind_of_microbatch():
    def run(replay):
        with init_process_group() as group:
            options = {
                "loss": Apart(),
                "loss_weight": lambda targets: len(targets["first"]),
                "num_microbatches": 2,
            }
            pipeline = Pipeline(chain(), group, replay=replay, **options)
            random, losses = np.random.default_rng(0), []
            for names in (*4 * [("first", "second")], ("second", "first")):
                x, *arrays = (
                    random.normal(size=(8, WIDTH)).astype(np.float32) for _ in range(3)
                )
                losses.append(pipeline.step(x, dict(zip(names, arrays))))
            assert not replay or programs_of(pipeline), pipeline.compile_report()
            return losses

    assert run(True) == run(False)


def test_a_new_function_with_the_id_of_the_old_one_is_another_function():
    assert called_with_two_functions(True) == called_with_two_functions(False)


class Draws(nn.Module):
    is_compilable = True

    def __init__(self):
        self.numbers = iter(range(1000))

    def forward(self, x):
        return x * float(next(self.numbers))


def test_an_attribute_that_cannot_be_compared_stays_eager():
    model = partial(nn.Sequential, nn.Linear(WIDTH, WIDTH), Draws())
    replayed, pipeline = trained(True, model=model)
    assert replayed == trained(False, model=model)[0]
    assert "may change unnoticed" in pipeline.compile_report()


# -- mutants ---------------------------------------------------------------------------


def rewritten(pipeline, change, **constants):
    """Run other source in place of each script's."""
    for script in programs_of(pipeline):
        source = change(script.source)
        assert source != script.source or constants
        namespace = dict(script.sections["forward"].__globals__)
        namespace |= {
            name: namespace[name] * factor for name, factor in constants.items()
        }
        exec(source, namespace)
        script.sections = {name: namespace[name] for name in script.sections}


def swapped(source):
    first, second = re.search(
        r"(    (l\d)\.grad =.*\n)(?:.*\n)*?(    \2\.grad =.*\n)", source
    ).group(1, 3)
    one, other = (re.search(r"v\d+", line)[0] for line in (first, second))
    kept = re.sub(
        rf"    del (.*\b)?{one}\b.*\n", "", source
    )  # so that both are still there
    return (
        kept.replace(first, "").replace(second, second + first)
        if one != other
        else source
    )


MUTANTS = {
    "no contribution": lambda p: rewritten(
        p, lambda source: re.sub(r"    l0\.grad =.*\n", "", source)
    ),
    "no ReLU": lambda p: rewritten(
        p, lambda source: re.sub(r"= maximum\((\w+), .*\)", r"= \1 * 1", source)
    ),
    "swapped contributions": lambda p: rewritten(p, swapped),
    "a stale constant": lambda p: rewritten(
        p,
        lambda source: source,
        **{programs_of(p)[0].constants[key][0]: 2 for key in numbers(p)},
    ),
}


def numbers(pipeline):
    constants = programs_of(pipeline)[0].constants
    return [
        key
        for key, (_, value) in constants.items()
        if isinstance(value, float | np.generic | np.ndarray)
    ]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_has_other_bits(mutant):
    assert trained(True, mutant)[0] != trained(False)[0]


def test_a_script_of_another_shape_fails():
    def take_the_other(pipeline):
        (stage,) = stages_of(pipeline)
        first, last = [entry for entry in stage._kinds if entry.script][:2]
        first.script, last.script = last.script, first.script

    options = {
        "num_samples": lambda step: (12, 16)[step % 2 if step < CHANGED + 3 else 0],
        "model": layers,
    }
    check_same(**options)
    with pytest.raises(ValueError, match="not aligned"):
        trained(True, take_the_other, **options)


# -- pipelines of all kinds ------------------------------------------------------------


def tied():
    first = nn.Linear(WIDTH, WIDTH)
    last = nn.Linear(WIDTH, WIDTH)
    last.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), first, nn.ReLU(), last)


def partly_frozen():
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    model[0].freeze()
    model[1].freeze()
    return model


def chain():
    return nn.Sequential(
        *(part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    )


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (tied, {}),
        (tied, {"schedule": "zb-h1"}),
        (partly_frozen, {}),
        (partly_frozen, {"schedule": "zb-h1"}),
        (chain, {"schedule": "interleaved-1f1b", "chunks_per_rank": 2}),
        (chain, {"schedule": "zb-v"}),
        (chain, {"inputs_require_grad": True}),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_pipelines_of_all_kinds_have_the_bits_of_eager_ones(model, options, num_ranks):
    def both(group):
        replayed, pipeline = trained(True, model=model, group=group, **options)
        return replayed == trained(False, model=model, group=group, **options)[0], len(
            programs_of(pipeline)
        )

    found = spawn(both, num_ranks, take_turns=True)
    assert any(
        num_tapes for _, num_tapes in found
    )  # a stage without a backward has none
    for is_same, num_tapes in found:
        assert is_same, num_tapes


def failing(replay):
    with init_process_group() as group:
        model = nn.Sequential(nn.Embedding(5, WIDTH), nn.Linear(WIDTH, 5))
        pipeline = Pipeline(
            model, group, loss=nn.CrossEntropyLoss(), num_microbatches=2, replay=replay
        )
        for step in range(6):
            ids = np.random.default_rng(step).integers(0, 5, 8)
            if step == 5:
                assert not replay or programs_of(pipeline)
                ids[-1] = 7
            try:
                pipeline.step(ids, np.arange(8) % 5)
            except MinipipeError as error:
                return str(error), error.__notes__


def test_an_error_in_a_script_names_layer_microbatch_and_action_as_an_eager_one():
    message, notes = failing(True)
    assert (message, notes) == failing(False)
    assert any("in layer 0" in note for note in notes) and any(
        "microbatch 1, action 0F1" in note for note in notes
    )


def test_a_stage_has_at_most_16_scripts_and_each_a_file_of_its_own():
    def files():
        return {name for name in linecache.cache if name.startswith("<script of stage")}

    gc.collect()
    earlier = files()
    with init_process_group() as group:
        pipeline = Pipeline(
            chain(), group, loss=nn.MSELoss(), num_microbatches=1, replay=True
        )
        random = np.random.default_rng(0)
        for rows in (*range(1, 21),):
            for _ in range(4):
                x = random.normal(size=(rows, WIDTH)).astype(np.float32)
                pipeline.step(x, x)
        assert len(programs_of(pipeline)) == 16 == len(files() - earlier)
        assert set(programs_of(pipeline)[-1].source.splitlines()) > {
            "def forward(parameters, key, x0, x1):"
        }
    del pipeline
    gc.collect()
    assert files() <= earlier


def test_a_dropped_pipeline_goes_with_its_stages_and_scripts_and_without_the_collector():
    gc.collect()
    gc.disable()
    try:
        for replay in (False, True):
            _, pipeline = trained(replay, model=chain)
            kept = [
                weakref.ref(each)
                for each in (
                    *stages_of(pipeline),
                    *(programs_of(pipeline) if replay else ()),
                )
            ]
            del pipeline
            assert [each() for each in kept] == [None] * len(kept), f"replay={replay}"
    finally:
        gc.enable()


def test_what_is_measured_is_observed_only_while_it_is_measured():
    with init_process_group() as group:
        pipeline = Pipeline(
            chain(), group, loss=nn.MSELoss(), num_microbatches=2, replay=True
        )
        random = np.random.default_rng(0)
        for step in range(6):
            x = random.normal(size=(8, WIDTH)).astype(np.float32)
            pipeline.step(x, x)
            if step == 4:
                pipeline.measure_memory(x, x)
                pipeline.measure_costs(x, x, num_steps=1)
                assert not any(
                    stage.is_observed or stage.is_halved
                    for stage in stages_of(pipeline)
                )
        assert (
            len(programs_of(pipeline)) == 2
        )  # one for a whole backward, one for the halves whose costs were measured
        with pytest.raises(MinipipeError):
            pipeline.measure_memory(x, Tensor(x[:1]))
        assert not any(
            stage.is_observed or stage.is_halved for stage in stages_of(pipeline)
        )
