"""01 multiply: the gradients of a product.

Lesson 01. Every operation of the engine brings, beside its result, one function for each input: from the gradient of
the result to the gradient of that input (a vector-Jacobian product, vjp). With those the tape can go backwards.

Write `multiply(a, b)`. The two tensors may differ in shape as far as NumPy can broadcast them: an axis of length 1, or
one that is not there, is repeated. What was repeated was used several times, so its gradient is a sum over the
repetitions, and has the shape of the input. The two may also be one and the same tensor; the tape adds what comes to it
from both sides.

Example: a of shape (2, 3) holds ones, b is [1, 2, 3]. If the gradient of the result is all ones, that of a is b in both
rows, and that of b is [2, 2, 2].

`record(data, (input, vjp), …)` makes the result. A vjp takes an array of the result's shape and returns a new array of
the input's shape. It must not change what it is given: another consumer may still need it.

Checked: values, shapes, gradients against differences, that the tape's arrays stay as they are.
"""

from minipipe.tensor import Tensor, record


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of two tensors, element by element."""
    # SOLUTION
    return record(
        a.data * b.data,
        (a, lambda gradient: summed_to(a.shape, gradient * b.data)),
        (b, lambda gradient: summed_to(b.shape, gradient * a.data)),
    )
    # STUB
    # raise NotImplementedError("record the product, with one vjp for each factor")
    # END


# SOLUTION
def summed_to(shape, gradient):
    """Add up what belongs to one element of an input that was broadcast."""
    new_axes = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(new_axes)))
    repeated = tuple(axis for axis, length in enumerate(shape) if length == 1)
    return gradient.sum(axis=repeated, keepdims=True)


# STUB
# END
