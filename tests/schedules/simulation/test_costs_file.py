"""Costs go to a file and come back, and a file that holds none is refused."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Costs, Pipeline, nn, schedules, simulate, spawn
from minipipe.errors import FileError, MinipipeError, ScheduleError
from tests.launch import run, slowly
from tests.strategies import examples

numbers = st.floats(0, 1e9) | st.integers(0, 10)
by_stage = (
    numbers
    | st.lists(numbers, min_size=4, max_size=4)
    | st.lists(numbers, min_size=4, max_size=4).map(np.array)
)
above_0 = st.floats(0.001, 1e9)


@st.composite
def costs(draw):
    names = (
        "forward",
        "backward_input",
        "backward_weight",
        "message_size",
        "activation",
        "transient_activation",
    )
    found = {name: draw(by_stage) for name in (*names, "update")}
    found |= {
        "latency": draw(numbers),
        "bandwidth": draw(above_0 | st.just(float("inf"))),
        "overhead": draw(numbers),
    }
    found |= {
        "cores": draw(st.none() | above_0),
        "weight_activation": draw(st.none() | by_stage),
    }
    found |= {
        "hosts": draw(st.none() | st.just((0, 0, 0, 0))),
        "sends_block": draw(st.booleans()),
    }
    return Costs(
        **found, unit=draw(st.sampled_from(["s", "units"])), memory_unit="bytes"
    )


def plain(found):
    return {name: np.asarray(given).tolist() for name, given in vars(found).items()}


@examples(100)
@given(costs())
def test_what_is_loaded_is_what_was_saved_and_predicts_the_same(tmp_path_factory, made):
    path = made.save(tmp_path_factory.mktemp("costs") / "made.json")
    found = Costs.load(path)
    assert plain(found) == plain(made)
    schedule = schedules.one_f_one_b(4, 2)
    if not made.sends_block or not made.cores:
        assert simulate(schedule, found).spans == simulate(schedule, made).spans


def test_what_a_pipeline_measured_comes_back_and_the_command_line_simulates_it(
    tmp_path,
):
    """The story: what measure_costs returned could only be typed again."""

    def measure(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), group, loss=nn.MSELoss()
        )
        return pipeline.measure_costs(np.ones((8, 4)), np.ones((8, 1)), num_steps=1)

    measured = spawn(measure, num_ranks=2)[0]
    path = measured.save(tmp_path / "measured.json")
    assert plain(Costs.load(path)) == plain(measured)
    expected = simulate(schedules.zb_h1(2, 4), measured).makespan
    options = ["zb-h1", "--ranks", "2", "--microbatches", "4", "--costs", str(path)]
    done = run(["minipipe", "simulate", *options, "--json"])
    assert done.code == 0 and json.loads(done.out)["makespan"] == expected


@pytest.mark.parametrize(
    "verb",
    [
        ("show", "1f1b", "--ranks", "2"),
        slowly(("check", "1f1b", "--ranks", "2")),
        slowly(("simulate", "1f1b", "--ranks", "2")),
        slowly(("step", "1f1b", "--ranks", "2")),
        slowly(("search", "--ranks", "2", "--microbatches", "2", "--seconds", "0.1")),
        slowly(("schedules", "--ranks", "2")),
        slowly(("sweep", "--ranks", "2", "--microbatches", "2")),
    ],
    ids=lambda verb: verb[0],
)
def test_every_verb_with_costs_takes_a_file_and_says_what_is_wrong_with_one(
    verb, tmp_path
):
    path = Costs(forward=2, latency=0.5).save(tmp_path / "mine.json")
    typed, read = (
        run(["minipipe", *verb, "--costs", given])
        for given in ("F=2,latency=0.5", str(path))
    )
    assert read.code == typed.code == 0, read.err
    # whose captions have the costs, and times of a search
    if verb[0] not in ("schedules", "sweep", "search"):
        assert read.out == typed.out
    path.write_text('{"format": "minipipe costs", "version": 1, "forward": "2"}')
    done = run(["minipipe", *verb, "--costs", str(path)])
    assert (
        done.code == 2
        and "its forward is '2', expected finite numbers" in done.err
        and "Traceback" not in done.err
    )


HEAD = '"format": "minipipe costs", "version": 1'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("F=1", "it is not JSON"),
        ("[1]", r"it is \[1\], expected an object"),
        ("[" * 10**5, "it is not JSON"),
        ("{}", "its format is None, expected 'minipipe costs'"),
        (
            '{"format": "minipipe certificate", "version": 1}',
            "its format is 'minipipe certificate'",
        ),
        (
            '{"format": "minipipe costs", "version": true}',
            "its version is True, expected 1",
        ),
        ('{"format": "minipipe costs", "version": 2}', "its version is 2, expected 1"),
        (f'{{{HEAD}, "forwards": 1}}', "it has 'forwards', expected names of costs"),
        (f'{{{HEAD}, "forward": 1, "forward": 2}}', "occurs twice"),
        (
            f'{{{HEAD}, "forward": true}}',
            "its forward is True, expected finite numbers",
        ),
        (f'{{{HEAD}, "forward": [1, "2"]}}', "expected finite numbers"),
        (f'{{{HEAD}, "forward": []}}', r"its forward is \[\], expected finite numbers"),
        (f'{{{HEAD}, "forward": NaN}}', "its forward is nan, expected finite numbers"),
        (
            f'{{{HEAD}, "forward": Infinity}}',
            "its forward is inf, expected finite numbers",
        ),
        (f'{{{HEAD}, "forward": -1}}', "its forward is -1, expected finite numbers"),
        (f'{{{HEAD}, "forward": 1{"0" * 400}}}', "its forward is 1000"),
        (
            f'{{{HEAD}, "forward": null}}',
            "its forward is None, expected finite numbers",
        ),
        (
            f'{{{HEAD}, "latency": [1, 2]}}',
            r"its latency is \[1, 2\], expected a finite time",
        ),
        (
            f'{{{HEAD}, "bandwidth": 0}}',
            "its bandwidth is 0, expected a number, more than 0",
        ),
        (
            f'{{{HEAD}, "overlap": "1"}}',
            "its overlap is '1', expected a number from 0 to 1",
        ),
        (
            f'{{{HEAD}, "overlap": [1]}}',
            r"its overlap is \[1\], expected a number from 0 to 1",
        ),
        (
            f'{{{HEAD}, "hosts": [0.5]}}',
            r"its hosts is \[0.5\], expected the host of each rank",
        ),
        (
            f'{{{HEAD}, "sends_block": 1}}',
            "its sends_block is 1, expected True or False",
        ),
        (f'{{{HEAD}, "unit": 1}}', "its unit is 1, expected text"),
        (f'{{{HEAD}, "unit": "\\u001b"}}', "expected a name such as 's'"),
        (
            f'{{{HEAD}, "forward": [1, 2], "backward_input": [1, 2, 3]}}',
            "lists for different numbers of stages",
        ),
    ],
)
def test_what_are_no_costs_is_refused_by_the_name_of_the_member(text, words, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=words) as caught:
        Costs.load(path)
    assert caught.value.code == "value" and len(str(caught.value)) < 600


@examples(200)
@given(st.data())
def test_a_file_with_a_few_other_characters_is_read_or_refused(tmp_path_factory, data):
    path = Costs(forward=[1, 2.5], cores=2, unit="s").save(
        tmp_path_factory.mktemp("costs") / "made.json"
    )
    text = path.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text = (
            text[:at]
            + data.draw(
                st.sampled_from(["", "-", "9", '"', "[", "}", ",", "é", "e9", "null"])
            )
            + text[at + 1 :]
        )
    path.write_text(text)
    try:
        simulate(schedules.one_f_one_b(2, 2), Costs.load(path))
    except MinipipeError as error:
        assert str(error)


def test_what_is_not_a_file_of_bounded_size_is_not_read(tmp_path):
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(2**31)  # without any content
    for path, code in (
        (large, "too-large"),
        (tmp_path, "unreadable"),
        (tmp_path / "none.json", "unreadable"),
    ):
        with pytest.raises(FileError) as caught:
            Costs.load(path)
        assert caught.value.code == code
    with pytest.raises(FileError, match="device"):
        Costs.load(os.devnull)


def test_costs_that_no_file_can_hold_are_refused_before_anything_is_written(tmp_path):
    for costs, name in (
        (Costs(forward=float("nan")), "a.json"),
        (Costs(forward=object), "a.json"),
        (Costs(2), "a.txt"),
    ):
        with pytest.raises(ScheduleError, match="is not a file of costs"):
            costs.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
