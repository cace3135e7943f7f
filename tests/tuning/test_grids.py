"""One model on every grid: the same losses, the bytes of the formulas, the memory that
the plan promises.
"""

import json
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipipe import Costs, Pipeline, nn, simulate, spawn
from minipipe.execution.choosing import replicated
from minipipe.parallel import reduction
from minipipe.schedules import one_f_one_b
from minipipe.schedules.simulation.paper_scale import Link
from minipipe.tuning import traffic
from minipipe.tuning.grid_report import MEMORY, GridReport
from minipipe.tuning.grids import Task, compare_on_ranks
from minipipe.tuning.hosts import on_hosts, time_between_hosts
from minipipe.tuning.traffic import KINDS
from tests.launch import slowly

TINY = Task(
    layers=2,
    width=8,
    heads=2,
    symbols=6,
    length=3,
    batch=8,
    microbatches=4,
    dtype="float64",
)
FOUR = replace(TINY, layers=4, heads=4, symbols=8)
EIGHT = replace(FOUR, layers=8, batch=16, microbatches=8)


def compared(task, num_ranks, rounds=1):
    return spawn(
        lambda group: compare_on_ranks(task, group, Pipeline, rounds), num_ranks
    )[0]


@cache
def tiny():
    """Rows as they come from another process."""
    return json.loads(json.dumps(compared(TINY, 2)))


def report(rows, task=TINY, **options):
    return GridReport(task, rows, {}, "ranks", **options)


def assert_as_promised(rows, task):
    assert report(rows, task).differing == []
    for row in rows:
        for rank in row["ranks"]:
            assert {kind: rank["sent"][kind] for kind in KINDS} == rank[
                "promised_sent"
            ], row["grid"]
            assert rank["memory"] == {
                name: rank["promised_memory"][name] for name in MEMORY
            }, row["grid"]


# -- the same numbers on every grid ----------------------------------------------------


@pytest.mark.slow
def test_two_ranks_send_and_hold_what_is_promised():
    assert [row["grid"] for row in tiny()] == [
        "data 2",
        "fully sharded 2",
        "tensor 2",
        "pipeline 2",
    ]
    assert_as_promised(tiny(), TINY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "num_ranks", "count"), [(TINY, 1, 1), (FOUR, 4, 8), (EIGHT, 8, 12)]
)
def test_so_does_every_grid_of_more_ranks(task, num_ranks, count):
    # in float64 over MPI: test_compare.py
    task = replace(task, dtype="float32")
    rows = compared(task, num_ranks, rounds=int(num_ranks < 8))
    assert len(rows) == count == len({row["grid"] for row in rows})
    assert_as_promised(rows, task)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_so_it_is_for_any_sizes(data):
    draw = lambda *numbers: data.draw(st.sampled_from(numbers))
    microbatches, num_ranks = draw(2, 4, 6), draw(2, 4)
    heads = draw(1, 2, 4)
    sizes = {
        "layers": draw(2, 3, 4),
        "heads": heads,
        "width": heads * draw(2, 3),
        "symbols": draw(4, 7, 8),
    }
    sizes |= {
        "length": draw(1, 2, 5),
        "batch": microbatches * draw(1, 3),
        "microbatches": microbatches,
    }
    task = Task(**sizes, dtype=draw("float32", "float64"))
    if task.grids(num_ranks)[0]:
        assert_as_promised(compared(task, num_ranks, rounds=0), task)


def test_what_is_sent_are_the_formulas_of_the_lessons():
    """Of N parameters of 8 bytes replicas send 2 (d - 1) / d; a cut takes an activation
    each way for a microbatch.
    """
    by_name = {
        row["grid"]: [rank["promised_sent"] for rank in row["ranks"]] for row in tiny()
    }
    size = sum(parameter.size for parameter in TINY.model().parameters())
    activation = 8 * TINY.positions * TINY.width
    assert sum(rank["gradient sums"] for rank in by_name["data 2"]) == 2 * 8 * size
    assert [rank["activations"] for rank in by_name["pipeline 2"]] == [
        TINY.microbatches * activation
    ] * 2
    # Of a layer in F, in B, and of its gradients, for each microbatch of a replica: its
    # share or that of the other one.
    shares = [rank["shares"] for rank in by_name["fully sharded 2"]]
    assert sum(shares) == 2 * 3 * 8 * size // 2 * TINY.microbatches // 2
    # Four sums a block, and one of the embedding; each rank sends what it has to the
    # only other one.
    of_all = (4 * TINY.layers + 1) * TINY.microbatches * activation
    assert [rank["tensor sums"] for rank in by_name["tensor 2"]] == [of_all] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "mutant"),
    [
        slowly(traffic, "bytes_sent_in_sum", reduction.bytes_of_sum),
        (traffic, "sums_in", lambda module: nn.parallel.sums_in(module)[::-1][:1] * 2),
        slowly(nn.parallel, "reduce_from", lambda x, group: x),
        slowly(nn.parallel, "copy_to", lambda x, group: x),
    ],
)
def test_a_wrong_formula_and_a_missing_sum_are_noticed(where, name, mutant):
    with mock.patch.object(where, name, mutant), pytest.raises(AssertionError):
        assert_as_promised(compared(TINY, 2), TINY)


