"""01 multiply: the gradients of a product.

Lesson 01. Besides computing its result, every operation of the engine provides one function for each input: it turns
the gradient of the result into the gradient of that input. This function is a vector-Jacobian product, or vjp. With the
vjps the tape can be walked backwards.

Write `multiply(a, b)`. The two tensors may have different shapes, as long as NumPy can broadcast them: an axis that is
missing or has length 1 is repeated. A repeated element is used several times, so its gradient is the sum over the
repetitions, and the gradient has the shape of the input. Both arguments may also be the same tensor; the tape adds the
gradients from both sides.

Example: a has shape (2, 3) and is all ones, and b is [1, 2, 3]. If the gradient of the result is all ones, the gradient
of a is b in both rows, and the gradient of b is [2, 2, 2].

`record(data, (input, vjp), …)` creates the result. A vjp takes an array with the shape of the result and returns a new
array with the shape of the input. It must not modify its argument: another consumer may still need it.

The `*` of tensors is not available here.

Checked: values, shapes, gradients, and that the tape's arrays are not modified.
"""

from minipipe.tensor import Tensor, record


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Return the elementwise product of two tensors."""
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
    """Sum a gradient over the axes along which the input was broadcast."""
    new_axes = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(new_axes)))
    repeated = tuple(axis for axis, length in enumerate(shape) if length == 1)
    return gradient.sum(axis=repeated, keepdims=True)


# STUB
# END
