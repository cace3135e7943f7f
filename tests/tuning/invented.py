"""CostModel that nobody made: layers whose times and bytes follow from a rule."""

from minipipe import nn
from minipipe.tuning import CostModel, Messages
from minipipe.tuning.layers import Holding, LayerProfile, MeasuredLayers, Passed
from minipipe.tuning.weighing import Question

SAMPLES = 32


def model(num_layers):
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(num_layers)))


def asked(**kept):
    """Return a question about a model of four layers, without a batch."""
    return Question(model(4), None, None, {}, **kept)


def measured(
    num_layers,
    counts,
    time=lambda layer, samples: samples * 1e-3,
    held=100,
    messages=None,
    cores=None,
):
    """Return measurements in which F, I and W of a layer take ``time(layer, samples)``
    seconds each.

    A microbatch holds ``held`` bytes a sample in each layer, from F until I, and half
    of it until W.
    """
    layers = {
        count: layers_of(num_layers, -(-SAMPLES // count), time, held)
        for count in counts
    }
    return CostModel(layers, SAMPLES, messages or Messages(cores=cores))


def layers_of(num_layers, samples, time, held):
    found = []
    for layer in range(num_layers):
        size, seconds = held * samples, time(layer, samples)
        inputs, gradients = (
            Passed({f"input {layer}": 16 * samples}, 0),
            Passed({f"gradient {layer}": 16 * samples}, 0),
        )
        holding = Holding(
            inputs, gradients, {f"held {layer}": size}, {f"kept {layer}": size // 2}, 0
        )
        found.append(LayerProfile((seconds, seconds, seconds), holding, 16 * samples))
    return MeasuredLayers(list(model(num_layers).flat_layers), found)
