"""Arrays of a compiled row lie in as few places as microbatches are in flight."""

import gc
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, nn, optim, spawn
from minipipe.compile import memory
from minipipe.compile.memory import Use, slots_of, uses_of
from tests.launch import slowly
from tests.strategies import examples

WIDTH, ROWS = 64, 1024
ACTIVATION = 4 * WIDTH * ROWS  # bytes of an array between two stages


@examples(200)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=12))
def test_slots_are_as_many_as_arrays_in_use_at_a_time(spans):
    uses = [Use(f"v{i}", first, first + n) for i, (first, n) in enumerate(spans)]
    slots = slots_of(uses)
    assert sorted(use for slot in slots for use in slot) == sorted(uses)
    for slot in slots:
        assert all(a.last < b.first for a, b in zip(slot, slot[1:]))
    in_use = [sum(u.first <= line <= u.last for u in uses) for line in range(30)]
    assert len(slots) == max(in_use)


def linear():
    return nn.Linear(WIDTH, WIDTH)


def memory_of(schedule, num_microbatches, how=True):
    """Return the bytes of arrays that compiled steps keep, and the most they need."""
    batch = np.ones((ROWS * num_microbatches, WIDTH), np.float32)

    def train(group):
        layers = [make() for make in (linear, nn.Tanh) * 4]
        options = {"loss": nn.MSELoss(), "num_microbatches": num_microbatches}
        model = nn.Sequential(*layers)
        pipeline = Pipeline(model, group, schedule=schedule, compile=how, **options)
        optimiser = optim.SGD(pipeline.parameters(), 0.1)
        for _ in range(4):
            pipeline.step(batch, batch)
            optimiser.step()
        assert "eagerly" not in pipeline.compile_report()
        group.barrier()
        if group.rank == 0:
            gc.collect()
            tracemalloc.reset_peak()
        group.barrier()
        pipeline.step(batch, batch)
        group.barrier()
        return tracemalloc.get_traced_memory()

    tracemalloc.start()
    try:
        return spawn(train, 2)[0]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("schedule", ["1f1b", slowly("zb-h1")])
def test_the_compiled_memory_of_1f1b_does_not_grow_with_the_microbatches(schedule):
    """The story: each microbatch had arrays of its own for all it sent and received."""
    (_, few), (_, many) = memory_of(schedule, 8), memory_of(schedule, 40)
    assert few < many + 16 * ACTIVATION and many < few + 16 * ACTIVATION


SCHEDULES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "chimera"]


def trained(group, how, schedule, has_failed=False):
    """Return the losses of six steps, and the parameters."""
    layers = [make() for make in (linear, nn.Tanh) * 4]
    options = {"loss": nn.MSELoss(), "num_microbatches": 8, "schedule": schedule}
    pipeline = Pipeline(nn.Sequential(*layers), group, compile=how, **options)
    optimiser, found = optim.SGD(pipeline.parameters(), 0.1), []
    for step in range(6):
        x = np.random.default_rng(step).normal(size=(16, WIDTH)).astype("f4")
        if how and step == 4 and has_failed:
            names = pipeline._compiling._compilers["step"].program._namespace
            names["memory"].is_running = True
            before = dict(names["memory"].arrays)
        found.append(pipeline.step(x, x))
        optimiser.step()
    if how and has_failed and any("renewed" in line for line in names["memory"].lines):
        assert all(names[name] is not before[name] for name in before)
    found += [value.tobytes() for value in pipeline.state_dict().values()]
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("has_failed", [slowly(False), True])
def test_a_shared_array_is_overwritten_by_nobody_in_need_of_it(schedule, has_failed):
    """A step that fails may leave a receive, which then has an array of its own."""

    def run(how):
        return spawn(lambda group: trained(group, how, schedule, has_failed), 2)

    assert run(True) == run(False)


def test_a_mutant_that_ends_uses_too_early_has_other_bits(monkeypatch):
    def cut(lines, layouts, sent):
        uses = uses_of(lines, layouts, sent)
        return [use._replace(last=use.first) for use in uses]

    expected = spawn(lambda group: trained(group, True, "gpipe"), 2)
    monkeypatch.setattr(memory, "uses_of", cut)
    assert spawn(lambda group: trained(group, True, "gpipe"), 2) != expected
