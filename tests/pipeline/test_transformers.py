"""Transformers with masks and a memory in pipelines: the bits of one process for any
schedule, cut, recomputation.
"""

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import Pipeline, Plan, Tensor, nn, spawn
from minipipe.core.execution.payload import Payload
from minipipe.errors import RankError
from minipipe.testing import check_same_as_one_process, one_process_step
from tests.launch import slowly
from tests.strategies import NAMES, build, examples

SYMBOLS, WIDTH, LENGTH = 7, 8, 5


def text(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return symbols of shape (n, t) and the symbol after each."""
    symbols = np.random.default_rng(seed).integers(0, SYMBOLS, (samples, LENGTH + 1))
    return symbols[:, :-1], symbols[:, 1:]


def language_model(num_blocks: int = 4, **options) -> nn.Sequential:
    blocks = [
        nn.TransformerBlock(WIDTH, 4, is_causal=True, hidden=9, **options)
        for _ in range(num_blocks)
    ]
    return nn.Sequential(
        nn.Embedding(SYMBOLS, WIDTH),
        *blocks,
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, SYMBOLS),
    )


OPTIONS = {
    "dropout of weights": {"attention_dropout": 0.4, "dropout": 0.2},
    "turned": {"rotary_base": 100.0},
    "shared keys": {
        "num_key_value_heads": 2,
        "attention_dropout": 0.1,
        "rotary_base": 1e4,
    },
}


@pytest.mark.parametrize(
    "name_of_options", ["shared keys", slowly("turned"), slowly("dropout of weights")]
)
@examples(20)
@given(
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.integers(2, 7),
    st.booleans(),
    st.data(),
)
def test_blocks_with_options_have_the_bits_of_one_process(
    name_of_options, name, num_ranks, samples, recompute, data
):
    schedule = build(name, num_ranks, data.draw(st.integers(1, samples)))
    if schedule.num_stages > 7:
        schedule = build("zb-h1", num_ranks, schedule.num_microbatches)
    model = language_model(**OPTIONS[name_of_options])
    check_same_as_one_process(
        model,
        nn.CrossEntropyLoss(),
        *text(samples),
        schedule,
        seed=2,
        recompute=recompute,
    )


@pytest.mark.parametrize(
    "option", [{"rotary_base": 10.0}, {"attention_dropout": 0.1}, {"is_causal": True}]
)
def test_ranks_whose_blocks_have_other_options_are_told(option):
    """The story: options that show in no parameter were not compared, and each rank
    computed with its own.
    """

    def build_model(group):
        block = nn.TransformerBlock(4, 2, **(option if group.rank else {}))
        Pipeline(nn.Sequential(block, nn.Linear(4, 4)), group, loss=nn.MSELoss())

    with pytest.raises(RankError, match="model") as caught:
        spawn(build_model, 2)
    assert caught.value.code == "disagreement"


# -- bundles: masks and a memory on their way over the cuts ----------------------------


def translator(wrap=lambda layer: layer) -> nn.Sequential:
    """Return an encoder and a decoder as one sequence of eight layers; what is not
    needed any more stays behind.
    """
    own = {"attention_dropout": 0.2, "dropout": 0.1}
    return nn.Sequential(
        nn.On("source", nn.Embedding(SYMBOLS, WIDTH)),
        wrap(
            nn.On(
                ("source", "source_mask"),
                nn.TransformerBlock(WIDTH, 2, rotary_base=1e4, **own),
            )
        ),
        wrap(
            nn.On(
                {"x": "source", "mask": "source_mask"},
                nn.TransformerBlock(WIDTH, 2, hidden=5, **own),
            )
        ),
        nn.On("target", nn.Embedding(SYMBOLS, WIDTH)),
        wrap(
            nn.On(
                ("target", "source", "target_mask", "source_mask"),
                nn.DecoderBlock(WIDTH, 4, 6, num_key_value_heads=2, **own),
            )
        ),
        nn.Take(["target", "source", "source_mask"]),
        wrap(
            nn.On(
                {"x": "target", "memory": "source", "memory_mask": "source_mask"},
                nn.DecoderBlock(WIDTH, 2, **own),
            )
        ),
        nn.Take("target"),
        nn.Linear(WIDTH, SYMBOLS),
    )


def sentences(samples: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return padded pairs, with a mask of truth values and one of whole numbers; some
    sources are empty.
    """
    generator = np.random.default_rng(seed)
    target, following = text(samples, seed)
    lengths = (
        generator.integers(0, 4, samples),
        generator.integers(1, LENGTH + 1, samples),
    )
    inputs = {
        "source": generator.integers(0, SYMBOLS, (samples, 3)),
        "source_mask": np.arange(3) < lengths[0][:, None],
        "target": target,
        "target_mask": (np.arange(LENGTH) < lengths[1][:, None]).astype(np.uint8),
    }
    return inputs, np.where(inputs["target_mask"] == 1, following, -100)


@st.composite
def cuts(draw, num_layers: int):
    """Draw a schedule and a partition of the layers."""
    num_ranks = draw(st.integers(1, 4))
    schedule = build(draw(st.sampled_from(NAMES)), num_ranks, draw(st.integers(1, 4)))
    if schedule.num_stages > num_layers:
        schedule = build("zb-h1", num_ranks, schedule.num_microbatches)
    order = draw(st.permutations(range(1, num_layers)))
    ends = [0, *sorted(order[: schedule.num_stages - 1]), num_layers]
    return schedule, [range(a, b) for a, b in zip(ends, ends[1:])]


@pytest.mark.parametrize(
    "wrap", [slowly(lambda layer: layer), nn.Recompute], ids=["", "recompute"]
)
@examples(40)
@given(cuts(9), st.integers(4, 9), st.booleans())
def test_an_encoder_and_a_decoder_cut_anywhere_have_the_bits_of_one_process(
    wrap, cut, samples, recompute
):
    schedule, partition = cut
    inputs, targets = sentences(samples)
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    check_same_as_one_process(
        translator(wrap), loss, inputs, targets, schedule, 1, partition, recompute
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [slowly("1f1b"), "zb-h1"])
def test_so_it_is_on_arrays_of_another_module(name):
    inputs, targets = sentences(5)
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    check_same_as_one_process(
        translator(), loss, inputs, targets, build(name, 3, 2), device=array_api_strict
    )


def test_a_recomputed_translator_has_the_bits_of_the_plain_one():
    """Its dropout, its masks and the memory that it hands on are those of the first
    time.
    """
    inputs, targets = sentences(6)
    found = []
    for wrap in (lambda layer: layer, nn.Recompute):
        model = translator(wrap).initialise(0)
        result = one_process_step(
            model, nn.CrossEntropyLoss(ignore_index=-100), inputs, targets, 3
        )
        gradients = [
            None if gradient is None else gradient.tobytes()
            for gradient in result.gradients.values()
        ]
        found.append((result.loss, gradients))
    assert found[0] == found[1] and all(found[0][1])


def test_what_was_left_behind_does_not_travel():
    """Behind the first cut there are a memory and its mask; behind the second, one
    tensor.
    """
    inputs, _ = sentences(4)
    model, bundle = (
        translator().initialise(0).eval(),
        {name: Tensor(array) for name, array in inputs.items()},
    )
    kept = [model[:end](bundle) for end in (5, 6, 8)]
    assert [sorted(value) for value in kept[:2]] == [
        sorted(inputs),
        ["source", "source_mask", "target"],
    ]
    assert [Payload.of(value).requires_grad for value in kept[1:]] == [
        [True, True, False],
        [True],
    ]


def test_padding_of_a_pipeline_changes_no_result_of_what_is_not_padding():
    inputs, _ = sentences(6)
    longer = {name: np.pad(array, [(0, 0), (0, 2)]) for name, array in inputs.items()}

    def predict(group):
        pipeline = Pipeline(translator(), group, loss=nn.MSELoss(), num_microbatches=2)
        return pipeline.predict(inputs), pipeline.predict(longer)

    for plain, padded in spawn(predict, 3):
        seen = inputs["target_mask"] == 1
        np.testing.assert_allclose(
            padded[:, :LENGTH][seen], plain[seen], rtol=1e-4, atol=1e-5
        )


def test_frozen_layers_inside_on_need_no_backward():
    inputs, targets = sentences(4)
    model = translator()
    for layer in model[:3]:
        layer.freeze()
    assert Plan(
        model, "1f1b", num_ranks=3, partition=[range(3), range(3, 6), range(6, 9)]
    ).schedule.frozen == {0}
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    check_same_as_one_process(model, loss, inputs, targets, build("1f1b", 3, 2))


def test_a_mask_that_was_left_out_would_be_noticed():
    inputs, targets = sentences(6)
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    other = {**inputs, "source_mask": np.ones_like(inputs["source_mask"])}
    values = [
        one_process_step(translator().initialise(0).eval(), loss, x, targets, 2).loss
        for x in (inputs, other)
    ]
    assert values[0] != values[1]
