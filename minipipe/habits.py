"""Names of other libraries, PyTorch's above all, and their equivalents here. Only errors use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NoReturn

from minipipe.equivalents import BY_NAME, CALLED, OF_CLASS, OF_PACKAGE, SCHEDULES
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
    **dict.fromkeys(("loss_fn", "criterion", "loss_function"), "loss"),
    **dict.fromkeys(
        ("n_microbatches", "micro_batches", "microbatches", "gradient_accumulation_steps", "accumulate_grad_batches"),
        "num_microbatches",
    ),
    **dict.fromkeys(
        ("num_model_chunks", "virtual_pipeline_model_parallel_size", "n_local_stages", "v"), "chunks_per_rank"
    ),
    **dict.fromkeys(("balance", "split_spec", "split_points", "partition_method", "cuts"), "partition"),
    **dict.fromkeys(("checkpoint", "activation_checkpointing", "activation_checkpoint_interval"), "recompute"),
    **dict.fromkeys(("base_seed", "random_state"), "seed"),
    **dict.fromkeys(("devices", "gpus"), "device"),
    "pipeline_schedule": "schedule",
    "optimizer": "optimiser",
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
_CHOICE = 'only schedule="auto" uses it.'
# Options of a pipeline that are said elsewhere.
_PIPELINE_ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("optimizer", "optimiser"), f"optim.SGD(pipeline.parameters(), …) is made after it; {_CHOICE}"),
    **dict.fromkeys(("memory_limit", "progress"), _CHOICE),
    "sample": 'only partition="measured" and schedule="auto" use it.',
    "chunks": "torchgpipe's are num_microbatches=, Megatron's are chunks_per_rank=.",
    "num_stages": "each rank has one stage, or chunks_per_rank= of them.",
    "timeout": "A wait lasts as long as the group allows: init_process_group(timeout=…).",
}
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


class Familiar:
    """A class that answers for a missing attribute with its equivalent here, or the closest name."""

    __slots__ = ()

    if not TYPE_CHECKING:  # to a type checker, what is missing stays missing

        def __getattr__(self, name: str) -> NoReturn:
            # Reached only when the normal look-up found nothing.
            if hasattr(type(self), name):  # a property that failed: again, for its own error
                return object.__getattribute__(self, name)
            kinds = type(self).__mro__
            instead = next((OF_CLASS[kind.__name__] for kind in kinds if kind.__name__ in OF_CLASS), {})
            raise missing(type(self).__name__, name, instead, [] if name[0] == "_" else dir(self))


class FamiliarPipeline(Familiar):
    """A pipeline that says what takes the place of calling it."""

    __slots__ = ()

    def __call__(self, *arrays: Any, **options: Any) -> NoReturn:
        """Refuse to be called."""
        raise ArgumentError("name", f"A pipeline is not called; instead: {CALLED}.")


def missing_from_package(package: str, name: str, known: list[str]) -> AttributeError:
    """Return the error for a name that a package does not have.

    Examples
    --------
    >>> missing_from_package("minipipe", "get_rank", [])
    AttributeError("minipipe has no attribute 'get_rank'; instead: group.rank and group.size.")
    """
    schedule = schedule_like(name, ()) if name.startswith("Schedule") else None
    return missing(package, name, {name: BY_NAME.replace("gpipe", schedule)} if schedule else OF_PACKAGE, known)


def schedule_like(given: str, names: Iterable[str]) -> str | None:
    """Return the name here of a schedule of another library, or the closest of some names, if any.

    Examples
    --------
    >>> schedule_like("ScheduleInterleavedZeroBubble", []), schedule_like("1F1B ", ["gpipe", "1f1b"])
    ('interleaved-zb', '1f1b')
    """
    plain = given[:60].lower().replace("_", "-")
    bare = "".join(filter(str.isalnum, plain)).replace("schedule", "")
    own = {"".join(filter(str.isalnum, name)): name for name in names}
    return own.get(bare) or SCHEDULES.get(bare) or next(iter(get_close_matches(plain, own.values(), 1, 0.7)), None)


def missing(owner: str, name: str, instead: Mapping[str, str], known: list[str]) -> AttributeError:
    """Return the error for a missing name, with its equivalent here or the closest name.

    Examples
    --------
    >>> missing("minipipe.nn", "Liner", {}, ["Linear", "ReLU"])
    AttributeError("minipipe.nn has no attribute 'Liner'; did you mean Linear?")
    """
    near = get_close_matches(name, [one for one in known if one[0] != "_"], n=1)
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


def check_pipeline_options(kind: type, plan: type, chosen: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse options of a pipeline that neither it, its plan nor, with ``schedule="auto"``, the choice takes.

    The error lists those that they take.

    Raises
    ------
    ArgumentError
        Code ``name``.
    """
    both = (*signature(kind).parameters.values(), *signature(plan).parameters.values())
    taken = [one.name for one in both if one.default is not one.empty and one.name != "num_ranks"]
    only = [one.name for one in signature(chosen).parameters.values() if one.default is not one.empty]
    only = [name for name in only if name not in taken]
    used = only if given.get("schedule") == "auto" else ["sample"] * (str(given.get("partition")) == "measured")
    for name in given:
        if name not in (*taken, *used):
            near = _near(name, [*taken, *used])
            hint = f"did you mean {near}=?" if near else ""
            hint = hint if near == _KEYWORDS.get(name, "") else _PIPELINE_ADVICE.get(name, hint)
            listed = f'{", ".join(taken)}; with schedule="auto" also {", ".join(only)}'
            raise ArgumentError("name", f"Pipeline takes no {name}=; {hint} Expected one of {listed}.")


def _near(name: str, taken: list[str]) -> str | None:
    near = _KEYWORDS.get(name)
    return near if near in taken else next(iter(get_close_matches(name, taken, n=1)), None)


def _check_taken(owner: str, parameters: list[Parameter], given: Mapping[str, Any]) -> None:
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    taken = [parameter.name for parameter in parameters]
    for name in given:
        if name not in taken:
            near = _near(name, taken)
            hint = f"here it is {near}=." if near else f"expected {', '.join(taken) or 'no argument'}."
            raise ArgumentError("name", f"{owner} takes no {name}=; {_ADVICE.get(name, hint)}") from None
