"""Training with an output layer that is divided by words over all ranks of a pipeline:
its plan, and the handlers of the instructions that ``passes/vocabulary.py`` adds.

The rank of the last stage sends each hidden state, with its labels, to all ranks.
Instructions leave messages and wait for none; whichever takes a value waits. Evaluations
and predictions gather the layer on the rank of the last stage, which computes all of it.

Results agree with the plain model within rounding. With two barriers they have the same
bits on 1, 2, 4 and 8 ranks, if the number of words is a multiple of 8.

Examples
--------
>>> import numpy as np
>>> from minipipe import Pipeline, nn, spawn
>>> def words(group):
...     model = nn.Sequential(nn.Embedding(64, 8), nn.Tanh(), nn.Linear(8, 64))
...     options = {"loss": nn.CrossEntropyLoss(), "num_microbatches": 4}
...     pipeline = Pipeline(model, group, partition="vocabulary", **options)
...     tokens = np.arange(32).reshape(8, 4)
...     loss = pipeline.step(tokens, tokens + 1)
...     shape = dict(pipeline.named_parameters())["2.weight"].shape
...     return shape, pipeline.state_dict()["2.weight"].shape
>>> spawn(words, num_ranks=2)
[((8, 32), (8, 64)), ((8, 32), (8, 64))]
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.core.autograd.backend import Array, sum_of_gradients
from minipipe.core.execution import handlers as core
from minipipe.core.execution.executor import Executor, Handler, Handlers, Pending
from minipipe.core.execution.payload import Payload
from minipipe.core.functional.loss import check_range_of_labels, not_labels
from minipipe.core.nn.module import is_exactly
from minipipe.core.nn.sequential import Sequential
from minipipe.core.schedules.action import Action, F
from minipipe.core.values import gives, takes
from minipipe.errors import ArgumentError, ModelError
from minipipe.execution.checks.comparison import check_first_values
from minipipe.execution.choosing import replicated
from minipipe.execution.partition import partition_by_cost
from minipipe.execution.plan import Plan, check_model
from minipipe.execution.row_handlers import and_then
from minipipe.nn import CrossEntropyLoss
from minipipe.nn.vocabulary import VocabularyLinear
from minipipe.parallel.pairwise import sum_in_pairs
from minipipe.parallel.vocabulary import (
    Hidden,
    Piece,
    Totals,
    of_weights,
    part_of_hidden,
    products_of,
    scores_of,
    slopes_of,
    statistics_of,
    sum_of_products,
    totals_of,
)
from minipipe.passes.vocabulary import vocabulary
from minipipe.schedules import Program, lower
from minipipe.schedules.registry import spelled

_BARRIERS = {"vocabulary": 2, "vocabulary-one-barrier": 1}
_OPTIONS = ("partition", "schedule", "num_microbatches")
_PLAIN = {
    "recompute": False,
    "stack_weight_gradients": False,
    "loss_weight": None,
    "device": "cpu",
    "compile": False,
}
NUM_PIECES = 8
"""Pieces of the vocabulary if the ranks can share them equally: sums over words then
have the same bits on 1, 2, 4 and 8 ranks.
"""


class VocabularyPlan(Plan):
    """A plan whose last layer is divided by words over all ranks. Making it is
    collective.

    Each stage has its layers, and then the words of its rank, in `num_pieces` pieces.

    Parameters
    ----------
    model : Sequential
        It ends with an ``nn.Linear``.
    group : ProcessGroup
    own, options : mapping
        The keywords of the pipeline itself, and the other ones.

    Raises
    ------
    ArgumentError
        Code ``value``, for an option that does not go with a divided vocabulary.
    ModelError
        Code ``unsupported``, for another last layer or loss, or frozen parameters.
    """

    group: ProcessGroup
    num_pieces: int

    def __init__(
        self,
        model: Any,
        group: Any,
        own: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        name = str(options["partition"])
        _check_options(name, own, options)
        _check_vocabulary(model, own["loss"])
        num_barriers = _BARRIERS[name]
        sizes = (group.size, options.get("num_microbatches"), None, 1)
        whole = replicated(spelled(options.get("schedule", "1f1b")), *sizes)
        schedule = whole.schedule if isinstance(whole, Program) else whole
        program = lower(vocabulary(schedule, num_barriers))
        check_first_values(group, dict(model.named_parameters()), of_wholes=True)
        divided = _divided(model, group)
        costs = [float(layer.num_parameters) for layer in divided.flat_layers[:-1]]
        *parts, last = partition_by_cost(costs, group.size)
        parts.append(range(last.start, last.stop + 1))
        super().__init__(divided, schedule, partition=parts)
        num_pieces = 1
        words = divided.flat_layers[-1].weight.whole_shape[1]
        if num_barriers == 2 and not (NUM_PIECES % group.size or words % NUM_PIECES):
            num_pieces = NUM_PIECES // group.size
        vars(self).update(program=program, group=group, num_pieces=num_pieces)

    def part(self, stage: int) -> Sequential:
        """Return the layers of a stage, and the words of its rank."""
        part = super().part(stage)
        if stage < self.program.num_stages - 1:
            part.layers.append(self.layers[-1])
        return part

    def check_measurable(self, call: str) -> None:
        """Refuse a measurement, which would run S and T without their barriers."""
        raise ModelError(
            "unsupported",
            f"{call}() runs the layers of a stage, but with a divided vocabulary all "
            "ranks compute the last layer together, so only step(), evaluate() and "
            "predict() run it; pipeline.timeline() has the times of a step, or measure "
            'a pipeline without partition="vocabulary".',
        )

    @property
    def sharded_stages(self) -> frozenset[int]:
        """No stage is gathered for its forward and backward."""
        return frozenset()

    def with_handlers(self, handlers: Handlers, trains: bool = True) -> Handlers:
        """Return handlers for S, T and the messages between ranks."""
        if trains:
            return Words(self).handlers(handlers)
        begin = and_then(handlers["HANDSHAKE"], _gather)
        return {**handlers, "HANDSHAKE": begin, "LOSS": _released(handlers["LOSS"])}


def divided(
    model: Any,
    group: ProcessGroup,
    options: Mapping[str, Any],
    pipeline: type,
    **own: Any,
) -> tuple[VocabularyPlan, dict[str, Any], bool]:
    """Return the plan of a divided vocabulary, no further options, and that nothing is
    recomputed; see :class:`minipipe.execution.partition.NamedPartition`.
    """
    return VocabularyPlan(model, group, own, options), {}, False


def _divided(model: Sequential, group: ProcessGroup) -> Any:
    """Return a copy of a model whose last layer is divided by words."""
    divided = copy.deepcopy(model)
    inner: Any = divided
    while isinstance(inner.layers[-1], Sequential):
        inner = inner.layers[-1]
    inner.layers[-1] = VocabularyLinear(inner.layers[-1], group)
    return divided


def _check_options(
    name: str, own: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Refuse options that do not go with a divided vocabulary."""
    advice = f"leave it out, or leave out partition={name!r}."
    wrong = [each for each, value in _PLAIN.items() if own[each] != value]
    wrong += [each for each in options if each not in _OPTIONS]
    if wrong:
        given = {**own, **options}[wrong[0]]
        message = f"{wrong[0]}={given!r:.40} does not work with a divided vocabulary"
        raise ArgumentError(f"{message}; {advice}")


