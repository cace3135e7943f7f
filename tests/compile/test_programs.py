"""Programs: how many there are, what they keep, and what shows that they are needed."""

import gc
import linecache
import weakref

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, optim
from minipipe.compile.program import MOST_PROGRAMS
from minipipe.errors import ArgumentError, ModelError

WIDTH, NUM_STEPS, CHANGED = 4, 8, 5


def layers():
    middle = nn.ReLU(), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH), nn.GELU()
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *middle)


def compiler_of(pipeline):
    return pipeline._compiling._compilers["step"]


def programs_of(pipeline):
    return [program for program in compiler_of(pipeline)._programs.values() if program]


def trained(how, change=None, **options):
    """Return losses and gradients of some steps, and the pipeline."""
    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "num_microbatches": 3, **options}
        pipeline, found = Pipeline(layers(), group, compile=how, **options), []
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        random = np.random.default_rng(0)
        for step in range(NUM_STEPS):
            if step == CHANGED and change is not None:
                change(compiler_of(pipeline).program._namespace)
            x = random.normal(size=(12, WIDTH)).astype(np.float32)
            found.append(pipeline.step(x, x[:, ::-1].copy()))
            found += [p.grad.tobytes() for p in pipeline.parameters()]
            optimiser.step()
        return found, pipeline


# -- mutants ---------------------------------------------------------------------------


def no_contribution(names):
    run, calls = names["backward_0"], []

    def backward(*given):
        calls.append(0)
        if len(calls) != 2:
            run(*given)

    names["backward_0"] = backward


def contributes_twice(names):
    run = names["backward_0"]
    names["backward_0"] = lambda *given: (run(*given), run(*given))


def key_of_one_step(names):
    key_of = names["key_of"]
    names["key_of"] = lambda seed, step, k: key_of(seed, 0, k)


def one_mask_for_all(names):
    key_of = names["key_of"]
    names["key_of"] = lambda seed, step, k: key_of(seed, step, 0)


def another_seed(names):
    seeds_of = names["seeds_of"]
    names["seeds_of"] = lambda *given: {
        k: seed * 2 for k, seed in seeds_of(*given).items()
    }


def earlier_inputs(names):
    run, first = names["forward_0"], []

    def forward(*given):
        first[:] = first or [given]
        return run(*first[0])

    names["forward_0"] = forward


MUTANTS = [
    *(no_contribution, contributes_twice, key_of_one_step, one_mask_for_all),
    *(another_seed, earlier_inputs),
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_of_a_program_has_other_bits(mutant):
    eager, (compiled, _) = trained(False)[0], trained(True)
    assert compiled == eager
    assert trained(True, mutant)[0] != eager


# -- how long they live ----------------------------------------------------------------


def test_a_pipeline_has_few_programs_and_each_a_file_of_its_own():
    def files():
        return {
            name for name in linecache.cache if name.startswith("<schedule of rank")
        }

    gc.collect()
    earlier = files()
    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "num_microbatches": 1, "compile": True}
        pipeline = Pipeline(layers(), group, **options)
        for rows in range(1, MOST_PROGRAMS + 4):
            for _ in range(3):
                x = np.ones((rows, WIDTH), np.float32)
                pipeline.step(x, x)
        assert len(programs_of(pipeline)) == MOST_PROGRAMS == len(files() - earlier)
    del pipeline
    gc.collect()
    assert files() <= earlier


@pytest.mark.parametrize("how", [False, True])
def test_a_dropped_pipeline_goes_with_its_programs_and_without_the_collector(how):
    gc.collect()
    gc.disable()
    try:
        _, pipeline = trained(how)
        kept = [weakref.ref(each) for each in pipeline._stages.values()]
        kept += map(weakref.ref, programs_of(pipeline) if how else ())
        arrays = [weakref.ref(p.data) for p in pipeline.parameters()]
        del pipeline
        assert [each() for each in kept] == [None] * len(kept)
        assert all(each() is None for each in arrays)
    finally:
        gc.enable()


def with_two_forms(pipeline, step):
    return 4 + 2 * (step % 3 == 2)


def with_changes(pipeline, step):
    if step in (4, 9):
        pipeline._stages[0].module.layers[2].probability = 0.1 * step
    return 4


