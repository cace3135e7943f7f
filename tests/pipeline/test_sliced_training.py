"""Schedules whose sequences are cut into slices, run: keys and values pass from slice
to slice, gradients come back.
"""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import (
    Grid,
    Microbatches,
    Pipeline,
    Schedule,
    Tensor,
    functional,
    init_process_group,
    nn,
    optim,
    random_key,
    schedules,
    spawn,
)
from minipipe.core.comm.host import limit_blas_threads
from minipipe.core.schedules.analysis.walk import complete_walk
from minipipe.errors import MicrobatchError, ModelError
from minipipe.execution.partition import partition_evenly
from minipipe.nn.slices import SequenceSlice, computing
from minipipe.testing import same_bits
from tests.launch import mpirun, needs_mpi, slowly
from tests.strategies import examples

SYMBOLS, WIDTH = 9, 8
TEXT = np.random.default_rng(0).integers(0, SYMBOLS, (8, 14))
X, Y = TEXT[:, :-1], TEXT[:, 1:]


def model(dtype=np.float32, dropout=0.0, **options):
    """A language model of six layers."""
    kinds = {
        "is_causal": True,
        "dtype": dtype,
        "dropout": dropout,
        "attention_dropout": dropout,
        **options,
    }
    return nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH, dtype=dtype),
        nn.PositionalEmbedding(13, WIDTH, dtype=dtype),
        *(nn.TransformerBlock(WIDTH, 2, **kinds) for _ in range(2)),
        nn.LayerNorm(WIDTH, dtype=dtype),
        nn.Linear(WIDTH, SYMBOLS, dtype=dtype),
    )


def one_process(made, num_sequences, num_slices, x=X, y=Y, seed=0):
    """Return the loss and the gradients, from one graph for each microbatch of
    sequences: no pipeline, no stages.
    """
    made.initialise(seed)
    rows, columns = (
        partition_evenly(len(x), num_sequences),
        partition_evenly(x.shape[1], num_slices),
    )
    for s, row in enumerate(rows):
        earlier, losses = [], []
        for i, column in enumerate(columns):
            cut = slice(row.start, row.stop), slice(column.start, column.stop)
            with (
                random_key(seed, 0, s * num_slices + i),
                computing(SequenceSlice(column.start, earlier)) as part,
            ):
                losses.append(
                    nn.CrossEntropyLoss()(made(x[cut]), y[cut])
                    * (len(row) * len(column) / y.size)
                )
            earlier = [*earlier, part.made]
        functional.add(sum(losses[1:], losses[0]), Tensor(0.0)).backward()
    return {name: parameter.grad for name, parameter in made.named_parameters()}


def gradients_of(group, made, schedule, x=X, y=Y, **options):
    pipeline = Pipeline(
        made, group, loss=nn.CrossEntropyLoss(), schedule=schedule, **options
    )
    loss = pipeline.step(x, y)
    return loss, {
        name: parameter.grad for name, parameter in pipeline.named_parameters()
    }


def check(found, expected):
    for _, gradients in found:
        assert gradients and all(
            same_bits(gradient, expected[name]) for name, gradient in gradients.items()
        )


@pytest.mark.parametrize(
    ("sizes", "is_split"),
    [
        (sizes, is_split)
        if (sizes == (2, 2)) == is_split and sizes != (2, 13)
        else slowly(sizes, is_split)
        for sizes in [(1, 2), (2, 2), (3, 3), (4, 2), (2, 13)]
        for is_split in (False, True)
    ],
)
def test_gradients_are_those_of_one_graph_over_all_slices_bit_for_bit(sizes, is_split):
    num_ranks, num_slices = sizes
    schedule = schedules.seq1f1b(num_ranks, 4, num_slices=num_slices)
    schedule = schedules.split_backward(schedule) if is_split else schedule
    with limit_blas_threads(1):
        expected = one_process(model(dropout=0.2), 4, num_slices)
    check(
        spawn(
            lambda group: gradients_of(group, model(dropout=0.2), schedule), num_ranks
        ),
        expected,
    )


@examples(40)
@given(st.data())
def test_so_they_are_for_any_model_and_any_legal_order(data):
    draw = data.draw
    num_ranks, num_slices, m = (
        draw(st.integers(1, 3)),
        draw(st.integers(2, 4)),
        draw(st.integers(1, 3)),
    )
    kinds = {
        "rotary_base": draw(st.sampled_from([None, 50.0])),
        "num_key_value_heads": draw(st.sampled_from([1, 2])),
    }
    length, n = draw(st.integers(num_slices, 13)), draw(st.integers(m, 5))
    schedule = schedules.seq1f1b(num_ranks, m, num_slices=num_slices)
    x, y = X[:n, :length], Y[:n, :length]
    with limit_blas_threads(1):
        expected = one_process(model(**kinds), m, num_slices, x, y)
    check(
        spawn(
            lambda group: gradients_of(group, model(**kinds), schedule, x, y), num_ranks
        ),
        expected,
    )