def _check_vocabulary(model: Any, loss: Any) -> None:
    """Refuse a model whose output layer or loss is not known here."""
    check_model(model)
    problem = ""
    if not is_exactly(loss, CrossEntropyLoss):
        problem = f"the loss is {type(loss).__name__}; expected nn.CrossEntropyLoss()"
    elif loss.label_smoothing or loss.class_weights is not None:
        problem = "the loss has label_smoothing or class_weights; leave them out"
    elif any(not parameter.requires_grad for parameter in model.parameters()):
        problem = "some parameters are frozen; train all of them"
    elif any(getattr(part, "adds_losses", False) for part in model.modules()):
        problem = "a layer adds a loss of its own; take it out"
    elif any(parameter.is_divided for parameter in model.parameters()):
        problem = "some parameters are divided already; pass the plain model"
    elif any(np.dtype(each.dtype).itemsize < 4 for each in model.parameters()):
        problem = "some parameters are in half precision; expected float32 or float64"
    if problem:
        message = f'partition="vocabulary" does not fit: {problem}.'
        raise ModelError("unsupported", message)


# -- evaluation ------------------------------------------------------------------------


def _layer_of(executor: Executor) -> VocabularyLinear:
    (stage,) = executor.stages.values()
    layer: Any = stage.module.layers[-1]
    return layer


def _gather(executor: Executor, action: Action) -> None:
    """Gather the layer on the rank of the last stage. Collective."""
    _layer_of(executor).gather(executor.group.rank == executor.group.size - 1)


def _released(handler: Handler) -> Handler:
    """Return a handler that first gives the gathered layer up."""

    def run(executor: Executor, action: Action) -> None:
        _layer_of(executor).release()
        handler(executor, action)

    return run


# -- training --------------------------------------------------------------------------


