"""Different programs do not train in silence: whatever is not the same on one rank is
named, with the rank.
"""

import numpy as np
import pytest

from minipipe import Pipeline, data, nn, optim, spawn
from minipipe.errors import MessageError, MinipipeError, RankError
from tests.execution.checks.programs import CASES, X, Y, model_of, program, run_on
from tests.launch import for_each, mpirun, needs_mpi, slowly

PROGRAM = "tests/execution/checks/programs.py"
# On the rank that the others follow it is they that differ, where a call is compared.
OVER_MPI = [
    "values on one rank alone",
    "an attribute",
    "other targets",
    "learning rate",
]


@for_each(name=list(CASES))
def test_what_is_different_on_one_rank_is_named_with_the_rank(name):
    with pytest.raises(RankError, match=f"The {CASES[name][0]}.* rank 2 ") as caught:
        spawn(lambda group: run_on(group, name, rank=2), 3)
    assert caught.value.code == "disagreement"


@pytest.mark.parametrize("num_ranks", [2, slowly(4)])
@pytest.mark.parametrize(
    "name", [name if i % 9 == 0 else slowly(name) for i, name in enumerate(CASES)]
)
def test_so_it_is_wherever_the_rank_stands(name, num_ranks):
    for rank in range(num_ranks):
        with pytest.raises(RankError, match=f"The {CASES[name][0]}") as caught:
            spawn(lambda group, rank=rank: run_on(group, name, rank), num_ranks)
        assert caught.value.code == "disagreement"


@pytest.mark.slow
def test_without_a_difference_all_of_these_programs_train():
    """The mutant: were something always different, the tests above could not fail."""
    for name, (_, other, usual) in CASES.items():
        for changes in (other, usual):
            states = spawn(lambda group, changes=changes: program(group, **changes), 2)
            assert all(
                np.array_equal(states[0][key], states[1][key]) for key in states[0]
            ), name


@needs_mpi
@pytest.mark.parametrize(
    "name", [OVER_MPI[0], *map(slowly, OVER_MPI[1:]), *map(slowly, list(CASES)[::9])]
)
def test_processes_are_compared_like_threads(name):
    """All cases take the same way, so a few of them take it between processes."""
    job = mpirun(2, PROGRAM, name)
    assert job.code != 0 and f"disagreement The {CASES[name][0]}" in job.out, job


@needs_mpi
@pytest.mark.slow
def test_processes_that_run_the_same_program_are_left_alone():
    """No description is of a process: an address, or an order of hashes."""
    job = mpirun(2, PROGRAM, "all alike", limit=200, PYTHONHASHSEED="random")
    assert job.code == 0, job


@needs_mpi
def test_another_main_script_is_refused(tmp_path):
    """The story: a rank of another host ran yesterday's file, and trained with the
    others to exit 0.
    """
    text = (
        "from minipipe import Pipeline, init_process_group, nn\n"
        "with init_process_group() as group:\n    "
        "Pipeline(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), group)\n"
    )
    files = [tmp_path / "one.py", tmp_path / "two.py"]
    for file, more in zip(files, ("", "# one line more\n")):
        file.write_text(text + more)
    job = mpirun(1, files[0], ":", "-n", 1, "python", files[1])
    assert (
        job.code != 0
        and "The main script of rank 1 differs from that of rank 0" in job.err
    ), job


def test_the_error_shows_both_values_and_where_they_stand():
    with pytest.raises(RankError) as caught:
        spawn(lambda group: run_on(group, "LayerNorm's epsilon", rank=1), 3)
    assert str(caught.value).startswith(
        "The model of rank 1 differs from that of rank 0: there it is "
        '"model.layers.2.epsilon: 0.001", '
        'on rank 0 "model.layers.2.epsilon: 1e-05".'
    )
    with pytest.raises(
        RankError,
        match=(
            r"The learning rate of rank 1 \(0\.2\) differs from that of rank 0 "
            r"\(0\.1\)\. Every rank must set"
        ),
    ):
        spawn(lambda group: run_on(group, "learning rate", rank=1), 2)
    with pytest.raises(
        RankError,
        match=r"The max_norm of rank 1 \(2\.0\) differs from that of rank 0 \(1\.0\)\.",
    ):
        spawn(lambda group: run_on(group, "max_norm", rank=1), 2)
    with pytest.raises(
        RankError,
        match=(
            r"of rank 1 \(class: .*SGD, .*momentum: 0\.9.*\) differs from that of "
            r"rank 0\."
        ),
    ):
        spawn(lambda group: run_on(group, "momentum", rank=1), 2)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 26])
