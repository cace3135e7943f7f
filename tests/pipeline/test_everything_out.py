"""A step gives more than a loss: losses of microbatches, metrics, outputs, gradients of
inputs and of several steps.
"""

import json
import pickle

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import (
    BatchLoss,
    Microbatches,
    Pipeline,
    Replicated,
    Tensor,
    functional,
    nn,
    random_key,
    schedules,
    spawn,
)
from minipipe.comm import OneRankGroup
from minipipe.errors import (
    ArgumentError,
    MicrobatchError,
    ModelError,
    RankError,
    TensorError,
)
from minipipe.testing import one_process_step, same_bits
from tests.launch import mpirun, needs_mpi, of_each_kind, slowly
from tests.strategies import NAMES, build, examples

WIDTH = 4


def model():
    layers = [
        layer
        for _ in range(7)
        for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1))
    ]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


def batch(samples=10, seed=0):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((samples, WIDTH)).astype(
        np.float32
    ), generator.integers(-1, 3, samples)


def accuracy(scores, labels):
    counted = labels >= 0
    return (scores.argmax(axis=1) == labels)[counted].mean() if counted.any() else 0.0


LOSS = nn.CrossEntropyLoss(ignore_index=-1)


def made(group, name="1f1b", m=4, **options):
    options = {"loss": LOSS, **options}
    return Pipeline(model(), group, schedule=build(name, group.size, m), **options)


# -- numbers and outputs ---------------------------------------------------------------


@examples(40)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 99),
    st.sampled_from([4, 7, 10]),
)
def test_losses_metrics_and_outputs_are_those_of_one_process(
    name, num_ranks, m, seed, samples
):
    x, y = batch(max(samples, m), seed)
    y[0] = 1  # at least one that counts

    def train(group):
        pipeline = made(group, name, m).eval()
        plain = pipeline.step(x, y)
        loss = pipeline.step(
            x,
            y,
            outputs="everywhere",
            metrics={"accuracy": accuracy, "one": lambda *_: 1},
        )
        assert (plain, plain.losses, plain.metrics, plain.outputs) == (
            loss,
            loss.losses,
            {},
            None,
        )
        checked = pipeline.evaluate(x, y, outputs=True, metrics={"accuracy": accuracy})
        assert (checked, checked.losses, checked.metrics) == (
            loss,
            loss.losses,
            {"accuracy": loss.metrics["accuracy"]},
        )
        is_last = pipeline.num_stages - 1 in pipeline.local_stages
        assert (checked.outputs is not None) == is_last
        assert not is_last or same_bits(checked.outputs, loss.outputs)
        assert same_bits(pipeline.predict(x), loss.outputs)
        return loss

    twin = model().initialise(0).eval()
    parts = np.array_split(np.arange(len(y)), m)
    expected = [
        LOSS(twin(Tensor(x[part])), y[part]).item() if (y[part] >= 0).any() else 0.0
        for part in parts
    ]
    whole = one_process_step(twin, LOSS, x, y, m)
    for loss in spawn(train, num_ranks):
        assert isinstance(loss, BatchLoss) and loss == whole.loss
        assert loss.losses == tuple(expected)
        assert loss.outputs.shape == (len(y), 3)
        assert loss.metrics == {
            "accuracy": pytest.approx(accuracy(loss.outputs, y)),
            "one": pytest.approx(1),
        }


def test_an_accuracy_costs_no_second_forward_and_counts_what_the_loss_counts():
    x, y = batch(8)
    y[:4] = -1  # the first two microbatches do not count at all
    forwards = []

    class Counted(nn.Module):
        def forward(self, x):
            forwards.append(len(x))
            return x

    pipeline = Pipeline(
        nn.Sequential(Counted(), nn.Linear(WIDTH, 3)),
        OneRankGroup(),
        loss=LOSS,
        num_microbatches=4,
    )
    metrics = {"accuracy": accuracy, "first": lambda scores, labels: float(labels[0])}
    loss = pipeline.step(x, np.where(y < 0, -1, 2), metrics=metrics)
    assert forwards == [2] * 4
    weights = [(part >= 0).sum() / (y >= 0).sum() for part in y.reshape(4, 2)]
    assert loss.metrics["first"] == pytest.approx(
        sum(w * (-1 if i < 2 else 2) for i, w in enumerate(weights))
    )


