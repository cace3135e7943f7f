"""Agreement: ranks exchange digests and, if these differ, the texts, so that the error
names the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import zip_longest
from numbers import Integral
from typing import Any

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.comm.process_group import ProcessGroup
from minipipe.errors import RankError

ALIKE = "Every rank must run the same program."


def check_agreement(
    group: ProcessGroup,
    descriptions: Mapping[str, str],
    what: str = "its part of a comparison",
) -> None:
    """Compare descriptions on all ranks, and name the first that differs, the ranks,
    and the line that is not the same.

    Collective. Only digests travel, as long as they are equal.

    Parameters
    ----------
    group : ProcessGroup
    descriptions : mapping of str to str
        The same keys on all ranks, such as ``"seed"``, in the same order. If a rank has
        fewer keys than the others, the text of one of its keys must differ from the
        others' text.
    what : str
        A description of the message, for the error of a timeout.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank, with the same message.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(
    ...         lambda group: check_agreement(
    ...             group, {"seed": "7", "layer": f"width: {group.rank}"}
    ...         ),
    ...         2,
    ...     )
    ... except RankError as error:
    ...     print(str(error).partition(".")[0])
    The layer of rank 1 differs from that of rank 0: there it is "width: 1", on rank 0 "width: 0"
    """
    digests = {key: digest(text) for key, text in descriptions.items()}
    for key, usual, others in differences(group, digests, what):
        messages = group.all_gather(np.frombuffer(descriptions[key].encode(), np.uint8))
        texts = [messages[rank].tobytes().decode() for rank in (others[0], usual)]
        own, other = _first_difference(*texts)
        raise RankError(
            "disagreement",
            f"The {key} of rank {listed(others, group)} differs from that of rank "
            f"{group.name(usual)}: there it is {own}, on rank {group.name(usual)} "
            f"{other}. {ALIKE}{_way_out(own, other)}",
        )


def compare_arguments(
    group: ProcessGroup, call: str, arguments: Mapping[str, Any]
) -> None:
    """Compare the numeric and string arguments of a collective call. Collective.

    Call it before they are checked: then no rank waits for one whose argument was
    refused. It must be certain already that all ranks are in the same call.

    Parameters
    ----------
    group : ProcessGroup
    call : str
        For errors.
    arguments : mapping of str to value
        By the same names on all ranks.

    Raises
    ------
    RankError
        Code ``disagreement``, on every rank.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(
    ...         lambda group: compare_arguments(group, "save()", {"keep": group.rank}),
    ...         2,
    ...     )
    ... except RankError as error:
    ...     print(str(error).partition(".")[0])
    The keep of rank 1 differs from that of rank 0: there it is "keep: 1", on rank 0 "keep: 0"
    """
    texts = {name: f"{name}: {_text_of(value)}" for name, value in arguments.items()}
    check_agreement(group, texts, f"its part of {call}, which every rank must call,")


def _text_of(value: Any) -> str:
    """Return a text for a number or a string, equal for equal values; for other objects
    their type.
    """
    if isinstance(value, Integral):
        return str(value)
    if value is None or isinstance(value, str | float):
        return repr(value)
    return f"a {type(value).__name__}"


def digest(data: Any) -> int:
    """Return a number above 0 for the bytes of an array, or of a text; the same in
    every process.

    Examples
    --------
    >>> (
    ...     digest(np.zeros(3)) == digest(np.zeros(3)),
    ...     digest(np.zeros(3)) == digest(np.ones(3)),
    ... )
    (True, False)
    """
    if isinstance(data, str):
        data = data.encode(errors="surrogatepass")
    elif not isinstance(data, bytes):
        data = np.ascontiguousarray(backend.to_numpy(data)).reshape(-1).view(np.uint8)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") or 1


def differences(
    group: ProcessGroup,
    digests: Mapping[str, int],
    what: str = "its part of a comparison",
) -> list[tuple[str, int, list[int]]]:
    """Return each name whose digests differ, a rank with the most frequent digest, and
    the ranks with another one.

    Digest 0 means that the rank has no such text.

    Collective.
    """
    rows = group.all_gather(np.array(list(digests.values()), np.uint64), what=what)
    found = []
    for name, values in zip(digests, zip(*(row.tolist() for row in rows))):
        # of equally many, the first rank's
        ((usual, _),) = Counter(filter(None, values)).most_common(1) or [(0, 0)]
        others = [rank for rank, value in enumerate(values) if value not in (0, usual)]
        if others:
            found.append((name, values.index(usual), others))
    return found


def listed(ranks: Sequence[int], group: ProcessGroup) -> str:
    """Return the numbers in the world of some ranks of a group, for a message."""
    return ", ".join(str(group.name(rank)) for rank in ranks)


def _first_difference(one: str, other: str) -> tuple[str, str]:
    for pair in zip_longest(one.splitlines(), other.splitlines()):
        if pair[0] != pair[1]:
            first, second = map(_quoted, pair)
            return first, second
    return "another text", "this one"


def _way_out(own: str, other: str) -> str:
    """Return what to do if a layer's switch, such as ``verbose = rank == 0``, must
    differ between ranks.
    """
    path, _, value = own.strip('"').rpartition(": ")
    is_switch = value in ("True", "False") and "." in path
    if not is_switch or other.strip('"').rpartition(": ")[0] != path:
        return ""
    name = path.rpartition(".")[2]
    return (
        f" If {name} changes no number, declare this in its class: not_compared = "
        f'("{name}",).'
    )


def _quoted(line: str | None) -> str:
    if line is None:
        return "nothing"
    return f'"{_shortened(line)}"'


def _shortened(text: str, width: int = 200) -> str:
    if len(text) <= width:
        return text
    return text[: width - 2] + " …"
