"""The precision of products of float32 on a GPU."""

from __future__ import annotations

from minipipe.core.specs import FLAG

_chosen = {"tf32": False}


def allow_tf32(is_allowed: bool = True) -> None:
    """Let products of float32 on GPUs of this process round their operands to TF32.

    TF32 has the 8 bits of exponent of float32, but 10 bits of fraction instead of 23:
    tensor cores multiply it several times as fast, with relative errors of about 1e-3.
    Sums are in float32. Without this call products are in float32, as in NumPy.
    Call it before the first step: a captured graph keeps the precision that it had.
    NumPy's arrays, and other dtypes, are not affected.

    Parameters
    ----------
    is_allowed : bool

    Raises
    ------
    ArgumentError
        Code ``value``.

    References
    ----------
    NVIDIA 2020, "NVIDIA A100 tensor core GPU architecture".

    Examples
    --------
    >>> from minipipe import gpu
    >>> gpu.allow_tf32()
    >>> gpu.allows_tf32()
    True
    >>> gpu.allow_tf32(False)
    """
    _chosen["tf32"] = FLAG.check("allow_tf32: is_allowed", is_allowed)


def allows_tf32() -> bool:
    """Return whether products of float32 on a GPU may round their operands to TF32."""
    return _chosen["tf32"]
