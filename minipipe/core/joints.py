"""The joints of a sequence: results are in C order, and so are their gradients."""

from __future__ import annotations

from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.autograd.graph import Leaf, unchanged
from minipipe.core.tensor import Tensor, op, record


@op()
def identity(a: Array) -> Array:
    """Return the same values as a new result.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> x = Tensor([1.0, 2.0])
    >>> y = functional.identity(x)
    >>> y, y is x
    (Tensor([1., 2.]), False)
    """
    return a


identity.gradients(a=lambda g: g)


def contiguous(a: Tensor) -> Tensor:
    """Return the tensor in C order, and bring its gradient into C order as well.

    A sequence does this between its layers, whether or not a pipeline has a stage
    boundary there: a product sums in an order that depends on the strides of its
    operands, and an array from a message is always in C order.

    Examples
    --------
    >>> from minipipe import Tensor, functional
    >>> turned = functional.transpose(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> (
    ...     turned.data.flags.c_contiguous,
    ...     functional.contiguous(turned).data.flags.c_contiguous,
    ... )
    (False, True)
    """
    before = a.data
    node = a.node
    data = backend.contiguous(before)
    # a parameter itself adds up its gradients one by one
    if data is not before or isinstance(node, Leaf):
        a = record(data, (a, unchanged))
        node = a.node
    if node is not None:
        node.is_boundary = True
    return a