class Arriving(Pending):
    """A value of messages that may still be under way.

    Parameters
    ----------
    requests : sequence
        Whose ``wait()`` returns an array, in the order of their ranks.
    make : function
        Of the arrays.
    """

    def __init__(self, requests: Sequence[Any], make: Callable[..., Any]) -> None:
        self._requests = requests
        self._make = make
        self._made: list[Any] = []

    def wait(self) -> Any:
        """Return the value, which is made once."""
        if not self._made:
            arrays = [request.wait() for request in self._requests]
            self._made.append(self._make(*arrays))
        return self._made[0]


class _Here:
    """An array of this rank among requests."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def wait(self) -> Array:
        return self._array


class Words:
    """The handlers of a rank for its words.

    Parameters
    ----------
    plan : VocabularyPlan
    """

    def __init__(self, plan: VocabularyPlan) -> None:
        program = plan.program
        # behind the tags of messages between stages, and the tag of tied parameters
        self._first_tag = 2 * program.num_stages * program.num_microbatches + 2
        self._last = program.num_ranks - 1
        self._ranks = range(program.num_ranks)
        self._num_pieces = plan.num_pieces

    def handlers(self, handlers: Handlers) -> Handlers:
        """Return handlers of a training step, and for its words."""
        added: dict[str, Handler] = {
            F: self._forward,
            "SPREAD": self._spread,
            "ARRIVE": self._arrive,
            "S": self._score,
            "SUM_S": self._exchange,
            "T": self._differentiate,
            "SUM_T": self._add_up,
        }
        if "HANDSHAKE" in handlers:
            added["HANDSHAKE"] = and_then(handlers["HANDSHAKE"], _check_call)
        return {**handlers, **added}

    def _tag(self, action: Action, number: int) -> int:
        return self._first_tag + 4 * action.microbatch + number

    def _receive(
        self, executor: Executor, action: Action, number: int, sender: int, noun: str
    ) -> Any:
        return executor.group.irecv(
            sender,
            self._tag(action, number),
            step=executor.batch.step,
            what=f"{noun} of microbatch {action.microbatch} from rank {sender}",
            allocate=executor.allocate,
        )

    def _from_all(
        self, executor: Executor, action: Action, number: int, own: Array, noun: str
    ) -> list[Any]:
        """Return requests for an array of each rank, of which this one has its own."""
        found: list[Any] = []
        for rank in self._ranks:
            if rank == executor.group.rank:
                found.append(_Here(own))
            else:
                found.append(self._receive(executor, action, number, rank, noun))
        return found

    # -- the hidden state --------------------------------------------------------------

    @staticmethod
    @takes("x")
    @gives("x", "graph", "result")
    def _forward(executor: Executor, action: Action, x: Payload | None = None) -> Any:
        """Run an F; on the last stage without the loss."""
        layer = _layer_of(executor)
        layer.passes_on = True
        try:
            return _forward(executor, action, x)
        finally:
            layer.passes_on = False

    @takes("result")
    @gives("hidden")
    def _spread(self, executor: Executor, action: Action, result: Payload) -> Hidden:
        """Run a SPREAD: send a hidden state, its labels and its weight."""
        k = action.microbatch
        objective = executor.batch.objective
        (states,) = result.arrays
        labels = _labels_of(objective, k, states, _num_words(executor))
        counts = max(1, np.count_nonzero(labels >= 0))
        if objective.loss.reduction == "sum":
            counts = 1
        seed = objective.shares[k] * objective.scale / counts
        for rank in self._ranks[:-1]:
            for number, array in enumerate((states, labels, np.array(seed))):
                executor.send(array, rank, self._tag(action, number))
        return Hidden(states, labels, seed)

    @gives("hidden")
    def _arrive(self, executor: Executor, action: Action) -> Pending:
        """Run an ARRIVE, which waits for nothing."""
        requests = []
        for number, noun in enumerate(("the hidden state", "the labels", "the weight")):
            place = (number, self._last, noun)
            requests.append(self._receive(executor, action, *place))

        def made(states: Array, labels: Array, seed: Array) -> Hidden:
            return Hidden(states, labels, seed.item())

        return Arriving(requests, made)

    # -- the first barrier -------------------------------------------------------------

    @takes("hidden")
    @gives("scores", "statistics")
    def _score(self, executor: Executor, action: Action, hidden: Hidden) -> Any:
        """Run an S."""
        layer = _layer_of(executor)
        weight = layer.weight.data
        bias = None if layer.bias is None else layer.bias.data
        pieces = scores_of(hidden, weight, bias, layer.first_word, self._num_pieces)
        arrays = [statistics_of(pieces)]
        if self._is_single(executor):
            arrays.append(products_of(pieces[0], weight))
        return (hidden, pieces), (hidden, arrays)

    @staticmethod
    def _is_single(executor: Executor) -> bool:
        return "SUM_T" not in executor.program.kinds

    @takes("statistics")
    @gives("totals", "g")
    def _exchange(
        self, executor: Executor, action: Action, statistics: tuple[Hidden, list[Array]]
    ) -> tuple[Pending, Pending | None]:
        """Run a SUM_S, which waits for nothing."""
        hidden, arrays = statistics
        own = executor.group.rank
        for rank in self._ranks:
            if rank != own:
                executor.send(arrays[0], rank, self._tag(action, 3))
        noun = "maxima and sums"
        known = self._from_all(executor, action, 3, arrays[0], noun)
        totals = Arriving(known, lambda *each: (totals_of(each), each))
        if not self._is_single(executor):
            return totals, None
        if own != self._last:
            executor.send(arrays[1], self._last, self._tag(action, 0))
            return totals, None
        noun = "products of hidden states"
        products = self._from_all(executor, action, 0, arrays[1], noun)

        def gradient(*each: Array) -> Payload:
            total, known = totals.wait()
            return Payload([sum_of_products(hidden, each, known, total)], [True])

        return totals, Arriving(products, gradient)

    # -- the second barrier ------------------------------------------------------------

    @takes("scores", "totals")
    @gives("part", "words dw", "scored")
    def _differentiate(
        self,
        executor: Executor,
        action: Action,
        scores: tuple[Hidden, list[Piece]],
        totals: tuple[Totals, Any],
    ) -> tuple[Array | None, None, None]:
        """Run a T, and note the loss on the last rank."""
        hidden, pieces = scores
        total, _ = totals
        layer = _layer_of(executor)
        slopes = slopes_of(hidden, pieces, total)
        gradients = of_weights(hidden, slopes)
        for parameter, gradient in zip((layer.weight, layer.bias), gradients):
            if parameter is not None:
                (leaf,) = parameter.leaves.values()
                leaf.grad = sum_of_gradients([leaf.grad, gradient])
        objective = executor.batch.objective
        if executor.group.rank == self._last:
            loss = total.losses(hidden.labels).sum()
            if objective.loss.reduction == "mean":
                loss /= max(1, np.count_nonzero(hidden.labels >= 0))
            objective.note(action.microbatch, float(loss))
        part = None
        if not self._is_single(executor):
            part = part_of_hidden(hidden, slopes, layer.weight.data)
        return part, None, None

    @takes("part")
    @gives("g")
    def _add_up(
        self, executor: Executor, action: Action, part: Array
    ) -> Pending | None:
        """Run a SUM_T, which waits for nothing."""
        if executor.group.rank != self._last:
            executor.send(part, self._last, self._tag(action, 0))
            return None
        noun = "a part of the gradient"
        parts = self._from_all(executor, action, 0, part, noun)
        return Arriving(parts, _added)


def _forward(executor: Executor, action: Action, x: Payload | None) -> Any:
    """Return the activations for the next stage, the graph and the hidden state."""
    stage = executor.stages[action.stage]
    if not stage.is_last:
        return (*core.forward(executor, action, x), None)
    k = action.microbatch
    received = x
    if received is None:
        received = executor.batch.input(k)
    executor.place.begin(k)
    result, graph = stage.forward(k, received)
    return None, graph, result


def _check_call(executor: Executor, action: Action) -> None:
    """Refuse a step that needs all scores on one rank."""
    _layer_of(executor).release()  # an evaluation may have failed
    objective = executor.batch.objective
    asked = ""
    if objective.is_given:
        asked = "forward_backward()"
    elif objective.where or objective.metrics:
        asked = "step(…) with outputs or metrics"
    if asked:
        raise ArgumentError(
            f"{asked} needs the scores of all words on one rank, but each rank has its "
            "words only; call evaluate() or predict(), which gather the layer."
        )


def _num_words(executor: Executor) -> int:
    return _layer_of(executor).weight.whole_shape[1]


def _labels_of(objective: Any, k: int, states: Array, num_words: int) -> Array:
    """Return the labels of a microbatch in one row, -1 for those that do not count."""
    (labels,) = objective.targets[k].arrays
    ignored = objective.loss.ignore_index
    if labels.dtype.kind not in "iu":
        raise not_labels("cross_entropy", labels)
    if labels.shape != states.shape[:-1]:
        raise ModelError(
            "unsupported",
            f"The labels of microbatch {k} have shape {labels.shape}, and the hidden "
            f"states {states.shape}; expected one label for each hidden state.",
        )
    row = labels.reshape(-1).astype(np.int64)
    check_range_of_labels("cross_entropy", row, num_words, ignored)
    if ignored is not None:
        row[row == ignored] = -1
    return row


def _added(*parts: Array) -> Payload:
    """Return the sum of the parts of a gradient, in pairs of ranks."""
    return Payload([sum_in_pairs(parts)], [True])