def test_a_broadcast_of_the_script_is_never_taken_for_a_call(length):
    """Whatever is in it: these bits are no numbers, and the first number of a call is
    that of a pipeline.
    """

    def train(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), group, loss=nn.MSELoss()
        )
        if group.rank == 0:
            group.broadcast(np.full(length, 2**32 - 1, np.uint32))
        return pipeline.step(np.ones((8, 1)), np.ones((8, 1)))

    with pytest.raises(
        MessageError, match="but rank 0 in a broadcast that no other rank takes part in"
    ):
        spawn(train, 2)


class Talking(nn.Module):
    def __init__(self, verbose):
        super().__init__()
        self.verbose = verbose

    def forward(self, x):
        return x


class Free(Talking):
    not_compared = ("verbose",)


def test_a_switch_that_changes_no_number_has_a_way_out():
    def make(group, kind):
        Pipeline(
            nn.Sequential(nn.Linear(1, 1), kind(group.rank == 0)),
            group,
            loss=nn.MSELoss(),
        )

    with pytest.raises(
        RankError,
        match=r'If verbose changes no number, .*: not_compared = \("verbose",\)\.',
    ):
        spawn(lambda group: make(group, Talking), 2)
    spawn(lambda group: make(group, Free), 2)


def test_every_rank_says_the_same_where_a_pipeline_is_made():
    def messages(group):
        with pytest.raises(RankError) as caught:
            run_on(group, "an attribute", rank=1)
        return str(caught.value)

    assert len(set(spawn(messages, 4))) == 1


def test_another_number_of_batches_is_refused_at_the_next_call():
    with pytest.raises(
        MessageError, match=r"is in evaluate\(\), .* but rank 0 in step\(\)"
    ) as caught:
        spawn(lambda group: program(group, num_batches=3 - group.rank), 2)
    assert caught.value.code == "disagreement"


def test_other_values_in_one_parameter_of_many_are_counted():
    def make(group):
        Pipeline(model_of().initialise(group.rank), group, loss=nn.MSELoss())

    with pytest.raises(
        RankError,
        match=(
            r"first values of 0\.weight \(and of 3 other parameters\) on rank "
            r"1 "
        ),
    ):
        spawn(make, 2)


# -- off -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["initialise with another seed", "an attribute", "other inputs", "learning rate"],
)
def test_without_checks_they_train(name):
    _, other, usual = CASES[name]
    off = {"options": {"check_agreement": False}}
    states = spawn(
        lambda group: program(group, **{**(other if group.rank else usual), **off}), 2
    )
    assert all(
        np.isfinite(values).all() for state in states for values in state.values()
    )
    assert states[0] and all(
        np.array_equal(states[1][key], values) for key, values in states[0].items()
    )


def test_without_checks_other_calls_are_told_all_the_same():
    def differ(group):
        pipeline = Pipeline(model_of(), group, loss=nn.MSELoss(), check_agreement=False)
        (pipeline.evaluate if group.rank else pipeline.step)(X, Y)

    with pytest.raises(
        MinipipeError, match=r"Rank 1 is in evaluate\(\), .* but rank 0 in step\(\)"
    ):
        spawn(differ, 2)


# -- what is no disagreement -----------------------------------------------------------


def test_a_rank_that_computed_with_the_model_before_agrees_with_those_that_did_not():
    """It filled the model from seed 0, and the others draw the same values from seed
    0.
    """

    def train(group):
        model = model_of()
        if group.rank == 0:
            model(X)
        return Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2).step(X, Y)

    assert len(set(spawn(train, 3))) == 1


def test_values_only_on_the_ranks_that_use_them_are_enough():
    def train(group):
        model = model_of()
        model[0 if group.rank == 0 else 2].initialise(7)
        return Pipeline(
            model, group, loss=nn.MSELoss(), partition=[range(2), range(2, 4)]
        ).step(X, Y)

    assert len(set(spawn(train, 2))) == 1


def test_batches_may_be_given_where_they_are_needed_only():
    def train(group):
        pipeline = Pipeline(model_of(), group, loss=nn.MSELoss(), num_microbatches=4)
        x, y = (
            given if is_needed else None
            for given, is_needed in zip((X, Y), pipeline.needs)
        )
        return (
            pipeline.step(x, y),
            pipeline.step(X, y),
            pipeline.step(x, Y),
            pipeline.step(x, Y.copy()),
        )

    assert len(set(spawn(train, 3))) == 1