@pytest.mark.parametrize("num_slices", [2, 3, 5])
def test_slices_differ_from_whole_sequences_by_rounding_alone(num_slices):
    def made():
        return model(np.float64, rotary_base=100.0)

    whole = spawn(
        lambda group: gradients_of(group, made(), "1f1b", num_microbatches=4), 2
    )
    cut = spawn(
        lambda group: gradients_of(
            group, made(), schedules.seq1f1b(2, 4, num_slices=num_slices)
        ),
        2,
    )
    for (loss, gradients), (other, others) in zip(whole, cut):
        assert abs(loss - other) < 1e-12 and loss != 0
        assert all(
            np.abs(gradients[name] - others[name]).max() < 1e-12 for name in gradients
        )


def test_so_it_is_with_another_array_module():
    schedule = schedules.seq1f1b(2, 2, num_slices=2)
    with limit_blas_threads(1):
        expected = one_process(model(), 2, 2)
    found = spawn(
        lambda group: gradients_of(group, model(), schedule, device=array_api_strict), 2
    )
    check(
        [
            (loss, {n: np.asarray(g) for n, g in gradients.items()})
            for loss, gradients in found
        ],
        expected,
    )


@needs_mpi
@pytest.mark.parametrize("num_ranks", [slowly(2), 4])
@pytest.mark.slow
def test_a_training_over_mpi_has_the_losses_of_one_rank(num_ranks):
    done = mpirun(num_ranks, "-m", "tests.pipeline.test_sliced_training", limit=120)
    assert done.code == 0, done.err
    assert done.out.split() == [repr(loss) for loss in spawn(losses_of, 1)[0]]


def losses_of(group):
    schedule = schedules.seq1f1b(group.size, 4, num_slices=3)
    pipeline = Pipeline(
        model(dropout=0.1), group, loss=nn.CrossEntropyLoss(), schedule=schedule
    )
    optimiser, losses = optim.Adam(pipeline.parameters(), learning_rate=0.01), []
    for _ in range(3):
        losses.append(float(pipeline.step(X, Y)))
        optimiser.step()
    return losses


def test_with_replicas_each_has_sequences_of_its_own():
    one = schedules.seq1f1b(1, 4, num_slices=2)
    expected = spawn(
        lambda group: gradients_of(group, model(), one, gradient_blocks=2), 1
    )[0][1]
    schedule = schedules.seq1f1b(2, 2, num_slices=2)
    check(
        spawn(lambda group: gradients_of(group, model(), schedule, replicas=2), 4),
        expected,
    )


@pytest.mark.parametrize("num_slices", [2, 4])
def test_outputs_evaluate_and_predict_are_those_of_whole_sequences(num_slices):
    def run(group):
        schedule = schedules.seq1f1b(group.size, 2, num_slices=num_slices)
        pipeline = Pipeline(
            model(np.float64), group, loss=nn.CrossEntropyLoss(), schedule=schedule
        )
        outputs = pipeline.step(X, Y, outputs="everywhere").outputs
        return outputs, pipeline.predict(X), pipeline.evaluate(X, Y)

    for outputs, predicted, loss in spawn(run, 2):
        assert outputs.shape == predicted.shape == (8, 13, SYMBOLS) and np.allclose(
            outputs, predicted, atol=1e-12
        )
        whole = spawn(
            lambda group: Pipeline(
                model(np.float64), group, loss=nn.CrossEntropyLoss()
            ).evaluate(X, Y),
            1,
        )
        assert loss == pytest.approx(whole[0], abs=1e-12)


def test_a_mean_over_elements_weighs_slices_by_their_positions():
    def run(group, schedule):
        layers = nn.Sequential(
            nn.Linear(3, 4, dtype=np.float64),
            nn.Tanh(),
            nn.Linear(4, 3, dtype=np.float64),
        )
        x = np.random.default_rng(1).standard_normal((4, 7, 3))
        return Pipeline(layers, group, loss=nn.MSELoss(), schedule=schedule).step(
            x, x[..., ::-1]
        )

    whole = spawn(lambda group: run(group, schedules.gpipe(2, 2)), 2)[0]
    assert spawn(lambda group: run(group, schedules.seq1f1b(2, 2, num_slices=3)), 2)[
        0
    ] == pytest.approx(whole, abs=1e-13)


def test_slices_that_were_cut_already_are_taken_as_they_are():
    parts = [(slice(0, 8), slice(0, 9)), (slice(0, 8), slice(9, 13))]
    x, y = (Microbatches([whole[part] for part in parts]) for whole in (X, Y))

    def loss(group, *batch, schedule):
        return Pipeline(
            model(np.float64), group, loss=nn.CrossEntropyLoss(), schedule=schedule
        ).step(*batch)

    whole = spawn(lambda group: loss(group, X, Y, schedule=schedules.gpipe(2, 1)), 2)[0]
    found = spawn(
        lambda group: loss(group, x, y, schedule=schedules.seq1f1b(2, 1, num_slices=2)),
        2,
    )[0]
    assert found == pytest.approx(whole, abs=1e-12)


