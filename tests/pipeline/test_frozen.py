"""Frozen parameters, as in fine-tuning: no gradient, no work and no message for them,
and the bits of one process.
"""

import numpy as np
import pytest

from minipipe import Pipeline, Plan, Tensor, nn, optim, simulate, spawn
from minipipe.errors import ArgumentError, ModelError, RankError
from minipipe.schedules import freeze_stages, lower
from minipipe.testing import check_same_as_one_process, same_bits
from tests.launch import of_each_kind, slowly
from tests.strategies import NAMES, batch, build, split_backward, v_shaped

WIDTH = 6


class LowRank(nn.Module):
    """A frozen layer and a small trained one beside it (Hu et al. 2021, "LoRA")."""

    def __init__(self, width, rank=2):
        self.base = nn.Linear(width, width).freeze()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def fine_tuned():
    """Return a model whose first half is frozen, with low-rank adapters in the
    second.
    """
    frozen = [
        layer
        for _ in range(4)
        for layer in (nn.Linear(WIDTH, WIDTH).freeze(), nn.Tanh())
    ]
    return nn.Sequential(
        *frozen, *(LowRank(WIDTH) for _ in range(4)), nn.Linear(WIDTH, 2)
    )


@pytest.mark.parametrize("name", of_each_kind([*NAMES, "v-shaped", "split"]))
@pytest.mark.parametrize(
    "wrap", [lambda layer: layer, nn.Recompute], ids=["", "recompute"]
)
def test_fine_tuning_has_the_bits_of_one_process_over_every_schedule(name, wrap):
    if name == "v-shaped":
        schedule = v_shaped(3, 4)
    elif name == "split":
        schedule = split_backward(build("1f1b", 3, 4), delay=2)
    else:
        schedule = build(name, 3, 4)
    model = nn.Sequential(*map(wrap, fine_tuned().layers))
    check_same_as_one_process(model, nn.MSELoss(), *batch(8, WIDTH), schedule)


def test_only_what_is_trained_changes_and_has_a_gradient():
    def train(group):
        pipeline = Pipeline(
            fine_tuned(), group, loss=nn.MSELoss(), schedule="zb-h1", num_microbatches=4
        )
        before = pipeline.state_dict()
        optimiser = optim.AdamW(pipeline.parameters(), 0.01)
        for _ in range(2):
            pipeline.step(*batch(8, WIDTH))
            # on rank 0 all are frozen: no warning that nothing was changed
            optimiser.step()
        after = pipeline.state_dict()
        own = {
            name: parameter.grad is None
            for name, parameter in pipeline.named_parameters()
        }
        return own, [
            name for name in before if not same_bits(before[name], after[name])
        ]

    by_rank = spawn(train, 3)
    without = {
        name for own, _ in by_rank for name, is_missing in own.items() if is_missing
    }
    named = dict(fine_tuned().named_parameters())
    assert without == {
        name for name, parameter in named.items() if not parameter.requires_grad
    }
    assert set(by_rank[0][1]) == named.keys() - without


@pytest.mark.parametrize(
    ("name", "recompute"),
    [
        ("1f1b", False),
        ("zb-h1", True),
        ("zb-v", False),
        *map(slowly, ("1f1b", "zb-h1", "zb-v"), (True, False, True)),
        *(slowly("interleaved-zb", recompute) for recompute in (False, True)),
    ],
)
def test_what_nothing_needs_is_not_computed_sent_or_kept_and_the_simulator_knows(
    name, recompute
):
    width = 16
    chunks = build(name, 3, 4).num_stages // 3
    sizes = [nn.Linear(width, width) for _ in range(3 * chunks)]
    for layer in (*sizes[:chunks], sizes[-1]):
        layer.freeze()

    def measure(group):
        pipeline = Pipeline(
            nn.Sequential(*sizes),
            group,
            loss=nn.MSELoss(),
            schedule=name,
            num_microbatches=4,
            recompute=recompute,
        )
        costs = pipeline.measure_costs(*samples, num_steps=1)
        pipeline.measures_memory = True
        pipeline.step(*samples)
        return pipeline.schedule, pipeline.timeline(), costs

    samples = batch(16, width)[0], batch(16, width)[0]
    schedule, timeline, costs = spawn(measure, 3)[0]
    frozen = {*range(chunks), 3 * chunks - 1}
    assert schedule == freeze_stages(build(name, 3, 4), frozen)
    predicted = simulate(schedule, costs)
    assert [[a for a, *_ in row] for row in timeline.spans] == [
        [a for a, *_ in row] for row in predicted.spans
    ]
    assert timeline.peak_activations == predicted.peak_activations
    assert (
        timeline.memory == predicted.memory
        and timeline.peak_memory == predicted.peak_memory
    )
    assert {str(m.value) for m in timeline.messages} == {
        str(m.value) for m in predicted.messages
    }
    for stage in frozen:
        assert costs.backward_weight[stage] == costs.weight_activation[stage] == 0
    for stage in range(schedule.first_backward_stage):
        assert costs.backward_input[stage] == costs.activation[stage] == 0


