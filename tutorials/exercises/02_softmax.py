"""02 softmax: turn scores into probabilities, and their gradients back.

Lesson 02. A classifier ends in scores, one for each class. Softmax turns them into
probabilities: e^x divided by the sum of all e^x along the last axis. Two things can go
wrong. First, e^1000 overflows, so the maximum of each row is subtracted first, which
does not change the result. Second, each probability depends on every score in its row,
so the gradient of a score has a contribution from every probability:

    gradient of x = s (g - sum of g s along the row)        s the probabilities, g their gradient

Write `softmax(x)` and its gradient, using `@op()` as in 01. The gradient can name
`result`, which is s.

Example: softmax of [0, ln 3] is [1/4, 3/4].

Checked: values, large scores, rows of very different magnitude, gradients against
finite differences, three axes, the dtype, and that neither scores nor gradients are
modified.
"""

import numpy as np

from minipipe import op


@op()
def softmax(x):
    """Return e^x divided by its sum along the last axis, of an array or of a tensor."""
    # SOLUTION
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
    # STUB
    # raise NotImplementedError(
    #     "return the probabilities, and set softmax.gradients below"
    # )
    # END


# SOLUTION
def of_scores(g, result):
    """Return the gradient of x, from the probabilities."""
    return result * (g - (g * result).sum(axis=-1, keepdims=True))


softmax.gradients(x=of_scores)
# STUB
# softmax.gradients()  # of x
# END
