"""What the reports print: every figure is one of the object's, in its column, and
numbers end below their heads.
"""

import re
from statistics import median

import numpy as np
import pytest

from minipipe import Plan, nn, schedules
from minipipe.schedules.simulation.paper_scale import Link
from minipipe.tuning import MemoryPrediction, RankMemory, advise, measure_layers
from minipipe.tuning.grid_report import MEMORY
from minipipe.tuning.traffic import KINDS
from tests.launch import slowly
from tests.tuning.test_grids import TINY, report, tiny

MODEL = nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 2))
X, Y = np.ones((8, 300), np.float32), np.ones((8, 2), np.float32)


def layers():
    return measure_layers(MODEL, X, Y, nn.MSELoss(), num_microbatches=2, repeats=1)


def memory():
    return MemoryPrediction(
        [
            RankMemory(8, 1008, 16, 1_000_000, 20, 5, 7),
            RankMemory(1, 2, 3, 4, 5, 6, 10**9),
        ]
    )


def advice():
    return advise(
        MODEL, X, Y, loss=nn.MSELoss(), num_ranks=2, messages="assumed", seconds=0
    )


def grids():
    found = report(tiny(), hosts=2, link=Link(1e-3, 1e6), shares_cores=True)
    return "\n\n".join(str(found).split("\n\n")[1:4])


def cells(line):
    """Return the cells of a row with the place at which each ends: two blanks divide
    them.
    """
    return [(match[0], match.end()) for match in re.finditer(r"\S+(?: \S+)*", line)]


def tables_of(text):
    """Return the tables in a text, each a list of lines that have as many columns as
    the head or more.
    """
    return [
        part.splitlines()
        for part in text.split("\n\n")
        if len(cells(part.splitlines()[0])) > 4
    ]


@pytest.mark.parametrize("make", [layers, memory, advice, slowly(grids)])
def test_every_number_ends_where_a_head_ends(make):
    tables = tables_of(str(make()))
    assert tables
    for head, *rows in tables:
        ends = {end for _, end in cells(head)}
        assert rows
        for row in rows:
            numbers = [
                (cell, end)
                for cell, end in cells(row)
                if re.fullmatch(r"[\d.,]+( %| [kMG]?i?B)?", cell)
            ]
            assert len(numbers) > 3
            # The number of a layer and the chunks of a schedule stand on the left.
            assert [cell for cell, end in numbers[1:] if end not in ends] == []


def test_a_row_of_layers_has_the_costs_of_the_layer_in_their_order():
    found = layers()
    lines = str(found).splitlines()
    heads = [
        "layer",
        "F ms",
        "I ms",
        "W ms",
        "held after F",
        "after I",
        "message",
        "gradient",
        "parameters",
        "bytes",
    ]
    assert [cell for cell, _ in cells(lines[0])] == heads
    for number, (costs, line) in enumerate(
        zip([*found, found.loss], lines[1:], strict=True)
    ):
        times = [
            f"{1e3 * time:.3f}"
            for time in (costs.forward, costs.backward_input, costs.backward_weight)
        ]
        held = [
            f"{size:,}"
            for size in (costs.activation, costs.weight_activation, costs.message_size)
        ]
        own = [f"{costs.num_parameters:,}", f"{costs.parameter_bytes:,}"]
        expected = [str(number)] * (number < len(found)) + [costs.layer, *times, *held]
        assert [cell for cell, _ in cells(line)] == [
            *expected,
            "yes" if costs.returns_gradient else "no",
            *own,
        ]
    assert [costs.num_parameters for costs in found] == [300 * 200 + 200, 0, 402]
    assert [costs.parameter_bytes for costs in found] == [4 * 60200, 0, 4 * 402]
    assert [costs.message_size for costs in found] == [
        4 * 4 * 200,
        4 * 4 * 200,
        4 * 4 * 2,
    ]


