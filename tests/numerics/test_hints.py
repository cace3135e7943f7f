"""Names of PyTorch and NumPy: each gets an error with its equivalent here."""

import copy
import pickle

import numpy as np
import pytest

from minipipe import Tensor, functional, nn, optim
from minipipe.errors import ArgumentError, ParameterError, TensorError
from minipipe.hints import instead_of
from tests.launch import for_each

X = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (
            lambda: optim.SGD([nn.Parameter([0.0, 0.0])], lr=0.1),
            r"SGD takes no lr=; here it is learning_rate=",
        ),
        (
            lambda: optim.AdamW([nn.Parameter([0.0, 0.0])], eps=0.1),
            r"AdamW takes no eps=; here it is epsilon=",
        ),
        (lambda: nn.Dropout(p=0.5), r"Dropout takes no p=; here it is probability="),
        (lambda: nn.LayerNorm(normalized_shape=3), "here it is width="),
        (lambda: nn.Linear(in_feature=3, out_features=2), "here it is in_features="),
        (lambda: nn.TransformerBlock(d_model=8, nhead=2), "here it is width="),
        (lambda: nn.TransformerBlock(8, 2, dim_feedforward=16), "here it is hidden="),
        (
            lambda: nn.TransformerBlock(8, 2, batch_first=True),
            r"takes no batch_first=; samples always come first",
        ),
        (
            lambda: nn.DecoderBlock(8, 2, norm_first=True),
            "takes no norm_first=; the norms always come first",
        ),
        (
            lambda: nn.MultiHeadAttention(8, 4, num_kv_heads=2),
            "here it is num_key_value_heads=",
        ),
        (
            lambda: nn.MultiHeadAttention(8, 4, rope_theta=1e4),
            "here it is rotary_base=",
        ),
        (lambda: nn.CrossAttention(8, 4, kdim=6), "here it is memory_width="),
        (
            lambda: nn.Conv2d(1, 8, 3, transposed=True),
            "takes no transposed=; expected in_channels, out",
        ),
        (
            lambda: nn.ReLU(inplace=True),
            "ReLU takes no inplace=; nothing is changed in place",
        ),
        (lambda: nn.Tanh(3), "Tanh takes no arguments; it got .3"),
    ],
)
def test_a_keyword_of_another_library_names_the_one_that_is_taken_here(make, hint):
    with pytest.raises(ArgumentError, match=hint) as caught:
        make()
    assert caught.value.code == "name"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (
            {"key_padding_mask": 0},
            (
                r"MultiHeadAttention takes no key_padding_mask=; .*opposite: "
                r"mask=~key_padding_mask"
            ),
        ),
        (
            {"attn_mask": 0},
            (
                r"takes no attn_mask=; here it is mask=, \(n, t, s\), True where a "
                r"key is seen"
            ),
        ),
        ({"attention_mask": 0}, r"takes no attention_mask=; here it is mask="),
        ({"maks": 0}, "here it is mask="),
        ({"need_weights": False}, "takes no need_weights=; expected x, mask"),
    ],
)
def test_a_keyword_that_a_layer_is_not_called_with_names_the_one_that_it_is(
    options, hint
):
    with pytest.raises(ArgumentError, match=hint) as caught:
        nn.MultiHeadAttention(4, 2)(Tensor(np.ones((1, 2, 4), np.float32)), **options)
    assert caught.value.code == "name"


def test_the_mask_of_the_memory_has_its_own_name():
    x = Tensor(np.ones((1, 2, 4), np.float32))
    with pytest.raises(
        ArgumentError, match="opposite: memory_mask=~memory_key_padding_mask"
    ):
        nn.DecoderBlock(4, 2)(x, x, memory_key_padding_mask=None)


def test_an_error_inside_a_layer_stays_what_it_is():
    class Wrong(nn.Module):
        def forward(self, x, mask=None):
            return x + len(3)

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Wrong()(1, mask=2)


def test_a_module_of_ones_own_takes_its_own_keywords():
    class Mine(nn.Module):
        def __init__(self, lr, **others):
            self.lr, self.others = lr, others

    assert Mine(lr=1, p=2).others == {"p": 2}
    assert copy.deepcopy(Mine(lr=1)).lr == 1


