"""Options of attention in pipelines: the bits of one process, whatever the schedule, cut and recomputation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe import nn
from minipipe.testing import check_same_as_one_process
from tests.strategies import NAMES, build, examples

SYMBOLS, WIDTH, LENGTH = 7, 8, 5


def text(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return symbols of shape (n, t) and the symbol after each."""
    symbols = np.random.default_rng(seed).integers(0, SYMBOLS, (samples, LENGTH + 1))
    return symbols[:, :-1], symbols[:, 1:]


def language_model(num_blocks: int = 4, **options) -> nn.Sequential:
    blocks = [nn.TransformerBlock(WIDTH, 4, is_causal=True, hidden=9, **options) for _ in range(num_blocks)]
    return nn.Sequential(nn.Embedding(SYMBOLS, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SYMBOLS))


OPTIONS = {
    "dropout of weights": {"attention_dropout": 0.4, "dropout": 0.2},
    "turned": {"rotary_base": 100.0},
    "shared keys": {"num_key_value_heads": 2, "attention_dropout": 0.1, "rotary_base": 1e4},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@examples(20)
@given(st.sampled_from(NAMES), st.integers(1, 3), st.integers(2, 7), st.booleans(), st.data())
def test_blocks_with_options_have_the_bits_of_one_process(options, name, num_ranks, samples, recompute, data):
    schedule = build(name, num_ranks, data.draw(st.integers(1, samples)))
    if schedule.num_stages > 7:
        schedule = build("zb-h1", num_ranks, schedule.num_microbatches)
    check_same_as_one_process(
        language_model(**options), nn.CrossEntropyLoss(), *text(samples), schedule, seed=2, recompute=recompute
    )
