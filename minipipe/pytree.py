"""What passes between layers: one tensor, or a tuple, list or dict of them, as skip connections need it."""

from __future__ import annotations

from typing import Any

from minipipe.errors import TensorError
from minipipe.tensor import Tensor

Bundle = Tensor | tuple[Tensor, ...] | list[Tensor] | dict[str, Tensor]


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a bundle, in their order.

    Raises
    ------
    TensorError
        Code ``not-a-tensor``.
    """
    if isinstance(value, Tensor):
        return [value]
    items = list(value.values()) if isinstance(value, dict) else list(value) if _is_row(value) else [value]
    has_names = not isinstance(value, dict) or all(isinstance(name, str) for name in value)
    if not items or not has_names or not all(isinstance(item, Tensor) for item in items):
        inside = (
            f" of {', '.join(type(item).__name__ for item in items) or 'nothing'}"
            if _is_row(value) or isinstance(value, dict)
            else ""
        )
        raise TensorError(
            "not-a-tensor",
            "What passes between layers is a tensor, or a tuple, list or dict (with names of type str) of tensors; "
            f"this is {type(value).__name__}{inside}.",
        )
    return items


def rebuilt(form: Any, items: list[Any]) -> Any:
    """Return items in the form of a bundle: one by itself, or a tuple, list or dict of them."""
    if isinstance(form, dict):
        return dict(zip(form, items))
    return type(form)(items) if form is not None and _is_row(form) else items[0]


def _is_row(value: Any) -> bool:
    return type(value) in (tuple, list)
