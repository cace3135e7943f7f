"""Which code computes a layer: its class's, or that of a subclass or of the
instance.
"""

import numpy as np

from minipipe import nn
from minipipe.core.nn.module import computes_as, is_exactly
from tests.launch import for_each


def changed(layer, **attributes):
    vars(layer).update(attributes)
    return layer


class Set(nn.Sequential):
    """Only sets itself up, and looks otherwise."""

    def __init__(self):
        super().__init__(nn.Tanh())
        self.note = "mine"

    def describe(self):
        return "mine"

    def further(self):
        return self.layers


# a layer, a class, whether it computes as that, and whether it is exactly that
KINDS = {
    "itself": (nn.Tanh(), nn.Tanh, True, True),
    "another class": (nn.Tanh(), nn.ReLU, False, False),
    "a base class": (nn.TransformerBlock(4, 2), nn.Module, False, False),
    "a subclass that sets itself up": (Set(), nn.Sequential, True, False),
    "a subclass with a forward": (
        type("A", (nn.Tanh,), {"forward": lambda self, x: x})(),
        nn.Tanh,
        False,
        False,
    ),
    "a subclass with a call": (
        type("A", (nn.Tanh,), {"__call__": lambda self, x: x})(),
        nn.Tanh,
        False,
        False,
    ),
    "a subclass with a hook": (
        type("A", (Set,), {"layer_hook": lambda self, i, x: x})(),
        nn.Sequential,
        False,
        False,
    ),
    "a subclass with other layers": (
        type("A", (Set,), {"flat_layers": []})(),
        nn.Sequential,
        False,
        False,
    ),
    "a subclass of such a subclass": (
        type("B", (type("A", (Set,), {"forward": id}),), {})(),
        nn.Sequential,
        False,
        False,
    ),
    "an instance with a forward": (
        changed(nn.Tanh(), forward=np.sign),
        nn.Tanh,
        False,
        False,
    ),
    "an instance with a hook": (
        changed(Set(), layer_hook=print),
        nn.Sequential,
        False,
        False,
    ),
    "an instance without a hook": (
        changed(nn.Sequential(nn.Tanh()), layer_hook=None),
        nn.Sequential,
        True,
        True,
    ),
    "an instance with a part of a forward": (
        changed(nn.MultiHeadAttention(4, 2), _attended=id),
        nn.MultiHeadAttention,
        False,
        False,
    ),
    "an instance with notes": (
        changed(nn.Tanh(), note=1, is_training=False),
        nn.Tanh,
        True,
        True,
    ),
    "an instance that looks otherwise": (
        changed(nn.Tanh(), describe=lambda: "mine"),
        nn.Tanh,
        True,
        True,
    ),
}


@for_each(case=KINDS)
def test_code_is_that_of_a_class_unless_a_subclass_or_the_instance_replaces_it(case):
    layer, kind, computes, exactly = case
    assert computes_as(layer, kind) is computes and is_exactly(layer, kind) is exactly
