"""The experiment with asynchronous training: what it computes, and what its page says
of the recorded results.
"""

import json
import sys
from functools import partial
from importlib import import_module

import numpy as np
import pytest

from minipipe import nn, optim, spawn
from tests.launch import ROOT, mpirun, needs_mpi, run, slowly

FOLDER = ROOT / "tutorials" / "asynchronous"
sys.path.append(str(FOLDER))
experiment = import_module("experiment")
late = import_module("muon")
sys.path.remove(str(FOLDER))

LATE = json.loads((FOLDER / "muon.json").read_text())
ROWS = json.loads((FOLDER / "results.json").read_text())
PAGE = (FOLDER / "README.md").read_text()
METHODS = pytest.mark.parametrize("method", experiment.METHODS)


def found(task, method, stages=8):
    (row,) = [
        row
        for row in ROWS
        if (row["task"], row["method"], row["stages"]) == (task, method, stages)
    ]
    return row


def at_the_end(task, method, stages=8):
    return experiment.at_the_end(found(task, method, stages))


# -- what it computes ------------------------------------------------------------------


@METHODS
def test_stages_on_one_rank_have_the_bits_of_as_many_ranks(method):
    job = experiment.Job("digits", method, 3, 0.01, seed=1, num_batches=2)
    on_ranks = partial(trained, job)
    alone, *others = (
        spawn(partial(trained, job, in_one_row=True), 1),
        *spawn(on_ranks, 3),
    )
    assert all(losses == alone[0][0] for losses, *_ in others)
    assert [versions for _, _, versions, _ in others] == [
        [each] for each in alone[0][2]
    ]


def trained(job, group, in_one_row=False):
    table = experiment.in_one_row(job.table()) if in_one_row else job.table()
    return experiment.train(
        group, experiment.TASKS[job.task], job.method, table, *job[3:]
    )


@METHODS
def test_every_stage_keeps_its_order_on_one_rank(method):
    table = experiment.METHODS[method].table(4, 24)
    (row,) = experiment.in_one_row(table).actions
    assert [
        [action for action in row if action.stage == stage] for stage in range(4)
    ] == [*map(list, table.actions)]


@pytest.mark.slow
def test_with_one_stage_some_are_the_same_and_2bw_is_on_any_number():
    losses = {}
    for method in experiment.METHODS:
        for stages in (1, 2):
            job = experiment.Job("digits", method, stages, 0.01, seed=0, num_batches=3)
            losses[method, stages] = spawn(partial(trained, job, in_one_row=True), 1)[
                0
            ][0]
    assert (
        losses["1f1b", 1] == losses["1f1b", 2] == losses["paci", 1] != losses["paci", 2]
    )
    assert losses["pipedream", 1] == losses["vertical-sync", 1] != losses["nesterov", 1]
    assert losses["2bw", 1] == losses["2bw", 2] != losses["1f1b", 1]
    assert (
        losses["pipedream", 2] != losses["vertical-sync", 2] != losses["pipedream", 1]
    )


def test_the_times_are_those_of_the_simulated_schedules():
    ends = experiment.ends(experiment.Job("digits", "1f1b", 4, 0.01, 0, num_batches=5))
    assert ends == [33, 66, 99, 132, 165]  # 3 (m + p - 1) each
    ends = experiment.ends(
        experiment.Job("digits", "pipedream", 4, 0.01, 0, num_batches=5)
    )
    assert [end - start for start, end in zip(ends, ends[1:])] == [24] * 4 and ends[
        -1
    ] == 3 * (40 + 3)


# -- one update late -------------------------------------------------------------------


class CorrectedSGD(late.Corrected, optim.SGD):
    pass


