"""Frozen parameters, as in fine-tuning: no gradient, no work and no message for them, and the bits of one process."""

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, nn, optim, spawn
from minipipe.errors import RankError
from minipipe.testing import check_same_as_one_process, same_bits
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
    """Return a model whose first half is frozen, with low-rank adapters in the second."""
    frozen = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH).freeze(), nn.Tanh())]
    return nn.Sequential(*frozen, *(LowRank(WIDTH) for _ in range(4)), nn.Linear(WIDTH, 2))


@pytest.mark.parametrize("name", [*NAMES, "v-shaped", "split"])
@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Recompute], ids=["", "recompute"])
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
        pipeline = Pipeline(fine_tuned(), group, loss=nn.MSELoss(), schedule="zb-h1", num_microbatches=4)
        before = pipeline.state_dict()
        optimiser = optim.AdamW(pipeline.parameters(), 0.01)
        for _ in range(2):
            pipeline.step(*batch(8, WIDTH))
            optimiser.step()  # on rank 0 all are frozen: no warning that nothing was changed
        after = pipeline.state_dict()
        own = {name: parameter.grad is None for name, parameter in pipeline.named_parameters()}
        return own, [name for name in before if not same_bits(before[name], after[name])]

    by_rank = spawn(train, 3)
    without = {name for own, _ in by_rank for name, is_missing in own.items() if is_missing}
    named = dict(fine_tuned().named_parameters())
    assert without == {name for name, parameter in named.items() if not parameter.requires_grad}
    assert set(by_rank[0][1]) == named.keys() - without


def test_nothing_is_computed_and_next_to_nothing_sent_where_nobody_upstream_is_trained():
    width = 64
    frozen = [nn.Linear(width, width).freeze() for _ in range(2)]
    model = nn.Sequential(*frozen, nn.Linear(width, width), nn.Linear(width, 2))

    def measure(group):
        parts = [range(1), range(1, 2), range(2, 3), range(3, 4)]
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4, partition=parts)
        pipeline.measures_memory = True
        pipeline.step(*batch(64, width))
        return pipeline.timeline()

    timeline = spawn(measure, 4)[0]
    sizes = {}
    for message in timeline.messages:
        if message.value.kind.is_backward:
            sizes.setdefault((message.source, message.destination), set()).add(message.size)
    gradient = 16 * width * 4
    assert sizes[3, 2] == {gradient}
    assert max(sizes[2, 1] | sizes[1, 0]) < 200  # that there is none
    assert timeline.peak_memory[0] == timeline.peak_memory[1] == 0  # a frozen stage keeps nothing for its backward


def test_a_frozen_module_can_be_trained_again():
    layer = nn.Linear(2, 2).initialise(0).freeze()
    layer(Tensor(np.ones((1, 2), np.float32)))
    assert layer(Tensor(np.ones((1, 2), np.float32))).node is None
    layer.freeze(False)
    layer(Tensor(np.ones((1, 2), np.float32))).sum().backward()
    assert layer.weight.grad is not None
    layer.weight.requires_grad = False
    assert layer.weight.grad is None and not layer.weight.requires_grad and layer.bias.requires_grad


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

    with pytest.raises(RankError, match="The model of rank 1 differs from that of rank 0"):
        spawn(disagree, 2)


def test_a_model_that_is_frozen_altogether_still_evaluates():
    def loss(group):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)).freeze()
        pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        return pipeline.step(*batch(8, WIDTH)), pipeline.evaluate(*batch(8, WIDTH))

    assert len(set(spawn(loss, 2))) == 1
