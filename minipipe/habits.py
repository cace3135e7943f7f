"""Names of other libraries, PyTorch's above all, and their equivalents here. Only errors use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

from minipipe.errors import ArgumentError

_KEYWORDS = {
    "lr": "learning_rate",
    "p": "probability",
    "eps": "epsilon",
    "nhead": "num_heads",
    "embed_dim": "width",
    "d_model": "width",
    "embedding_dim": "width",
    "normalized_shape": "width",
    "params": "parameters",
    "input_size": "in_features",
    "hidden_size": "hidden",
    "n_head": "num_heads",
    "n_heads": "num_heads",
    "num_attention_heads": "num_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_kv_heads": "num_key_value_heads",
    "dim_feedforward": "hidden",
    "intermediate_size": "hidden",
    "kdim": "memory_width",
    "vdim": "memory_width",
    "attn_dropout": "attention_dropout",
    "rope_theta": "rotary_base",
    "attention_mask": "mask",
    "encoder_hidden_states": "memory",
    "encoder_attention_mask": "memory_mask",
}
_SEEN = "a mask says here what is seen, the opposite: {}=~{}."
_BY_QUERY = "here it is mask=, (n, t, s), True where a key is seen; causal is a layer made with is_causal=True."
_ADVICE: Mapping[str, str] = {
    **{
        name: _SEEN.format("mask", name)
        for name in ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask")
    },
    "memory_key_padding_mask": _SEEN.format("memory_mask", "memory_key_padding_mask"),
    **dict.fromkeys(("attn_mask", "src_mask", "tgt_mask"), _BY_QUERY),
    "batch_first": "samples always come first: (n, t, width).",
    "norm_first": "the norms always come first.",
}
_NO_BATCH_NORM = (
    "nn.GroupNorm(num_groups, num_channels), nn.LayerNorm or nn.RMSNorm, which normalise within a sample. Statistics "
    "over samples depend on how the batch is cut into microbatches: no number of them would give the loss and the "
    "gradients of another number, or of the whole batch"
)
_BATCH_NORMS = (*(f"{lazy}BatchNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3)), "SyncBatchNorm")
_INSTANCE_NORM = "nn.GroupNorm(num_channels, num_channels), a group for each channel"
_LOSS = "any function that returns a mean, such as lambda output, target: ((output - target) ** 2).mean()"
MODULES: Mapping[str, str] = {
    **dict.fromkeys(_BATCH_NORMS, _NO_BATCH_NORM),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), _INSTANCE_NORM),
    **dict.fromkeys(
        ("RNN", "GRU", "RNNCell", "GRUCell", "LSTMCell"),
        "nn.LSTM(in_features, hidden), from (n, t, in_features) to (n, t, hidden)",
    ),
    **dict.fromkeys(
        ("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"),
        "nn.GlobalAvgPool(), the mean over all positions, of shape (n, channels)",
    ),
    **dict.fromkeys(
        ("L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "NLLLoss", "KLDivLoss"), _LOSS
    ),
    "MultiheadAttention": "nn.MultiHeadAttention, or nn.CrossAttention for keys and values from elsewhere",
    "TransformerEncoderLayer": "nn.TransformerBlock",
    "TransformerDecoderLayer": "nn.DecoderBlock",
    "TransformerEncoder": "nn.Sequential of nn.TransformerBlock",
    **dict.fromkeys(
        ("Transformer", "TransformerDecoder"),
        'nn.Sequential of nn.On(("x", "mask"), nn.TransformerBlock(…)) and nn.On(("y", "x"), nn.DecoderBlock(…))',
    ),
    "RotaryEmbedding": "nn.MultiHeadAttention(…, rotary_base=10000), or functional.rotary",
    "Lambda": "nn.Function(function)",
    "Softmax": "nn.Function(functional.softmax); CrossEntropyLoss takes scores as they are",
    "LogSoftmax": "nn.Function(functional.log_softmax); CrossEntropyLoss takes scores as they are",
    "Unflatten": "nn.Function(lambda x: x.reshape(…))",
    "ModuleList": "set a list of modules as an attribute",
    "ModuleDict": "set a dict of modules as an attribute",
    "ParameterList": "set a list of parameters as an attribute",
    "functional": "import minipipe.functional",
    "init": "nn.initialisers",
}
FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("cat", "concat", "hstack", "vstack"), "functional.concatenate(tensors, axis)"),
    "mse_loss": "functional.mean_squared_error",
    **{name: f"functional.{other}" for name, other in (("max", "amax"), ("min", "amin"), ("sum", "total"))},
    "scaled_dot_product_attention": "functional.attention",
    "pad": "padding= of a convolution, or functional.concatenate with zeros",
    "one_hot": "class indices as they are, for functional.cross_entropy and functional.embedding",
    **dict.fromkeys(("batch_norm", "instance_norm"), "functional.group_norm, within each sample"),
    "adaptive_avg_pool2d": "functional.global_avg_pool",
    "binary_cross_entropy": _LOSS,
}
OPTIMISERS: Mapping[str, str] = {
    "lr_scheduler": "optim.LearningRateSchedule(optimiser, optim.cosine(num_steps))",
    "GradScaler": "optim.LossScale",
    **dict.fromkeys(("RMSprop", "Adagrad", "Adamax", "NAdam"), "optim.Adam or optim.AdamW"),
}
ATTRIBUTES: Mapping[str, str] = {
    **{
        name: f"x.numpy().{name}(…)"
        for name in ("argmax", "argmin", "any", "all", "sort", "argsort", "round", "tolist")
    },
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze", "expand"), "x.reshape(…)"),
    **dict.fromkeys(("permute", "t", "swapaxes"), "x.transpose(…) or x.T"),
    **dict.fromkeys(("cuda", "cpu", "to"), 'model.to("gpu"), Pipeline(…, device="gpu"), and x.numpy()'),
    **dict.fromkeys(("clone", "copy"), "x.detach(), or x * 1 with its graph"),
    **dict.fromkeys(("add_", "sub_", "mul_", "div_", "zero_", "fill_", "copy_"), "x = x + 1, which makes a new tensor"),
    "pow": "x ** 2",
    **dict.fromkeys(("clamp", "clip"), "functional.clip(x, low, high)"),
    **{name: f"functional.{name}(x, …)" for name in ("masked_fill", "where", "softmax", "log_softmax")},
    "abs": "functional.sqrt(x * x)",
    "std": "x.var(…).sqrt()",
    "matmul": "x @ y",
    "grad_fn": "x.node",
    "type": "x.astype(dtype)",
    "half": "x.astype(numpy.float16)",
    "float": "x.astype(numpy.float32)",
    "double": "x.astype(numpy.float64)",
    "requires_grad_": "Tensor(data, requires_grad=True)",
    "retain_grad": "Tensor(data, requires_grad=True), which keeps its gradient",
}


def missing(owner: str, name: str, instead: Mapping[str, str], known: list[str]) -> AttributeError:
    """Return the error for a missing name, with its equivalent here or the closest name.

    Examples
    --------
    >>> missing("minipipe.nn", "Liner", {}, ["Linear", "ReLU"])
    AttributeError("minipipe.nn has no attribute 'Liner'; did you mean Linear?")
    """
    near = get_close_matches(name, known, n=1)
    hint = f"; instead: {instead[name]}." if name in instead else f"; did you mean {near[0]}?" if near else "."
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def check_keywords(kind: type, positional: tuple[Any, ...], given: Mapping[str, Any]) -> None:
    """Refuse arguments that the constructor of a class does not take, and name the one that it does.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> class Dropout:
    ...     def __init__(self, probability):
    ...         pass
    >>> check_keywords(Dropout, (), {"p": 0.5})
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: Dropout takes no p=; here it is probability=.
    """
    if kind.__init__ is object.__init__:  # type: ignore[misc]
        if positional or given:
            raise ArgumentError("name", f"{kind.__name__} takes no argument; this is {(*positional, *given)!r:.60}.")
        return
    _check_taken(kind.__name__, list(signature(kind.__init__).parameters.values())[1:], given)  # type: ignore[misc]


def check_options(layer: str, forward: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse keywords that a layer is not called with, and name what takes their place.

    Raises
    ------
    ArgumentError
        Code ``name``.

    Examples
    --------
    >>> check_options("MultiHeadAttention", lambda x, mask=None: x, {"key_padding_mask": [[True, False]]})
    Traceback (most recent call last):
        ...
    minipipe.errors.ArgumentError: MultiHeadAttention takes no key_padding_mask=; a mask says here what is seen, ...
    """
    _check_taken(layer, list(signature(forward).parameters.values()), given)


def _check_taken(owner: str, parameters: list[Parameter], given: Mapping[str, Any]) -> None:
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [parameter.name for parameter in parameters]
    for name in given:
        if name not in taken:
            near = _KEYWORDS.get(name) or next(iter(get_close_matches(name, taken, n=1)), None)
            hint = f"here it is {near}=." if near in taken else f"expected {', '.join(taken) or 'no argument'}."
            raise ArgumentError("name", f"{owner} takes no {name}=; {_ADVICE.get(name, hint)}") from None
