"""16 token mean: count every token once.

Lesson 14. A batch of texts has been cut into microbatches. Its loss is a mean over all
tokens, but a loss function only ever sees one microbatch, and takes the mean over the
tokens in that. Microbatches have different numbers of tokens, so the mean of their
means differs from the mean of the batch, and its gradient points in another direction.
To combine the losses, each microbatch needs a weight: its share of the tokens in the
batch.

Write two functions. `shares(labels, ignored)` gets the labels of each microbatch,
arrays of whole numbers of shape (texts, places), and returns the share of each. A place
whose label is `ignored` is padding and holds no token.

`train_step(model, inputs, labels, ignored)` runs the forward and the backward of each
microbatch, in order. Afterwards the parameters of the model have the gradients of the
mean over all tokens of the batch, and it returns this mean. Its first line clears the
gradients. `functional.cross_entropy(model(x), y, ignore_index=ignored)` is the mean
over the tokens of a microbatch, a tensor (and 0, if there are none).
`loss.backward(weight)` starts from a weight instead of from 1, and adds to the existing
gradients.

At least one label of the batch is a token. Microbatches may differ in texts and in
places, and any whole number can mark padding: often -100, but also 0.

Example: for labels [[3, 1, 2]] and [[3, -100, -100]], with -100 ignored, the shares are
3/4 and 1/4.

Checked: shares for padding marked by several numbers, for microbatches of unequal
shapes, and for one of padding alone; loss and gradients compared with the batch in one
piece.
"""

from collections.abc import Sequence

import numpy as np

from minipipe import functional, nn


def shares(labels: Sequence[np.ndarray], ignored: int) -> list[float]:
    """Return the share of each microbatch: its tokens, divided by the tokens of the
    batch.
    """
    # SOLUTION
    counts = [int((own != ignored).sum()) for own in labels]
    return [count / sum(counts) for count in counts]
    # STUB
    # raise NotImplementedError(
    #     "the tokens of each microbatch, divided by the tokens of all"
    # )
    # END


def train_step(
    model: nn.Module,
    inputs: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    ignored: int,
) -> float:
    """Leave the gradients of the mean over all tokens in the parameters of the model,
    and return the mean.
    """
    model.zero_grad()
    # SOLUTION
    total = 0.0
    for x, y, share in zip(inputs, labels, shares(labels, ignored)):
        loss = functional.cross_entropy(model(x), y, ignore_index=ignored)
        loss.backward(share)
        total += share * loss.item()
    return total
    # STUB
    # raise NotImplementedError(
    #     "for each microbatch: a forward, and a backward that starts from its share"
    # )
    # END
