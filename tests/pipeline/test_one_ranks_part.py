"""What depends on all gradients is never decided from one rank's part of them."""

import numpy as np
import pytest

from minipipe import Pipeline, init_process_group, nn, optim, spawn
from minipipe.errors import RankError
from tests.launch import mpirun, needs_mpi

X, Y = np.ones((8, 4), np.float32), np.ones((8, 2), np.float32)


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def after_a_step(group, **options):
    pipeline = Pipeline(
        model(), group, loss=nn.MSELoss(), num_microbatches=2, **options
    )
    pipeline.step(X, Y)
    return pipeline


DECISIONS = {
    "clipping": (
        lambda given: optim.clip_grad_norm(given, 1.0),
        "pipeline.clip_grad_norm",
    ),
    "clipping a list": (
        lambda given: optim.clip_grad_norm(list(given), 1.0),
        "pipeline.clip_grad_norm",
    ),
    "clipping a generator": (
        lambda given: optim.clip_grad_norm((p for p in given), 1.0),
        "pipeline.clip_grad_norm",
    ),
    "clipping one of them": (
        lambda given: optim.clip_grad_norm([next(given)], 1.0),
        "pipeline.clip_grad_norm",
    ),
    "the norm": (optim.gradient_norm, "pipeline.clip_grad_norm"),
    "the loss scale": (
        lambda given: optim.LossScale(8.0).unscale(given),
        "pipeline.unscale_gradients",
    ),
}


@pytest.mark.parametrize(
    "options", [{}, {"check_agreement": False}], ids=["compared", "not compared"]
)
@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_from_one_ranks_part_is_refused_and_changes_nothing(name, options):
    """The story: `optim.clip_grad_norm(pipeline.parameters(), …)` trained another model
    for each number of ranks.
    """
    decide, instead = DECISIONS[name]

    def run(group):
        pipeline = after_a_step(group, **options)
        before = [parameter.grad.copy() for parameter in pipeline.parameters()]
        with pytest.raises(
            RankError, match=rf"one rank's part of a pipeline.* Call {instead}"
        ) as caught:
            decide(pipeline.parameters())
        assert all(
            np.array_equal(p.grad, grad)
            for p, grad in zip(pipeline.parameters(), before)
        )
        return caught.value.code

    assert spawn(run, 2) == ["disagreement"] * 2


@needs_mpi
def test_so_it_is_in_processes():
    job = mpirun(2, __file__)
    assert (
        job.code != 0
        and "Call pipeline.clip_grad_norm(max_norm), on every rank" in job.err
    ), job


def test_on_one_rank_and_for_a_model_beside_the_pipeline_all_gradients_are_there():
    def run(group):
        twin = model().initialise(0)
        nn.MSELoss()(twin(X), Y).backward()
        pipeline = after_a_step(group)
        return optim.clip_grad_norm(twin.parameters(), 1e-2), pipeline.clip_grad_norm(
            1e-2
        )

    (alone, pipelined), *_ = spawn(run, 2)
    assert alone == pytest.approx(pipelined, rel=1e-6)
    (pipeline,) = spawn(after_a_step, 1)
    assert optim.clip_grad_norm(pipeline.parameters(), 1.0) == pipelined
    assert optim.LossScale(8.0).unscale(pipeline.parameters())


def test_clipping_element_by_element_is_the_same_on_any_number_of_ranks():
    def clipped(group):
        pipeline = after_a_step(group)
        for parameter in pipeline.parameters():
            parameter.grad = parameter.grad.clip(-0.01, 0.01)
        optim.SGD(pipeline.parameters(), 0.1).step()
        return pipeline.state_dict()

    one, two = spawn(clipped, 1)[0], spawn(clipped, 2)[0]
    assert all(np.array_equal(one[name], two[name]) for name in one)


if __name__ == "__main__":
    with init_process_group() as ranks:
        optim.clip_grad_norm(after_a_step(ranks).parameters(), 1.0)
