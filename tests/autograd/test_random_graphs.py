"""Any graph has the bits of the same graph recorded as closures: in one backward, in
two halves, and when watched.

Each mutant of the engine, a mistake that is easily made in it, must be noticed by these
comparisons.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappush
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from minipipe import Tensor, functional, watch_everything
from minipipe.autograd import Leaf, Node, backward
from minipipe.autograd.memory import held_bytes
from minipipe.core.autograd.backend import copy
from minipipe.core.autograd.operation import Plan
from minipipe.errors import ArgumentError, TensorError
from tests.autograd.random_graphs import (
    NUM_INPUTS,
    TABLE,
    Graph,
    Step,
    at_once,
    computed,
    gated,
    graphs,
    in_halves,
    joined,
    layered,
)
from tests.launch import slowly
from tests.strategies import examples

# a float16 may overflow, here and in the oracle
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
WALK = importlib.import_module("minipipe.core.autograd.walk")


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing, unlike other tests, but in the test about watching."""


# -- the same bits ---------------------------------------------------------------------


@examples(400)
@given(graphs, st.integers(1, 2))
def test_a_backward_has_the_bits_of_closures(graph, num_microbatches):
    assert at_once(graph, False, num_microbatches) == at_once(
        graph, True, num_microbatches
    )


@examples(400)
@given(graphs, st.integers(1, 3))
def test_both_halves_have_the_bits_of_closures_and_of_one_backward(
    graph, num_microbatches
):
    found = in_halves(graph, False, num_microbatches)
    assert found == in_halves(graph, True, num_microbatches)
    # Of the last microbatch: weights have the gradients of all of them then, in both
    # orders.
    assert found[-1] == at_once(graph, False, num_microbatches)[-1]


@examples(200)
@given(graphs)
def test_the_engine_holds_no_more_than_closures(graph):
    held = []
    for is_oracle in (False, True):
        found = computed(graph, is_oracle, {})
        nodes = [*found.roots]
        # Results without axes do not count: the closures kept NumPy's scalars, which
        # are no arrays.
        kept = [tensor.data for tensor in found.leaves]
        kept += [tensor.data for tensor in found.results if not tensor.shape]
        found.results.clear()
        held.append(held_bytes(nodes, kept))
    assert held[0] <= held[1]


@examples(200)
@given(graphs, st.integers(0, 9), st.booleans())
def test_watching_finds_a_change_in_place_where_it_found_it_with_closures(
    graph, victim, of_leaf
):
    outcomes = []
    for is_oracle in (False, True):
        with watch_everything():
            found = computed(graph, is_oracle, {})
            tensors = found.leaves if of_leaf or not found.results else found.results
            array = tensors[victim % len(tensors)].data
            if not array.flags.writeable:
                return
            array[...] += 1
            try:
                backward(found.roots)
            except TensorError as error:
                outcomes.append(error.code)
            else:
                outcomes.append(found.bits())
    assert outcomes[0] == outcomes[1]


def test_the_graphs_reach_every_kind_of_operation():
    """Were all steps left out, the tests above would pass whatever the engine did."""
    leaves = [
        ((3, 4), "input"),
        ((1, 4), "weight"),
        ((3, 1), "weight"),
        ((3, 4), "weight"),
    ]
    for name in TABLE:
        graph = Graph(
            "float32", leaves, ["weight", "input"], [Step(name, (0, 1, 0))], 1
        )
        found = computed(graph, False, {})
        assert len(found.results) == 1 and found.roots
        backward(found.roots)
        assert sum(tensor.node.grad is not None for tensor in found.leaves) == min(
            2, NUM_INPUTS.get(name, 2)
        ) + (name == "layered") - (name == "joined"), name


# -- mutants: what the tests above must notice -----------------------------------------

Mutant = Callable[[pytest.MonkeyPatch], None]


def a_gradient_that_is_not_summed_over_stretched_axes(
    patch: pytest.MonkeyPatch,
) -> None:
    patch.setattr(WALK.backend, "unbroadcast", lambda gradient, shape: gradient)


def i_and_w_exchanged(patch: pytest.MonkeyPatch) -> None:
    halves = Plan.halves
    patch.setattr(
        Plan,
        "halves",
        lambda self, is_activation: halves(
            self, tuple(not each for each in is_activation)
        ),
    )


def w_that_keeps_the_values_beside_its_own(patch: pytest.MonkeyPatch) -> None:
    halves = Plan.halves

    def shifted(self: Plan, is_activation: tuple[bool, ...]) -> tuple[Plan, list[Plan]]:
        first, (second, *_) = halves(self, is_activation)
        turned = [*first._values[1:], *first._values[:1]]
        return first, [Plan(self.operation, turned, second._gradients)]

    patch.setattr(Plan, "halves", shifted)


def arrays_reused_after_i_although_w_needs_them(patch: pytest.MonkeyPatch) -> None:
    taken = WALK._taken

    def released(walk: Any, inputs: Any, plan: Any, saved: Any, postponed: Any) -> Any:
        before = set(postponed or ())
        result = taken(walk, inputs, plan, saved, postponed)
        for node in set(postponed or ()) - before:
            node.saved = tuple(
                np.zeros_like(each) if isinstance(each, np.ndarray) else each
                for each in node.saved
            )
        return result

    patch.setattr(WALK, "_taken", released)


