"""07 recompute: keep the input only, and compute again.

Lesson 06. Between forward and backward a microbatch holds what backward will need of every layer. Recomputation
("activation checkpointing", Chen et al. 2016) keeps only the input of a part, forgets the rest, and computes the part
again when its gradient arrives: memory for time. The gradients must have the same bits, even where the part draws
random numbers, as dropout does.

Write `recompute(function, x)`: the same result as `function(x)`, with a graph behind it that holds x alone.
  - Inside `with no_grad():` nothing is recorded.
  - `record(data, (x, vjp))` makes a result with one input, as in 01. The vjp gets the gradient of the result.
  - There, compute `function` of a new tensor with `requires_grad=True`; `backward(gradient)` then leaves the gradient
    of that tensor in its `grad`, and adds to those of the parameters that the function used.
  - Random numbers depend on the place: seed, step, microbatch, layer, and how many were drawn before.
    `current_place().copy()` is the place now, and inside `with at(place):` one computes there. By the time of the
    backward pass the place is another one. Drawing changes a place, so copy it before, and use every copy once.

x has a graph, or was made with requires_grad=True.

Example: recompute(lambda x: (x * x).tanh(), x) has the value and the gradients of (x * x).tanh().

Checked: values, bits of all gradients, that intermediate arrays are let go, one call in each pass, dropout, two parts
in a row.
"""

from collections.abc import Callable

from minipipe import Tensor, no_grad
from minipipe.place import at, current_place
from minipipe.tensor import record


def recompute(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``function(x)``, whose graph keeps x and nothing in between."""
    # SOLUTION
    place = current_place().copy()
    with no_grad():
        result = function(x)

    def vjp(gradient):
        again = Tensor(x.data, requires_grad=True)
        with at(place.copy()):
            function(again).backward(gradient)
        return again.grad

    return record(result.data, (x, vjp))
    # STUB
    # raise NotImplementedError("compute without recording now, and with a graph in the vjp")
    # END
