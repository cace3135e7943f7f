"""Names of PyTorch, DeepSpeed, torchgpipe, Megatron, Keras and scikit-learn at the main
objects.
"""

import copy
import pydoc
import re
import tomllib
from configparser import ConfigParser
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

import minipipe
from minipipe import Pipeline, Plan, nn, optim, schedules, spawn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError, ScheduleError
from minipipe.hints import equivalents, instead_of
from minipipe.pipeline.options import KEYWORDS, ModulesOptions, PipelineOptions
from minipipe.tuning.race import chosen
from tests.launch import for_each

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "schedules",
    "comm",
    "pipeline",
    "nn",
    "nn.initialisers",
    "functional",
    "optim",
    "data",
)
PACKAGES += ("autograd", "checkpoint", "testing")
X = np.ones((8, 4), dtype=np.float32)


def pipeline(**options):
    return Pipeline(
        nn.Sequential(nn.Linear(4, 1)),
        OneRankGroup(),
        loss=nn.MSELoss(),
        num_microbatches=2,
        **options,
    )


def objects():
    """Return an object of each class that answers for other names."""
    made = pipeline()
    return {
        "Tensor": minipipe.Tensor([1.0]),
        "Pipeline": made,
        "BatchLoss": made.step(X, X[:, :1]),
        "PendingLoss": made.step(X, X[:, :1], wait=False),
        "Optimiser": optim.SGD(made.parameters(), 0.1),
        "Module": nn.Sequential(nn.Linear(2, 2)),
        "ProcessGroup": made.group,
        "ParameterGroup": optim.SGD(made.parameters(), 0.1).groups[0],
        "LearningRateSchedule": optim.LearningRateSchedule(
            optim.SGD(made.parameters(), 0.1), optim.constant()
        ),
        "LossScale": optim.LossScale(),
        "ndarray": np.ones(1),
        "float": 1.0,
        "NoneType": None,
    }


@pytest.fixture(scope="module")
def made():
    return objects()


KINDS = (
    "Tensor",
    "Pipeline",
    "BatchLoss",
    "PendingLoss",
    "Optimiser",
    "Module",
    "ProcessGroup",
)
KINDS += ("ParameterGroup", "LearningRateSchedule", "LossScale")
OF_PYTHON = ("ndarray", "float", "NoneType")
OF_CLASS = {kind: instead_of(kind) for kind in KINDS + OF_PYTHON}
OF_PACKAGE = instead_of("minipipe")
ENTRIES = [
    (kind, name)
    for kind, names in OF_CLASS.items()
    for name in names
    if not name.startswith("_")
]


@for_each(entry={f"{kind}.{name}": (kind, name) for kind, name in ENTRIES})
def test_a_name_of_another_library_is_missing_and_told_by_its_equivalent(entry, made):
    """The story: `pipeline.zero_grad()` and `loss.backward()` ended in Python's words,
    which name nothing.
    """
    kind, name = entry
    assert not hasattr(made[kind], name)
    if kind in OF_PYTHON:  # which raise their own error; it gets a note
        return
    with pytest.raises(
        AttributeError, match=rf"\w+ has no attribute '{name}'; instead: "
    ) as caught:
        getattr(made[kind], name)
    assert OF_CLASS[kind][name] in str(caught.value)


@for_each(
    words={words: words for names in OF_CLASS.values() for words in names.values()}
)
def test_what_is_recommended_is_there(words, made):
    owners = {
        "pipeline": "Pipeline",
        "optimiser": "Optimiser",
        "module": "Module",
        "group": "ProcessGroup",
        "x": "Tensor",
    }
    for owner, name in re.findall(
        r"\b(pipeline|optimiser|module|group|x)\.(\w+)", words
    ):
        assert hasattr(made[owners[owner]], name), f"{owner}.{name}"
    for package, name in re.findall(r"\b(minipipe|nn|optim|functional)\.(\w+)", words):
        assert hasattr(
            minipipe if package == "minipipe" else getattr(minipipe, package), name
        ), words