def test_activations_are_held_as_the_simulator_counts_them():
    schedule = schedules.seq1f1b(2, 4, num_slices=2)

    def held(group):
        pipeline = Pipeline(
            model(), group, loss=nn.CrossEntropyLoss(), schedule=schedule
        )
        pipeline.step(X, Y)
        return pipeline.timeline().peak_activations

    assert spawn(held, 2)[0] == schedules.peak_activations(schedule)
    assert not complete_walk(schedule).blocked


class Alone(nn.Tanh):
    """Computes each position on its own."""

    is_sliceable = True


def mixing(layer):
    """Return a layer whose instance mixes the positions of a sequence."""
    layer.forward = lambda x: x + functional.mean(x, axis=1, keepdims=True)
    return layer


# -- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        (
            nn.TransformerBlock(WIDTH, 2),
            {},
            r"sees later positions.*Give is_causal=True",
        ),
        (nn.Flatten(), {}, r"Flatten\(\) may mix the positions.*is_sliceable = True"),
        (mixing(nn.Tanh()), {}, r"Tanh\(\) may mix the positions"),
        (
            nn.Residual(mixing(nn.Linear(WIDTH, WIDTH))),
            {},
            r"Linear\(8, 8\) may mix the positions",
        ),
        (mixing(Alone()), {}, r"Alone\(\) may mix the positions"),
        (
            nn.Linear(WIDTH, WIDTH),
            {"recompute": True},
            "recompute=True is not supported by",
        ),
        (
            nn.Linear(WIDTH, WIDTH),
            {"inputs_require_grad": True},
            "inputs_require_grad=True is not supported by",
        ),
        (
            nn.Recompute(nn.Linear(WIDTH, WIDTH)),
            {},
            "nn.Recompute is not supported by .* such as '1f1b'",
        ),
    ],
)
def test_what_slices_would_compute_otherwise_is_refused_by_name(layer, options, words):
    made = nn.Sequential(nn.Embedding(SYMBOLS, WIDTH), layer)
    with pytest.raises(ModelError, match=words) as caught:
        spawn(
            lambda group: gradients_of(
                group, made, schedules.seq1f1b(2, 2, num_slices=2), **options
            ),
            2,
        )
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    "sizes", [{"data": 2, "fully_sharded": True}, {"tensor": 2}], ids=str
)
def test_layers_that_ranks_share_are_refused_by_the_option(sizes):
    option, value = list(sizes.items())[-1]

    def make(group):
        schedule = schedules.seq1f1b(1, 2, num_slices=2)
        return Pipeline(
            model(), Grid(group, **sizes), loss=nn.CrossEntropyLoss(), schedule=schedule
        )

    with pytest.raises(
        ModelError,
        match=(
            rf"Grid\({option}={'True' if value is True else '…'}\), is not supported "
            r"by"
        ),
    ):
        spawn(make, 2)


@pytest.mark.parametrize(
    "row", ["0F0.0 0F0.1 0R0.1 0B0.1 0B0.0", "0F0.0 0F0.1 0B0.1 0R0.0 0B0.0"]
)
def test_a_slice_that_is_computed_again_is_refused(row):
    """The story: what the first slice gave to the second had no graph, and its
    gradients were lost in silence.
    """
    with pytest.raises(
        ModelError,
        match="An R is not supported by a schedule that divides sequences into slices",
    ) as caught:
        spawn(lambda group: gradients_of(group, model(), Schedule.from_text(row)), 1)
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    "row",
    ["0F0.0 0F0.1 0O0.1 0L0.1 0B0.1 0B0.0", "0F0.0 0F0.1 0B0.1 0O0.0 0L0.0 0B0.0"],
)
def test_a_slice_may_be_kept_in_a_file(row):
    expected = spawn(
        lambda group: gradients_of(
            group, model(), Schedule.from_text("0F0.0 0F0.1 0B0.1 0B0.0")
        ),
        1,
    )
    check(
        spawn(lambda group: gradients_of(group, model(), Schedule.from_text(row)), 1),
        expected[0][1],
    )


def test_sequences_shorter_than_the_number_of_slices_are_refused():
    with pytest.raises(
        MicrobatchError, match=r"have \[2\] positions on their second axis.* 3"
    ):
        spawn(
            lambda group: gradients_of(
                group,
                model(),
                schedules.seq1f1b(2, 2, num_slices=3),
                X[:, :2],
                Y[:, :2],
            ),
            2,
        )


if __name__ == "__main__":
    with init_process_group(timeout=30) as ranks:
        found = losses_of(ranks)
        if ranks.rank == 0:
            print(*found)
