"""Errors that a call raises, for tests that read their code or their message."""

import pytest

from minipipe.errors import MinipipeError


def refusal(call, *arguments, kind=MinipipeError, **options):
    """Return the error that a call raises."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    return caught.value


def code_of(call, *arguments, **options):
    """Return the code of the error that a call raises."""
    return refusal(call, *arguments, **options).code
