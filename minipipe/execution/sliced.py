"""Slices of sequences: a stage that computes a sequence slice by slice.

Keys and values pass from slice to slice on the rank of the stage, and their gradients
come back in reverse::

    slice 0   F ── keys, values ──.──────────.       B <── gradients of keys and values ──.──────────.
    slice 1                       '──> F ────|──.               .── B <───────────────────|──.       |
    slice 2                                  '──'──> F B ───────'─────────────────────────'──'───────'

A later slice's graph takes them as inputs, like the values of the stage before; in
their own slice they are results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from minipipe import nn
from minipipe.autograd import Node, StageInput
from minipipe.core.autograd.backend import Array, sum_of_gradients
from minipipe.core.autograd.modes import is_grad_enabled
from minipipe.core.execution.payload import Payload
from minipipe.core.execution.stage import Held
from minipipe.core.nn.module import computes_as, is_exactly
from minipipe.core.pytree import flattened
from minipipe.core.schedules.action import R
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.tensor import Tensor, record
from minipipe.errors import ModelError
from minipipe.execution.objective import Weight
from minipipe.execution.row_handlers import RecomputingStage
from minipipe.nn.slices import Carried, SequenceSlice, computing
from minipipe.nn.transformer import ResidualAttention

# These layers compute each position of a sequence separately, or from those before it.
_BY_POSITION = {
    *(
        nn.Linear,
        nn.Identity,
        nn.Dropout,
        nn.ReLU,
        nn.Tanh,
        nn.Sigmoid,
        nn.SiLU,
        nn.GELU,
        nn.LayerNorm,
        nn.RMSNorm,
    ),
    *(
        nn.Embedding,
        nn.PositionalEmbedding,
        nn.Unembedding,
        nn.Residual,
        ResidualAttention,
        nn.MultiHeadAttention,
    ),
    *(nn.TransformerBlock, nn.Sequential),
}


def check_sliceable(
    model: nn.Sequential, schedule: Schedule, recompute: bool, inputs_require_grad: bool
) -> None:
    """Refuse layers whose results, slice by slice, would differ from the results of a
    whole sequence.

    A recomputation would not have the earlier slices, and the values passed to them
    have no graph.

    Raises
    ------
    ModelError
        Code ``unsupported``. A custom layer declares ``is_sliceable = True``, if it
        computes each position separately.
    """
    reasons = _against_slices(model, schedule, recompute, inputs_require_grad)
    for reason in reasons:
        raise ModelError("unsupported", reason)


def _against_slices(
    model: nn.Sequential, schedule: Schedule, recompute: bool, inputs_require_grad: bool
) -> Iterator[str]:
    """Yield the reasons why a model and options do not work with slices."""
    modules = list(model.modules())
    given = dict.fromkeys(filter(None, map(_option_behind, modules)), True)
    given |= {
        "An R": R in schedule.kinds,
        "recompute=True": recompute,
        "inputs_require_grad=True": inputs_require_grad,
    }
    for option in filter(given.get, given):
        yield (
            f"{option} is not supported by a schedule that divides sequences into "
            "slices. Leave it out, or give a schedule without slices, such as '1f1b'."
        )
    for module in modules:
        declares = getattr(type(module), "is_sliceable", False)
        is_sliceable = declares and computes_as(module, type(module))
        if not is_sliceable and not is_exactly(module, *_BY_POSITION):
            yield (
                f"{module.brief()} may mix the positions of a sequence, which a "
                "schedule with slices divides. If it does not, set is_sliceable = True "
                "in its class."
            )
        if isinstance(module, nn.MultiHeadAttention) and not module.is_causal:
            yield (
                f"{module.brief()} sees later positions, which slices of a sequence do "
                "not have yet. Give is_causal=True, or a schedule without slices."
            )


def _option_behind(module: nn.Module) -> str:
    """Return the option that makes a layer of this kind; empty for a layer of any other
    kind.
    """
    if isinstance(module, nn.Recompute):
        return "nn.Recompute"
    if isinstance(module, nn.FullySharded):
        return "A fully sharded layer, of Grid(fully_sharded=True),"
    if type(module).__module__ == nn.ParallelAttention.__module__:
        return "A tensor-parallel layer, of Grid(tensor=…),"
    return ""


def weight_of_loss(loss: Any, given: Weight | None) -> Weight | None:
    """Return the weight of a slice: its samples times its positions by default."""
    has_own = (
        callable(getattr(loss, "weight", None))
        or getattr(loss, "reduction", "mean") == "sum"
    )
    if given or has_own:
        return given
    return lambda targets: prod(flattened(targets)[0][0].shape[:2])


class SlicedStage(RecomputingStage):
    """A :class:`Stage` whose microbatches are slices of sequences; forward only it
    computes whole sequences.
    """

    def __init__(
        self,
        module: nn.Sequential,
        index: int,
        schedule: Any,
        *given: Any,
        **options: Any,
    ) -> None:
        super().__init__(module, index, schedule, *given, **options)
        self._num_slices = schedule.num_slices
        # by slice, until its backward: its tensors, and positions
        self.carried: dict[int, tuple[Carried, int]] = {}
        # by slice: gradients of its own tensors
        self.came: dict[int, list[Array | None]] = {}
        # for the next forward, instead of the arrays of earlier slices
        self.given: Sequence[Array] | None = None
        # by slice: its inputs from the earlier slices
        self._used: dict[int, list[StageInput]] = {}

    def backward(self, microbatch: int, held: Any, gradient: Payload | None) -> Payload:
        """B: see :meth:`Stage.backward`."""
        payload = super().backward(microbatch, held, gradient)
        self.hand_back(microbatch, self.own_gradients(microbatch))
        return payload

    def backward_input(
        self, microbatch: int, held: Any, gradient: Payload | None
    ) -> tuple[Payload, Any]:
        """I: see :meth:`Stage.backward_input`."""
        if self.is_frozen:
            return self.backward(microbatch, held, gradient), None
        payload, work = super().backward_input(microbatch, held, gradient)
        self.hand_back(microbatch, self.own_gradients(microbatch))
        return payload, work

    def begin(self, accumulate: bool = False) -> None:
        """Begin a step: see :meth:`Stage.begin`."""
        super().begin(accumulate)
        self.given = None
        for kept in (self.carried, self._used, self.came):
            kept.clear()

    # -- keys and values ---------------------------------------------------------------

    def place_of(self, k: int) -> tuple[int, int]:
        """Return the number of a slice in its sequence, and the number of positions
        before it.
        """
        return k % self._num_slices, sum(
            self.carried[before][1] for before in self._before(k)
        )

    def earlier(self, k: int) -> list[Array]:
        """Return the keys and values of the slices before one."""
        return [
            tensor.data for before in self._before(k) for tensor in self.own(before)
        ]

    def own(self, k: int) -> list[Tensor]:
        """Return the keys and values of a slice."""
        return [tensor for tensors in self.carried[k][0] for tensor in tensors]

    def own_gradients(self, k: int) -> list[Array | None]:
        """Return the gradients of the earlier keys and values, after the backward of a
        slice.
        """
        return [stage_input.grad for stage_input in self._used.pop(k)]

    def hand_back(self, k: int, gradients: Sequence[Array | None]) -> None:
        """Add the gradients of the keys and values of earlier slices to their gradients
        so far.
        """
        del self.carried[k]
        self.came.pop(k, None)
        first = 0
        for before in self._before(k):
            own = gradients[first : (first := first + len(self.own(before)))]
            came = self.came.get(before, [None] * len(own))
            self.came[before] = [sum_of_gradients(pair) for pair in zip(came, own)]

    def _before(self, k: int) -> range:
        return range(k - k % self._num_slices, k)

    def _compute(self, k: int, received: Payload) -> tuple[list[StageInput], Any]:
        if not is_grad_enabled():
            return super()._compute(k, received)
        inputs = list[StageInput]()
        arrays = iter(self.earlier(k) if self.given is None else self.given)
        earlier = [
            [
                tuple(self._input(next(arrays), inputs) for _ in tensors)
                for tensors in self.carried[before][0]
            ]
            for before in self._before(k)
        ]
        with computing(SequenceSlice(self.place_of(k)[1], earlier)) as part:
            found = super()._compute(k, received)
        self.carried[k], self._used[k] = (
            (part.made, received.arrays[0].shape[1]),
            inputs,
        )
        return found

    def _input(self, array: Array, inputs: list[StageInput]) -> Tensor:
        """Return a tensor at which a graph begins, whose node is added to others."""
        tensor = record(array)
        tensor.node = node = StageInput(self.has_backward, array)
        inputs.append(node)
        return tensor

    def _roots(self, k: int, held: Held, gradient: Payload | None) -> dict[Node, Array]:
        """Return the start of the walk: the results, and the keys and values that later
        slices used.
        """
        roots = super()._roots(k, held, gradient)
        for tensor, array in zip(self.own(k), self.came.pop(k, ())):
            if tensor.node is not None and array is not None:
                roots[tensor.node] = array
        return roots
