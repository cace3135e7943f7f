"""A script that resumes with other hyper-parameters than it began with is told, and one
that changes none is not.
"""

import json
import warnings

import pytest

from minipipe import checkpoint, optim, spawn
from minipipe.comm import OneRankGroup
from tests.pipeline.checkpoint import small
from tests.pipeline.checkpoint.forging import Forge


def made(group=None, **numbers):
    """Return what a script makes: a learning rate that a schedule changes, and other
    numbers that stay.
    """
    pipeline, _ = small.pipeline_of(group or OneRankGroup())
    optimiser = optim.AdamW(pipeline.parameters(), **{"learning_rate": 0.1, **numbers})
    return (
        pipeline,
        optimiser,
        optim.LearningRateSchedule(optimiser, optim.cosine(10, warmup_steps=2)),
    )


def saved(folder, **numbers):
    """Train with a learning rate that falls, and save."""
    pipeline, optimiser, rates = made(**numbers)
    for _ in range(5):
        small.train(pipeline, optimiser)
        rates.step()
    checkpoint.save(folder, pipeline, optimiser, step=5)
    return optimiser


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "learning_rate",
            0.3,
            "learning_rate is 0.15 in this script; restored from the checkpoint: ",
        ),
        (
            "betas",
            (0.8, 0.9),
            (
                "betas is (0.8, 0.9) in this script; restored from the checkpoint: "
                "[0.9, 0.999]"
            ),
        ),
        (
            "weight_decay",
            0.5,
            (
                "weight_decay is 0.5 in this script; restored from the checkpoint: "
                "0.01 (0.01 before"
            ),
        ),
    ],
)
def test_other_hyper_parameters_of_the_script_are_named_beside_those_that_are_taken(
    tmp_path, name, value, words
):
    """The story: a script that resumed with another learning rate, betas or decay
    trained with the saved ones, without a word."""
    before = saved(tmp_path).groups[0].hyper_parameters
    pipeline, optimiser, _ = made(**{name: value})
    with pytest.warns(UserWarning) as caught:
        checkpoint.restore(tmp_path, pipeline, optimiser)
    assert len(caught) == 1 and words in str(caught[0].message)
    assert (
        f"To keep it: optimiser.groups[0].{name} = {0.15 if value == 0.3 else value}"
        in str(caught[0].message)
    )
    assert optimiser.groups[0].hyper_parameters == before


def test_a_schedule_that_has_changed_the_learning_rate_is_no_other_script(tmp_path):
    before = saved(tmp_path).groups[0].hyper_parameters
    pipeline, optimiser, _ = made()
    # as a schedule left it, not as the script gives it
    assert optimiser.learning_rate != before["learning_rate"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.restore(tmp_path, pipeline, optimiser)
    assert optimiser.groups[0].hyper_parameters == before


def test_the_number_that_was_kept_is_no_other_one_when_the_script_resumes_again(
    tmp_path,
):
    """And a script that follows no advice is told each time, since it still trains with
    other numbers than it gives.
    """
    saved(tmp_path)
    for times in range(3):
        pipeline, optimiser, _ = made(weight_decay=0.5)
        if times < 2:
            with pytest.warns(UserWarning, match="weight_decay is 0.5 in this script"):
                checkpoint.restore(tmp_path, pipeline, optimiser)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                checkpoint.restore(tmp_path, pipeline, optimiser)
        if times == 1:
            optimiser.groups[0].weight_decay = 0.5
        small.train(pipeline, optimiser)
        checkpoint.save(tmp_path, pipeline, optimiser, step=6 + times)


def test_one_rank_speaks(tmp_path):
    saved(tmp_path)

    def resume(group):
        checkpoint.restore(tmp_path, *made(group, weight_decay=0.5)[:2])

    with pytest.warns(UserWarning, match="weight_decay is 0.5") as caught:
        spawn(resume, 3)
    assert len(caught) == 1


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Muon"])
def test_a_checkpoint_names_the_class_of_an_optimiser_and_no_file_of_the_package(
    tmp_path, name
):
    """So one that was saved before a class moved to another file can be resumed."""
    pipeline, _ = small.pipeline_of(OneRankGroup())
    optimiser = getattr(optim, name)(pipeline.parameters(), learning_rate=0.1)
    small.train(pipeline, optimiser)
    checkpoint.save(tmp_path, pipeline, optimiser, step=1)
    content = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )
    assert (
        f'"class": "{name}"'.encode() in content.replace(b'":"', b'": "')
        and b"minipipe." not in content
    )


def test_an_optimiser_goes_on_counting_its_steps(tmp_path):
    """The story: after restoring, ``num_steps`` of its state was 0. Nor is it the
    pipeline's: two steps, one update.
    """
    pipeline, optimiser = small.pipeline_of(OneRankGroup())
    pipeline.step(small.INPUTS, small.TARGETS)
    small.train(pipeline, optimiser)
    checkpoint.save(tmp_path, pipeline, optimiser, step=1)
    pipeline, optimiser = small.pipeline_of(OneRankGroup())
    checkpoint.restore(tmp_path, pipeline, optimiser)
    assert (pipeline.num_steps, optimiser.state_dict()["num_steps"]) == (2, 1)


def test_a_checkpoint_of_an_earlier_version_is_restored(tmp_path):
    """They lack the numbers before the first step, the optimiser's count of steps, and
    a seed of dropout's own.
    """
    forge = Forge(tmp_path)
    earlier = json.loads(json.dumps(forge.manifest))
    del earlier["dropout_seed"], earlier["optimisers"]["optimiser"]["num_steps"]
    for group in earlier["optimisers"]["optimiser"]["groups"]:
        del group["first"]
    values = forge.pipeline.state_dict()
    small.scramble(forge.pipeline, forge.optimiser)
    assert forge.restore(earlier).step == 1
    assert all(
        (values[name] == value).all()
        for name, value in forge.pipeline.state_dict().items()
    )
    state = forge.optimiser.state_dict()
    assert state["num_steps"] == 0 and state["first"] == state["groups"]
    assert [kept["num_steps"] for kept in state["states"]] == [1] * 4
