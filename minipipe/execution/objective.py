"""The results of the last stage for a microbatch (loss, metrics, outputs), and the loss
of the batch.

Training, evaluation, prediction and measuring differ by their objective alone. A
gradient from outside is a loss as well: the sum of the products of outputs and
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from math import nan
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from zlib import crc32

import numpy as np

from minipipe.core.autograd import backend
from minipipe.core.autograd.host import known
from minipipe.core.execution.payload import Payload
from minipipe.core.objective import Loss as Loss
from minipipe.core.objective import Objective, added, shared_out
from minipipe.core.pytree import Bundle, rebuilt, tensors_in
from minipipe.core.specs import Spec
from minipipe.core.tensor import Tensor, record
from minipipe.errors import ArgumentError, TensorError
from minipipe.execution.samples import ABSENT, Cut, copied
from minipipe.hints import Familiar
from minipipe.nn.collected_losses import AuxiliaryLosses, WithLosses

if TYPE_CHECKING:
    from minipipe.execution.outputs import OutputDivision

Weight = Callable[[Any], float]
Metric = Callable[[Any, Any], Any]
# of the weights of all microbatches
Exchange = Callable[[list[float | None]], list[float]]
Where = bool | Literal["everywhere"]


class BatchObjective(Objective):
    """The results that a call requests from the last stage, which is called for each
    microbatch.

    Parameters
    ----------
    loss : function, optional
        ``(outputs, targets) -> Tensor`` with one element. Without it, only the outputs
        are computed.
    loss_weight : function, optional
        ``targets -> number``, instead of the loss' own ``weight``.
    metrics : mapping of str to function, optional
        Each ``(outputs, targets) -> number``, or ``(number, weight)``, from arrays.
    outputs : bool or "everywhere"
        Whether to keep the outputs, for the rank of the last stage or for every rank.
    scale : float
        Factor of the gradients, not of the loss.
    division : OutputDivision, optional
        For tensor-parallel ranks: whether a rank has all outputs, or a part of them.

    Attributes
    ----------
    loss : function or None
    scale : float
    shares : list of float
        The weight of each microbatch in the loss of the batch.
    losses : dict of int to float
        By microbatch; on a device arrays, until :meth:`read_losses`.
    outputs : dict of int to Payload
        By microbatch, if they are kept.

    Raises
    ------
    ArgumentError
        Codes ``type`` and ``value``.
    """

    num_microbatches: int | None = None  # if they differ from the schedule's number

    def __init__(
        self,
        loss: Loss | None = None,
        loss_weight: Weight | None = None,
        metrics: Mapping[str, Metric] | None = None,
        outputs: Where = False,
        scale: float = 1.0,
        division: OutputDivision | None = None,
    ) -> None:
        if metrics is not None or outputs is not False or type(scale) is not float:
            _check_asked(metrics, outputs, scale)
        super().__init__(loss)
        self._loss_weight = loss_weight
        self.scale = float(scale)
        self.metrics: dict[str, Metric] = dict(metrics or {})
        self.where: Where = outputs
        self._division = division
        self._measured: dict[int, list[tuple[float, float | None]]] = {}

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss, or only the outputs are of interest."""
        return self.loss is not None

    @property
    def is_for_outputs(self) -> bool:
        """Whether the outputs alone are of interest."""
        return (
            self.loss is None
            and bool(self.where)
            and not self.metrics
            and self.is_whole
        )

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all outputs, without a comparison of values with other
        ranks.
        """
        return self._division is None or self._division.is_certain

    @property
    def is_given(self) -> bool:
        """Whether the gradient of the outputs is an argument. Then the loss itself has
        no meaning.
        """
        return isinstance(self.loss, GivenGradient)

    @property
    def needs_targets(self) -> bool:
        """Whether targets are required."""
        return self.has_loss and not (
            isinstance(self.loss, GivenGradient) and self.loss.is_function
        )

    @property
    def noun(self) -> str:
        """A noun for the targets, for errors."""
        return "gradients" if self.is_given else "targets"

    @property
    def of_pipeline(self) -> dict[str, Any]:
        """The arguments that are the same in all calls of a pipeline."""
        parts = {"loss": self.loss, "loss_weight": self._loss_weight}
        return {**parts, "division": self._division}

    @property
    def weighs_by_form(self) -> bool:
        """Whether the shares of microbatches follow from the form of a batch, as long
        as the loss has the same attributes.
        """
        weight = self._loss_weight or getattr(self.loss, "weight", None)
        return not callable(weight) or getattr(weight, "weighs_items", False)

    @property
    def alike(self) -> dict[str, float | None]:
        """Numbers, by name, that must be equal on all ranks."""
        is_everywhere = self.where == "everywhere"
        asked = 0
        if is_everywhere or self.metrics:
            asked = crc32(repr((is_everywhere, *self.metrics)).encode())
        alike: dict[str, float | None] = {
            "request for metrics and outputs": asked,
            "scale": self.scale,
        }
        # ranks send each other their outputs
        if self._division is not None and not self._division.is_certain:
            alike["request for outputs"] = bool(self.where)
        return alike

    def begin(
        self,
        sizes: Sequence[int],
        targets: Sequence[Payload] | None,
        exchange: Exchange | None = None,
    ) -> None:
        """Take the sizes of the microbatches of a batch, and its targets; exchange
        weights with other ranks.

        Collective among the ranks of the last stage if there is an ``exchange``
        function.
        """
        self.targets = targets
        self._num_samples = sum(sizes)
        self.shares = []
        if self.loss is not None:
            self.shares = shares(sizes, self.loss, self._loss_weight, targets, exchange)

    def __call__(
        self, microbatch: int, outputs: Bundle | WithLosses
    ) -> tuple[Tensor | None, float]:
        """Return the loss of a microbatch, if there is one, and its seed: the gradient
        with which backward begins.
        """
        return self.of(microbatch, outputs, None)

    def of(
        self, microbatch: int, outputs: Bundle | WithLosses, arrays: list[Any] | None
    ) -> tuple[Tensor | None, float]:
        """Return the loss and its seed, with these arrays as the targets if there are
        any.
        """
        outputs, auxiliary = (
            outputs if isinstance(outputs, WithLosses) else (outputs, None)
        )
        targets = None if self.targets is None else self.targets[microbatch]
        if targets is not None and arrays is not None:
            targets = targets._replace(arrays=arrays)
        if self.where or self.metrics:
            self._note(microbatch, outputs, targets)
        if self.loss is None:
            return None, 0.0
        if self._division is not None:
            self._division.check_whole(outputs)
            outputs = self._division.marked(outputs)
        loss = self.compared(outputs, targets)
        if self._division is not None:
            self._division.check_loss(loss.data)
        if auxiliary is not None:
            # a sum; an auxiliary loss is a mean over the batch all the same
            if isinstance(self.loss, GivenGradient):
                auxiliary = auxiliary * (
                    tensors_in(outputs)[0].shape[0] / self._num_samples
                )
            loss = AuxiliaryLosses([auxiliary]).added_to(loss)
        # read outside of a recorded computation
        return loss, self.note(microbatch, backend.number(loss.data))

    def _note(self, microbatch: int, outputs: Bundle, targets: Payload | None) -> None:
        if self._division is None:
            arrays = [tensor.data for tensor in tensors_in(outputs)]
        else:
            arrays = self._division.whole(outputs)
        arrays = list(map(backend.contiguous, arrays))
        if self.where:
            self.outputs[microbatch] = Payload(
                arrays, [True] * len(arrays), rebuilt(outputs, [None] * len(arrays))
            )
        if not self.metrics:
            return
        outputs = rebuilt(outputs, list(map(_to_read, arrays)))
        expected = None
        if targets is not None:
            expected = targets.rebuilt(list(map(_to_read, targets.arrays)))
        self._measured[microbatch] = [
            _measured(f"the metric {name!r}", metric(outputs, expected))
            for name, metric in self.metrics.items()
        ]

    def alone(self) -> BatchObjective:
        """Return the same loss for the same batch, without metrics and outputs, to be
        computed once more.
        """
        twin = copy(self)
        twin.metrics = {}
        twin.where = False
        twin.losses = {}
        twin._division = None  # a rank that computes again compares nothing with others
        return twin

    def found(self) -> dict[str, Any]:
        """Return the results for the microbatches of this rank, as a tree for
        :meth:`take` of another replica.
        """
        outputs = [(k, payload.to_message()) for k, payload in self.outputs.items()]
        return {
            "losses": [*self.read_losses().items()],
            "measured": [*self._measured.items()],
            "outputs": outputs,
        }

    def take(self, found: Mapping[str, Any]) -> None:
        """Add the results of another replica for its microbatches."""
        self.losses.update(found["losses"])
        self._measured.update(found["measured"])
        self.outputs.update(
            (k, Payload.from_message(message)) for k, message in found["outputs"]
        )

    def numbers(self, *others: float) -> list[float]:
        """Return the losses of the batch and of its microbatches, its metrics and other
        numbers.

        The sums ascend through the microbatches, in whatever order these were computed.
        """
        order = sorted(self.losses)
        metrics = []
        for i in range(len(self.metrics)):
            metrics.append(
                self._mean([(*self._measured[k][i], self.shares[k]) for k in order])
            )
        return [*super().numbers(), *metrics, *others]

    @staticmethod
    def _mean(found: Sequence[tuple[float, float | None, float]]) -> float:
        """Return the mean of a metric by its weights or, without any, the sum weighted
        as the loss.
        """
        if all(weight is None for _, weight, _ in found):
            return added(value * share for value, _, share in found if share)
        weighted = [(value, weight) for value, weight, _ in found if weight]
        total = added(weight for _, weight in weighted)
        if not total:
            return nan
        return added(value * weight for value, weight in weighted) / total


def _check_asked(metrics: Any, outputs: Any, scale: Any) -> None:
    if metrics is not None and not (
        isinstance(metrics, Mapping) and all(map(callable, metrics.values()))
    ):
        message = (
            f"metrics is {metrics!r:.60}; expected a dict of functions, such as "
            "{'accuracy': accuracy}."
        )
        raise ArgumentError("type", message)
    if outputs not in (True, False, "everywhere"):
        raise ArgumentError(
            f"outputs is {outputs!r}; expected True, False or 'everywhere'."
        )
    hint = ""
    if hasattr(scale, "value"):
        hint = "Give its value: scale=scale.value."
    Spec(int | float | np.number, expected="a number", advice=hint, code="type").check(
        "scale", scale
    )


def _beside(tensor: Tensor, given: Any) -> Tensor:
    """Return the argument as a constant in the module and the dtype of a tensor."""
    array = Tensor(given).data
    own = tensor.data
    return record(
        backend.moved(array, backend.array_module(own), backend.numpy_dtype(own.dtype))
    )


def _measured(name: str, found: Any) -> tuple[float, float | None]:
    """Return the result of a metric, or of another function of a microbatch, and its
    weight, if any.
    """
    value = found
    weight = None
    if isinstance(found, tuple) and len(found) == 2:
        value, weight = found
    try:
        if weight is not None:
            weight = float(weight)
        return float(value), weight
    except (TypeError, ValueError):
        kind = type(found).__name__
        if hasattr(value, "shape"):
            kind = f"an array of shape {np.shape(value)}"
        message = f"{name} must be a number; for a microbatch it is {kind}."
        raise TensorError("shape", f"{message[0].upper()}{message[1:]}") from None


def _to_read(array: Any) -> np.ndarray:
    view = backend.to_numpy(array)[...]
    view.flags.writeable = False
    return view


def shares(
    sizes: Sequence[int],
    loss: Loss,
    weight: Weight | None,
    targets: Sequence[Payload] | None,
    exchange: Exchange | None = None,
) -> list[float]:
    """Return each microbatch's weight in the loss of the batch: by its own weight or,
    without one, by its samples.

    Parameters
    ----------
    sizes : sequence of int
        The numbers of samples of the microbatches.
    loss : function
        May have a method ``weight(targets)``, the number of items in its mean, and a
        ``reduction``: if that is ``"sum"``, each weight is 1.
    weight : function, optional
        Replaces the loss' own weight.
    targets : sequence of Payload, optional
        The targets of each microbatch; None on other ranks. Not needed if the loss is a
        sum, or has no weight.
    exchange : function, optional
        Takes the weights of this rank, with None for the others, and returns all
        weights.

    Raises
    ------
    MicrobatchError
        Code ``value``.

    Examples
    --------
    Of four samples, the second half counts three times as much.

    >>> import numpy as np
    >>> from minipipe.execution.samples import samples
    >>> shares((2, 2), max, np.sum, samples([1, 1, 3, 3], "targets").cut((2, 2)))
    [0.25, 0.75]
    """
    if weight is None and getattr(loss, "reduction", "mean") == "sum":
        return [1.0] * len(sizes)
    weight = weight or getattr(loss, "weight", None)
    if targets is None or not callable(weight) or _weighs_by_size(weight, targets):
        return list(_shares_of_sizes(tuple(sizes)))
    weights = [
        None if part is ABSENT else _weighed(weight(_known(part))) for part in targets
    ]
    if exchange:
        return shared_out(exchange(weights))
    return shared_out([x for x in weights if x is not None])


def _known(part: Payload) -> Any:
    """Return targets in NumPy's memory, if they were copied from it."""
    return part.rebuilt(list(map(known, part.arrays)))