def test_a_program_of_ones_own_is_spared_the_same():
    program = lower(build("1f1b", 2, 3))

    def run(group):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH).freeze(), nn.Linear(WIDTH, 2))
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), schedule=program)
        pipeline.step(*batch(6, WIDTH))
        return [str(a) for a in pipeline.plan.program.actions[group.rank]]

    assert spawn(run, 2) == [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0F2", "0SEND_F2"],
        ["1RECV_F0", "1RECV_F1", "1F0", "1B0", "1F1", "1RECV_F2", "1B1", "1F2", "1B2"],
    ]


def test_layers_without_parameters_change_no_schedule_but_count_as_frozen_beside_frozen_ones():
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)]
    parts = [range(1), range(1, 2), range(2, 3)]
    whole = build("1f1b", 3, 2)
    assert Plan(nn.Sequential(*layers), whole, partition=parts).schedule == whole
    layers[0].freeze()
    assert Plan(nn.Sequential(*layers), whole, partition=parts).schedule.frozen == {
        0,
        1,
    }


def test_parameters_cannot_be_unfrozen_under_a_pipeline_that_has_no_w_for_them():
    def unfreeze(group):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH).freeze(), nn.Linear(WIDTH, 2))
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        for parameter in pipeline.parameters():
            parameter.requires_grad = True
        pipeline.step(*batch(8, WIDTH))

    with pytest.raises(
        ModelError, match="stage 0 were frozen when the pipeline was made"
    ) as caught:
        spawn(unfreeze, 2)
    assert caught.value.code == "frozen"


def test_a_frozen_module_can_be_trained_again():
    layer = nn.Linear(2, 2).initialise(0).freeze()
    layer(Tensor(np.ones((1, 2), np.float32)))
    assert layer(Tensor(np.ones((1, 2), np.float32))).node is None
    layer.freeze(False)
    layer(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.requires_grad = False
    assert (
        layer.weight.grad is None
        and not layer.weight.requires_grad
        and layer.bias.requires_grad
    )


def test_an_alias_is_frozen_with_its_owner():
    embedding = nn.Embedding(5, 3).freeze()
    head = nn.Unembedding(embedding)
    assert not head.weight.requires_grad
    head.weight.requires_grad = True
    assert embedding.weight.requires_grad


def test_ranks_that_freeze_different_parameters_are_told():
    def disagree(group):
        model = fine_tuned()
        model[0].freeze(group.rank == 0)
        Pipeline(model, group, loss=nn.MSELoss())

    with pytest.raises(
        RankError, match="The model of rank 1 differs from that of rank 0"
    ):
        spawn(disagree, 2)


def test_a_model_that_is_frozen_altogether_still_evaluates():
    def loss(group):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)).freeze()
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        return pipeline.step(*batch(8, WIDTH)), pipeline.evaluate(*batch(8, WIDTH))

    assert len(set(spawn(loss, 2))) == 1


def test_a_schedule_with_frozen_stages_needs_a_model_with_frozen_layers():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    frozen = freeze_stages(build("1f1b", 2, 2), [0])
    with pytest.raises(
        ModelError,
        match=r"stage 0 frozen, but .* are trained. Freeze them: model\[0\].freeze",
    ) as caught:
        Plan(model, frozen)
    assert caught.value.code == "frozen"
    model[0].freeze()
    assert (
        Plan(model, frozen).schedule
        == frozen
        == Plan(model, build("1f1b", 2, 2)).schedule
    )
    assert (
        repr(Plan(model, frozen))
        == "<Plan 1f1b (frozen: 0): 2 ranks, 2 stages, 2 microbatches, 2 layers>"
    )


def test_a_module_has_no_requires_grad_and_a_parameter_takes_truth_values_alone():
    """The story: ``layer.requires_grad = False`` was taken for any attribute, and the
    layer was trained.
    """
    layer = nn.Linear(2, 2)
    with pytest.raises(
        ArgumentError,
        match=r"Linear is a module and has no requires_grad of its own: freeze\(\)",
    ):
        layer.requires_grad = False
    with pytest.raises(
        ArgumentError, match="requires_grad is 'no'; expected True or False"
    ):
        layer.weight.requires_grad = "no"


def test_the_table_of_a_plan_marks_frozen_layers():
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH).freeze(), nn.Tanh(), LowRank(WIDTH), nn.Linear(WIDTH, 2)
    )
    lines = str(Plan(model, num_ranks=2)).splitlines()
    assert ["frozen" in line for line in lines] == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]