def test_the_loss_of_a_batch_is_a_float_that_can_be_kept():
    x, y = batch()
    loss = made(OneRankGroup()).step(x, y, metrics={"accuracy": accuracy})
    assert json.loads(json.dumps({"loss": loss})) == {"loss": float(loss)}
    kept = pickle.loads(pickle.dumps(loss))
    assert (kept, kept.losses, kept.metrics) == (loss, loss.losses, loss.metrics)
    assert f"{loss:.3f}" == f"{float(loss):.3f}" and repr(loss) == repr(float(loss))
    assert type(loss + 1) is float


def test_without_waiting_a_rank_asks_for_all_of_it_later():
    def train(group):
        pipeline = made(group)
        pending = [
            pipeline.step(
                *batch(8, i), wait=False, outputs=True, metrics={"a": accuracy}
            )
            for i in range(3)
        ]
        again = made(group)
        return [pending[i].wait() for i in (2, 0, 1)], [
            again.step(*batch(8, i), outputs=True, metrics={"a": accuracy})
            for i in (0, 1, 2)
        ]

    for (third, first, second), expected in spawn(train, 3):
        for mine, other in zip((first, second, third), expected):
            assert (mine, mine.losses, mine.metrics) == (
                other,
                other.losses,
                other.metrics,
            )
            assert (mine.outputs is None) == (other.outputs is None)
            assert mine.outputs is None or same_bits(mine.outputs, other.outputs)


def test_a_metric_cannot_change_what_the_backward_needs():
    def spoil(scores, labels):
        scores[...] = 0

    with pytest.raises(ValueError, match="read-only"):
        made(OneRankGroup()).step(*batch(), metrics={"spoil": spoil})


@pytest.mark.parametrize(
    ("metric", "found"),
    [(lambda y, t: y, r"an array of shape \(3, 3\)"), (lambda y, t: None, "NoneType")],
)
def test_a_metric_that_is_no_number_is_named(metric, found):
    with pytest.raises(
        TensorError,
        match=f"The metric 'share' must be a number; for a microbatch it is {found}",
    ) as caught:
        made(OneRankGroup()).step(
            *batch(), metrics={"accuracy": accuracy, "share": metric}
        )
    assert caught.value.code == "shape"


def test_a_metric_may_have_weights_of_its_own():
    """The story: the share of sentences that are right, beside a loss over tokens,
    counted by tokens.
    """
    x = np.ones((6, 3, WIDTH), np.float32)
    y = np.full((6, 3), -1)
    y[0], y[1:, 0] = 1, 2  # three tokens, and one in each of five others

    def sentences(scores, labels):
        return (labels[:, 0] == 2).mean(), len(labels)

    def tokens(scores, labels):
        return (labels[labels >= 0] == 2).mean()

    def none(scores, labels):
        return 5.0, 0

    pipeline = Pipeline(
        nn.Sequential(nn.Linear(WIDTH, 3)),
        OneRankGroup(),
        loss=LOSS,
        num_microbatches=3,
    )
    metrics = pipeline.step(
        x, y, metrics={"sentences": sentences, "tokens": tokens, "none": none}
    ).metrics
    assert metrics["sentences"] == pytest.approx(5 / 6) and metrics[
        "tokens"
    ] == pytest.approx(5 / 8)
    assert np.isnan(metrics["none"])


def test_a_microbatch_that_does_not_count_does_not_spoil_a_metric():
    x, y = batch(8)
    y[:] = [1, 1, -1, -1, 2, 2, -1, -1]
    loss = made(OneRankGroup()).step(
        x, y, metrics={"of nothing": lambda _, y: np.nan if (y < 0).all() else 1.0}
    )
    assert loss.metrics["of nothing"] == 1.0