@for_each(name=list(instead_of("minipipe.nn")))
def test_a_module_that_is_not_there_says_what_to_use(name):
    with pytest.raises(AttributeError, match="has no attribute .*; instead: "):
        getattr(nn, name)
    assert not hasattr(nn, name)


@for_each(name=[name for name in instead_of("Tensor") if not name.startswith("_")])
def test_an_attribute_that_is_not_there_says_what_to_use(name):
    with pytest.raises(
        AttributeError, match=f"Tensor has no attribute '{name}'; instead: "
    ):
        getattr(X, name)


def test_a_slip_gets_the_closest_name():
    with pytest.raises(AttributeError, match="did you mean Linear?"):
        _ = nn.Liner


def test_what_is_recommended_does_what_it_is_recommended_for():
    assert (
        X.numpy().argmax() == 3 and X.reshape(-1).shape == (4,) and X.T.shape == (2, 2)
    )
    assert (X * 1).node is not None and X.detach().node is None
    assert functional.clip(X, 2.0, 3.0).numpy().tolist() == [[2, 2], [3, 3]]
    assert (
        functional.sqrt(X * X).numpy().tolist() == X.numpy().tolist()
        and X.var().sqrt().item() > 0
    )
    assert X.astype(np.float64).dtype == np.float64
    assert nn.initialisers.constant and functional.softmax(X).shape == (2, 2)


def test_tensors_compare_by_their_values():
    """The story: labels == targets compared identities, and an accuracy was 0.0 without
    a word.
    """
    a, b = Tensor([1.0, 2.0, 3.0]), Tensor([1.0, 0.0, 4.0])
    assert (a == b).numpy().tolist() == [True, False, False] and (
        a != b
    ).numpy().tolist() == [False, True, True]
    assert (a < b).numpy().tolist() == [False, False, True] and (
        a >= b
    ).numpy().tolist() == [True, True, False]
    assert (a > 1).numpy().tolist() == [False, True, True] and (
        a < 1
    ).numpy().tolist() == [False] * 3
    assert (np.array([1.0, 5.0, 3.0]) == a).numpy().tolist() == [True, False, True]
    assert (a == b).mean().item() == pytest.approx(1 / 3) and not (X == X).requires_grad
    assert len({a, b, a}) == 2  # still a key by identity


def test_a_tensor_survives_copies_and_pickles():
    for twin in (
        copy.copy(X),
        copy.deepcopy(X),
        pickle.loads(pickle.dumps(Tensor([1.0, 2.0]))),
    ):
        assert twin.shape in ((2, 2), (2,))


def test_values_that_were_taken_for_a_shape_are_refused_at_once():
    for wrong in ((0.5, 0.5), (2, -1), ("a",)):
        with pytest.raises(
            ParameterError, match="expected whole numbers, or values as a list or array"
        ) as caught:
            nn.Parameter(wrong)
        assert caught.value.code == "shape"
    assert (
        nn.Parameter([0.5, 0.5]).numpy().tolist() == [0.5, 0.5]
        and nn.Parameter((), nn.initialisers.constant(1.0)).shape == ()
    )


@pytest.mark.parametrize(
    ("compute", "hint"),
    [
        (
            lambda: nn.Conv2d(1, 8, 3)(Tensor(np.ones((5, 28, 28), np.float32))),
            r"images\[:, None\]",
        ),
        (
            lambda: nn.CrossEntropyLoss()(
                Tensor(np.ones((4, 10), np.float32)), np.eye(10)[:4]
            ),
            r"argmax\(axis=-1\)",
        ),
        (
            lambda: nn.MSELoss()(Tensor(np.ones((4, 1), np.float32)), np.ones(4)),
            r"target\.reshape",
        ),
    ],
)
def test_data_in_another_form_are_refused_with_the_remedy(compute, hint):
    with pytest.raises(TensorError, match=hint):
        compute()


@for_each(name=list(instead_of("minipipe.functional")))
def test_functions_of_pytorch_name_those_of_here(name):
    with pytest.raises(
        AttributeError,
        match=f"minipipe.functional has no attribute '{name}'; instead: ",
    ):
        getattr(functional, name)


@for_each(name=list(instead_of("minipipe.optim")))
def test_optimisers_of_pytorch_name_those_of_here(name):
    with pytest.raises(
        AttributeError,
        match=f"minipipe.optim has no attribute '{name}'; instead: (optim|pipeline)",
    ):
        getattr(optim, name)