def test_a_row_of_memory_has_the_bytes_of_the_rank_and_their_sum():
    for rank, (own, line) in enumerate(
        zip(memory(), str(memory()).splitlines()[1:], strict=True)
    ):
        assert own.total == sum(own)
        assert [cell for cell, _ in cells(line)] == [
            str(rank),
            *(f"{size:,}" for size in (*own, sum(own))),
        ]


def test_a_prediction_counts_what_each_rank_has():
    found = Plan(
        MODEL, schedules.gpipe(2, 2), partition=[range(2), range(2, 3)]
    ).memory(layers())
    assert [(own.parameters, own.gradients) for own in found] == [
        (4 * 60200, 4 * 60200),
        (4 * 402, 4 * 402),
    ]
    # Both microbatches: of the first stage its result, which is tanh's input and
    # output; of the second, input and loss.
    assert (
        all(own.activations > 0 for own in found) and found[0].messages >= 4 * 4 * 200
    )


def most(row, kinds, whose):
    return max(sum(rank[whose][kind] for kind in kinds) for rank in row["ranks"])


@pytest.mark.slow
def test_the_tables_of_grids_have_the_most_of_any_rank_and_the_medians_of_steps(
    monkeypatch,
):
    monkeypatch.setenv("COLUMNS", "200")  # wide enough for steps of a busy machine
    found = report(tiny(), hosts=2)
    _, times, sent, held, *_ = str(found).split("\n\n")
    simulated = {each.grid: each for each in found.simulated}
    on_hosts = {each.grid: each for each in found.on_hosts}
    for row, line in zip(tiny(), times.splitlines()[1:], strict=True):
        grid = row["grid"]
        expected = [
            f"{1e3 * median(row['seconds']):.2f}",
            f"{100 * row['bubble']:.0f} %",
        ]
        expected.append(f"{1e3 * median(row['compiled_seconds']):.2f}")
        for each in (simulated[grid], on_hosts[grid]):
            expected += [f"{1e3 * each.seconds:.2f}", f"{100 * each.bubble:.0f} %"]
        assert [cell for cell, _ in cells(line)] == [
            grid,
            *expected,
            f"{row['losses'][0]:.6f}",
        ]
    for kinds, table, whose in ((KINDS, sent, "sent"), (MEMORY, held, "memory")):
        head, *lines = table.splitlines()
        assert [cell for cell, _ in cells(head)][1:-1] == [*kinds, "all", "promised"]
        for row, line in zip(tiny(), lines, strict=True):
            sizes = [most(row, [kind], whose) for kind in kinds] + [
                most(row, kinds, whose)
            ]
            sizes.append(most(row, kinds, f"promised_{whose}"))
            assert [cell for cell, _ in cells(line)][:-1] == [
                row["grid"],
                *(f"{size:,}" for size in sizes),
            ]


def test_the_parts_of_a_step_are_its_time():
    for figures in report(tiny()).measured:
        assert sum(figures.parts.values()) == pytest.approx(figures.seconds)
        work = figures.seconds - figures.update
        assert figures.parts["idle"] == pytest.approx(figures.bubble * work)
        assert figures.parts["optimiser"] == figures.update


def test_the_title_names_the_task_and_the_ranks():
    assert (
        report(tiny()).title
        == "2 blocks, 8 wide, 2 heads, float64; 8 x 3 tokens in 4 microbatches; ranks"
    )
    left_out = type(report(tiny()))(
        TINY, tiny(), {"data 3": "3 does not divide 8"}, "ranks"
    )
    assert left_out.notes[0] == "left out: data 3: 3 does not divide 8."


def test_the_spread_of_steps_is_the_median_over_grids():
    rows = [
        {**row, "seconds": [1.0, 1.0 + width, 1.0]}
        for row, width in zip(tiny(), (0.1, 0.3, 0.2, 0.9))
    ]
    assert any(
        "differ by 25% (median); smaller" in text for text in report(rows).sentences
    )
