"""A rank that reduces while another gathers learns which rank is in another call."""

import numpy as np
import pytest
from minipipe import spawn
from minipipe.comm.objects import pack
from minipipe.errors import MessageError

SENT = {
    "numbers": np.ones(3),
    "bytes": np.zeros(16, np.uint8),
    "a pytree": pack({"call": "another", "value": 1}),
}


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", SENT)
def test_a_message_of_another_call_is_refused(num_ranks, name):
    sent = SENT[name]
    own = np.ones(3) if sent.dtype == np.uint8 or num_ranks > 2 else np.ones(2)

    def differ(group):
        return group.all_reduce(own) if group.rank else group.all_gather(sent)

    with pytest.raises(MessageError) as caught:
        spawn(differ, num_ranks)
    assert caught.value.code in ("disagreement", "dtype", "shape")


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("array", [np.array([None]), np.array(["a"])])
def test_an_array_that_cannot_be_sent_is_refused_on_any_number_of_ranks(
    num_ranks, array
):
    with pytest.raises(MessageError, match="Numbers and booleans can be sent"):
        spawn(lambda group: group.all_reduce(array), num_ranks)