def test_a_slip_names_the_closest_and_a_property_that_fails_keeps_its_own_error(made):
    with pytest.raises(
        AttributeError,
        match=r"Pipeline has no attribute 'evalute'; did you mean evaluate\?",
    ):
        _ = made["Pipeline"].evalute

    class Mine(nn.Module):
        @property
        def size(self):
            return self.wieght

        def __init__(self):
            self.weight = 3

    with pytest.raises(
        AttributeError, match=r"Mine has no attribute 'wieght'; did you mean weight\?"
    ):
        _ = Mine().size
    assert copy.deepcopy(Mine()).weight == 3 and not hasattr(Mine(), "__array__")


def test_a_pipeline_that_is_called_names_step_and_predict(made):
    with pytest.raises(
        ArgumentError,
        match=(
            r"not callable; instead: pipeline\.step\(x, y\) .* "
            r"pipeline\.predict\(x\)"
        ),
    ):
        made["Pipeline"](X)


def test_a_loss_has_an_item_as_scalars_have():
    def train(group):
        made = Pipeline(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), group, loss=nn.MSELoss()
        )
        loss, late = made.step(X, X[:, :1]), made.step(X, X[:, :1], wait=False)
        return loss.item(), late.item(), type(loss.item())

    assert len(set(spawn(train, 2))) == 1
    waited, late, kind = spawn(train, 2)[1]
    assert waited == late > 0 and kind is float


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("n_microbatches", r"did you mean num_microbatches=\?"),
        ("microbatches", r"did you mean num_microbatches=\?"),
        ("gradient_accumulation_steps", r"did you mean num_microbatches=\?"),
        ("loss_fn", r"did you mean loss=\?"),
        ("checkpoint", r"did you mean recompute=\?"),
        ("balance", r"did you mean partition=\?"),
        ("shedule", r"did you mean schedule=\?"),
        (
            "chunks",
            "torchgpipe's are num_microbatches=, Megatron's are chunks_per_rank=",
        ),
        ("optimizer", r"optim\.SGD\(pipeline\.parameters\(\), …\) is made after it"),
        ("num_stages", "each rank has one stage"),
        ("weird", ""),
    ],
)
def test_an_option_of_another_library_names_the_one_here_and_the_list_is_the_signature(
    name, hint
):
    """The story: the list was written by hand, and `check_finite` was missing from
    it.
    """
    with pytest.raises(
        ArgumentError, match=rf"Pipeline takes no {name}=; {hint}"
    ) as caught:
        pipeline(**{name: 1})
    always, only = re.search(
        r"Expected one of (.*); with schedule=\"auto\" also (.*)\.$", str(caught.value)
    ).groups()
    assert only == "sample, memory_limit, optimiser, progress"
    listed = f"{always}, {only}".split(", ")
    assert set(listed) == {*signature(Pipeline).parameters} - {
        "model",
        "group",
    } and len(listed) == len(set(listed))


def test_the_options_that_editors_show_are_those_that_are_taken_with_their_types_and_defaults():
    shown, of_plan = signature(Pipeline).parameters, signature(Plan).parameters
    only = [
        name
        for name, one in signature(chosen).parameters.items()
        if one.default is not one.empty
    ]
    assert (
        {*PipelineOptions.__annotations__} - {*KEYWORDS}
        == {*of_plan, *only} - {"model", "num_ranks"}
        <= {*shown}
    )
    for name, one in of_plan.items():
        if name not in ("model", "num_ranks"):
            default, types = shown[name].default, shown[name].annotation.split(" | ")
            assert default == one.default and {*types} - {"_Partitions"} == {
                *one.annotation.split(" | ")
            }, name
    assert (
        shown["schedule"].default == "1f1b"
        and shown["progress"].annotation == "bool | None"
    )