def _weighed(found: Any) -> float:
    if type(found) in (int, float):
        return found
    return _measured("the weight of a loss", found)[0]


def _weighs_by_size(weight: Weight, targets: Sequence[Payload]) -> bool:
    """Return whether weights are known to be in proportion to the numbers of samples:
    all these have equal items.
    """
    if not getattr(weight, "weighs_items", False) or not isinstance(targets, Cut):
        return False
    return targets.whole.treedef is None and targets.whole.arrays[0].size > 0


@lru_cache(maxsize=64)  # batches are often alike
def _shares_of_sizes(sizes: tuple[int, ...]) -> list[float]:
    return shared_out(sizes)


class GivenGradient:
    """A loss with a prescribed gradient: the sum of the products of the outputs and
    their gradients.

    Parameters
    ----------
    function : function, optional
        ``outputs -> gradients``, arrays; without one the targets are the gradients.

    Examples
    --------
    >>> outputs = Tensor([1.0, 2.0], requires_grad=True)
    >>> GivenGradient(lambda outputs: [10.0, 0.5])(outputs, None).backward()
    >>> outputs.grad
    array([10. ,  0.5], dtype=float32)
    """

    reduction = "sum"

    def __init__(self, function: Callable[[Any], Any] | None = None) -> None:
        self._function = function
        self.is_function = function is not None

    def __call__(self, outputs: Bundle, gradients: Any) -> Tensor:
        """Return the sum of the products, of shape ()."""
        tensors = tensors_in(outputs)
        total = None
        if self._function is not None:
            gradients = self._function(
                rebuilt(outputs, [_to_read(tensor.data) for tensor in tensors])
            )
        leaves = leaves_like(outputs, gradients)
        # which may fill the same arrays again, for a microbatch that comes before this
        # backward
        if self.is_function:
            leaves = list(map(copied, leaves))
        arrays = [
            None if leaf is None else _beside(tensor, leaf)
            for leaf, tensor in zip(leaves, tensors)
        ]
        shapes = [None if array is None else array.shape for array in arrays]
        expected = [tensor.shape for tensor in tensors]
        if any(shape not in (None, own) for shape, own in zip(shapes, expected)):
            message = (
                f"The outputs of a microbatch have shapes {expected}; the gradients "
                f"have {shapes}."
            )
            raise TensorError(
                "shape",
                f"{message} Expected one for each, of the same shape (or None, from a "
                "function).",
            )
        for array, tensor in zip(arrays, tensors):
            if array is not None:
                product = (tensor * array).sum()
                total = product if total is None else total + product
        if total is None:
            raise TensorError(
                "missing",
                "No gradient was given for any output; expected at least one.",
            )
        return total


