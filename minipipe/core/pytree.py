"""Bundles: the values between layers and the parts of a batch, one tensor or nested
tuples, lists and dicts of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minipipe.core.autograd.backend import is_array
from minipipe.core.errors import TensorError
from minipipe.core.tensor import Tensor, as_tensor

Bundle = Tensor | tuple["Bundle", ...] | list["Bundle"] | dict[str, "Bundle"]


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors of a pytree, in their order.

    Raises
    ------
    TensorError
        Code ``type``.

    Examples
    --------
    >>> tensors_in((Tensor([1.0]), {"mask": Tensor([0.0])}))
    [Tensor([1.]), Tensor([0.])]
    """
    if isinstance(value, Tensor):
        return [value]
    items: list[Any] = []
    has_names = True
    if isinstance(value, dict):
        items = list(value.values())
        has_names = all(isinstance(name, str) for name in value)
    elif _is_row(value):
        items = list(value)
    are_parts = [isinstance(item, Tensor | dict) or _is_row(item) for item in items]
    if not items or not has_names or not all(are_parts):
        inside = ""
        if _is_row(value) or isinstance(value, dict):
            names = ", ".join(type(item).__name__ for item in items)
            inside = f" of {names or 'nothing'}"
        raise TensorError(
            "type",
            "Values between layers must be tensors, or tuples, lists or dicts (with "
            f"str keys) of tensors; this is {type(value).__name__}{inside}.",
        )
    return [tensor for item in items for tensor in tensors_in(item)]


def flattened(given: Any) -> tuple[list[Any], Any]:
    """Return the arrays of a batch, and their treedef: the same pytree, with None for
    each.

    A tuple and a dict are pytrees, and so is a list of those or of arrays; a list of
    numbers, nested or not, is an array.

    Examples
    --------
    >>> flattened({"rows": [[1, 2], [3, 4]], "labels": ([5], [6])})
    ([[[1, 2], [3, 4]], [5], [6]], {'rows': None, 'labels': (None, None)})
    """
    if isinstance(given, dict):
        leaves, forms = _all_flattened(given.values())
        return leaves, dict(zip(given, forms))
    if isinstance(given, tuple) or _is_list_of_arrays(given):
        leaves, forms = _all_flattened(given)
        return leaves, tuple(forms) if isinstance(given, tuple) else forms
    return [given], None


def _all_flattened(items: Any) -> tuple[list[Any], list[Any]]:
    parts = [flattened(item) for item in items]
    return [leaf for leaves, _ in parts for leaf in leaves], [form for _, form in parts]


def _is_list_of_arrays(given: Any) -> bool:
    if not isinstance(given, list):
        return False
    has_parts = any(isinstance(item, Tensor | tuple | dict) for item in given)
    return has_parts or any(
        is_array(item) or _is_list_of_arrays(item) for item in given
    )


def rebuilt(form: Any, items: list[Any]) -> Any:
    """Return items in the structure of a pytree.

    Examples
    --------
    >>> rebuilt({"rows": None, "labels": (None, None)}, [1, 2, 3])
    {'rows': 1, 'labels': (2, 3)}
    """
    return items[0] if form is None else _rebuilt(form, iter(items))


def _rebuilt(form: Any, items: Iterator[Any]) -> Any:
    if isinstance(form, dict):
        return {name: _rebuilt(part, items) for name, part in form.items()}
    if _is_row(form):
        return type(form)(_rebuilt(part, items) for part in form)
    return next(items)


def as_tensors(given: Any) -> Any:
    """Return a pytree of arrays, or an array, as one of tensors; tensors stay as they
    are.

    Examples
    --------
    >>> as_tensors({"x": Tensor([1.0]), "mask": [1, 0]})
    {'x': Tensor([1.]), 'mask': Tensor([1, 0])}
    """
    leaves, form = flattened(given)
    return rebuilt(form, [as_tensor(leaf) for leaf in leaves])


def _is_row(value: Any) -> bool:
    return type(value) in (tuple, list)