def test_modules_take_the_options_of_a_pipeline_but_those_that_cut_a_model():
    shown, of_pipeline = (
        signature(Pipeline.from_modules).parameters,
        signature(Pipeline).parameters,
    )
    assert [name for name in shown if name not in of_pipeline] == ["modules"]
    assert {*of_pipeline} - {*shown} == {"model", *PipelineOptions.__annotations__} - {
        *shown
    }
    assert {*KEYWORDS} <= {*ModulesOptions.__annotations__} < {*shown} | {"schedule"}
    assert {
        name: str(one)
        for name, one in shown.items()
        if name not in ("modules", "schedule")
    } == {
        name: str(of_pipeline[name])
        for name in shown
        if name not in ("modules", "schedule")
    }


def test_help_lists_every_option():
    shown, *_ = pydoc.plain(pydoc.render_doc(Pipeline)).split(
        "A model partitioned into stages"
    )
    assert (
        all(f"{name}: " in shown for name in PipelineOptions.__annotations__)
        and "options" not in shown
    )


@pytest.mark.parametrize(
    ("given", "name"),
    [
        *(
            (f"Schedule{n}", m)
            for n, m in (
                ("GPipe", "gpipe"),
                ("1F1B", "1f1b"),
                ("Interleaved1F1B", "interleaved-1f1b"),
            )
        ),
        *(
            (f"Schedule{n}", m)
            for n, m in (
                ("LoopedBFS", "looped-bfs"),
                ("InterleavedZeroBubble", "interleaved-zb"),
            )
        ),
        *(
            (f"Schedule{n}", m)
            for n, m in (("ZBVZeroBubble", "zb-v"), ("DualPipeV", "dualpipe-v"))
        ),
        *(("PipeDream-Flush", "1f1b"), ("TrainSchedule", "1f1b")),
        ("forward_backward_pipelining_without_interleaving", "1f1b"),
        ("forward_backward_no_pipelining", "sequential"),
        ("zb_h1", "zb-h1"),
    ],
)
def test_a_schedule_of_another_library_names_the_one_here(given, name):
    with pytest.raises(
        ScheduleError,
        match=rf"There is no schedule '{given}'; did you mean {name}\? Expected one of",
    ):
        pipeline(schedule=given)


def test_every_schedule_that_is_recommended_is_there():
    assert set(equivalents("schedules").values()) <= set(schedules.REGISTRY)


def test_the_file_of_hints_is_installed_and_each_of_its_tables_is_of_something_here():
    configuration = ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    assert "hints.toml" in configuration["options.package_data"]["minipipe"].split(", ")
    tables = tomllib.loads((ROOT / "minipipe/hints.toml").read_text(encoding="utf-8"))
    owners = {owner for owners in tables["instead"] for owner in owners.split()}
    assert owners - {*OF_CLASS} == {
        "minipipe",
        *(f"minipipe.{name}" for name in PACKAGES),
    }
    assert instead_of("minipipe.schedules") == instead_of("minipipe.comm") == OF_PACKAGE
    assert set(tables) == {
        "instead",
        "keywords",
        "called-numbers",
        "advice",
        "pipeline-options",
        "schedules",
    }


@for_each(name=list(OF_PACKAGE))
def test_a_name_that_a_package_does_not_have_is_told_by_its_equivalent(
    name, monkeypatch
):
    # compile: Python adds a package that was imported
    monkeypatch.delattr(minipipe, name, raising=False)
    with pytest.raises(
        AttributeError, match=f"minipipe has no attribute '{name}'; instead: "
    ):
        getattr(minipipe, name)


def test_a_package_with_a_name_of_pytorchs_functions_is_not_callable():
    import minipipe.compile

    with pytest.raises(
        ArgumentError,
        match=r"minipipe\.compile is a module; instead: Pipeline\(.*, compile=True\)",
    ):
        minipipe.compile(nn.Linear(2, 2))


def test_a_class_of_pytorchs_schedules_is_told_as_a_name():
    with pytest.raises(
        AttributeError, match=r'instead: Pipeline\(…, schedule="zb-v"\)'
    ):
        _ = schedules.ScheduleZBVZeroBubble