def test_optimisers_may_differ_from_rank_to_rank_where_their_parameters_do():
    """Two of them, for the body and for the head: on each rank one has no parameters.
    And groups by rank.
    """

    def train(group):
        pipeline = Pipeline(
            model_of(), group, loss=nn.MSELoss(), partition=[range(2), range(2, 4)]
        )
        named = list(pipeline.named_parameters())
        body, head = (
            [p for name, p in named if name[0] in layers] for layers in ("01", "23")
        )
        optimisers = [
            optim.SGD(body, learning_rate=0.1),
            optim.AdamW(head, learning_rate=0.01),
        ]
        for _ in range(3):
            pipeline.step(X, Y)
            for optimiser in optimisers:
                optimiser.step()
        groups = [{"parameters": body, "weight_decay": 0.1}] * bool(body) + [
            {"parameters": head}
        ] * bool(head)
        other = Pipeline(
            model_of(), group, loss=nn.MSELoss(), partition=[range(2), range(2, 4)]
        )
        rule = optim.AdamW(
            [{**given, "parameters": list(other.parameters())} for given in groups],
            learning_rate=0.01,
        )
        for _ in range(3):
            other.step(X, Y)
            rule.step()
        return other.step(X, Y)

    assert len(set(spawn(train, 2))) == 1


def test_a_model_that_one_rank_trains_beside_the_pipeline_does_not_count():
    def train(group):
        pipeline = Pipeline(model_of(), group, loss=nn.MSELoss())
        beside, optimiser = (
            model_of().initialise(0),
            optim.SGD(pipeline.parameters(), learning_rate=0.1),
        )
        for _ in range(2):
            pipeline.step(X, Y)
            optimiser.step()
            if group.rank == 1:
                nn.MSELoss()(beside(X), Y).backward()
                optim.Adam(beside.parameters()).step()
        return pipeline.step(X, Y)

    assert len(set(spawn(train, 2))) == 1


def test_a_rank_without_parameters_takes_steps_of_its_own_kind():
    def train(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), group, loss=nn.MSELoss()
        )
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        for _ in range(2):
            pipeline.step(X, Y)
            optimiser.step()
        return pipeline.step(X, Y)

    assert len(set(spawn(train, 2))) == 1


def test_a_batch_that_one_rank_draws_beside_the_pipeline_does_not_count():
    """A model of its own, between the calls; and one that reads its batches in another
    way.
    """

    def train(group):
        pipeline, losses = (
            Pipeline(model_of(), group, loss=nn.MSELoss(), num_microbatches=4),
            [],
        )
        for number in range(3):
            if group.rank == number % group.size:
                next(data.batches(X, Y, 2, seed=9))
            losses.append(pipeline.step(X, Y))
        for x, y in (
            data.batches(X, Y, 4, needs=pipeline.needs)
            if group.rank
            else [(X[:4], Y[:4])] * 2
        ):
            losses.append(pipeline.step(x, None if group.rank == 0 else y))
        return losses

    assert len(set(map(tuple, spawn(train, 2)))) == 1


def test_one_parameter_that_is_frozen_by_name_is_no_difference():
    """The rank that has it stands alone with it, as a program of one process would."""

    def train(group):
        pipeline = Pipeline(model_of(), group, loss=nn.MSELoss(), num_microbatches=4)
        optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        for _ in range(3):
            pipeline.step(X, Y)
            for name, parameter in pipeline.named_parameters():
                if name == "0.weight":
                    parameter.requires_grad = False
            optimiser.step()
        return pipeline.state_dict()

    one, two = spawn(train, 1)[0], spawn(train, 2)[0]
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_what_all_ranks_do_alike_between_the_calls_is_no_difference():
    def train(group):
        pipeline = Pipeline(model_of(), group, loss=nn.MSELoss(), num_microbatches=4)
        losses = []
        for number in range(4):
            optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.1)
            losses.append(pipeline.step(X, Y, accumulate=number == 2))
            optimiser.zero_grad() if number == 1 else optimiser.step()
            optimiser.load_state_dict(optimiser.state_dict())
            pipeline.num_steps = 7
        return losses

    assert len(set(map(tuple, spawn(train, 3)))) == 1
