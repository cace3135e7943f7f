"""Names of other libraries, PyTorch's above all, and their equivalents here. Only errors use them."""

from __future__ import annotations

from collections.abc import Mapping
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
}
_NO_BATCH_NORM = "nn.LayerNorm or nn.RMSNorm; statistics of a batch would depend on how it is cut into microbatches"
_LOSS = "any function that returns a mean, such as lambda output, target: ((output - target) ** 2).mean()"
MODULES: Mapping[str, str] = {
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), _NO_BATCH_NORM),
    **dict.fromkeys(
        ("L1Loss", "SmoothL1Loss", "HuberLoss", "BCELoss", "BCEWithLogitsLoss", "NLLLoss", "KLDivLoss"), _LOSS
    ),
    "ModuleList": "set a list of modules as an attribute",
    "ModuleDict": "set a dict of modules as an attribute",
    "ParameterList": "set a list of parameters as an attribute",
    "functional": "import minipipe.functional",
    "init": "nn.initialisers",
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
    taken = dict(list(signature(kind.__init__).parameters.items())[1:])  # type: ignore[misc]
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in taken.values()):
        return
    for name in given:
        if name not in taken:
            near = _KEYWORDS.get(name) or next(iter(get_close_matches(name, taken, n=1)), None)
            hint = f"here it is {near}=." if near in taken else f"expected {', '.join(taken) or 'no argument'}."
            raise ArgumentError("name", f"{kind.__name__} takes no {name}=; {hint}")
