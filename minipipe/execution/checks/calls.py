"""The collective calls of a pipeline: each first compares the call and its arguments on
all ranks.

The first rank sends its values to all others, and no rank waits for all. Values that
only other ranks know are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.channel import BroadcastChannel
from minipipe.core.comm.process_group import OwnTag
from minipipe.core.execution.stage import Stage
from minipipe.errors import (
    ArgumentError,
    Code,
    MessageError,
    ModelError,
    ScheduleError,
    warn_caller,
)
from minipipe.execution.checks.comparison import (
    check_marks,
    form_of_numbers,
    marks_of,
    numbers_that_came,
)
from minipipe.execution.checks.trained import Trained
from minipipe.execution.checks.updates import Updates
from minipipe.nn import Module, Parameter
from minipipe.schedules import ActionKind, Schedule

_NAMES = (
    *(
        "step",
        "step(accumulate=True)",
        "forward_backward",
        "forward_backward(accumulate=True)",
        "evaluate",
        "predict",
    ),
    *(
        "state_dict",
        "timeline",
        "measure_memory",
        "measure_costs",
        "clip_grad_norm",
        "unscale_gradients",
        "sharded",
    ),
    "run",
)
# Those that compute gradients.
_TRAINING = {
    name
    for name in _NAMES
    if name.startswith(("step", "forward_backward", "measure", "run"))
}


_NO_BATCH = (0, 0, 0)


class Calls:
    """Counts the collective calls of one pipeline, so that no rank takes messages of
    another call for its own.

    Parameters
    ----------
    group : ProcessGroup
    first_rank : int
        The rank that the others follow.
    tensor : ProcessGroup, optional
        The tensor-parallel ranks; each is in a group like this one and makes the same
        calls.

    Attributes
    ----------
    count : int
        How many calls were begun.
    updates : Updates or None
        What optimisers did since the pipeline was made, if that is compared.
    is_alone : bool
        Whether there is no other rank.
    compared : sequence of str
        The names of the numbers that were compared last.
    trained : Trained or None
        Compares which parameters are trained, in every call that computes gradients.

    Examples
    --------
    >>> from minipipe import spawn
    >>> try:
    ...     spawn(
    ...         lambda group: Calls(group, first_rank=0).begin(
    ...             ("step", "evaluate")[group.rank]
    ...         ),
    ...         num_ranks=2,
    ...     )
    ... except MessageError as error:
    ...     print(str(error).partition(".")[0])
    Rank 1 is in evaluate(), call 1 of pipeline 1, but rank 0 in step(), call 1 of pipeline 1
    """

    def __init__(
        self, group: ProcessGroup, first_rank: int, tensor: ProcessGroup | None = None
    ) -> None:
        self.count = 0
        self.updates: Updates | None = None
        self.trained: Trained | None = None
        self._roots = [(tensor, 0)] if tensor else []
        self._roots += [(group, first_rank)]
        self.is_alone = all(ranks.size == 1 for ranks, _ in self._roots)
        self._pipeline = group.next_serial()
        self._part = Part()
        self._channels: dict[tuple[int, ProcessGroup, int], BroadcastChannel] = {}
        self.compared: Sequence[str] = ()

    def begin(
        self,
        call: str,
        given: Mapping[str, float | None] | None = None,
        of_batch: tuple[int, ...] = _NO_BATCH,
    ) -> tuple[int, ...]:
        """Return what the first rank gives of the batch; check that all ranks begin the
        same call of one pipeline.

        Collective. 8 bytes for each number travel.

        Parameters
        ----------
        call : str
        given : mapping of str to number, optional
            Arguments of this call, which must be the same on all ranks, under the same
            names; None to skip them.
        of_batch : (int, int, int)
            Its size, layout and form (``samples.py``); known to the first rank.

        Raises
        ------
        MessageError
            Code ``disagreement``, naming both calls.
        RankError
            Code ``disagreement``, naming the difference from the first rank.
        """
        self.count += 1
        if self.is_alone:
            self._roots[-1][0].check_open()
            return of_batch
        values = {**(given or {}), **(self.updates.marks() if self.updates else {})}
        return self.agree(call, list(values), values.values(), of_batch)

    def agree(
        self,
        call: str,
        names: Sequence[str],
        values: Iterable[float | None],
        of_batch: tuple[int, ...],
    ) -> tuple[int, ...]:
        """Compare a call that was counted, as :meth:`begin` does. Collective.

        Parameters
        ----------
        call : str
        names : sequence of str
        values : iterable of number
            By name.
        of_batch : (int, int, int)
        """
        mine = (
            self._pipeline,
            self.count,
            _NAMES.index(call),
            *of_batch,
            *marks_of(values),
        )
        first: Sequence[float] = mine
        self.compared = names
        self._part.call = call
        for group, root in self._roots:
            key = root, group, len(mine)
            channel = self._channels.get(key) or self._new_channel(*key)
            own = form_of_numbers(len(mine)).pack(*mine)
            if group.rank == root:
                channel.array.data.cast("B")[:] = own
                channel.run()
                first = mine
                continue
            came = channel.run()
            if came is channel.array and came.tobytes() == own:
                first = mine
                continue
            first = numbers_that_came(came)
            # between is the batch, which others may not know
            if first[:3] != mine[:3] or first[6:] != mine[6:]:
                self._compare((group.name(), group.name(root)), names, (mine, first))
        return tuple(map(int, first[3:6]))

    def _new_channel(
        self, root: int, group: ProcessGroup, count: int
    ) -> BroadcastChannel:
        channel = BroadcastChannel(
            group, (2 * count,), np.uint32, root, OwnTag.BROADCAST, self._part
        )
        self._channels[root, group, count] = channel
        return channel

    def _compare(
        self,
        ranks: tuple[int, int],
        names: Sequence[str],
        numbers: tuple[Sequence[float], Sequence[float]],
    ) -> None:
        """Compare the numbers of this rank and of the first one, which are not all
        equal.
        """
        mine, first = numbers
        if first[:3] != mine[:3]:
            raise MessageError(
                "disagreement",
                f"Rank {ranks[0]} is in {_described(*mine[:3])}, but rank {ranks[1]} "
                f"in {_described(*first[:3])}. Every rank must make the same calls of "
                "the same pipelines in the same order.",
            )
        check_marks(
            ranks,
            names,
            (mine[6:], first[6:]),
            self.updates.words if self.updates else dict,
        )

    def check_trained(self, call: str) -> None:
        """Compare which parameters are trained, if the call computes gradients.
        Collective among ranks that share some.

        Raises
        ------
        RankError
            Code ``disagreement``.
        """
        if self.trained is not None and call in _TRAINING:
            self.trained.check()


class Part:
    """Describes what other ranks send in a collective call, for messages of channels
    that serve all calls.

    Attributes
    ----------
    call : str
        The call that runs.
    """

    call = ""

    def __call__(self) -> str:
        return part_of(self.call)


def part_of(call: str) -> str:
    """Name the part of another rank in a collective call, for the message of a timeout.

    Examples
    --------
    >>> part_of("step")
    'its part of pipeline.step(), which every rank must call,'
    """
    return f"its part of pipeline.{_called(call)}, which every rank must call,"


def _described(pipeline: float = 0, count: float = 0, call: float = -1) -> str:
    if call not in range(len(_NAMES)):
        return "a broadcast that no other rank takes part in"
    return f"{_called(_NAMES[int(call)])}, call {count:.0f} of pipeline {pipeline:.0f}"


def _called(name: str) -> str:
    return name if name.endswith(")") else f"{name}()"


# -- refused, or warned of -------------------------------------------------------------


def check_loss(loss: Any) -> Any:
    """Return the loss; refuse one that is not a function, or has parameters, which no
    stage would own.
    """
    if not (loss is None or callable(loss)) or isinstance(loss, type):
        raise ModelError(
            "loss",
            f"The loss is {loss!r}; expected a function or an object such as "
            "nn.MSELoss().",
        )
    if isinstance(loss, Module) and loss.num_parameters:
        raise ModelError(
            "loss",
            "The loss has parameters of its own; make them a layer of the model.",
        )
    return loss


def check_backward(schedule: Schedule, call: str) -> None:
    """Refuse to leave gradients with a schedule that only predicts, or that updates
    weights itself. Local.
    """
    if ActionKind.UPDATE in schedule.kinds:
        raise ScheduleError.of(
            Code.UNSUPPORTED,
            f"{schedule.name} updates weights itself, while other microbatches are in "
            f"flight; {call}() would read, or leave, the gradients of a whole batch "
            "before any update. Train with pipeline.run(batches, optimiser).",
        )
    if schedule.is_forward_only and not schedule.frozen:
        raise ScheduleError.of(
            Code.UNSUPPORTED,
            f"{schedule.name} has no backward, which {call}() needs: "
            "choose another schedule to train, or evaluate() and predict().",
        )


def check_inputs_require_grad(is_asked: bool) -> None:
    """Refuse to return gradients of the inputs that were not requested. Local."""
    if not is_asked:
        raise ArgumentError(
            "Only Pipeline(…, inputs_require_grad=True) keeps gradients of the inputs.",
        )


def check_frozen(stage: Stage) -> None:
    """Refuse parameters that were frozen when the plan was made, and are to be trained
    now. Local.
    """
    if stage.is_frozen and any(
        parameter.requires_grad for parameter in stage.parameters.values()
    ):
        raise ModelError(
            "frozen",
            f"All parameters of stage {stage.index} were frozen when the pipeline was "
            "made, so its schedule has no W; now some of them require gradients. Make "
            "another pipeline, with these values: "
            "model.load_state_dict(pipeline.state_dict()), model.freeze(False), "
            "Pipeline(model, …).",
        )


def warn_of_another_order(schedule: Schedule, group: ProcessGroup) -> None:
    """Warn, on rank 0, of a schedule whose gradients may differ in the last bits from
    one process.
    """
    if not schedule.is_reproducible and group.rank == 0:
        warn_caller(
            f"{schedule.name} adds gradients of some stage in another order than "
            "ascending microbatches; it runs as written, but its gradients may differ "
            "in the last bits from one process."
        )


def warn_of_missing_gradients(parameters: Mapping[str, Parameter]) -> None:
    """Warn of parameters of this rank that got no gradient: unused, or not connected to
    the loss. Local.
    """
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.grad is None and parameter.requires_grad
    ]
    if names:
        warn_caller(
            f"The first step left no gradient for {', '.join(names)}. Either no "
            "layer uses them, or a layer after "
            "them breaks the graph, as Tensor(np.maximum(x.numpy(), 0)) does; "
            "compute with minipipe's own operations."
        )
