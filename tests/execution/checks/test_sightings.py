"""Who made the first value that is not finite, from what was seen between the
layers.
"""

from hypothesis import given
from hypothesis import strategies as st

from minipipe.execution.checks.probe import MINUS, NAN, PLUS, Seen, What, find_culprit
from tests.strategies import examples

LAYERS = 5


@examples(100)
@given(
    st.integers(0, 3),
    st.integers(-1, LAYERS),
    st.sets(st.integers(-1, LAYERS - 1)),
    st.randoms(),
)
def test_the_culprit_is_where_the_chain_to_the_loss_begins_whatever_else_was_seen(
    k, culprit, elsewhere, random
):
    chain = [
        Seen(What.RESULT, k, layer, NAN) for layer in range(max(culprit, 0), LAYERS)
    ]
    chain += [Seen(What.INPUTS, k, -1, NAN, 0)] if culprit < 0 else []
    cleaned = [
        Seen(What.RESULT, k, layer, PLUS)
        for layer in elsewhere
        if 0 <= layer < culprit - 1
    ]
    # of microbatches behind it
    other = [Seen(What.LOSS, later, LAYERS, NAN) for later in range(k + 1, 5)]
    seen = [*chain, *cleaned, *other, Seen(What.LOSS, k, LAYERS, NAN)]
    random.shuffle(seen)
    found = find_culprit(seen, 5, LAYERS)
    assert (found.microbatch, found.layer, found.is_backward) == (k, culprit, False)


@examples(50)
@given(st.integers(0, LAYERS), st.booleans(), st.randoms())
def test_in_backward_it_is_the_last_layer_that_spoils_a_gradient(
    culprit, is_weight, random
):
    is_weight = is_weight and culprit < LAYERS
    seen = [Seen(What.GRADIENT, 0, layer, NAN) for layer in range(culprit - is_weight)]
    seen += [
        Seen(What.WEIGHT_GRADIENT, 0, layer, NAN, 7)
        for layer in range(culprit + is_weight)
    ]
    random.shuffle(seen)
    found = find_culprit(seen, 1, LAYERS)
    if seen:
        assert (found.layer, found.is_backward, found.is_weight) == (
            culprit,
            True,
            is_weight,
        )
    else:
        assert found is None


def test_minus_infinity_of_the_inputs_is_taken_for_a_mask_but_not_that_of_a_layer():
    mask = [
        Seen(What.INPUTS, 0, -1, MINUS, 0),
        *(Seen(What.RESULT, 0, layer, MINUS) for layer in range(3)),
    ]
    broken = [Seen(What.RESULT, 0, 3, MINUS | NAN), Seen(What.LOSS, 0, 4, NAN)]
    assert find_culprit([*mask, *broken], 1, 4).layer == 3
    assert find_culprit([*mask[1:], *broken], 1, 4).layer == 0
    assert find_culprit(mask, 1, 4) is None  # nothing came of it
