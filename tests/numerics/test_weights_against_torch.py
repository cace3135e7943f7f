"""Weights go to PyTorch and back through one safetensors file, and the same model
computes the same.
"""

import numpy as np
import pytest

from minipipe import Pipeline, Tensor, checkpoint, nn, spawn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[oracle]'")
from safetensors.torch import load_file, save_file  # noqa: E402 - it needs PyTorch

TOKENS = np.random.default_rng(0).integers(0, 7, (5, 6))
IMAGES = np.random.default_rng(1).standard_normal((5, 2, 8, 8)).astype(np.float32)


def language(nn):
    return [
        nn.Embedding(7, 4),
        nn.LayerNorm(4),
        nn.Linear(4, 5),
        nn.GELU(),
        nn.Linear(5, 3),
        nn.Flatten(),
    ]


def images(nn):
    layers = [
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 3, 2),
        nn.Tanh(),
        nn.Flatten(),
    ]
    return [
        *layers,
        nn.RMSNorm(75, 1e-5),
        nn.Linear(75, 6),
        nn.Sigmoid(),
        nn.Linear(6, 2),
    ]


CASES = [(language, TOKENS), (images, IMAGES)]


def ours(layers):
    return nn.Sequential(*layers(nn))


def theirs(layers):
    return torch.nn.Sequential(*layers(torch.nn))


def turned(model, state):
    """Return a state with the weight of each Linear transposed: (inputs, outputs) here,
    (outputs, inputs) there.
    """
    linear = {
        f"{i}.weight"
        for i, layer in enumerate(model)
        if isinstance(layer, nn.Linear | torch.nn.Linear)
    }
    return {
        name: value.T.contiguous() if name in linear else value
        for name, value in state.items()
    }


def check_same(outputs, model, inputs):
    with torch.no_grad():
        expected = model(torch.from_numpy(inputs)).numpy()
    assert outputs.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(outputs, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("layers", "inputs"), CASES)
def test_pytorch_computes_the_same_with_our_weights(tmp_path, layers, inputs):
    path = tmp_path / "model.safetensors"

    def predicted(group):
        pipeline = Pipeline(ours(layers), group, seed=3)
        checkpoint.export(path, pipeline)
        return pipeline.predict(inputs)

    outputs = spawn(predicted, 2)[0]
    model = theirs(layers)
    # strict: the names are the same
    model.load_state_dict(turned(model, load_file(path)))
    check_same(outputs, model, inputs)


@pytest.mark.parametrize(("layers", "inputs"), CASES)
def test_we_compute_the_same_with_weights_of_pytorch(tmp_path, layers, inputs):
    path, model, its = tmp_path / "model.safetensors", ours(layers), theirs(layers)
    save_file(turned(its, its.state_dict()), path)
    checkpoint.load_weights(path, model)
    check_same(model(Tensor(inputs)).numpy(), its, inputs)


@pytest.mark.parametrize(("layers", "inputs"), CASES)
def test_a_file_of_pytorch_is_taken_as_it_is_with_its_layout(tmp_path, layers, inputs):
    path, model, its = tmp_path / "model.safetensors", ours(layers), theirs(layers)
    save_file(its.state_dict(), path)
    checkpoint.load_weights(path, model, layout="torch")
    check_same(model(Tensor(inputs)).numpy(), its, inputs)


def decoder(layer):
    return lambda x: layer(
        x, x, tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    )


# Every matrix that can be is square: only its place tells which way round it is.
# Attention has biases that are not 0.
SEQUENCES = IMAGES[:, 0, :, :4].copy()
OPTIONS = {
    "dim_feedforward": 4,
    "activation": "gelu",
    "batch_first": True,
    "norm_first": True,
    "dropout": 0.0,
}
LAYERS = {
    "Linear": (
        lambda: nn.Linear(4, 4),
        lambda: torch.nn.Linear(4, 4),
        lambda layer: layer,
    ),
    "LSTM": (
        lambda: nn.LSTM(4, 4),
        lambda: torch.nn.LSTM(4, 4, batch_first=True),
        lambda layer: lambda x: layer(x)[0],
    ),
    "attention": (
        lambda: nn.MultiHeadAttention(4, 2),
        lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True),
        lambda layer: lambda x: layer(x, x, x, need_weights=False)[0],
    ),
    "cross-attention": (
        lambda: nn.CrossAttention(4, 2),
        lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True),
        lambda layer: lambda x: layer(x, 2 * x, 2 * x, need_weights=False)[0],
    ),
    "cross-attention to a narrow memory": (
        lambda: nn.CrossAttention(4, 2, memory_width=3),
        lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True, kdim=3, vdim=3),
        lambda layer: lambda x: layer(x, x[..., :3], x[..., :3], need_weights=False)[0],
    ),
    "encoder": (
        lambda: nn.TransformerBlock(4, 2, hidden=4, approximate_gelu=False),
        lambda: torch.nn.TransformerEncoderLayer(4, 2, **OPTIONS),
        lambda layer: layer,
    ),
    "decoder": (
        lambda: nn.DecoderBlock(4, 2, hidden=4, approximate_gelu=False),
        lambda: torch.nn.TransformerDecoderLayer(4, 2, **OPTIONS),
        decoder,
    ),
}
MEMORIES = {
    "cross-attention": lambda x: [2 * x],
    "cross-attention to a narrow memory": lambda x: [x[..., :3]],
    "decoder": lambda x: [x],
}


@pytest.mark.parametrize("case", LAYERS)
def test_each_layer_takes_the_weights_of_its_counterpart_in_pytorch(tmp_path, case):
    make, make_theirs, call = LAYERS[case]
    torch.manual_seed(0)
    path, model, its = tmp_path / "model.safetensors", make(), make_theirs().eval()
    for parameter in its.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5)
    save_file(its.state_dict(), path)
    checkpoint.load_weights(path, model, layout="torch")
    x = Tensor(SEQUENCES)
    check_same(
        model(x, *MEMORIES.get(case, lambda x: [])(x)).numpy(), call(its), SEQUENCES
    )


def test_a_square_linear_without_a_layout_computes_something_else_and_there_is_a_warning(
    tmp_path,
):
    path, model, its = (
        tmp_path / "model.safetensors",
        nn.Sequential(nn.Linear(4, 4)),
        torch.nn.Linear(4, 4),
    )
    its = torch.nn.Sequential(its)
    save_file(its.state_dict(), path)
    with pytest.warns(
        UserWarning, match=r"0\.weight is square: .* pass layout='torch'"
    ):
        checkpoint.load_weights(path, model)
    with pytest.raises(AssertionError, match="Not equal"):
        check_same(
            model(Tensor(IMAGES[0, 0, :, :4])).numpy(), its, IMAGES[0, 0, :, :4].copy()
        )
