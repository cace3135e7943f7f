"""The table of a pipeline's own keywords: each is documented, and refuses values that
it does not declare.
"""

import re

import numpy as np
import pytest

from minipipe import Pipeline, nn
from minipipe.comm import OneRankGroup
from minipipe.errors import ArgumentError
from minipipe.pipeline.options import KEYWORDS
from tests.launch import for_each

DECLARED = [name for name, keyword in KEYWORDS.items() if keyword.spec is not None]


def made(**options):
    return Pipeline(nn.Sequential(nn.Linear(2, 2)), OneRankGroup(), **options)


@pytest.mark.parametrize("name", DECLARED)
@for_each(wrong=[1.5, "no", [True], np.ones(2)])
def test_a_value_that_is_not_declared_is_refused(name, wrong):
    with pytest.raises(
        ArgumentError,
        match=f"^{name} is .*; expected {re.escape(KEYWORDS[name].spec.words)}",
    ) as caught:
        made(**{name: wrong})
    assert caught.value.code == "value"


@pytest.mark.parametrize(
    "name", [name for name in DECLARED if True in KEYWORDS[name].spec.choices]
)
def test_a_truth_value_of_numpy_is_one_of_python_and_a_number_is_none(name):
    made(**{name: np.False_})
    with pytest.raises(
        ArgumentError, match=f"^{name} is 1; expected True or False|True, False"
    ):
        made(**{name: 1})


def test_a_default_is_declared_and_every_keyword_is_documented():
    documented = re.findall(r"^    (\w+) : ", Pipeline.__doc__, re.MULTILINE)
    assert {*KEYWORDS} <= {*documented}
    for name in {*DECLARED} - {"dropout_seed"}:  # which is the seed by default
        assert KEYWORDS[name].spec.allows(KEYWORDS[name].default), name
