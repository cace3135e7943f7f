"""Which program this process runs: versions, and digests of source files."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from minipipe._lazy import __version__
from minipipe.comm import ProcessGroup
from minipipe.execution.checks.comparison import check_agreement
from minipipe.execution.checks.description import description

_PACKAGE = Path(__file__).resolve().parents[2]


def check_program(group: ProcessGroup, is_asked: bool, given: Mapping[str, Any]) -> bool:
    """Compare the program and what it was given on all ranks, if that is asked for; tell whether it is.

    Collective.

    Parameters
    ----------
    group : ProcessGroup
    is_asked : bool
        The same on all ranks.
    given : mapping of str to value
        What is described and compared, in this order.

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
    texts, compares = {"check_agreement": str(bool(is_asked))}, is_asked and group.size > 1
    if compares:
        texts.update(program(), **{name: description(value, name) for name, value in given.items()})
    check_agreement(group, texts)
    return compares


@lru_cache(maxsize=1)
def program() -> dict[str, str]:
    """Return what must be the same on all ranks before a model is looked at. Read once for each process.

    The main script is the file that Python was started with. Modules that it imports are compared as far as the model
    or the loss refer to them (see :func:`minipipe.execution.checks.description`), not as files.

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
        "main script": f"blake2b {digest_of_files(script)}" if (script := _main_script()) else "none",
    }


def digest_of_files(path: Path) -> str:
    """Return a digest of a file or, of a folder, of the Python sources in it, by their names and contents.

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
    """Return the file that Python was started with; None at a prompt, in a notebook, or once it was removed."""
    main = sys.modules.get("__main__")
    for name in (*sys.argv[:1], getattr(main, "__file__", None)):  # profilers and debuggers are __main__ themselves
        if name and Path(name).is_file():
            return Path(name)
    return None
