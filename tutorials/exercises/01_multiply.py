"""01 multiply: the gradients of a product.

Lesson 01. Besides computing its result, every operation of the engine has one function
for each input: it turns the gradient of the result into the gradient of that input.
This function is a vector-Jacobian product, or vjp. With the vjps the tape can be walked
backwards.

Write `multiply(a, b)` and its gradients. The two tensors may have different shapes, as
long as NumPy can broadcast them: an axis that is missing or has length 1 is repeated. A
repeated element is used several times, so its gradient is the sum over the repetitions,
and the gradient has the shape of the input. Both arguments may also be the same tensor;
the tape adds the gradients from both sides.

Example: a has shape (2, 3) and is all ones, and b is [1, 2, 3]. If the gradient of the
result is all ones, the gradient of a is b in both rows, and the gradient of b is [2, 2,
2].

`@op()` makes an operation of a function of arrays: inside it, a and b are the arrays of
the two tensors. `multiply.gradients(a=…, b=…)` sets one function for each input. Its
parameters name what it needs, in this order:
  - `g`, the gradient of the result, an array with the shape of the result;
  - `a`, `b` or `result`, the arrays of the inputs and the result: only those that are
    named are kept in memory;
  - `shape`, the shape of the input whose gradient it is.
It returns a new array with the shape of the input. It must not modify g: another
consumer may still need it.

Multiply the arrays: the `*` of tensors is not available here.

Checked: values, shapes, gradients, and that the tape's arrays are not modified.
"""

from minipipe import op


@op()
def multiply(a, b):
    """Return the elementwise product of two arrays; called with tensors, of two
    tensors.
    """
    # SOLUTION
    return a * b
    # STUB
    # raise NotImplementedError("return the product, and set multiply.gradients below")
    # END


# SOLUTION
multiply.gradients(
    a=lambda g, b, shape: summed_to(shape, g * b),
    b=lambda g, a, shape: summed_to(shape, g * a),
)


def summed_to(shape, gradient):
    """Sum a gradient over the axes along which the input was broadcast."""
    new_axes = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(new_axes)))
    repeated = tuple(axis for axis, length in enumerate(shape) if length == 1)
    return gradient.sum(axis=repeated, keepdims=True)


# STUB
# multiply.gradients()  # of a and of b
# END
