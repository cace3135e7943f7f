"""Trees as messages: what is packed and unpacked is freed with its last use, without
the garbage collector.
"""

import gc
import weakref

import numpy as np
import pytest

from minipipe import Pipeline, nn, spawn
from minipipe.comm.objects import pack, unpack


@pytest.fixture
def no_collector():
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()


def test_arrays_are_not_kept_by_the_message_that_they_were_packed_into(no_collector):
    array = np.ones(3)
    alive = weakref.ref(array)
    message = pack({"arrays": [array, {"again": array}]})
    del array
    assert alive() is None
    tree = unpack(message)
    alive = weakref.ref(message)
    del message
    assert alive() is not None and tree["arrays"][0].tolist() == [1.0] * 3
    del tree
    assert alive() is None


def test_a_step_with_replicas_leaves_no_arrays_to_the_collector(no_collector):
    """The story: after each step the gradients of all replicas were in memory until the
    collector came.
    """

    def train(group):
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        pipeline = Pipeline(
            model, group, loss=nn.MSELoss(), num_microbatches=2, replicas=2
        )
        x = np.ones((8, 16), np.float32)
        pipeline.step(x, x)
        group.barrier()

    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        spawn(train, 2, take_turns=True)
        gc.collect()
        # the collector does not track arrays themselves
        held = gc.get_referents(*gc.garbage)
        arrays = [
            item for item in held if isinstance(item, np.ndarray) and item.size >= 64
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert arrays == []