def a_pending_gradient_that_grows_in_place(patch: pytest.MonkeyPatch) -> None:
    add = Node.add

    def in_place(self: Node, contribution: Any, walk: Any) -> None:
        if (
            self.pending is None
            or isinstance(self, Leaf)
            or not self.pending.flags.writeable
        ):
            add(self, contribution, walk)
        else:
            self.pending += contribution

    patch.setattr(Node, "add", in_place)


def a_leaf_that_takes_any_array_as_its_own(patch: pytest.MonkeyPatch) -> None:
    def add(self: Leaf, contribution: Any, walk: Any) -> None:
        if self.grad is None:
            self.grad = (
                contribution if contribution.flags.writeable else copy(contribution)
            )
        else:
            self.grad += contribution

    patch.setattr(Leaf, "add", add)


def one_plan_for_all_patterns_of_inputs(patch: pytest.MonkeyPatch) -> None:
    plans = type(functional.add.operation.plans)
    make = plans.__missing__

    def first(self: Any, pattern: int) -> Plan:
        self[pattern] = next(iter(self.values()), None) or make(self, pattern)
        return self[pattern]

    patch.setattr(plans, "__missing__", first)


def the_latest_consumer_last(patch: pytest.MonkeyPatch) -> None:
    def turned(queue: list[Any], entry: tuple[int, int, Node]) -> None:
        heappush(queue, (-entry[0], *entry[1:]))

    patch.setattr("minipipe.core.autograd.graph.heappush", turned)


def a_kept_value_too_few(patch: pytest.MonkeyPatch) -> None:
    getter = importlib.import_module("minipipe.core.autograd.operation")._getter
    patch.setattr(
        "minipipe.core.autograd.operation._getter",
        lambda names, wanted: getter(names, tuple(wanted)[1:]),
    )


# By mutant, how it is noticed: by an error, or else by other bits than the closures
# have.
MUTANTS: dict[Mutant, tuple[type[Exception], ...]] = {
    a_gradient_that_is_not_summed_over_stretched_axes: (),
    i_and_w_exchanged: (),
    w_that_keeps_the_values_beside_its_own: (),
    arrays_reused_after_i_although_w_needs_them: (),
    a_pending_gradient_that_grows_in_place: (),
    a_leaf_that_takes_any_array_as_its_own: (),
    one_plan_for_all_patterns_of_inputs: (),
    the_latest_consumer_last: (TensorError,),
    a_kept_value_too_few: (IndexError, TypeError),
}


@contextmanager
def without_plans() -> Iterator[None]:
    """Forget the plans of all operations of the table, before and behind a mutant."""
    operations = [
        functional.add,
        functional.subtract,
        functional.multiply,
        functional.relu,
        functional.tanh,
    ]
    made = [
        getattr(each, "operation", None)
        for each in (*operations, gated, joined, layered)
    ]
    for operation in filter(None, made):
        operation.plans.clear()
    yield
    for operation in filter(None, made):
        operation.plans.clear()


@pytest.mark.parametrize(
    "mutant",
    [mutant if i % 3 == 0 else slowly(mutant) for i, mutant in enumerate(MUTANTS)],
    ids=lambda mutant: mutant.__name__,
)
def test_a_mutant_is_noticed(mutant, monkeypatch):
    def is_noticed(graph: Graph) -> bool:
        expected = at_once(graph, True, 2)[-1]
        with without_plans(), monkeypatch.context() as patch:
            mutant(patch)
            try:
                found = at_once(graph, False, 2)[-1], in_halves(graph, False, 2)[-1]
            except Exception as error:
                return isinstance(error, MUTANTS[mutant])
        return not MUTANTS[mutant] and found != (expected, expected)

    search = settings(
        max_examples=1500, phases=[Phase.generate], derandomize=True, database=None
    )
    find(graphs, is_noticed, settings=search)


def test_the_search_for_mutants_finds_nothing_in_the_engine_itself():
    def is_noticed(graph: Graph) -> bool:
        return at_once(graph, False, 2)[-1] != at_once(graph, True, 2)[-1]

    with pytest.raises(NoSuchExample):
        find(
            graphs,
            is_noticed,
            settings=settings(max_examples=100, derandomize=True, database=None),
        )


@pytest.mark.parametrize(
    "operation", [functional.multiply, functional.linear, gated, layered, joined]
)
def test_a_gradient_that_names_too_little_fails_and_gives_no_wrong_number(
    operation, monkeypatch
):
    """Its function gets nothing that it does not name: neither from a node, nor from an
    earlier call.
    """
    made = operation.operation
    for name, value in made.steps.items():
        if value.needs:
            with without_plans(), monkeypatch.context() as patch:
                patch.setitem(made.steps, name, value._replace(needs=value.needs[:-1]))
                made.plans.clear()
                ones = np.ones((4, 4), np.float32)
                inputs = [
                    Tensor(ones, requires_grad=name == each or made.is_variadic)
                    for each in made.inputs[:2]
                ]
                if name not in made.inputs[:2]:
                    continue
                with pytest.raises(
                    TypeError, match="missing 1 required positional argument"
                ):
                    operation(*inputs, **dict.fromkeys(made.attributes, 0)).backward(
                        ones
                    )
            made.plans.clear()


def test_a_name_that_no_operation_has_is_refused_before_anything_is_computed():
    with pytest.raises(ArgumentError, match="needs inner_2; expected one of"):
        layered.gradients(second=lambda g, inner_2: inner_2.T @ g)
    assert layered.operation.steps["second"].needs == ("inner",)
