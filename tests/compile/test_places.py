"""Every array has a place of its own for as long as it is needed, and no longer."""

import gc
import re
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn
from minipipe.autograd.memory import held_bytes
from minipipe.compile import places
from minipipe.compile.lines import Variable
from minipipe.compile.places import Cell, pack
from minipipe.compile.sections import Pool, Sections
from minipipe.core.autograd.split import backward_input
from tests.compile.driver import (
    Compiled,
    buffer_for,
    compiled,
    eager,
    forward,
    owners_of,
    place,
    roots_of,
    traced,
)
from tests.compile.stages import HALVES, MODELS, ROWS, job_of
from tests.strategies import examples


def cell(size, born, length):
    variable = Variable("v0", (size,), np.dtype("u1"), (1,), False, True)
    return Cell(["v0"], variable, 0, born, born + length, 0)


cells = st.builds(cell, st.integers(0, 300), st.integers(0, 20), st.integers(0, 6))


@examples(100)
@given(st.lists(cells, max_size=12))
def test_no_two_arrays_lie_in_the_same_memory_at_a_time(drawn):
    total = pack(drawn)
    assert all(each.offset % places.ALIGNMENT == 0 for each in drawn)
    assert all(each.offset + each.num_bytes <= total for each in drawn)
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            at_once = one.born <= other.dies and other.born <= one.dies
            one_end, other_end = (c.offset + c.num_bytes for c in (one, other))
            overlap = one.offset < other_end and other.offset < one_end
            assert not (at_once and overlap and one.num_bytes and other.num_bytes)


def packed_at_the_start(drawn):
    for each in drawn:
        each.offset = 0
    return max((each.num_bytes for each in drawn), default=0)


def freed_too_early(drawn):
    for each in drawn:
        each.dies = max(each.born, each.dies - 1)
    return pack(drawn)


@pytest.mark.parametrize(
    ("mutant", "model"),
    [
        (packed_at_the_start, "dropout"),
        (packed_at_the_start, "block"),
        (freed_too_early, "block"),
    ],
)
def test_memory_that_is_used_again_too_early_has_other_bits(mutant, model, monkeypatch):
    job, row = job_of(*MODELS[model]), ROWS["gpipe"]
    trace = traced(job, is_split=False)
    monkeypatch.setattr(places, "pack", mutant)
    mutated = Sections(trace, 0)
    assert compiled(job, trace, row, mutated) != eager(job, row)


def test_a_slot_of_two_microbatches_has_other_bits(monkeypatch):
    job, row = job_of(*MODELS["mlp"]), ROWS["gpipe"]
    trace = traced(job, is_split=False)
    monkeypatch.setattr(Compiled, "slot", lambda *given: 0)
    assert compiled(job, trace, row) != eager(job, row)


def kept_bytes(sections, lifetime):
    """Return the size of the arrays of one slot of a class."""
    return sum(cell.num_bytes for cell in sections._layout.kept_cells(lifetime))


@pytest.mark.parametrize("model", ["mlp", "block", "dropout", "norm"])
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("loss", [None, nn.MSELoss()])
def test_kept_arrays_are_no_larger_than_what_a_graph_holds(model, is_split, loss):
    job = job_of(*MODELS[model], loss)
    trace = traced(job, is_split)
    sections = Sections(trace, 0)
    names = list(trace.sections)
    arrays, wanted = zip(*job.inputs(0))
    with place(0):
        held, results = forward(job, list(arrays), list(wanted))
    known = [*arrays, *(p.data for p in job.parameters)]
    graph = [node for node in held[1] if node is not None]
    most = [held_bytes(graph, known)]
    if is_split:
        gradients = [job.seed_of(0, i, y) for i, y in enumerate(results)]
        work = backward_input(roots_of(held, gradients))
        most.append(held_bytes([work], [*known, *gradients]))
    for after, limit in enumerate(most):
        kept = sum(
            kept_bytes(sections, i)
            for i, (first, last) in enumerate(sections.lifetimes)
            if names.index(first) <= after < names.index(last)
        )
        assert kept <= limit, sections.source


@pytest.mark.parametrize("model", MODELS)
def test_between_two_sections_a_program_holds_the_bytes_of_a_graph(model):
    job = job_of(*MODELS[model])
    trace = traced(job, is_split=False)
    sections = Sections(trace, 0)
    arrays, wanted = zip(*job.inputs(0))
    with place(0):
        held, _ = forward(job, list(arrays), list(wanted))
    known = [*arrays, *(p.data for p in job.parameters)]
    graph = [node for node in held[1] if node is not None]
    program = Compiled(job, sections, [("F", 0), ("B", 0)])
    outs = [buffer_for(trace, name) for name in trace.results["forward"]]
    given_arrays = {f"x{i}": array for i, array in enumerate(arrays)}
    results = {f"out{i}": out for i, out in enumerate(outs)}
    program.call("forward", 0, given_arrays | results)
    found = program.stashed_bytes(known)
    found += sum(kept_bytes(sections, i) for i in range(len(sections.lifetimes)))
    for i, out in enumerate(outs):
        is_read = f"y{i}" in sections.parameters["backward"]
        found += out.nbytes if out is not None and is_read else 0
    assert found == held_bytes(graph, known)


def test_a_dropped_program_frees_its_arrays_without_the_collector():
    job = job_of(*MODELS["blocks with dropout"])
    sections = Sections(traced(job, is_split=True), 0)
    gradients = [np.zeros_like(p.data) for p in job.parameters]
    num_slots = [2] * len(sections.lifetimes)
    gc.collect()
    gc.disable()
    try:
        pool = Pool(sections.temporary_bytes)
        arrays = [owner.data for owner in owners_of(job)]
        functions = sections.bind(arrays, gradients, num_slots, pool)
        known = functions["forward"].__globals__
        found = [known[name] for name in known if re.fullmatch(r"t\d+|.*_T", name)]
        found += [each for name in known if "kept" in name for each in known[name][0]]
        kept = [weakref.ref(array) for array in found]
        assert kept
        del functions, known, found, pool, gradients
        assert [each() for each in kept] == [None] * len(kept)
    finally:
        gc.enable()


@pytest.mark.parametrize("row", HALVES)
def test_a_slot_serves_one_microbatch_at_a_time(row):
    job = job_of(*MODELS["block"])
    trace = traced(job, is_split=True)
    sections = Sections(trace, 0)
    expected = eager(job, HALVES[row])
    for _ in range(2):  # the second time in other memory
        assert compiled(job, trace, HALVES[row], sections) == expected
