"""Sections of random graphs have the bits of eager ones, whatever the row."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from minipipe import Tensor
from minipipe.compile.sections import Sections
from tests.autograd.random_graphs import WIDTH, Graph, graphs, leaf, results_of
from tests.compile.driver import Job, compiled, eager, seeds, traced
from tests.strategies import examples


@st.composite
def rows(draw):
    """Draw a row of three microbatches, split or not: any order of what can run."""
    is_split = draw(st.booleans())
    kinds = "FIW" if is_split else "FB"
    left = [list(kinds) for _ in range(3)]
    row = []
    while any(left):
        k = draw(st.sampled_from([k for k, each in enumerate(left) if each]))
        row.append((left[k].pop(0), k))
    return is_split, row


def job_of(graph: Graph) -> Job:
    """Return a stage that computes a graph."""
    made = [*graph.leaves, *[((WIDTH, WIDTH), role) for role in graph.matrices]]
    weights = {
        i: leaf(shape, role, graph.dtype, 100 * i)
        for i, (shape, role) in enumerate(made)
        if "input" not in role
    }
    places = [i for i, (_, role) in enumerate(made) if "input" in role]

    def inputs(k: int) -> list[tuple[np.ndarray, bool]]:
        found = []
        for i in places:
            shape, role = made[i]
            values = leaf(shape, role, graph.dtype, 100 * i + k).data
            found.append((values, role == "input"))
        return found

    def compute(tensors: list[Tensor]) -> list[Tensor]:
        given_now = dict(zip(places, tensors))
        leaves = [given_now.get(i, weights.get(i)) for i in range(len(made))]
        return results_of(graph, leaves)[-graph.num_roots :]

    trained = [weights[i] for i, (_, role) in enumerate(made) if role == "weight"]
    return Job(compute, trained, inputs, seeds)


@examples(150)
@given(graphs, rows())
def test_sections_of_any_graph_have_the_bits_of_eager_ones(graph, row):
    is_split, steps = row
    job = job_of(graph)
    assume(job.inputs(0))
    expected = eager(job, steps)
    trace = traced(job, is_split)
    assume(trace.reason is None or "outside of the trace" not in trace.reason)
    assert compiled(job, trace, steps) == expected, Sections(trace, 0).source
