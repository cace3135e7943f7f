"""The files of the folder ``templates``, filled with values."""

from __future__ import annotations

import re

from minipipe.io import package_text


def template(file: str, **values: str) -> str:
    """Return the text of a file, with a value in place of each ``@name@``.

    Examples
    --------
    >>> template("run_autograder", options=" --variants").splitlines()[-1]
    '    --times "$home/submission_metadata.json" --variants || [ $? = 1 ]'
    """
    text = package_text(f"coursework/templates/{file}")
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)
