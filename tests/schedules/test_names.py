"""Names of schedules: in any case, and those of other libraries lead to the one
here.
"""

import pytest

from minipipe import Pipeline, nn, schedules, spawn
from minipipe.cli import main
from minipipe.errors import ScheduleError
from minipipe.execution.plan import Plan
from minipipe.schedules import REGISTRY, build, schedule_of_text
from minipipe.schedules.analysis import theory
from minipipe.schedules.registry import expected_names, spelled, takes
from minipipe.schedules.simulation.comparison import sweep
from tests.launch import of_each_kind
from tests.strategies import table


def spellings(name):
    return {name.upper(), name.title(), name.capitalize(), name.swapcase(), name}


@pytest.mark.parametrize("name", of_each_kind(REGISTRY))
def test_a_name_in_any_case_builds_the_same_schedule(name):
    for given in spellings(name):
        assert spelled(given) == name
        assert build(given, 4, 8) == build(name, 4, 8)
        assert takes(given, "chunks_per_rank") == takes(name, "chunks_per_rank")
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(8)])
        plan = Plan(model, given, num_ranks=4)
        assert (
            plan.built_as == name
            and plan.schedule == Plan(model, name, num_ranks=4).schedule
        )


@pytest.mark.parametrize("given", ["1F1B", "DualPipe", "GPipe", "Interleaved-1F1B"])
def test_every_function_that_takes_a_name_takes_it_in_any_case(given):
    name = given.lower()
    assert [row["schedule"] for row in sweep([2], [4], [given])] == [name]
    if name == "1f1b":
        assert theory.makespan(given, 4, 8) == theory.makespan(name, 4, 8)
    modules = [nn.Linear(2, 2) for _ in range(4)]
    if takes(name, "chunks_per_rank") or name in ("1f1b", "gpipe"):
        plans = [Plan.of_modules(modules, 4, each) for each in (given, name)]
        assert (
            plans[0].schedule == plans[1].schedule
            and plans[0].built_as == plans[1].built_as == name
        )


def test_a_pipeline_takes_a_name_in_any_case_and_one_on_each_rank():
    def ranks(group):
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(4)])
        return Pipeline(
            model, group, loss=nn.MSELoss(), schedule=("1F1B", "1f1b")[group.rank]
        ).schedule.name

    assert spawn(ranks, 2) == ["1f1b", "1f1b"]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "1F1B"],
        ["check", "GPipe"],
        ["simulate", "DualPipe"],
        ["step", "ZB-H1"],
        ["show", "GPipe", "1F1B"],
        ["sweep", "--schedules", "GPipe,1F1B"],
    ],
)
def test_the_command_line_takes_a_name_in_any_case(words, capsys):
    sizes = ["--ranks", "2", "--microbatches", "4"]
    assert main([*words, *sizes]) == 0
    printed = capsys.readouterr().out
    assert main([*map(str.lower, words), *sizes]) == 0
    assert printed == capsys.readouterr().out


SUGGESTED = {
    "1f1B-interleaved": "interleaved-1f1b",  # the story: interleaved-zb
    "1F1B_interleaved": "interleaved-1f1b",
    "1F1BInterleaved": "interleaved-1f1b",
    "interleaved 1F1B": "interleaved-1f1b",
    "1f1b-eager": "eager-1f1b",
    "zb-interleaved": "interleaved-zb",
    "v-zb": "zb-v",
    "half-v": "v-half",
    "1F1B ": "1f1b",
    # Classes of PyTorch, with and without their prefix.
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "ScheduleInterleaved1F1B": "interleaved-1f1b",
    "ScheduleFlexibleInterleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "ScheduleLoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ScheduleInterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "ScheduleZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipe-v",
    "ScheduleDualPipeV": "dualpipe-v",
    # DeepSpeed, Megatron and papers.
    "TrainSchedule": "1f1b",
    "InferenceSchedule": "forward-only",
    "forward_backward_pipelining_with_interleaving": "interleaved-1f1b",
    "forward_backward_pipelining_without_interleaving": "1f1b",
    "pipedream-flush": "1f1b",
    "PipeDream-2BW": "2bw",
    "zero_bubble_v": "zb-v",
    "ZB-2p": "zb-h2",
    "vpp": "interleaved-1f1b",
    "one_f_one_b": "1f1b",
    "dual_pipe": "dualpipe",
}


@pytest.mark.parametrize("given", SUGGESTED)
def test_the_name_of_another_library_is_refused_with_the_one_here(given):
    hint = f"did you mean {SUGGESTED[given]}? Expected one of sequential, gpipe"
    assert expected_names(given).startswith(hint)
    with pytest.raises(ScheduleError, match="There is no schedule") as caught:
        build(given, 4)
    assert hint in str(caught.value)
    if given.startswith("Schedule"):
        with pytest.raises(AttributeError, match=f'schedule="{SUGGESTED[given]}"'):
            getattr(schedules, given)


def test_a_name_of_two_lines_stays_within_its_comment():
    """Its second line was read as the actions of a rank."""
    named = table("two\nlines", (0,), 1, [["0F0", "0B0"]])
    assert schedule_of_text(named.to_text(), name="two\nlines") == named
