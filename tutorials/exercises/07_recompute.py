"""07 recompute: keep only the input, and compute the rest again.

Lesson 06. Between forward and backward, a microbatch holds the activations that the
backward needs from every layer. Recomputation ("activation checkpointing", Chen et al.
2016) keeps only the input of a part of the network, discards the rest, and computes the
part again when its gradient arrives: time for memory. The gradients must have the same
bits, even if the part draws random numbers, as dropout does.

Write `recompute(function, x)`: the same result as `function(x)`, with a graph that
holds only x.
  - Inside `with no_grad():` nothing is recorded.
  - `record(data, (x, vjp))` creates one result, without `@op()`: its vjp is a function
    of the gradient of the result alone, and may use the variables of the function
    around it.
  - In the vjp, apply `function` to a new tensor with `requires_grad=True`.
    `backward(gradient)` then leaves the gradient of that tensor in its `grad`, and adds
    to the gradients of the parameters that the function used.
  - Random numbers depend on the place: seed, step, microbatch, layer, and how many were
    drawn before. `current_place().copy()` is a copy of the current place, and `with
    at(place):` computes at that place. By the time of the backward pass the current
    place is a different one. Drawing changes a place, so copy it first, and use each
    copy only once.

x has a graph, or was created with requires_grad=True.

Example: recompute(lambda x: (x * x).tanh(), x) has the value and the gradients of (x *
x).tanh().

Checked: values, bits of all gradients, that intermediate arrays are freed, one call in
each pass, dropout, and two parts in a row.
"""

from collections.abc import Callable

from minipipe import Tensor, no_grad
from minipipe.core.autograd.modes import at, current_place
from minipipe.core.tensor import record


def recompute(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return ``function(x)`` with a graph that keeps x and no intermediate arrays."""
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
    # raise NotImplementedError(
    #     "compute without recording now, and record a graph in the vjp"
    # )
    # END