# -- which grids fit -------------------------------------------------------------------


@given(st.integers(1, 32), st.integers(1, 12), st.integers(1, 12), st.integers(1, 16))
def test_every_product_fits_or_is_left_out_for_a_reason(
    num_ranks, layers, heads, microbatches
):
    task = Task(
        layers=layers, width=heads, heads=heads, microbatches=microbatches, symbols=32
    )
    fitting, left_out = task.grids(num_ranks)
    divisors = [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]
    products = [
        sizes for sizes in product(divisors, repeat=3) if prod(sizes) == num_ranks
    ]
    names = [*(grid.name for grid in fitting), *left_out]
    assert (
        len(set(names))
        == len(names)
        == len(products) + sum(d > 1 == t for _, d, t in products)
    )
    for pipeline, data, tensor, _ in fitting:
        assert (pipeline, data, tensor) in products
        assert layers % pipeline == microbatches % data == heads % tensor == 0
        assert [len(part) > 0 for part in task.partition(pipeline)] == [True] * pipeline
        assert task.partition(pipeline)[-1].stop == len(list(task.model()))
    assert all(" not a multiple of " in reason for reason in left_out.values())


# -- on several hosts ------------------------------------------------------------------


def row_of(name):
    return next(row for row in tiny() if row["grid"] == name)


@pytest.mark.parametrize(
    "name", ["data 2", "fully sharded 2", "tensor 2", "pipeline 2"]
)
def test_on_one_host_nothing_changes_and_slower_links_never_help(name):
    row = row_of(name)
    alone = on_hosts(row, TINY.microbatches, 2, Link(1.0, 1.0)).makespan
    schedule = replicated(
        "1f1b", 2 // row["tensor"], TINY.microbatches // row["data"], None, row["data"]
    )
    assert alone == pytest.approx(
        simulate(schedule, Costs(**row["costs"])).makespan, rel=1e-9
    )
    times = [
        on_hosts(row, TINY.microbatches, 1, Link(1e-3, 10.0**power)).makespan
        for power in range(9, 1, -1)
    ]
    assert times == sorted(times) and times[-1] > 10 * alone


def with_unit_costs(row):
    return {
        **row,
        "costs": {"forward": 1.0, "backward_input": 2.0, "backward_weight": 0.0},
    }


def test_times_between_two_hosts_are_those_worked_out_by_hand():
    """A link without latency that sends what an activation has in half a unit; F takes
    1 unit and B takes 2.
    """
    activation = 8 * TINY.positions * TINY.width
    link, m = Link(0.0, 2 * activation), TINY.microbatches
    # A pipeline, with half a unit for each message.
    pipeline = on_hosts(with_unit_costs(row_of("pipeline 2")), m, 1, link)
    assert (
        pipeline.makespan
        == simulate(one_f_one_b(2, m), Costs(1.0, 2.0, 0.0, latency=0.5)).makespan
    )
    # One rank for all microbatches, with four sums a block and one of the embedding.
    tensor = on_hosts(with_unit_costs(row_of("tensor 2")), m, 1, link)
    assert tensor.makespan == m * (3 + 0.5 * (4 * TINY.layers + 1))
    # Half of the microbatches, then both halves of the sum; each rank sends half of the
    # gradients in each.
    row = row_of("data 2")
    size = row["ranks"][0]["promised_sent"]["gradient sums"]
    data = on_hosts(with_unit_costs(row), m, 1, link)
    assert data.makespan == pytest.approx(3 * m / 2 + size / link.bandwidth)
    # Half of the microbatches, each with three times the larger share of every layer.
    row = row_of("fully sharded 2")
    larger = sum(map(max, row["sizes"]["shares"][0]))
    sharded = on_hosts(with_unit_costs(row), m, 1, link)
    assert sharded.makespan == pytest.approx(m / 2 * (3 + 3 * larger / link.bandwidth))


