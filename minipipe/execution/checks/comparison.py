"""The comparison of a program on all ranks: its arguments and first values once, and
numbers in every call.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import inf
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np

from minipipe._lazy import __version__
from minipipe.comm import ProcessGroup
from minipipe.comm.agreement import ALIKE, check_agreement, differences, digest, listed
from minipipe.errors import RankError
from minipipe.execution.checks.description import description
from minipipe.nn import Parameter


def check_first_values(
    group: ProcessGroup, parameters: Mapping[str, Parameter], of_wholes: bool = False
) -> None:
    """Compare the values of parameters on the ranks that have them. Collective; digests
    of 8 bytes travel.

    Parameters
    ----------
    group : ProcessGroup
    parameters : mapping of str to Parameter
        All parameters of the model, by the same names on all ranks: the parameters of
        this rank's stages with their initial values, others as they are. So a rank that
        drew its values is compared with one that loaded the whole model.
    of_wholes : bool
        Whether ranks of the group may have different parts of a parameter. Then the
        whole values from which the parts were taken are compared.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank.

    Examples
    --------
    >>> from minipipe import nn, spawn
    >>> try:
    ...     spawn(
    ...         lambda group: check_first_values(
    ...             group, {"weight": nn.Parameter(np.ones(2) * group.rank)}
    ...         ),
    ...         2,
    ...     )
    ... except RankError as error:
    ...     print(str(error).partition(".")[0])
    The first values of weight on rank 1 differ from those on rank 0
    """
    digests = {
        name: _digest(p.owner, of_wholes) if p.is_filled else 0
        for name, p in parameters.items()
    }
    different = differences(group, digests)
    if different:
        name, usual, others = different[0]
        more = ""
        if len(different) > 1:
            more = f" (and of {len(different) - 1} other parameters)"
        raise RankError(
            "disagreement",
            f"The first values of {name}{more} on rank {listed(others, group)} differ "
            f"from those on rank {group.name(usual)}. Every rank must give its model "
            "the same values, or none: initialise(seed) with the same seed, "
            "load_state_dict(state) with the same state.",
        )


def _digest(parameter: Any, of_wholes: bool) -> int:
    if of_wholes and parameter.is_divided:
        return parameter.whole_digest
    return digest(parameter.data)


# -- each call -------------------------------------------------------------------------

_NOT_COMPARED, _NOT_A_NUMBER = -inf, -1e300  # which no value has

_TO_DO = {
    "mode": "Every rank must call pipeline.train() and pipeline.eval() alike.",
    "request for metrics and outputs": "Every rank must ask for the same metrics, in the same order, and for "
    'outputs="everywhere" or not.',
    "inputs": (
        "Every rank must pass the same batch, or None if it needs none of it (see "
        "pipeline.needs)."
    ),
    "targets": (
        "Every rank must pass the same batch, or None if it needs none of it (see "
        "pipeline.needs)."
    ),
    "number of optimiser steps": "Every rank must call optimiser.step() equally often.",
    "learning rate": "Every rank must set the same one, and change it alike.",
    "optimiser": "Every rank must make the same one, and change its numbers alike.",
    "optimiser of the run": "Every rank must make the same one, and change its numbers alike.",
    "number of training steps": "Every rank must set pipeline.num_steps alike.",
    "batch of data": "Every rank must draw the same one: the same seed, epoch, size and "
    "start of "
    "data.batches(), the "
    "same key of data.text_windows().",
    "state of the gradients": "Every rank must call zero_grad(), or set p.grad = None, between the "
    "same "
    "calls "
    "of the "
    "pipeline. A parameter that is not to be trained has requires_grad = False, or "
    "is not passed to the optimiser.",
    "loaded state": (
        "Every rank must call pipeline.load_state_dict() equally often, with the same "
        "state."
    ),
}


def marks_of(values: Iterable[float | None]) -> list[float]:
    """Return a number for each value, so that numbers that are not the same differ;
    None is not compared.

    Examples
    --------
    >>> marks_of([1.0, True, None])
    [1.0, 1.0, -inf]
    """
    marks = []
    for value in values:
        mark = _NOT_COMPARED if value is None else float(value)
        if mark != mark:  # NaN is not even itself
            mark = _NOT_A_NUMBER
        marks.append(mark)
    return marks


def numbers_that_came(message: np.ndarray) -> tuple[float, ...]:
    """Return the numbers of another rank, from an array that user code is unlikely to
    broadcast; an empty tuple if the message has other contents.

    Parameters
    ----------
    message : array of uint32
        Two for each number.

    Examples
    --------
    >>> message = np.frombuffer(form_of_numbers(2).pack(1, 0.5), np.uint32)
    >>> numbers_that_came(message), numbers_that_came(np.ones(3, np.uint32))
    ((1.0, 0.5), ())
    """
    is_ours = message.dtype == np.uint32 and message.ndim == 1 and message.size % 2 == 0
    if not is_ours:
        return ()
    return form_of_numbers(message.size // 2).unpack(message.data)


@lru_cache(maxsize=64)  # calls differ in their arguments
def form_of_numbers(count: int) -> Struct:
    """Return the form of the bytes of so many numbers."""
    return Struct(f"{count}d")


def check_marks(
    ranks: tuple[int, int],
    names: Iterable[str],
    marks: tuple[Sequence[float], Sequence[float]],
    words: Callable[[], Mapping[str, str]] = dict,
) -> None:
    """Compare the fingerprints of this rank and of the rank that the others follow, and
    name the difference. Local.

    Parameters
    ----------
    ranks : pair of int
        This rank, and the rank that it follows.
    names : iterable of str
        Of the values whose fingerprints are compared.
    marks : pair of sequence of float
        The fingerprints of both ranks.
    words : function, optional
        Returns, by name, a readable description of a value of this rank that is not a
        number.

    Raises
    ------
    RankError
        Code ``disagreement``.

    Examples
    --------
    >>> marks = marks_of([2.0, None]), marks_of([1.0, 7])
    >>> try:
    ...     check_marks((1, 0), ["scale", "inputs"], marks)
    ... except RankError as error:
    ...     print(error)
    The scale of rank 1 (2.0) differs from that of rank 0 (1.0). Every rank must run the same program.
    """
    if marks[0] == marks[1]:
        return
    for name, own, other in zip(names, *marks):
        if own != other and _NOT_COMPARED not in (own, other):
            descriptions = words()
            if name in descriptions:
                mine = f" ({descriptions[name]})"
                its = ""
            else:
                mine = _shown(name, own)
                its = _shown(name, other)
            raise RankError(
                "disagreement",
                f"The {name} of rank {ranks[0]}{mine} differs from that of rank "
                f"{ranks[1]}{its}. {_TO_DO.get(name, ALIKE)}",
            )


def _shown(name: str, mark: float) -> str:
    """Return a value in readable form, from its fingerprint; nothing for a number that
    combines others.
    """
    if words := {
        "mode": ("eval()", "train()"),
        "state of the gradients": ("forgotten", "kept"),
    }.get(name):
        return f" ({words[int(mark)]})"
    if name.startswith("number of ") or name == "num_steps":
        return f" ({mark:g})"
    if name in ("scale", "max_norm", "learning rate"):
        return f" ({mark})"
    return ""


# -- which program this process runs ---------------------------------------------------


_PACKAGE = Path(__file__).resolve().parents[2]


def check_program(
    group: ProcessGroup,
    is_asked: bool,
    given: Mapping[str, Any],
    always: Mapping[str, str] | None = None,
) -> bool:
    """Compare the program and its arguments on all ranks, if ``is_asked``; return
    whether they were compared.

    Collective.

    Parameters
    ----------
    group : ProcessGroup
    is_asked : bool
        The same on all ranks.
    given : mapping of str to value
        The arguments to describe and compare, in this order.
    always : mapping of str to str, optional
        Descriptions that are compared in any case.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank.

    Examples
    --------
    >>> from minipipe import spawn
    >>> spawn(lambda group: check_program(group, True, {"seed": 7}), num_ranks=2)
    [True, True]
    """
    texts = {"check_agreement": str(bool(is_asked))}
    compares = is_asked and group.size > 1
    if compares:
        texts.update(program())
    texts.update(always or {})
    if compares:
        for name, value in given.items():
            texts[name] = description(value, name)
    check_agreement(group, texts)
    return compares


@lru_cache(maxsize=1)
def program() -> dict[str, str]:
    """Return the properties that must be the same on all ranks before models are
    compared. Read once for each process.

    The main script is the file that Python was started with. Modules that it imports
    are compared as far as the model or the loss refer to them (see
    :func:`minipipe.execution.checks.description.description`), not as files.

    Examples
    --------
    >>> list(program())
    ['minipipe version', 'Python version', 'NumPy version', 'code of minipipe', 'main script']
    """
    return {
        "minipipe version": __version__,
        "Python version": f"{platform.python_implementation()} {platform.python_version()}",
        "NumPy version": np.__version__,
        "code of minipipe": f"blake2b {digest_of_files(_PACKAGE)}",
        "main script": f"blake2b {digest_of_files(script)}"
        if (script := _main_script())
        else "none",
    }


def digest_of_files(path: Path) -> str:
    """Return a digest of a file or, of a folder, of the Python sources in it, by their
    names and contents.

    Examples
    --------
    >>> digest_of_files(_PACKAGE) == digest_of_files(_PACKAGE)
    True
    """
    found = blake2b(digest_size=16)
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        content = file.read_bytes()
        found.update(f"{file.relative_to(path).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _main_script() -> Path | None:
    """Return the file that Python was started with; None at a prompt, in a notebook, or
    once it was removed.
    """
    main = sys.modules.get("__main__")
    # profilers and debuggers are __main__ themselves
    for name in (*sys.argv[:1], getattr(main, "__file__", None)):
        if name and Path(name).is_file():
            return Path(name)
    return None
