"""Checks for tests and coursework: correct gradients, a pipelined step with the same
bits as one process, and a verdict on the differences of two runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minipipe.autograd.watch import watch_everything
from minipipe.comm import spawn
from minipipe.core.autograd.backend import module_for, to_numpy
from minipipe.core.autograd.modes import random_key
from minipipe.core.comm.host import limit_blas_threads
from minipipe.core.schedules.action_table import Schedule
from minipipe.core.tensor import Tensor
from minipipe.execution.objective import Loss, added, shares
from minipipe.execution.samples import samples, sizes_of
from minipipe.hints import names_of
from minipipe.nn import Parameter, Sequential, auxiliary_losses
from minipipe.parallel.pairwise import sum_in_pairs
from minipipe.pipeline import Pipeline
from minipipe.referee import Difference, Report, Variation, Verdict, referee

__all__ = [
    "Difference",
    "Report",
    "StepResult",
    "Variation",
    "Verdict",
    "blocks_of",
    "check_gradients",
    "check_independent_of_microbatches",
    "check_same_as_one_process",
    "one_process_step",
    "referee",
    "same_bits",
]
__getattr__ = names_of(__name__, __all__)


def check_gradients(
    function: Callable[..., Tensor],
    *arrays: np.ndarray,
    epsilon: float = 1e-5,
    tolerance: float = 1e-8,
) -> None:
    """Compare the gradients of a function with central differences, in float64.

    Parameters
    ----------
    function : function
        Takes one tensor for each array and returns a tensor. Keep its inputs away from
        kinks (0, for ReLU).
    *arrays : array
        Where to check, of any shapes; each is converted to float64.
    epsilon : float
        How far each element is moved, up and down.
    tolerance : float
        The largest error allowed, relative to the largest gradient (or to 1, if that is
        larger).

    Raises
    ------
    AssertionError
        If a gradient is wrong; the message names the input, the element and both
        values.

    Examples
    --------
    >>> check_gradients(lambda x: x * x, np.array([1.0, -2.0]))
    """
    points = [np.array(array, dtype=np.float64) for array in arrays]
    tensors = [Tensor(point, requires_grad=True) for point in points]
    result = function(*tensors)
    assert isinstance(result, Tensor), (
        f"the function returns {type(result).__name__}; expected a Tensor"
    )
    weights = np.random.default_rng(0).standard_normal(result.shape)
    result.backward(weights)

    def weighted() -> float:
        return float((function(*map(Tensor, points)).numpy() * weights).sum())

    for number, (point, tensor) in enumerate(zip(points, tensors)):
        expected = _differences(weighted, point, epsilon)
        gradient = np.zeros_like(point)
        if tensor.grad is not None:
            gradient = np.asarray(tensor.grad)
        assert gradient.shape == point.shape, (
            f"input {number}: the gradient has shape {gradient.shape}, the input "
            f"{point.shape}"
        )
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        error = np.abs(gradient - expected) / scale
        if not error.max(initial=0.0) <= tolerance:
            worst = np.unravel_index(np.argmax(error), error.shape)
            place = tuple(map(int, worst))
            values = f"the gradient is {float(gradient[worst])!r}"
            values += f", differences give {float(expected[worst])!r}"
            errors = f"error {error.max():.1e}, allowed {tolerance:.1e}"
            message = f"input {number}, element {place}: {values} ({errors})"
            raise AssertionError(message)


def _differences(
    evaluate: Callable[[], float], point: np.ndarray, epsilon: float
) -> np.ndarray:
    """Move each element of ``point`` up and down in place, and take the slope."""
    slope = np.zeros_like(point)
    for place in np.ndindex(point.shape):
        value = point[place]
        point[place] = value + epsilon
        up = evaluate()
        point[place] = value - epsilon
        down = evaluate()
        point[place] = value
        slope[place] = (up - down) / (2 * epsilon)
    return slope


class StepResult(NamedTuple):
    """The loss of a batch, and the gradient of every parameter, by its name in the
    model.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import nn
    >>> model, x = nn.Sequential(nn.Linear(2, 1)), np.ones((4, 2), np.float32)
    >>> result = one_process_step(model, nn.MSELoss(), x, x[:, :1], num_microbatches=2)
    >>> {name: gradient.shape for name, gradient in result.gradients.items()}
    {'0.weight': (2, 1), '0.bias': (1,)}
    """

    loss: float
    gradients: dict[str, np.ndarray | None]


def one_process_step(
    model: Sequential,
    loss: Loss,
    inputs: Any,
    targets: Any,
    num_microbatches: int,
    seed: int = 0,
    step: int = 0,
    loss_weight: Callable[[Any], float] | None = None,
    blocks: Sequence[Sequence[int]] | None = None,
) -> StepResult:
    """Accumulate the gradients of a batch's microbatches in ascending order, in one
    process and with plain autograd.

    Every pipelined step must equal this result, bit for bit. Compute it with one BLAS
    thread.

    Parameters
    ----------
    model : Sequential
    loss : function
        ``(outputs, targets) -> Tensor`` with one element.
    inputs, targets : array of shape (samples, ...)
    num_microbatches : int
    seed, step : int
        They determine the random numbers in the model, such as Dropout's. A pipeline
        counts its steps from 0.
    loss_weight : function, optional
        The pipeline's ``loss_weight``.
    blocks : sequence of sequence of int, optional
        Microbatches whose gradients are added separately, and then in pairs: the
        microbatches of each replica.

    Examples
    --------
    With weight 1 and bias 0 the outputs are 2, 4 and 6, which should be 0: the loss is
    (4 + 16 + 36) / 3, and the gradient of the bias twice the mean output.

    >>> from minipipe import nn
    >>> model = nn.Sequential(
    ...     nn.Linear(1, 1, initialiser=nn.initialisers.constant(1.0), dtype=np.float64)
    ... )
    >>> x = np.array([[2.0], [4.0], [6.0]])
    >>> result = one_process_step(
    ...     model, nn.MSELoss(), x, np.zeros((3, 1)), num_microbatches=3
    ... )
    >>> round(result.loss, 3), result.gradients["0.bias"].round(3)
    (18.667, array([8.]))
    """
    x = samples(inputs, "inputs")
    y = samples(targets, "targets")
    sizes = sizes_of(x.num_samples, num_microbatches, x, y)
    inputs_of = x.cut(sizes)
    targets_of = y.cut(sizes)
    losses = [0.0] * len(sizes)
    weights = shares(sizes, loss, loss_weight, targets_of)
    leaves = [leaf for each in model.parameters() for leaf in each.leaves.values()]
    by_block = []
    for block in blocks or [range(num_microbatches)]:
        model.zero_grad()
        for k in block:
            with random_key(seed, step, k), auxiliary_losses() as extra:
                outputs = model(_as_tensors(inputs_of[k]))
                value = extra.added_to(loss(outputs, _as_tensors(targets_of[k])))
            if value.requires_grad:
                value.backward(weights[k])
            losses[k] = weights[k] * value.item()
        by_block.append([leaf.grad for leaf in leaves])
    for leaf, gradients in zip(leaves, zip(*by_block)):
        leaf.grad = sum_in_pairs(gradients)
    return StepResult(added(losses), _gradients(model.named_parameters()))


def _as_tensors(samples_of_one: Any) -> Any:
    return samples_of_one.rebuilt(list(map(Tensor, samples_of_one.arrays)))


def _gradients(
    named_parameters: Iterable[tuple[str, Parameter]],
) -> dict[str, np.ndarray | None]:
    gradients = {}
    for name, parameter in named_parameters:
        gradient = parameter.grad
        gradients[name] = None if gradient is None else to_numpy(gradient)
    return gradients


def check_same_as_one_process(
    model: Sequential,
    loss: Loss,
    inputs: Any,
    targets: Any,
    schedule: Schedule,
    seed: int = 0,
    partition: list[range] | None = None,
    recompute: bool = False,
    device: str | ModuleType = "cpu",
) -> None:
    """Run one pipelined step on thread ranks, and compare loss and gradients with one
    process, bit for bit.

    Parameters
    ----------
    model : Sequential
        A description; it is not changed.
    loss : function
    inputs, targets : array of shape (samples, ...)
    schedule : Schedule
        It determines the numbers of ranks, stages and microbatches.
    seed : int
    partition : list of range, optional
    recompute : bool
        Whether the stages of the pipeline compute their activations again.
    device : str or module
        As for :class:`minipipe.Pipeline`; both use it.

    Raises
    ------
    AssertionError
        If a bit differs; the message names the parameter.

    Examples
    --------
    >>> from minipipe import nn, schedules
    >>> model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> x = np.ones((6, 2), np.float32)
    >>> check_same_as_one_process(
    ...     model, nn.MSELoss(), x, x[:, :1], schedules.zb_h1(2, 3)
    ... )
    """

    def pipelined(group: Any) -> StepResult:
        watch_everything()
        pipeline = Pipeline(
            model,
            group,
            loss=loss,
            schedule=schedule,
            partition=partition,
            recompute=recompute,
            seed=seed,
            device=device,
            check_finite="off",
        )
        value = pipeline.step(inputs, targets)
        return StepResult(value, _gradients(pipeline.named_parameters()))

    with limit_blas_threads(1):
        twin = copy.deepcopy(model).tied()
        twin.to(device).initialise(seed)
        xp = module_for(device)
        x = samples(inputs, "inputs", xp=xp)
        y = samples(targets, "targets", xp=xp)
        blocks = blocks_of(schedule)
        count = schedule.num_microbatches
        expected = one_process_step(twin, loss, x, y, count, seed, blocks=blocks)
    _check_alike(spawn(pipelined, schedule.num_ranks), expected)


def blocks_of(schedule: Schedule) -> list[list[int]]:
    """Return by replica the microbatches whose gradients it adds, if they are the same
    on all of its stages.

    Examples
    --------
    >>> from minipipe import schedules
    >>> blocks_of(schedules.gpipe(2, 3)), blocks_of(schedules.chimera(2, 4))
    ([[0, 1, 2]], [[0, 1], [2, 3]])
    """
    by_stage = []
    for stage in range(schedule.num_stages):
        blocks: dict[int, list[int]] = {rank: [] for rank in schedule.ranks_of(stage)}
        for k in range(schedule.num_microbatches):
            blocks[schedule.rank_of(stage, k)].append(k)
        by_stage.append(list(blocks.values()))
    assert all(blocks == by_stage[0] for blocks in by_stage), (
        "the replicas of some stages have different microbatches"
    )
    return by_stage[0]


def check_independent_of_microbatches(
    pipeline: Pipeline,
    inputs: Any,
    targets: Any,
    counts: Iterable[int] = (1, 2, 4),
    tolerance: float = 1e-4,
) -> None:
    """Check that the loss of a batch and its gradients do not depend on the number of
    microbatches, up to rounding.

    Collective; the pipeline is not changed. They depend on it if the loss is a mean
    over elements other than samples and has no ``weight``, or if a layer computes
    statistics of a microbatch. Dropout, similar layers and auxiliary losses are left
    out.

    Parameters
    ----------
    pipeline : Pipeline
    inputs, targets : array of shape (samples, ...), or pytree
    counts : iterable of int
        Numbers of microbatches, each at most the number of samples.
    tolerance : float
        The largest difference that counts as rounding, relative to the largest value.

    Raises
    ------
    AssertionError
        The message names a loss or gradient that differs, by how much, and a possible
        reason.

    Examples
    --------
    >>> from minipipe import init_process_group, nn
    >>> with init_process_group() as group:
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss()
    ...     )
    ...     check_independent_of_microbatches(
    ...         pipeline, np.ones((8, 2)), np.ones((8, 1))
    ...     )
    """
    state = pipeline.state_dict()
    first = None
    for count in counts:
        twin = Pipeline(
            pipeline.model,
            pipeline.group,
            **dict(zip(("loss", "loss_weight"), pipeline._objective.args)),
            schedule="gpipe",
            num_microbatches=count,
            device=pipeline._xp,
            check_finite="off",
        ).eval()
        twin.load_state_dict(state)
        values = {"the loss": np.array(twin.step(inputs, targets))}
        gradients = _gradients(twin.named_parameters())
        for name, value in gradients.items():
            if value is not None:
                values[f"the gradient of {name}"] = value
        first = first or (count, values)
        differences = {}
        for name, value in values.items():
            differences[name] = _relative_difference(value, first[1][name])
        name = max(differences, key=differences.__getitem__)
        # so that all ranks raise
        worst = float(pipeline.group.all_reduce(np.array(differences[name]), "max"))
        if differences[name] != worst:
            name = "a gradient on another rank"
        assert worst <= tolerance, (
            f"{name} depends on the number of microbatches: with {count} it differs by "
            f"{worst:.1e} of its largest value from the one with {first[0]}. If the "
            "loss is a mean over tokens, or over a mask, give it a method "
            "weight(targets), or pass loss_weight=. If a layer computes statistics "
            "over its samples, compute them within each sample."
        )


def _relative_difference(value: np.ndarray, expected: np.ndarray) -> float:
    largest = float(np.abs(expected).max()) or 1.0
    difference = float(np.abs(value - expected).max()) / largest
    return np.inf if np.isnan(difference) else difference


def _check_alike(by_rank: list[StepResult], expected: StepResult) -> None:
    gradients: dict[str, np.ndarray | None] = {}
    for result in by_rank:
        gradients.update(result.gradients)
    assert gradients.keys() == expected.gradients.keys(), (
        f"the ranks have the parameters {sorted(gradients)}; one process has "
        f"{sorted(expected.gradients)}"
    )
    for name, gradient in gradients.items():
        assert same_bits(gradient, expected.gradients[name]), (
            f"the gradient of {name} differs from one process"
        )
    for rank, result in enumerate(by_rank):
        assert result.loss == expected.loss, (
            f"the loss on rank {rank} is {result.loss!r}, in one process "
            f"{expected.loss!r}"
        )


def same_bits(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether two arrays have the same dtype, shape and bits, or are both None.

    Examples
    --------
    >>> (
    ...     same_bits(np.array([0.1 + 0.2]), np.array([0.3])),
    ...     same_bits(np.array([0.0]), np.array([-0.0])),
    ... )
    (False, False)
    """
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