# -- the loss of a batch ---------------------------------------------------------------


class BatchLoss(float, Familiar):
    """The loss of a batch: a float, with the other results of the call. The numbers are
    the same on every rank.

    Attributes
    ----------
    losses : tuple of float
        The loss of each microbatch.
    metrics : dict of str to float
        Over the microbatches, the means by the weights of the losses; sums, if the loss
        is a sum.
    outputs : array of shape (samples, ...), pytree, or None
        As :meth:`minipipe.Pipeline.predict` returns them, on the ranks that receive
        them.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, spawn
    >>> def train(group):
    ...     model = nn.Sequential(
    ...         nn.Identity(),
    ...         nn.Linear(2, 1, initialiser=nn.initialisers.constant(1.0)),
    ...     )
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
    ...     error = {
    ...         "largest error": lambda outputs, targets: np.abs(
    ...             outputs - targets
    ...         ).max()
    ...     }
    ...     loss = pipeline.step(
    ...         np.array([[1.0, 1.0], [2.0, 2.0]]),
    ...         np.zeros((2, 1)),
    ...         outputs=True,
    ...         metrics=error,
    ...     )
    ...     return (
    ...         loss,
    ...         loss.losses,
    ...         loss.metrics,
    ...         None if loss.outputs is None else loss.outputs.tolist(),
    ...     )
    >>> for result in spawn(train, num_ranks=2):
    ...     print(result)
    (10.0, (4.0, 16.0), {'largest error': 3.0}, None)
    (10.0, (4.0, 16.0), {'largest error': 3.0}, [[2.0], [4.0]])
    """

    losses: tuple[float, ...]
    metrics: dict[str, float]
    outputs: Any

    def __new__(
        cls,
        loss: float,
        losses: Iterable[float] = (),
        metrics: Mapping[str, float] | None = None,
        outputs: Any = None,
    ) -> BatchLoss:
        found = super().__new__(cls, loss)
        found.losses = tuple(losses)
        found.metrics = dict(metrics or {})
        found.outputs = outputs
        return found

    def item(self) -> float:
        """Return the number alone, as a scalar of NumPy or PyTorch does."""
        return float(self)

    @classmethod
    def read(
        cls,
        numbers: list[float],
        num_microbatches: int,
        metrics: Iterable[str],
        outputs: Any,
    ) -> BatchLoss:
        """Return the loss from the array of :meth:`BatchObjective.numbers`, for the
        metrics that all ranks request.
        """
        (loss, *losses), values = (
            numbers[: 1 + num_microbatches],
            numbers[1 + num_microbatches :],
        )
        return cls(loss, losses, dict(zip(metrics, values)), outputs)