def with_many_forms(pipeline, step):
    return 2 + step // 3


@pytest.mark.parametrize("rows", [with_two_forms, with_changes, with_many_forms])
def test_gradients_that_a_user_keeps_are_not_overwritten_by_later_steps(rows):
    """The story: references of a dropped program hid as many of a user."""
    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "num_microbatches": 2, "compile": True}
        pipeline = Pipeline(layers(), group, **options)
        random, kept = np.random.default_rng(0), []
        for step in range(3 * MOST_PROGRAMS + 6):
            shape = rows(pipeline, step), WIDTH
            x = random.normal(size=shape).astype(np.float32)
            pipeline.step(x, x)
            arrays = [p.grad for p in pipeline.parameters()]
            kept.append((arrays, [array.tobytes() for array in arrays]))
        for arrays, contents in kept:
            assert [array.tobytes() for array in arrays] == contents


# -- the option ------------------------------------------------------------------------


def test_other_values_of_compile_are_refused_with_the_choices():
    with init_process_group() as group:
        for wrong in ("where_possible", 1, None, "true"):
            with pytest.raises(ArgumentError) as caught:
                Pipeline(layers(), group, compile=wrong)
            assert caught.value.code == "value"
            expected = "expected True, False or 'where-possible'"
            assert f"compile is {wrong!r}; {expected}" in str(caught.value)


def test_replay_is_an_alias_for_one_release():
    with init_process_group() as group:
        with pytest.warns(DeprecationWarning, match='now compile="where-possible"'):
            pipeline = Pipeline(layers(), group, loss=nn.MSELoss(), replay=True)
        x = np.ones((8, WIDTH), np.float32)
        for _ in range(3):
            pipeline.step(x, x)
        assert pipeline.compile_report() == "step: stage 0 is compiled"
        with pytest.warns(DeprecationWarning, match="is now compile_report"):
            assert pipeline.replay_report() == pipeline.compile_report()
        pipeline = Pipeline.from_modules([layers()], group, replay=False)
        assert pipeline.compile_report() == "all stages run eagerly: compile=False"
        with pytest.raises(
            ArgumentError, match="replay is 'yes'; expected True or False"
        ):
            Pipeline(layers(), group, loss=nn.MSELoss(), replay="yes")


def test_a_class_may_still_declare_is_replayable():
    class Earlier(nn.Module):
        is_replayable = True

        def forward(self, x):
            return x * 2

    class Now(Earlier):
        is_compilable = False

    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "compile": True}
        Pipeline(nn.Sequential(nn.Linear(2, 2), Earlier()), group, **options)
        with pytest.raises(ModelError, match="layer 1, Now, runs code of its own"):
            Pipeline(nn.Sequential(nn.Linear(2, 2), Now()), group, **options)


def test_the_source_is_the_program_that_runs():
    with init_process_group() as group:
        options = {"loss": nn.MSELoss(), "num_microbatches": 1}
        pipeline = Pipeline(layers(), group, compile=True, **options)
        eager = Pipeline(layers(), group, **options)
        assert pipeline.source() == eager.source()
        with pytest.raises(ArgumentError, match="has not run yet"):
            pipeline.source(0)
        x = np.ones((3, WIDTH), np.float32)
        for _ in range(3):
            pipeline.step(x, x)
        whole, sections = pipeline.source(), pipeline.source(0)
        assert sections in whole and "def forward_0(" in sections
        assert "def schedule(rank):" in whole and "    backward_0(" in whole
        frame = whole[whole.index("def step(rank):") :].splitlines()
        assert frame == [
            "def step(rank):  # rank 0 of 1f1b",
            "    handshake(rank, 'HANDSHAKE')",
            "    with rank.schedule():",
            "        schedule(rank)",
            "        rank.finish_sends()",
            "        finite0 = check(rank, 'FINITE')",
            "        deliver_loss(rank, 'LOSS', finite0)",
            "        del finite0",
        ]
        with pytest.raises(ArgumentError, match=r"source\(1\): stage 1 is not on this"):
            pipeline.source(1)
        with pytest.raises(ArgumentError, match="compile=False"):
            eager.source(0)