def test_ranks_of_a_host_share_its_link_and_hosts_do_not():
    link = Link(0.0, 1.0)
    assert time_between_hosts([(0, 2, 1.0), (1, 3, 1.0)], 2, link) == 2.0
    assert time_between_hosts([(0, 2, 1.0), (2, 0, 1.0)], 2, link) == 1.0


# -- sentences -------------------------------------------------------------------------


def test_each_reason_compares_two_rows_by_a_figure_of_the_table():
    found = report(tiny(), hosts=2, link=Link(1e-3, 1e3))
    for figures, how in (
        (found.measured, "measured"),
        (found.on_hosts, "simulated on 2 hosts"),
    ):
        best, *others = sorted(figures, key=lambda each: each.seconds)
        sentences = [
            text
            for text in found.sentences
            if text.startswith(tuple(each.grid for each in figures))
        ]
        assert (
            f"{best.grid} is the fastest ({how}): {1e3 * best.seconds:.4g} ms per step."
            in sentences
        )
        for other in others:
            (reason,) = [
                s
                for s in sentences
                if s.startswith(
                    f"{other.grid} takes {other.seconds / best.seconds:.2f} "
                )
            ]
            cause = {
                "actions": "its actions",
                "idle": "are idle",
                "optimiser": "its optimiser",
            }
            named = next(name for name, words in cause.items() if words in reason)
            assert all(
                other.parts[named] - best.parts[named]
                >= other.parts[name] - best.parts[name]
                for name in best.parts
            )
            assert (
                f"{1e3 * other.parts[named]:.4g} ms" in reason
                and f"{1e3 * best.parts[named]:.4g} ms" in reason
            )


def slow_rows(**seconds):
    rows = [dict(row) for row in tiny() if not row["fully_sharded"]]
    for row in rows:
        row["seconds"] = [
            seconds[row["grid"].split()[0]] * part for part in (0.9, 1.0, 1.1)
        ]
    return rows


def test_less_memory_and_slower_links_make_another_grid_the_choice():
    found = report(slow_rows(data=1.0, tensor=2.0, pipeline=1.5)).sentences
    assert found[0] == "data 2 is the fastest (measured): 1000 ms per step."
    spread = "The slowest and the fastest step of one mesh differ by 20% (median)"
    assert f"{spread}; smaller differences between meshes are noise." in found
    assert any(
        text.startswith("If a rank has less than") and "pipeline 2 needs" in text
        for text in found
    )
    assert found[-1].startswith(
        "Simulated on 2 hosts with links of 1e+10 bytes per second, "
    )


def test_a_grid_whose_loss_differs_is_no_answer():
    rows = [dict(row) for row in tiny()]
    rows[2]["losses"] = [loss * (1 + 1e-10) for loss in rows[2]["losses"]]
    found = report(rows)
    assert found.differing == ["tensor 2"] and found.sentences == [
        (
            "Error: the losses of tensor 2 differ from the losses of data 2 by more "
            "than rounding."
        )
    ]


@pytest.mark.parametrize(
    ("factor", "is_close"),
    [(5e-13, True), (-5e-13, True), (2e-12, False), (-2e-12, False)],
)
def test_losses_may_differ_by_rounding_and_no_more(factor, is_close):
    rows = [{**row, "losses": [8.0, 4.0]} for row in tiny()]
    rows[2]["losses"] = [8.0, 4.0 * (1 + factor)]
    assert report(rows).differing == ([] if is_close else ["tensor 2"])


def test_it_says_where_times_of_shared_cores_would_mislead():
    assert not any("share cores" in note for note in report(tiny()).notes)
    assert any(
        "The ranks share cores, " in note
        for note in report(tiny(), hosts=2, shares_cores=True).notes
    )


def test_tables_and_data_tell_the_same():
    found = report(tiny(), hosts=2)
    text = str(found)
    for row in tiny():
        most = max(sum(rank["promised_sent"].values()) for rank in row["ranks"])
        assert text.count(f"{most:,}") >= 1 and f"{row['losses'][0]:.6f}" in text
    assert max(map(len, text.splitlines()[:20])) <= 120
    assert len(found.flat()) == 8 and {row["rank"] for row in found.flat()} == {0, 1}
    assert all(
        row["sent activations"] == row["promised_sent activations"]
        for row in found.flat()
    )
    assert json.loads(json.dumps(found.data))["grids"] == tiny()


def test_the_picture_has_a_bar_for_each_grid_and_amount():
    picture = report(tiny(), hosts=2).picture()
    assert all(picture.count(f"<title>{row['grid']}: ") == 4 for row in tiny())
    for words in (
        "a step, measured",
        "on 2 hosts, 1.2e+09 B/s",
        "sent in a step",
        "held by the fullest rank",
    ):
        assert f">{words}</text>" in picture