def test_corrected_changes_are_all_right_ones_and_one_guess():
    weight = nn.Parameter(np.zeros(3))
    gradients = np.random.default_rng(0).standard_normal((6, 3))
    optimiser = CorrectedSGD([weight], 0.5)
    for gradient in gradients:
        weight.grad = gradient
        optimiser.step()
    whole = gradients.sum(axis=0) + gradients[-1] - gradients[0]
    assert np.allclose(weight.data, -0.5 * whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("rule", ["AdamW", slowly("Muon")])
def test_one_update_late_has_the_same_bits_on_any_number_of_stages(rule, monkeypatch):
    job = late.Job(rule, "2BW, corrected", 0.004, seed=1, num_batches=3)
    two = job.run()
    monkeypatch.setattr(late, "NUM_STAGES", 4)
    assert job.run() == two
    assert job._replace(way="2BW").run() != two != job._replace(way="1F1B").run()


def test_the_page_has_the_table_of_one_update_late():
    for line in filter(None, late.tables(LATE)):
        assert line in PAGE.splitlines()


@pytest.mark.slow
def test_one_update_late_runs_with_a_few_batches(tmp_path):
    command = [sys.executable, FOLDER / "muon.py", "--quick", "-o", tmp_path]
    done = run(command, limit=150)
    assert (done.code, done.err) == (0, "") and done.out.count("| Muon") == 5
    again = [sys.executable, FOLDER / "muon.py", "--draw", tmp_path / "muon.json"]
    assert run(again).out == done.out


def gaps(rule, way, rate):
    own, flushed = (
        next(one for one in LATE if (one["rule"], one["way"]) == (rule, each))
        for each in (way, "1F1B")
    )
    mean_gap = np.mean(np.subtract(own["loss"], flushed["loss"]))
    return mean_gap, own["by_rate"][rate] - flushed["by_rate"][rate]


def test_what_the_page_says_of_one_update_late_is_recorded():
    for rate in ("0.002", "0.004", "0.008"):
        adamw, muon = (gaps(rule, "2BW", rate)[1] for rule in ("AdamW", "Muon"))
        assert 0 < muon < adamw / 2
    for rule in ("AdamW", "Muon"):
        late_by, corrected_by = (
            gaps(rule, way, "0.002")[0] for way in ("2BW", "2BW, corrected")
        )
        assert 0.4 < corrected_by / late_by < 0.6
    losses = {(one["rule"], one["way"]): np.mean(one["loss"]) for one in LATE}
    assert losses["Muon", "2BW, corrected"] < losses["AdamW", "1F1B"]


# -- what was recorded -----------------------------------------------------------------


def test_the_page_has_the_tables_of_the_recorded_results():
    for line in filter(None, experiment.tables(ROWS)):
        assert line in PAGE.splitlines()


def test_the_picture_is_drawn_from_the_recorded_results():
    assert (FOLDER / "loss.svg").read_text() == experiment.picture(ROWS)


@pytest.mark.slow
@METHODS
def test_the_recorded_curves_begin_as_they_do_here(method):
    """The digits; the text is that of another Python elsewhere. What follows depends on
    the last bits of a kernel.
    """
    row = found("digits", method)
    job = experiment.Job(
        "digits", method, 8, row["rate"], 0, num_batches=row["batches_of_a_point"]
    )
    (losses, *_), *_ = spawn(partial(trained, job, in_one_row=True), 1)
    assert sum(losses) / len(losses) == pytest.approx(row["curve"][0], rel=1e-3)


@pytest.mark.slow
def test_it_runs_with_a_few_batches_and_draws(tmp_path):
    done = run(
        [sys.executable, FOLDER / "experiment.py", "--quick", "-o", tmp_path], limit=150
    )
    assert (done.code, done.err) == (0, "") and done.out.count("| PipeDream |") == 3
    again = run(
        [
            sys.executable,
            FOLDER / "experiment.py",
            "--draw",
            tmp_path / "results.json",
            "-o",
            tmp_path,
        ]
    )
    assert again.out == done.out and (tmp_path / "loss.svg").read_text().startswith(
        "<svg"
    )


@pytest.mark.slow
@needs_mpi
def test_it_measures_on_real_ranks():
    done = mpirun(2, FOLDER / "experiment.py", "--measure", "--quick", limit=120)
    assert done.code == 0 and done.out.count("PACI") == 2


# -- what the page says of it ----------------------------------------------------------

STAGES = 1, 2, 4, 8
TASKS = pytest.mark.parametrize("task", experiment.TASKS)


@TASKS
def test_the_same_bits_have_the_same_recorded_loss(task):
    for method in ("1f1b", "2bw"):
        assert len({json.dumps(found(task, method, p)["curve"]) for p in STAGES}) == 1
    assert found(task, "paci", 1)["curve"] == found(task, "1f1b", 1)["curve"]
    assert (
        found(task, "pipedream", 1)["curve"] == found(task, "vertical-sync", 1)["curve"]
    )


@TASKS
def test_staleness_hurts_more_the_deeper_the_pipeline_is(task):
    losses = [at_the_end(task, "pipedream", p) for p in STAGES]
    assert losses == sorted(losses) and all(
        text in PAGE for text in (f"{losses[0]:.3f} to {losses[-1]:.3f}",)
    )
    assert at_the_end(task, "vertical-sync") > at_the_end(task, "pipedream")
    for method in ("pipedream", "vertical-sync", "nesterov", "paci"):
        assert found(task, method, 8)["rate"] <= found(task, method, 1)["rate"]
        assert at_the_end(task, method, 8) > at_the_end(task, method, 1)
    assert at_the_end(task, "1f1b") < at_the_end(task, "paci") < at_the_end(task, "2bw")


@TASKS
def test_a_look_ahead_helps_by_less_than_seeds_differ(task):
    for p in STAGES:
        gain = at_the_end(task, "pipedream", p) - at_the_end(task, "nesterov", p)
        losses = found(task, "pipedream", p)["loss"]
        assert 0 < gain < max(losses) - min(losses)


def test_small_updates_are_better_on_the_text_and_no_stale_gradients_on_the_digits_of_8_stages():
    assert (
        at_the_end("text", "pipedream", 1)
        < at_the_end("text", "pipedream", 8)
        < at_the_end("text", "1f1b")
    )
    assert all(
        at_the_end("digits", "1f1b") < at_the_end("digits", m)
        for m in experiment.METHODS
        if m != "1f1b"
    )


def test_at_the_same_time_those_without_flushes_are_ahead_but_for_one():
    behind = []
    for task in experiment.TASKS:
        time = found(task, "pipedream")["ends"][-1]
        flushed = experiment.loss_at(found(task, "1f1b"), time)
        behind += [
            (task, m)
            for m in experiment.METHODS
            if experiment.loss_at(found(task, m), time) > flushed
        ]
    assert behind == [("digits", "2bw")]
    assert [
        experiment.units_of_a_batch(found("digits", m)) for m in ("1f1b", "2bw")
    ] == [45, 24]


def test_versions_take_four_and_a_half_times_the_memory_of_1f1b_2bw_twice_and_paci_none():
    size = {method: found("digits", method)["bytes"] for method in experiment.METHODS}
    assert (
        size["pipedream"] == size["nesterov"] == 4.5 * size["1f1b"]
        and size["2bw"] == 2 * size["1f1b"]
    )
    assert size["paci"] == size["1f1b"]
    assert found("digits", "pipedream")["versions"] == list(range(8, 0, -1))


def test_the_best_rates_are_inside_of_the_grid():
    """Otherwise a method might be worse for want of a rate; only PACI on two stages
    could bear a larger one.
    """
    at_an_end = []
    for row in ROWS:
        rates = [float(rate) for rate in row["by_rate"]]
        assert tuple(rates) == experiment.TASKS[row["task"]].rates
        assert row["loss"][0] == pytest.approx(
            row["by_rate"][f"{row['rate']:g}"], rel=1e-4
        )
        at_an_end += [(row["task"], row["method"], row["stages"])] * (
            row["rate"] in (rates[0], rates[-1])
        )
    assert at_an_end == [("digits", "paci", 2)]