def test_gradients_of_inputs_that_nobody_asked_for_are_refused():
    pipeline = made(OneRankGroup())
    pipeline.step(*batch())
    with pytest.raises(
        ArgumentError,
        match=r"Only Pipeline\(…, inputs_require_grad=True\) keeps gradients",
    ):
        _ = pipeline.input_gradients


def test_every_rank_must_name_the_same_metrics():
    def train(group, asked):
        return made(group).step(*batch(), **asked[group.rank])

    one, two = {"a": accuracy, "b": accuracy}, {"b": accuracy, "a": accuracy}
    for asked in (
        ({"metrics": one}, {}),
        ({"metrics": one}, {"metrics": two}),
        ({}, {"outputs": "everywhere"}),
    ):
        with pytest.raises(
            RankError,
            match="The request for metrics and outputs of rank 1 differs from that of",
        ):
            spawn(lambda group, asked=asked: train(group, asked), 2)


def test_where_outputs_go_must_be_a_place_that_there_is():
    with pytest.raises(
        ArgumentError, match="outputs is 'all'; expected True, False or 'everywhere'"
    ):
        made(OneRankGroup()).step(*batch(), outputs="all")


def test_outputs_that_make_no_array_of_samples_say_what_to_do():
    pipeline = Pipeline(
        nn.Sequential(OverTheBatch()), OneRankGroup(), num_microbatches=2
    )
    with pytest.raises(
        TensorError,
        match="do not form one array .* pass the batch as minipipe.Microbatches",
    ):
        pipeline.predict(batch()[0])


class OverTheBatch(nn.Module):
    def forward(self, x):
        return x.mean()


def test_microbatches_of_several_lengths_come_out_as_they_went_in():
    x = [np.ones((2, 5, WIDTH)), np.ones((1, 7, WIDTH))]

    def run(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 2)),
            group,
            loss=nn.MSELoss(),
            num_microbatches=2,
        )
        loss = pipeline.step(
            Microbatches(x),
            Microbatches([np.ones((2, 5, 2)), np.ones((1, 7, 2))]),
            outputs=True,
        )
        return pipeline.predict(Microbatches(x)), loss.outputs

    (everywhere, none), (again, mine) = spawn(run, 2)
    assert none is None
    for found in (everywhere, again, mine):
        assert [part.shape for part in found.parts] == [(2, 5, 2), (1, 7, 2)]


# -- no loss, gradients from outside, gradients of inputs ------------------------------


def test_predict_needs_no_loss_and_whatever_does_says_so():
    pipeline = made(OneRankGroup(), loss=None)
    assert pipeline.predict(batch()[0]).shape == (10, 3)
    for call in ("step", "evaluate", "measure_memory", "measure_costs"):
        with pytest.raises(
            ModelError, match=rf"{call}\(\) needs a loss, but this pipeline has none"
        ):
            getattr(pipeline, call)(*batch())