class PendingLoss(Familiar):
    """The mean loss of a step, in flight from the rank that computed it.

    ``wait()`` and ``float()`` wait for it; to print it does not. It cannot be compared
    or added before it is a number.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, spawn
    >>> def train(group):
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Linear(2, 1)),
    ...         group,
    ...         loss=nn.MSELoss(),
    ...         num_microbatches=2,
    ...     )
    ...     loss = pipeline.step(np.ones((4, 2)), np.ones((4, 1)), wait=False)
    ...     print(loss)
    ...     return float(loss) == loss.wait() > 0
    >>> spawn(train, num_ranks=1)
    <loss of step 1, pending: float() waits>
    [True]
    """

    def __init__(self, receive: Callable[[], BatchLoss], step: int) -> None:
        self._receive: Callable[[], BatchLoss] | None = receive
        self._step = step
        self._value: BatchLoss | None = None

    def wait(self) -> BatchLoss:
        """Return the loss, the same on every rank. Losses of earlier steps arrive
        before it.
        """
        if self._value is None and self._receive is not None:
            self._value = self._receive()
            self._receive = None  # which has the batch
        assert self._value is not None
        return self._value

    def __float__(self) -> float:
        return float(self.wait())

    item = BatchLoss.item

    def _refuse(self, *_: object) -> NoReturn:
        raise ArgumentError(
            "type",
            f"The loss of step {self._step} may not have arrived yet; float(loss) "
            "waits for it and is a number. To sum several: sum(map(float, losses)).",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = (
        __rtruediv__
    ) = __round__ = _refuse
    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(float(self), spec)

    def __repr__(self) -> str:
        if self._value is None:
            return f"<loss of step {self._step}, pending: float() waits>"
        return repr(self._value)


def leaves_like(bundle: Bundle, given: Any) -> list[Any]:
    """Return the items for the tensors of a pytree, in the order of the pytree.

    Raises
    ------
    TensorError
        Code ``shape``, for another structure.

    Examples
    --------
    >>> leaves_like(
    ...     {"a": Tensor([1.0]), "b": Tensor([2.0])}, {"b": [20.0], "a": [10.0]}
    ... )
    [[10.0], [20.0]]
    """
    expected = _form_of(bundle)
    found = _form_of(given)
    if expected is None:
        return [given]
    if isinstance(bundle, dict):
        if isinstance(given, dict) and given.keys() == bundle.keys():
            pairs: Any = [(part, given[name]) for name, part in bundle.items()]
            return [leaf for pair in pairs for leaf in leaves_like(*pair)]
    elif expected == found:
        return [leaf for pair in zip(bundle, given) for leaf in leaves_like(*pair)]
    shown = f"a {type(given).__name__} of {found}" if found else "one array"
    raise TensorError(
        "shape",
        f"The model returns a {type(bundle).__name__} of {expected}; the matching "
        f"argument is {shown}.",
    )


def _form_of(value: Any) -> Any:
    """Return the names of a dict, the length of a row, None for anything else."""
    if isinstance(value, dict):
        return list(value)
    return len(value) if type(value) in (tuple, list) else None
