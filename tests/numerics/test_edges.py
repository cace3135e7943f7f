"""Each operation at the edges of its domain has the values and gradients of edges.json,
on every array module.

The file is PyTorch's answer (``make_edges.py``), but for what minipipe gives on
purpose; the file says why.
"""

import array_api_strict
import numpy as np
import pytest

from minipipe import functional
from minipipe.errors import MinipipeError
from tests.launch import for_each, slowly
from tests.numerics.edges import (
    CASES,
    LAYOUTS,
    OPERATIONS,
    by_operation,
    check,
    compiled,
    expected,
    inputs,
    results,
    results_in_halves,
)

# infinities are what is tried here
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
COMPUTED = by_operation([case for case in CASES if "refused" not in case])
REFUSED = {
    f"{case['name']}, {case['dtype']}": case for case in CASES if "refused" in case
}
# These compute in place in arrays that NumPy makes of numbers, which a trace does not
# see.
NOT_COMPILED = [
    f"{name} of a number without axes" for name in ("gelu", "gelu with tanh", "erf")
]


@pytest.fixture(autouse=True)
def watching():
    """Watch nothing, unlike other tests: what is watched leaves no script."""


def each_of(cases, test):
    """Call a test for each case; the error names it."""
    for case in cases:
        try:
            test(case)
        except Exception as error:
            error.add_note(f"{case['name']}, {case['dtype']}")
            raise


@for_each(cases=COMPUTED)
def test_values_and_gradients_are_those_of_the_table(cases):
    each_of(cases, lambda case: check(case, results(case)))


@pytest.mark.slow
@for_each(cases=COMPUTED)
def test_another_array_module_has_the_same(cases):
    each_of(cases, lambda case: check(case, results(case, array_api_strict.asarray)))


@pytest.mark.parametrize(
    "layout", [name if name == "backwards" else slowly(name) for name in LAYOUTS]
)
@for_each(cases=COMPUTED)
def test_so_have_arrays_that_lie_in_memory_in_another_way(cases, layout):
    """Neither a value nor a gradient depends on strides, be they negative, or the
    strides of a part of an array.
    """
    each_of(cases, lambda case: check(case, results(case, LAYOUTS[layout])))


@for_each(cases=COMPUTED)
def test_i_and_w_have_the_bits_of_one_backward_whichever_input_is_an_activation(cases):
    for case in cases:
        whole = [each.tobytes() for each in results(case)]
        for number in range(len(case["inputs"])):
            halves = [
                np.asarray(each).tobytes() for each in results_in_halves(case, number)
            ]
            assert halves == whole, f"{case['name']}, {case['dtype']}, input {number}"


@for_each(case=REFUSED)
def test_what_has_no_answer_is_refused(case):
    with pytest.raises(MinipipeError) as caught:
        results({**case, "upstream": 1.0})
    assert caught.value.code == case["refused"]


@for_each(cases={name: COMPUTED[name] for name in [*COMPUTED][::3]})
def test_some_sections_traced_with_ordinary_numbers_have_the_bits_of_eager_code_at_the_edges(
    cases,
):
    check_sections(cases)


@pytest.mark.slow
@for_each(cases=COMPUTED)
def test_sections_traced_with_ordinary_numbers_have_the_bits_of_eager_code_at_the_edges(
    cases,
):
    check_sections(cases)


def check_sections(cases):
    for case in cases:
        if case["name"] in NOT_COMPILED:
            with pytest.raises(AssertionError, match="cannot be compiled"):
                compiled(case)
            continue
        assert compiled(case) == [each.tobytes() for each in results(case)], case[
            "name"
        ]


def test_every_public_operation_is_in_the_table():
    words = {word.strip(",") for name in OPERATIONS for word in name.split()}
    assert set(functional.__all__) <= words
    assert set(OPERATIONS) == {case["operation"] for case in CASES}


EDGES = {
    "zero": lambda x: x.size and (x == 0).any(),
    "infinity": lambda x: np.isinf(x).any(),
    "NaN": lambda x: np.isnan(x).any(),
    "no element": lambda x: not x.size,
    "one element": lambda x: x.size == 1 or 1 in x.shape,
    "equal elements": lambda x: len(np.unique(x)) < x.size,
}


@pytest.mark.parametrize("edge", EDGES)
def test_the_table_has_each_operation_at_each_edge(edge):
    """Among its inputs or, for a table of which no row is taken, its results."""
    having = set()
    for case in CASES:
        arrays = [*inputs(case), *(() if "refused" in case else expected(case))]
        if any(map(EDGES[edge], arrays)):
            having.add(case["operation"].split()[0].strip(","))
    assert set(functional.__all__) - having == set()


def test_the_table_gives_a_reason_exactly_where_it_differs_from_pytorch():
    for case in CASES:
        differs = "refused" in case or "pytorch" in case
        assert differs == bool(case.get("reason")), case["name"]
        if "pytorch" in case:
            assert str(case["pytorch"]) != str(case["results"])
    assert sum("pytorch" in case for case in CASES) == 50


def test_the_table_has_infinities_and_nan_among_inputs_and_results():
    for dtype in ("float32", "float64"):
        cases = [
            case for case in CASES if case["dtype"] == dtype and "refused" not in case
        ]
        seen = np.concatenate(
            [each.ravel() for case in cases for each in expected(case)]
        )
        assert (
            np.isnan(seen).any()
            and np.isinf(seen).any()
            and (seen == np.finfo(dtype).smallest_subnormal).any()
        )