@examples(40)
@given(st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_a_gradient_from_outside_leaves_the_gradients_of_one_process(
    name, num_ranks, m, is_function
):
    x, _ = batch(6)
    gradient = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
    parts = np.array_split(np.arange(6), m)

    def train(group):
        pipeline = made(group, name, m, loss=None, inputs_require_grad=True)
        given = (
            gradient
            if not is_function
            else lambda outputs: gradient[: len(outputs)] * outputs
        )
        outputs = pipeline.forward_backward(x, given)
        return (
            outputs,
            pipeline.input_gradients,
            {name: p.grad for name, p in pipeline.named_parameters()},
        )

    twin = model().tied().initialise(0)
    input_gradients, outputs = [], []
    for k, part in enumerate(parts):
        own = Tensor(x[part], requires_grad=True)
        with random_key(0, 0, k):
            result = twin(own)
        result.backward(
            gradient[part]
            if not is_function
            else gradient[: len(part)] * result.numpy()
        )
        input_gradients.append(own.grad)
        outputs.append(result.numpy())
    results = spawn(train, num_ranks)
    found = {name: grad for _, _, grads in results for name, grad in grads.items()}
    assert all(same_bits(found[name], p.grad) for name, p in twin.named_parameters())
    assert [
        same_bits(own, np.concatenate(input_gradients))
        for _, own, _ in results
        if own is not None
    ] == [True]
    assert [
        same_bits(own, np.concatenate(outputs))
        for own, _, _ in results
        if own is not None
    ] == [True]


@pytest.mark.parametrize("name", of_each_kind(NAMES))
def test_the_gradients_of_the_inputs_are_there_for_every_schedule_frozen_stages_or_not(
    name,
):
    x, y = batch(6)

    def attack(group, is_frozen):
        layers = model()
        if is_frozen:
            layers.freeze()
        schedule = build(name, group.size, 3)
        pipeline = Pipeline(
            layers, group, loss=LOSS, schedule=schedule, inputs_require_grad=True
        ).eval()
        pipeline.step(x, y)
        return pipeline.input_gradients

    twin, own = model().initialise(0).eval(), Tensor(x, requires_grad=True)
    LOSS(twin(own), y).backward()
    for is_frozen in (False, True):
        mine, *others = spawn(
            lambda group, is_frozen=is_frozen: attack(group, is_frozen), 2
        )
        np.testing.assert_allclose(mine, own.grad, rtol=1e-4, atol=1e-6)
        assert others == [None]


def test_gradients_of_inputs_have_the_form_of_the_inputs():
    class Scaled(nn.Module):
        def __init__(self):
            self.embedding = nn.Embedding(5, WIDTH)

        def forward(self, batch):
            return (self.embedding(batch["ids"]) + batch["x"]) * batch["scale"]

    x = {
        "ids": np.arange(5),
        "x": np.ones((5, WIDTH)),
        "scale": Replicated(2.0),
        "unused": np.ones((5, 1)),
    }
    options = {
        "loss": nn.MSELoss(reduction="sum"),
        "num_microbatches": 2,
        "inputs_require_grad": True,
    }
    pipeline = Pipeline(nn.Sequential(Scaled()), OneRankGroup(), **options)
    pipeline.step(x, np.zeros((5, WIDTH)))
    found = pipeline.input_gradients
    values = (pipeline.state_dict()["0.embedding.weight"] + 1) * 2
    assert found["ids"] is None
    np.testing.assert_allclose(found["x"], 4 * values, rtol=1e-5)
    np.testing.assert_allclose(found["scale"], (values**2).sum(), rtol=1e-5)
    assert found["unused"].tolist() == [[0.0]] * 5
    pipeline.step(
        Microbatches([{**x, "ids": np.arange(5)}] * 2),
        Microbatches([np.zeros((5, WIDTH))] * 2),
    )
    assert [part["x"].shape for part in pipeline.input_gradients.parts] == [
        (5, WIDTH)
    ] * 2


def test_a_schedule_whose_first_stages_are_frozen_has_no_gradient_of_inputs():
    schedule = schedules.freeze_stages(build("1f1b", 1, 2), [0])
    with pytest.raises(
        ModelError, match="inputs_require_grad=True needs a backward on every stage"
    ):
        Pipeline(
            model().freeze(),
            OneRankGroup(),
            schedule=schedule,
            inputs_require_grad=True,
        )


@pytest.mark.parametrize(
    ("gradient", "error", "words"),
    [
        (
            np.ones((10, 2)),
            TensorError,
            (
                r"outputs of a microbatch have shapes \[\(3, 3\)\]; the gradients "
                r".*\(3, 2\)"
            ),
        ),
        (lambda outputs: None, TensorError, "No gradient was given for any output"),
        (
            lambda outputs: (outputs, outputs),
            TensorError,
            "Expected one for each, of the same shape",
        ),
        (None, ArgumentError, "needs the gradients, but got None"),
        (np.ones((4, 3)), MicrobatchError, "There are 10 inputs .* but 4 gradients"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(gradient, error, words):
    with pytest.raises(error, match=words):
        made(OneRankGroup()).forward_backward(batch()[0], gradient)


@needs_mpi
@pytest.mark.parametrize("num_ranks", [2, slowly(3), slowly(4)])
@pytest.mark.slow
def test_so_it_is_across_processes(num_ranks):
    done = mpirun(num_ranks, "-m", "tests.pipeline.everything_over_mpi", limit=60)
    assert done.code == 0, done.err
    assert len(set(done.out.splitlines())) == 1 and done.out.count("loss") == num_ranks


# -- arrays that are not divided -------------------------------------------------------


@examples(20)
@given(st.sampled_from(NAMES), st.integers(1, 3), st.integers(1, 4))
def test_a_replicated_array_reaches_every_microbatch_whole(name, num_ranks, m):
    class Attend(nn.Module):
        def forward(self, batch):
            return functional.softmax(batch["x"] @ batch["table"]) * batch["scale"]

    table = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    x, _ = batch(6)
    y = (np.zeros((6, 3)), Replicated(np.float32(2.0)))
    layers = nn.Sequential(Attend(), *model())

    def loss(outputs, targets):
        return functional.mean_squared_error(outputs, targets[0]) * targets[1]

    def train(group):
        pipeline = Pipeline(
            layers, group, loss=loss, schedule=build(name, group.size, m)
        ).eval()
        return pipeline.step(
            {"x": x, "table": Replicated(table), "scale": Replicated(3.0)}, y
        )

    twin = nn.Sequential(Attend(), *model()).initialise(0).eval()
    expected = loss(
        twin({"x": Tensor(x), "table": Tensor(table), "scale": Tensor(3.0)}),
        (y[0], 2.0),
    ).item()
    assert all(
        found == pytest.approx(expected, rel=1e-5) for found in spawn(train, num_ranks)
    )


def test_a_batch_of_nothing_but_replicated_arrays_is_refused():
    with pytest.raises(
        TensorError, match="The inputs are replicated; expected arrays of shape"
    ):
        made(OneRankGroup()).predict(Replicated(np.ones((4, WIDTH))))
    with pytest.raises(
        TensorError,
        match=r"contain a single number; .* write minipipe.Replicated\(number\)",
    ):
        made(OneRankGroup()).predict({"x": np.ones((4, WIDTH)), "scale": 2.0})


def test_so_it_is_with_another_array_module():
    """The seam at which CuPy stands: whatever comes out is NumPy's."""
    x, y = batch(8)
    layers = nn.Sequential(nn.AuxiliaryLoss(lambda x: (x * x).mean(), 0.1), *model())
    results = {}
    for device in ("cpu", array_api_strict):

        def train(group, device=device):
            options = {
                "loss": LOSS,
                "num_microbatches": 4,
                "inputs_require_grad": True,
                "device": device,
            }
            pipeline = Pipeline(layers, group, **options)
            loss = pipeline.step(
                x, y, outputs="everywhere", metrics={"accuracy": accuracy}
            )
            again = pipeline.step(x, y, accumulate=True, scale=0.5, outputs=True)
            outputs = pipeline.forward_backward(x, lambda outputs: outputs)
            gradients = pipeline.input_gradients
            assert all(
                type(a) is np.ndarray
                for a in (loss.outputs, outputs, again.outputs, gradients)
                if a is not None
            )
            return (
                float(loss),
                loss.losses,
                loss.metrics,
                loss.outputs,
                float(again),
                outputs,
                gradients,
            )

        results[device] = spawn(train, 2)
    for mine, expected in zip(*results.values()):
        for a, b in zip(mine, expected):
            if isinstance(b, np.ndarray):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            else:
                assert a == b or a == pytest.approx(b, rel=1e-6)
