"""Times as text."""

from __future__ import annotations

_MOST = 1e15  # of any unit: from here on a power of ten says more than its digits


def format_time(time: float, unit: str) -> str:
    """Write a time in the unit of a timeline; seconds as milliseconds.

    Parameters
    ----------
    time : float
    unit : str
        ``"s"``, or any other, which is written after the number.

    Examples
    --------
    >>> format_time(0.0125, "s"), format_time(33.0, "units")
    ('12.5 ms', '33 units')

    No digit before the point is hidden in a power of ten.

    >>> format_time(22.8041, "s")
    '22804 ms'
    """
    return f"{format_number(time, unit)} {'ms' if unit == 's' else unit}"


def format_number(time: float, unit: str) -> str:
    """Write a time as :func:`format_time` does, without the unit.

    Examples
    --------
    >>> format_number(0.0125, "s"), format_number(33.0, "units")
    ('12.5', '33')
    """
    shown, digits = (1000 * time, 4) if unit == "s" else (time, 6)
    has_more_digits = 10**digits - 0.5 <= shown < _MOST
    return f"{shown:.0f}" if has_more_digits else f"{shown:.{digits}g}"
