"""The pipeline: a model partitioned into stages, over the ranks of a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Unpack,
    overload,
)

import numpy as np

from minipipe.comm import Grid, ProcessGroup
from minipipe.core.autograd import backend
from minipipe.core.execution.executor import Executor
from minipipe.core.specs import COUNT
from minipipe.errors import not_copyable, warn_caller
from minipipe.execution import BatchLoss, PendingLoss
from minipipe.execution.batch import Batch
from minipipe.execution.building import build_stages
from minipipe.execution.checks.calls import (
    check_inputs_require_grad,
    warn_of_another_order,
)
from minipipe.execution.checks.finite import FiniteCheck, WhenNotFinite
from minipipe.execution.objective import BatchObjective, GivenGradient, Metric, Where
from minipipe.execution.plan import Plan
from minipipe.execution.row_handlers import handlers_of, journal
from minipipe.execution.samples import copied, read_ahead
from minipipe.hints import FamiliarPipeline, with_hints
from minipipe.nn import Module, Parameter, Sequential
from minipipe.pipeline.arguments import agreed
from minipipe.pipeline.compiling import Compiling
from minipipe.pipeline.framing import Framing
from minipipe.pipeline.intake import Intake, Needs
from minipipe.pipeline.options import (
    Asked,
    ModulesOptions,
    PipelineOptions,
    in_full,
    showing,
)
from minipipe.pipeline.parameters import AllParameters
from minipipe.pipeline.planning import Stages, objective_of
from minipipe.pipeline.predicting import Predictors
from minipipe.pipeline.steps import Steps
from minipipe.pipeline.training_call import TrainingCall
from minipipe.schedules import ActionKind, Program, Schedule

if TYPE_CHECKING:
    from minipipe.execution.sums import GradientSums
    from minipipe.optim import LossScale, Optimiser
    from minipipe.pipeline.running import RunLosses, Runs
    from minipipe.schedules import Costs, Timeline


class Pipeline(FamiliarPipeline):
    """A model partitioned into stages over the ranks of a group: a plan, a group and
    stages. Making one is collective.

    Every rank describes the same model; only the layers of its own stages take memory.
    They are copied out of ``model``, which is not changed.

    Parameters
    ----------
    model : Sequential or Plan
        The layers; or a plan, which has the model and replaces ``options``.
    group : ProcessGroup or Grid
        A :class:`minipipe.Grid` sets the replicas, and divides each layer among its
        tensor-parallel ranks, as :func:`minipipe.nn.parallelise` does: results then
        agree with the plain model within rounding. All ranks of the mesh make the same
        calls, and tensor-parallel ranks pass the same batch.
    loss : function, optional
        ``(outputs, targets) -> Tensor`` with one element: a mean over the first axis,
        or by ``loss_weight``; or a sum, with the attribute ``reduction = "sum"``. Not
        needed by ``predict`` and ``forward_backward``.
    seed : int
        First values come from it and the parameter's name, whatever the partition.
    dropout_seed : int, optional
        Dropout and the like draw from it; by default from ``seed``. Replicas of a
        model, as in data parallelism, have the same seed and different dropout seeds:
        equal first values, different masks.
    recompute : bool
        Whether a stage keeps only its input between forward and backward, and computes
        its activations again: less memory, one more forward, the same bits.
        :class:`minipipe.nn.Recompute` does it for single layers.
    stack_weight_gradients : bool
        Whether neighbouring W of a stage are computed as one product for each weight.
        This is faster, but the last bits differ from one process. All W are held until
        the last has run; in a timeline they share their time equally. ``measure_costs``
        measures each W alone.
    loss_weight : function, optional
        ``targets -> number``: the number of items in the mean of a microbatch, such as
        the number of tokens that count. By default the loss' own ``weight(targets)``
        or, without one, the number of samples. The loss of the batch is the mean by
        these weights.
    device : str or module
        ``"cpu"``, or ``"gpu"``, which is also called ``"cuda"``: parameters,
        activations and the optimiser's state stay on a GPU, one for each rank of a
        machine, or shared if there are more ranks than GPUs. Or an array module to
        compute with. See also :func:`minipipe.gpu.allow_tf32`.
    check_finite : {"stop", "warn", "off"}
        The reaction of ``step`` to a loss or a gradient that is infinite or not a
        number. By default it stops on every rank, before any of them updates a
        parameter, with the same :class:`minipipe.errors.NotFiniteError`: it runs the
        step once more, checks every value between two layers, and names the layer,
        microbatch, rank and action of the first such value. ``"warn"`` warns on rank 0
        and continues. If a call does not wait for the loss, the next step reports the
        error, one update late, and names no layer (for the last step, read its loss).
        Gradients are not checked if they may overflow and a loss scale handles that: in
        models with float16 parameters, and if ``scale`` is above 1. ``evaluate`` and
        ``predict`` check nothing, since they change nothing.
    check_agreement : bool
        Whether to compare everything that changes numbers, now and at the beginning of
        every collective call: see Notes. In any case, all ranks are checked to make the
        same calls, in the same mode, for the same metrics, and with equal values of the
        arguments that determine messages.
    compile : bool or "where-possible"
        Whether steps, evaluations and predictions run as a printed Python program, with
        the same bits and less work in Python: see Notes. ``True`` refuses stages that
        cannot be compiled; ``"where-possible"`` runs them eagerly.
    **options
        Options of :class:`Plan`: ``schedule`` (``"1f1b"`` by default),
        ``num_microbatches``, ``chunks_per_rank``, ``partition``, ``layer_costs``,
        ``inputs_require_grad``, ``replicas`` and ``gradient_blocks``. With
        ``partition="measured"`` rank 0 first measures each layer with the batch
        ``sample=(inputs, targets)``, which only it needs, and all ranks use the
        partition that balances the times. With ``schedule="auto"`` it also compares
        schedules, chunks, numbers of microbatches and recomputation, as
        :func:`minipipe.advise` does; a benchmark then runs the best choices within
        ``memory_limit`` (``"500 MB"``, with the state of ``optimiser``) on all ranks,
        for 40 seconds, and all ranks use the fastest. Rank 0 reports the start and the
        choice on standard error; to a terminal, or with ``progress=True``, it also
        reports the measurements; with ``progress=False`` nothing. ``print(pipeline)``
        shows the choice, and ``pipeline.advice`` the alternatives. Explicit options are
        respected. ``partition="vocabulary"`` divides the last layer, an ``nn.Linear``
        to the words of a vocabulary, by words over all ranks, with its cross-entropy;
        ``"vocabulary-one-barrier"`` holds one microbatch less and sends more: see
        ``minipipe/execution/vocabulary.py``.

    Attributes
    ----------
    plan : Plan
        The layers of each stage, the rank of each stage, and the lowered schedule.
    model : Sequential
        The model; on a mesh with tensor-parallel ranks, the divided one.
    group : ProcessGroup
        The ranks of all stages and replicas.
    grid : Grid or None
    schedule : Schedule
        The computations that ``step`` runs.
    partition : list of range
    seed, dropout_seed : int
    num_steps : int
        The number of training steps taken. Dropout and the like draw from the dropout
        seed and this number. May be set, to the same number on every rank.
    measures_memory : bool
        Whether ``step`` measures the bytes held after each action. Slow; off by
        default. May be set.

    Raises
    ------
    RankError, PartitionError, ScheduleError, ModelError
        The message names the argument, the expected value, and a fix. RankError with
        code ``disagreement``, when ranks run different programs.

    Notes
    -----
    Other attributes cannot be set. For another seed, loss or schedule make another
    pipeline, with the values of this one (``load_state_dict``).

    With ``compile=True`` the first batch of a form runs eagerly, the second one is
    recorded, and from then on this rank runs one program of NumPy calls, which
    :meth:`source` prints. The program is traced once, and holds for the shapes, dtypes,
    mode and attributes of layers that it was recorded with. All of them are compared
    before each step; a change makes a new program, and a step that is recorded. Layers
    and losses of minipipe can be compiled. A custom one takes part with the class
    attribute ``is_compilable = True``, a promise: its forward computes with tensors,
    depends on its input, parameters and attributes alone, and reads no values. A stage
    that breaks it is refused, with its layer and line. Steps that ask for metrics or
    outputs, accumulate or are watched run eagerly; :meth:`compile_report` tells. A run
    with updates inside records its first microbatches, and computes the others
    compiled. Compiled and eager ranks understand each other, and a rank whose program
    no longer holds changes nothing for others.

    When the pipeline is made, and before an argument has any effect, ranks compare: all
    arguments except ``sample`` (arguments that determine messages even with
    ``check_agreement=False``); the model with its layers' attributes and functions, the
    loss and ``loss_weight`` (see :mod:`minipipe.execution.checks.description`); the
    versions of minipipe, Python and NumPy, and the code of minipipe and of the main
    script. Then they compare the actions of the schedule, the partition, and the first
    values of all parameters.

    In every call that computes gradients they compare which parameters are trained,
    among ranks that have the same ones. In every collective call they compare: the
    mode, the scale, the maximal norm for clipping; some elements of the batch, if ranks
    have one that they do not need, and its seed, epoch, size and start, if
    :func:`minipipe.data.batches` drew it; ``num_steps``, the argument of
    ``load_state_dict``, and whether gradients were cleared; and the optimisers' steps
    with their class, numbers and age
    (:class:`minipipe.execution.checks.updates.Updates`).

    They do not compare: arguments of one rank alone, such as the targets; values and
    gradients that are changed by hand; random numbers of NumPy; the environment.

    Examples
    --------
    >>> import numpy as np
    >>> from minipipe import Pipeline, nn, optim, spawn
    >>> def train(group):
    ...     model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
    ...     optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
    ...     x = np.ones((8, 4), dtype=np.float32)
    ...     for _ in range(50):
    ...         loss = pipeline.step(x, x[:, :1])
    ...         optimiser.step()
    ...     return round(loss, 4)
    >>> spawn(train, num_ranks=2)
    [0.0, 0.0]
    """

    __slots__ = (
        "__weakref__",
        "_compiling",
        "_executor",
        "_framing",
        "_grid",
        "_group",
        "_intake",
        "_is_training",
        "_objective",
        "_parameters",
        "_plan",
        "_predictors",
        "_runs",
        "_seeds",
        "_stages",
        "_steps",
        "_sums",
        "_trainer",
        "_xp",
        "measures_memory",
        "num_steps",
    )

    # The seam of ``minipipe advise`` and ``export``: sees the arguments of each
    # pipeline of a program, and its steps.
    watcher: ClassVar[Any] = None

    @with_hints
    @showing(PipelineOptions, Plan)
    def __init__(
        self,
        model: Sequential | Plan,
        group: ProcessGroup | Grid,
        **options: Unpack[PipelineOptions],
    ) -> None:
        given: Any = model  # or modules, from from_modules()
        own = in_full(options)
        if self.watcher is not None:
            given, own = self.watcher.begin(self, given, own)
        plan, group, grid, recompute, compares = agreed(given, group, own, Pipeline)
        self._plan = plan
        self._group = group
        self._grid = grid
        self._seeds = own["seed"], own["dropout_seed"]
        self._objective = objective_of(plan, own["loss"], own["loss_weight"], grid)
        warn_of_another_order(plan.schedule, grid.group if grid else group)
        self._xp = xp = backend.module_for(own["device"], group.local_rank)
        self._intake = Intake(plan, group, xp, self.dropout_seed, compares, grid)
        self.num_steps = 0
        self.measures_memory = False
        self._stages = build_stages(plan, group.rank, self.seed, recompute, xp)
        stacks = own["stack_weight_gradients"]
        self._compiling = Compiling(own["compile"], plan, stacks)
        self._is_training = plan.model.is_training
        self._assemble(compares, own["check_finite"], stacks)

    def _assemble(
        self, compares: bool, check_finite: WhenNotFinite, stack_weight_gradients: bool
    ) -> None:
        """Make the executors of all calls, and their handlers."""
        plan, group, grid = self._plan, self._group, self._grid
        pending = deque[PendingLoss]()  # losses of steps that did not wait for them
        self._parameters = AllParameters(
            plan, group, self._intake.calls, self._stages, compares, grid
        )
        self._executor = partial(
            Executor,
            stages=self._stages,
            group=group,
            xp=self._xp,
            handlers=handlers_of((), plan.is_half),
            observers=journal(),
        )
        self._sums = self._gradient_sums()
        finite = FiniteCheck(check_finite, plan, self._stages, group, self._xp, grid)
        self._framing = Framing(
            plan,
            group,
            self._intake,
            self._parameters,
            self._sums,
            finite,
            pending,
            gathers_stages=grid is not None and grid.fully_sharded == "stages",
        )
        self._predictors = Predictors(self._framing, self._executor, self._compiling)
        made = partial(self._executor, run_schedule=self._compiling.compiler("step"))
        self._trainer = self._framing.trainer(made, stack_weight_gradients)
        self._steps = Steps(
            plan.schedule, self._trainer, self._framing, self._compiling, pending
        )
        self._runs: Runs | None = None
        if ActionKind.UPDATE in plan.schedule.kinds:
            from minipipe.pipeline.running import Runs

            compiled = self._compiling.stages(self._stages)
            how = self._executor, self._objective, check_finite, compiled
            self._runs = Runs(plan, group, self._framing, self._intake, *how)

    def _gradient_sums(self) -> GradientSums | None:
        """Return what sums gradients by blocks; None for a single block."""
        if self._plan.gradient_blocks == 1:
            return None
        from minipipe.execution.sums import GradientSums

        return GradientSums(self._plan, self._stages, self._group, self._xp)

    @classmethod
    @showing(ModulesOptions, Plan)
    def from_modules(
        cls,
        modules: Sequence[Module],
        group: ProcessGroup | Grid,
        *,
        schedule: str | Path | Schedule | Program | None = None,
        **options: Unpack[ModulesOptions],
    ) -> Pipeline:
        """Make a pipeline with explicit stages: module i is stage i.

        Collective. It equals the pipeline of their ``Sequential`` with this partition.
        Stage i is on rank ``i % num_ranks``, unless the schedule places it elsewhere:
        straight schedules, such as ``"gpipe"``, keep neighbours together.

        Parameters
        ----------
        modules : sequence of Module
            Any number, at least one. With fewer modules than ranks, the last ranks hold
            none.
        group : ProcessGroup or Grid
        schedule : str, Path or Schedule, optional
            By default 1F1B, in its interleaved form if ranks hold several modules.
        **options
            As for :class:`Pipeline`, including ``num_microbatches``; the modules
            determine the partition.

        Raises
        ------
        RankError
            Code ``wrong-number``, when there is no module, or a custom Schedule has
            another number of stages.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> def stages(group):
        ...     modules = [nn.Linear(4, 4) for _ in range(2 * group.size)]
        ...     return Pipeline.from_modules(
        ...         modules, group, loss=nn.MSELoss()
        ...     ).local_stages
        >>> spawn(stages, num_ranks=2)
        [(0, 2), (1, 3)]
        """
        stages: Any = Stages(list(modules))
        if schedule is not None:
            return cls(stages, group, schedule=schedule, **options)
        return cls(stages, group, **options)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied and pickled."""
        raise not_copyable(
            self,
            "it is this rank's part of a job that exchanges messages",
            "Make another Pipeline(model, group, …) and call its "
            "load_state_dict(pipeline.state_dict()); checkpoint.save(folder, pipeline, "
            "optimiser, step=step) and checkpoint.export(path, pipeline) write it.",
        )

    @property
    def model(self) -> Sequential:
        """The model argument, unchanged: its layers were copied."""
        return self._plan.model

    @property
    def plan(self) -> Plan:
        """The layers of each stage, the rank of each stage, and the lowered
        schedule.
        """
        return self._plan

    @property
    def advice(self) -> Any:
        """The :class:`minipipe.tuning.Advice` of ``schedule="auto"``: all choices and
        the best one; otherwise None.
        """
        return getattr(self._plan, "advice", None)

    @property
    def group(self) -> ProcessGroup:
        """The ranks of all stages and replicas."""
        return self._group

    @property
    def grid(self) -> Grid | None:
        """The ``Grid`` argument, if there was one."""
        return self._grid

    @property
    def schedule(self) -> Schedule:
        """The computations that :meth:`step` runs."""
        return self._plan.schedule

    @property
    def rows(self) -> Program:
        """Everything that the ranks do in a training step, instruction by instruction.

        :meth:`step` runs the row of this rank until the loss is delivered. NORM is run
        by :meth:`clip_grad_norm`, and U by the ``step`` of an optimiser, if the program
        calls them.

        Examples
        --------
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Linear(2, 1)),
        ...         group,
        ...         loss=nn.MSELoss(),
        ...         num_microbatches=2,
        ...     )
        >>> print(pipeline.rows)
        # 1f1b: 1 rank, 1 stage, 2 microbatches
        rank 0: HANDSHAKE 0F0 0B0 0F1 0B1 FINITE LOSS NORM 0U1
        """
        return self._framing.program(clip=True, update=True)

    @property
    def forward_rows(self) -> Program:
        """Everything that the ranks do in :meth:`evaluate` and :meth:`predict`.

        That is for a batch that has all microbatches, and not too few samples for them.
        LOSS delivers the loss of an evaluation, or the outputs of a prediction.

        Examples
        --------
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Linear(2, 1)),
        ...         group,
        ...         loss=nn.MSELoss(),
        ...         num_microbatches=2,
        ...     )
        >>> print(pipeline.forward_rows)
        # forward-only: 1 rank, 1 stage, 2 microbatches
        rank 0: HANDSHAKE 0F0 0F1 LOSS
        """
        schedule = self.schedule
        count = schedule.num_microbatches // schedule.num_slices
        return self._framing.forward_program(count)

    @property
    def partition(self) -> list[range]:
        """The layers of each stage."""
        return list(self._plan.partition)

    @property
    def seed(self) -> int:
        """The seed of the first values."""
        return self._seeds[0]

    @property
    def dropout_seed(self) -> int:
        """The seed of dropout and the like."""
        return self._seeds[1]

    # -- training ----------------------------------------------------------------------

    @overload
    def step(
        self,
        inputs: Any,
        targets: Any,
        *,
        wait: Literal[True] = True,
        **asked: Unpack[Asked],
    ) -> BatchLoss: ...
    @overload
    def step(
        self, inputs: Any, targets: Any, *, wait: bool, **asked: Unpack[Asked]
    ) -> BatchLoss | PendingLoss: ...
    @with_hints
    def step(
        self,
        inputs: Any,
        targets: Any,
        *,
        wait: bool = True,
        outputs: Where = False,
        metrics: Mapping[str, Metric] | None = None,
        accumulate: bool = False,
        scale: float = 1.0,
    ) -> BatchLoss | PendingLoss:
        """Run forward and backward of one batch; leave its gradients, overwriting
        earlier ones.

        Collective. ``inputs`` are read on the rank of the first stage, ``targets`` on
        the rank of the last; others may pass None. Floating inputs are converted to the
        model's dtype.

        Parameters
        ----------
        inputs, targets : array of shape (samples, ...), or pytree
            A pytree is a tuple, list or dict of arrays with equally many samples,
            nested or not. Each array is divided among the microbatches, unless it is
            :class:`minipipe.Replicated`; the first layer and the loss get the pytree,
            of tensors. Alternatively :class:`minipipe.Microbatches`, of any lengths;
            or, on every rank that reads some, its :class:`minipipe.Share`: the rows of
            its replica, by ``needs.share``.
        wait : bool
            Whether to wait for the loss, which the rank of the last stage has first. If
            not, this rank may update its parameters and begin the next step while
            others are still in this one; that step waits for this loss, so no rank is
            further ahead than one step. ``outputs="everywhere"`` waits in any case.
        outputs : bool or "everywhere"
            Whether to return the model's outputs as well: on the rank of the last
            stage, or on every rank. The outputs of a tensor-parallel head are gathered,
            so every rank passes the same value.
        metrics : mapping of str to function, optional
            Each ``(outputs, targets) -> number``, of a microbatch, from NumPy's arrays
            that it may only read. The result has their means, by the weights of the
            losses (sums, if the loss is a sum); or by weights of their own, if they
            return ``(number, weight)``. Every rank passes the same metrics. If the call
            does not wait, they are in ``loss.wait().metrics``.
        accumulate : bool
            Whether to add the gradients to the existing ones, instead of overwriting
            them: the result is the sum over the steps. For their mean over n steps each
            has ``scale=1/n`` or, if steps count differently, its weight, such as its
            tokens / all tokens. A parameter that several ranks share adds up the sums
            of the steps, so its last bits may differ from one process. Gradients of the
            inputs are not added. A step that fails leaves no gradients, and also
            removes gradients of earlier steps.
        scale : float
            Multiplies the gradients, and not the loss: 1/n for a mean over n steps, or
            the value of a :class:`minipipe.optim.LossScale`.

        Returns
        -------
        BatchLoss or PendingLoss
            The mean loss of the batch, a float that is the same on every rank, with the
            other requested results; if the call does not wait, an object that returns
            it later.

        Raises
        ------
        MicrobatchError
            Codes ``too-few`` and ``wrong-number``.
        NotFiniteError
            On every rank, when a loss or a gradient is not finite (``check_finite`` of
            :class:`Pipeline`).
        MessageError
            Code ``timeout``, naming the awaited message, its sender and the time
            waited.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def train(group):
        ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
        ...     loss = pipeline.step(np.ones((8, 2)), np.ones((8, 1)))
        ...     return loss > 0, [
        ...         name
        ...         for name, parameter in pipeline.named_parameters()
        ...         if parameter.grad is not None
        ...     ]
        >>> spawn(train, num_ranks=2)
        [(True, ['0.weight', '0.bias']), (True, ['2.weight', '2.bias'])]
        """
        if self.watcher is not None:
            self.watcher.step(self, inputs, targets)
        begun: Any = None
        if wait and outputs is False and metrics is None and not accumulate:
            begun = self._compiling.repeated(self, inputs, targets, scale)
            if type(begun) is BatchLoss:
                return begun
        objective = self._objective(metrics, outputs, scale)
        if begun is not None:
            objective = begun.objective
        mode = self._is_training, self.num_steps
        call = TrainingCall("step", inputs, targets, objective, *mode, wait, accumulate)
        call.batch = begun  # all ranks may have agreed on it already
        return self._train(call)

    def run(
        self,
        batches: Iterable[tuple[Any, Any]],
        optimiser: Optimiser,
        *,
        stash: bool | None = None,
    ) -> RunLosses:
        """Train over some batches, with an update of the weights wherever the schedule
        has one, and drain at the end.

        Collective. With a synchronous schedule this is :meth:`step` and
        ``optimiser.step()`` for each batch. With a schedule that contains U, such as
        ``"pipedream"``, ``"vertical-sync"``, ``"2bw"`` and ``"paci"``, the microbatches
        of all batches go through without a flush in between: a stage updates its
        weights while others run on, and a U applies the mean over its microbatches. A
        named schedule is built for the microbatches of all batches,
        ``num_microbatches`` of each; a table describes the whole run. To change the
        learning rate, or if batches are many, call this for some of them at a time.

        Parameters
        ----------
        batches : iterable of (inputs, targets)
            Each as for :meth:`step`, the same number on every rank. With U in the
            schedule all batches are read before the first one is computed, and are in
            memory together. The arrays of a list or tuple are used as they are. The
            arrays of any other iterable are copied as they are read, because a
            generator may fill one array again and again.
        optimiser : Optimiser
            Over ``parameters()``. An optimiser with a custom ``step``, such as a
            sharded one, is refused.
        stash : bool, optional
            Whether a backward runs with the weights of its forward, which are kept for
            it; otherwise weights are updated in place, and it uses the newest ones. By
            default True, except for ``schedule="paci"``, by name.

        Returns
        -------
        RunLosses
            A list with the loss of each batch, with the ``losses`` of its microbatches;
            the same on every rank. Its ``copies`` give the most that the stages of this
            rank held: versions of their weights, and bytes.

        Raises
        ------
        NotFiniteError
            When a loss is not finite, on every rank, at the end of the run. Nothing is
            checked before an update, since no rank waits for the others then. For the
            same reason gradients cannot be clipped by the norm of all.
        ScheduleError, MicrobatchError, ArgumentError
            Code ``unsupported``; ``wrong-number``, ``too-few`` and ``wrong-number``;
            ``type``.

        Notes
        -----
        The following are refused together with U when the pipeline is made: parameters
        that several stages share, slices, ``gradient_blocks``, ``inputs_require_grad``,
        and stages that update after different microbatches. With ``replicas=`` each
        replica has its part of every batch, and a U applies the sum over all; replicas
        send each other their whole gradients. Dropout draws by the number of a
        microbatch in the run. Neighbouring W are not stacked, and ``measures_memory``
        has no effect.

        Examples
        --------
        Four microbatches, and so four updates. The first stage holds two versions of
        its 40 float32 parameters.

        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def train(group):
        ...     model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        ...     pipeline = Pipeline(
        ...         model,
        ...         group,
        ...         loss=nn.MSELoss(),
        ...         schedule="pipedream",
        ...         num_microbatches=2,
        ...     )
        ...     batches = [(np.ones((8, 4)), np.ones((8, 1)))] * 2
        ...     losses = pipeline.run(
        ...         batches, optim.SGD(pipeline.parameters(), learning_rate=0.1)
        ...     )
        ...     return len(losses), losses[0] > losses[1], losses.copies
        >>> for result in spawn(train, num_ranks=2):
        ...     print(result)
        (2, True, {0: HeldCopies(versions=2, stashed_bytes=160, gradient_bytes=160)})
        (2, True, {1: HeldCopies(versions=1, stashed_bytes=0, gradient_bytes=36)})
        """
        if self._runs is None:
            from minipipe.pipeline.running import in_turn

            return in_turn(self.step, batches, optimiser)
        read = read_ahead(batches, lambda batch: tuple(map(copied, batch)))
        losses, record = self._runs.run(
            read, optimiser, stash, self._is_training, self.num_steps
        )
        self.num_steps += len(read)
        self._steps.records.clear()
        self._steps.records.append(record)
        return losses

    @with_hints
    def forward_backward(
        self,
        inputs: Any,
        gradient: Any,
        *,
        outputs: Where = True,
        accumulate: bool = False,
    ) -> Any:
        """Run forward, and the backward for a gradient of the outputs: a model as one
        function among others.

        Collective; needs no loss. It leaves gradients as :meth:`step` does.

        Parameters
        ----------
        inputs : array of shape (samples, ...), or pytree
            Read on the rank of the first stage.
        gradient : array of shape (samples, ...), pytree, or function
            The gradient of the outputs, read on the rank of the last stage; or
            ``outputs -> gradient``, from arrays of a microbatch, which returns None for
            an output without gradient. If the function needs more of each sample, let
            the model return it among its outputs.
        outputs : bool or "everywhere"
            Where to return the outputs: nowhere, on the rank of the last stage, or on
            every rank.
        accumulate : bool
            As for :meth:`step`.

        Returns
        -------
        array of shape (samples, ...), pytree, or None

        Examples
        --------
        Two functions that are not in the pipeline, before it and behind it: y = (2
        x)^2, and dy / dx = 8 x.

        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def differentiate(group):
        ...     model = nn.Sequential(nn.Identity(), nn.Identity())
        ...     pipeline = Pipeline(
        ...         model, group, num_microbatches=2, inputs_require_grad=True
        ...     )
        ...     x = np.array([[1.0], [3.0]])
        ...     pipeline.forward_backward(2 * x, lambda outputs: 2 * outputs)
        ...     return (
        ...         None
        ...         if pipeline.input_gradients is None
        ...         else (2 * pipeline.input_gradients).tolist()
        ...     )
        >>> spawn(differentiate, num_ranks=2)
        [[[8.0], [24.0]], None]
        """
        division = self._objective.keywords["division"]
        if division is not None:
            division.check_given_gradient()
        function = gradient if callable(gradient) else None
        loss = GivenGradient(function)
        objective = BatchObjective(loss, outputs=outputs, **self._objective.keywords)
        mode = self._is_training, self.num_steps
        call = TrainingCall("forward_backward", inputs, gradient, objective, *mode)
        call.accumulates = accumulate
        return self._train(call).outputs

    def _train(self, call: TrainingCall) -> Any:
        """Run forward and backward of one batch, and leave its gradients."""
        try:
            self._steps.run(call, self.measures_memory)
        finally:
            self.num_steps += call.is_computed
        return call.result

    def wait(self) -> None:
        """Wait for the losses of earlier steps with ``wait=False``, and raise the
        errors of these steps.

        Raises
        ------
        NotFiniteError
            On every rank, code ``not-found``, when a loss or a gradient was not finite.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Linear(1, 1)),
        ...         group,
        ...         loss=nn.MSELoss(),
        ...         num_microbatches=1,
        ...     )
        ...     pending = pipeline.step(np.ones((1, 1)), np.ones((1, 1)), wait=False)
        ...     pipeline.wait()
        """
        self._steps.wait()

    @with_hints
    def evaluate(
        self,
        inputs: Any,
        targets: Any,
        *,
        outputs: Where = False,
        metrics: Mapping[str, Metric] | None = None,
        is_training: bool = False,
    ) -> BatchLoss:
        """Return the mean loss of a batch, forward only.

        Collective; ``inputs`` and ``targets`` are read as by :meth:`step`. Batches
        smaller than the number of microbatches are fine.

        Parameters
        ----------
        inputs, targets : array of shape (samples, ...), or pytree
        outputs : bool or "everywhere"
        metrics : mapping of str to function, optional
            Both as for :meth:`step`.
        is_training : bool
            Whether layers such as Dropout compute as in training. By default they are
            off, whatever the mode of the pipeline, which does not change.

        Returns
        -------
        BatchLoss
            A float, the same on every rank, with the other requested results.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def test(group):
        ...     model = nn.Sequential(nn.Identity(), nn.Identity())
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     return pipeline.evaluate(np.ones((5, 2)), np.zeros((5, 2)))
        >>> spawn(test, num_ranks=2)
        [1.0, 1.0]
        """
        objective = self._objective(metrics, outputs)
        mode = is_training, self.num_steps
        call = TrainingCall("evaluate", inputs, targets, objective, *mode)
        self._predictors.run(call)
        assert isinstance(call.result, BatchLoss)
        return call.result

    @with_hints
    def predict(self, inputs: Any, *, is_training: bool = False) -> Any:
        """Return the model's outputs for a batch, forward only; the same arrays on
        every rank.

        Collective. ``inputs`` are read on the rank of the first stage; others may give
        None.

        Parameters
        ----------
        inputs : array of shape (samples, ...), or pytree
        is_training : bool
            As for :meth:`evaluate`.

        Returns
        -------
        array of shape (samples, ...), or pytree
            As the last layer returns it.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def predict(group):
        ...     model = nn.Sequential(nn.ReLU(), nn.Flatten())
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     return pipeline.predict(np.array([[-1.0, 2.0]])).tolist()
        >>> spawn(predict, num_ranks=2)
        [[[0.0, 2.0]], [[0.0, 2.0]]]
        """
        objective = BatchObjective(outputs="everywhere", **self._objective.keywords)
        mode = is_training, self.num_steps
        call = TrainingCall("predict", inputs, None, objective, *mode)
        self._predictors.run(call)
        return call.result

    # -- this rank's part --------------------------------------------------------------

    @property
    def num_stages(self) -> int:
        """The number of stages, all ranks together."""
        return self.schedule.num_stages

    @property
    def local_stages(self) -> tuple[int, ...]:
        """The indices of the stages on this rank."""
        return tuple(self._stages)

    @property
    def input_gradients(self) -> Any:
        """The gradients of the inputs that the last step left, in the form of the
        inputs; None for whole numbers.

        Local. They are on the rank of the first stage; on others there is None.

        Raises
        ------
        ArgumentError
            Code ``value``, if the pipeline was not made with
            ``inputs_require_grad=True``.
        """
        check_inputs_require_grad(self._plan.inputs_require_grad)
        return self._steps.input_gradients

    @property
    def needs(self) -> Needs:
        """Which parts of a batch this rank reads; of the others it may give None, and
        needs to load nothing.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
        >>> for needs in spawn(
        ...     lambda group: Pipeline(model, group, loss=nn.MSELoss()).needs,
        ...     num_ranks=3,
        ... ):
        ...     print(needs)
        Needs(inputs=True, targets=False)
        Needs(inputs=False, targets=False)
        Needs(inputs=False, targets=True)
        """
        return self._intake.needs

    @property
    def is_training(self) -> bool:
        """Whether ``step`` computes as in training (the default), with Dropout and the
        like.
        """
        return self._is_training

    def train(self, mode: bool = True) -> Pipeline:
        """Let ``step`` compute as in training, or with ``mode=False`` without Dropout
        and the like.

        Local, and for every rank to do; returns the pipeline. ``evaluate`` and
        ``predict`` need no such call.

        Examples
        --------
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Dropout(0.5)), group, loss=nn.MSELoss()
        ...     ).eval()
        ...     pipeline.is_training, pipeline.train().is_training
        (False, True)
        """
        self._is_training = mode
        for stage in self._stages.values():
            stage.module.train(mode)
        return self

    def eval(self) -> Pipeline:
        """Let ``step`` train without Dropout and the like: ``train(False)``.

        Examples
        --------
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     Pipeline(
        ...         nn.Sequential(nn.Dropout(0.5)), group, loss=nn.MSELoss()
        ...     ).eval().is_training
        False
        """
        return self.train(False)

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield this rank's parameters, named as in the model. Local.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> def names(group):
        ...     model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        ...     return [
        ...         name
        ...         for name, _ in Pipeline(
        ...             model, group, loss=nn.MSELoss()
        ...         ).named_parameters()
        ...     ]
        >>> spawn(names, num_ranks=2)
        [['0.weight', '0.bias'], ['2.weight', '2.bias']]
        """
        yield from self._parameters.own.items()

    def parameters(self) -> Iterator[Parameter]:
        """Yield this rank's parameters. Local.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def count(group):
        ...     model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        ...     return sum(parameter.size for parameter in optimiser.parameters)
        >>> spawn(count, num_ranks=2)
        [40, 9]
        """
        yield from self._parameters.own.values()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients of all ranks by one factor, so that their norm is at most
        ``max_norm``.

        Collective: all ranks wait for each other here, even if they do not wait for the
        loss. The norm has the same bits for any partition, and the bits of
        :func:`minipipe.optim.clip_grad_norm` in one process; a parameter that several
        ranks share counts once.

        Parameters
        ----------
        max_norm : float
            Above 0; ``float("inf")`` only measures.

        Returns
        -------
        float
            The norm before, the same on every rank.

        Raises
        ------
        ArgumentError
            Code ``value``: when max_norm is not above 0.
        ParameterError
            Code ``not-finite``, on every rank, when the norm is infinite or not a
            number.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def clip(group):
        ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     pipeline.step(np.ones((8, 2)), 100 * np.ones((8, 1)))
        ...     before = pipeline.clip_grad_norm(max_norm=1.0)
        ...     return before > 1, round(pipeline.clip_grad_norm(float("inf")), 4)
        >>> spawn(clip, num_ranks=2)
        [(True, 1.0), (True, 1.0)]
        """
        return self._parameters.clip_grad_norm(max_norm)

    def sharded(
        self, rule: type[Optimiser], parameters: Any = None, **numbers: Any
    ) -> Optimiser:
        """Return an optimiser that keeps its state once among replicas, instead of once
        in each: ZeRO-1.

        Collective, and so are its ``step`` and ``state_dict``: every rank calls them.
        Ranks that have the same parameters, such as the replicas of a stage or the
        stages that share one, each keep the optimiser state of a shard, update this
        shard and send its values to each other. Bits and state are the same as with
        ``rule(pipeline.parameters(), …)``: training continues from a checkpoint with
        any number of replicas, sharded or not. While a checkpoint is saved, each rank
        temporarily has the state of all its parameters. A rank sends half as much again
        as for the gradient all-reduce alone. Gradients are not sharded:
        ``clip_grad_norm`` and ``unscale_gradients`` work as usual.

        Parameters
        ----------
        rule : type
            ``optim.SGD``, ``optim.Adam``, ``optim.AdamW``, ``optim.Muon``, of which
            each matrix has one owner; or a custom class that declares
            ``is_elementwise = True``.
        parameters : iterable of Parameter, or of dict, optional
            The parameters of this rank that it trains, or groups of them; by default
            all.
        **numbers
            The hyper-parameters, as for the rule.

        Raises
        ------
        ArgumentError
            Code ``type``: a rule that may read a parameter as a whole. Code ``value``:
            a parameter of another model.

        Examples
        --------
        Two replicas of 40 float32 parameters; Adam keeps two numbers for each.

        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def train(group):
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Linear(4, 8)), group, loss=nn.MSELoss(), replicas=2
        ...     )
        ...     optimiser = pipeline.sharded(optim.Adam, learning_rate=0.1)
        ...     pipeline.step(np.ones((16, 4)), np.ones((16, 8)))
        ...     optimiser.step()
        ...     return optimiser.nbytes
        >>> spawn(train, num_ranks=2)
        [160, 160]
        """
        return self._parameters.sharded(rule, parameters, numbers)

    def unscale_gradients(self, scale: LossScale) -> bool:
        """Divide the gradients of all ranks by a loss scale, unless one is not finite;
        return whether to update.

        Collective: all ranks wait for each other here, even if they do not wait for the
        loss. All of them skip the same updates, and their scales adapt equally. Clip
        gradients after this.

        Parameters
        ----------
        scale : LossScale
            The loss scale of this rank; its value was the ``scale`` of :meth:`step`.

        Returns
        -------
        bool
            The same on every rank. False after an overflow on any rank: then the
            gradients are not to be used.

        Raises
        ------
        RankError
            Code ``disagreement``, when the values of the ranks' scales differ.
        ParameterError
            Code ``not-finite``, on every rank, when the scale would fall below its
            minimum.

        Examples
        --------
        A first scale that is far too large: its first steps overflow, on both ranks or
        on one of them.

        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def train(group):
        ...     model = nn.Sequential(
        ...         nn.Linear(2, 4, dtype=np.float16), nn.Linear(4, 1, dtype=np.float16)
        ...     )
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        ...     optimiser, scale = (
        ...         optim.SGD(pipeline.parameters(), 0.1),
        ...         optim.LossScale(initial=2.0**24),
        ...     )
        ...     x, num_updates = np.ones((8, 2)), 0
        ...     for _ in range(20):
        ...         pipeline.step(x, x[:, :1], scale=scale.value)
        ...         if pipeline.unscale_gradients(scale):
        ...             optimiser.step()
        ...             num_updates += 1
        ...     return num_updates < 20, scale.value == 2.0 ** (24 - (20 - num_updates))
        >>> spawn(train, num_ranks=2)
        [(True, True), (True, True)]
        """
        return self._parameters.unscale_gradients(scale)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the whole model's values on every rank, named as in the model.
        Collective.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> def names(group):
        ...     model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        ...     return list(Pipeline(model, group, loss=nn.MSELoss()).state_dict())
        >>> spawn(names, num_ranks=2)[1]
        ['0.weight', '0.bias', '2.weight', '2.bias']
        """
        return self._parameters.state_dict()

    @with_hints
    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take this rank's part of the whole model's values.

        Collective in this sense: every rank gives the same state.

        Raises
        ------
        ParameterError
            Codes ``missing``, ``unexpected``, ``shape`` and ``dtype``: see
            :meth:`minipipe.nn.Module.load_state_dict`.

        Examples
        --------
        From one rank to two.

        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        >>> state = spawn(
        ...     lambda group: Pipeline(
        ...         model, group, loss=nn.MSELoss(), seed=1
        ...     ).state_dict(),
        ...     num_ranks=1,
        ... )[0]
        >>> def load(group):
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     pipeline.load_state_dict(state)
        ...     return all(
        ...         np.array_equal(values, state[name])
        ...         for name, values in pipeline.state_dict().items()
        ...     )
        >>> spawn(load, num_ranks=2)
        [True, True]
        """
        self._parameters.load_state_dict(state)

    def compile_report(self) -> str:
        """Return a message: which stages of this rank are compiled, and why others run
        eagerly; of a GPU, also whether sections are launched as CUDA graphs. Local.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Linear(2, 1)),
        ...         group,
        ...         loss=nn.MSELoss(),
        ...         compile=True,
        ...     )
        ...     print(pipeline.compile_report())
        ...     for x in np.ones((3, 8, 2), np.float32):
        ...         _ = pipeline.step(x, x[:, :1])
        ...     print(pipeline.compile_report())
        step: has not run yet
        step: stage 0 is compiled
        """
        return self._compiling.report()

    def replay_report(self) -> str:
        """Return :meth:`compile_report`, by its name until the next release. Local.

        Examples
        --------
        >>> import warnings
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> with (
        ...     init_process_group() as group,
        ...     warnings.catch_warnings(action="ignore"),
        ... ):
        ...     Pipeline(
        ...         nn.Sequential(nn.Linear(2, 1)), group, loss=nn.MSELoss()
        ...     ).replay_report()
        'all stages run eagerly: compile=False'
        """
        warn_caller("replay_report() is now compile_report().", DeprecationWarning)
        return self.compile_report()

    def source(self, stage: int | None = None) -> str:
        """Return what this rank does in a training step as Python in straight lines.
        Local.

        Parameters
        ----------
        stage : int, optional
            Return the compiled sections of this stage alone: the NumPy of its forward
            and its backward.

        Returns
        -------
        str
            For an eager pipeline, a function with one call for each instruction; the
            variables are the values that instructions leave for each other, named by
            stage and microbatch. Of a compiled one, the whole program: the sections of
            its stages, and the schedule that calls them.

        Raises
        ------
        ArgumentError
            Code ``value``: when the stage is not on this rank, or is not compiled; the
            message says why.
        ScheduleError
            Code ``unsupported``: for a schedule that updates weights itself, whose
            program is made for each run.

        Examples
        --------
        The row of the first of two ranks, for one microbatch.

        >>> from minipipe import Pipeline, nn, spawn
        >>> def show(group):
        ...     layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        ...     return Pipeline(
        ...         layers, group, loss=nn.MSELoss(), num_microbatches=1
        ...     ).source()
        >>> print(spawn(show, num_ranks=2)[0])
        def step(rank):  # rank 0 of 1f1b
            handshake(rank, 'HANDSHAKE')
            with rank.schedule():
                out0_0, graph0_0 = forward(rank, '0F0')
                send_activation(rank, '0SEND_F0', out0_0)
                del out0_0
                g0_0 = receive_gradient(rank, '0RECV_B0')
                backward(rank, '0B0', graph0_0, wait(g0_0))
                del graph0_0, g0_0
                rank.finish_sends()
                finite0 = check(rank, 'FINITE')
                deliver_loss(rank, 'LOSS', finite0)
                del finite0
        """
        trainer = self._steps.trainer("source")
        if stage is not None:
            return self._compiling.source_of_stage(stage, self.local_stages)
        return self._compiling.source(trainer)

    # -- measuring ---------------------------------------------------------------------

    def timeline(self, num_steps: int = 1) -> Timeline:
        """Return the measured timeline of the last step, or the last ones, of all
        ranks, in seconds from its beginning.

        Collective.

        Parameters
        ----------
        num_steps : int
            At least 1, and at most 8, the number that is kept. The same on every rank.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> def measure(group):
        ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)
        ...     pipeline.step(np.ones((8, 2)), np.ones((8, 1)))
        ...     return " ".join(
        ...         str(span.action) for span in pipeline.timeline().spans[1]
        ...     )
        >>> spawn(measure, num_ranks=2)
        ['1F0 1B0 1F1 1B1', '1F0 1B0 1F1 1B1']
        """
        records = self._steps.last(num_steps)
        self._intake.calls.begin("timeline", {"num_steps": num_steps})
        from minipipe.execution.timeline import gather_timeline

        program = (self._runs or self._plan).program
        return gather_timeline(self._group, records, program)

    def measure_memory(self, inputs: Any, targets: Any) -> Any:
        """Return the bytes that one microbatch holds on each stage, after F and after
        I.

        Collective; runs the first microbatch alone, and leaves no gradients. With the
        result ``simulate`` predicts the bytes of any schedule over these stages,
        exactly if microbatches are equal: ``Costs(**pipeline.measure_memory(x,
        y)._asdict(), memory_unit="bytes")``. It counts the arrays that the graph keeps
        for the backward, by stage; not parameters, their gradients, or the batch
        itself.

        Parameters
        ----------
        inputs, targets : array of shape (samples, ...), or pytree

        Returns
        -------
        MemoryPerMicrobatch
            Bytes by stage: ``activation``, ``weight_activation`` and
            ``transient_activation``.

        Examples
        --------
        After F tanh holds its result and the loss its differences, 100 samples of 3
        numbers of 4 bytes each; after I only the gradient is left that W will multiply
        the inputs with.

        >>> import numpy as np
        >>> from minipipe import Pipeline, init_process_group, nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
        >>> with init_process_group() as group:
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=1)
        ...     pipeline.measure_memory(np.ones((100, 2)), np.ones((100, 3)))
        MemoryPerMicrobatch(activation=(2400,), weight_activation=(1200,), transient_activation=(0,))
        """
        # here, because most programs measure nothing
        from minipipe.tuning import stages

        batch = self._measured("measure_memory", inputs, targets)
        return stages.measure_memory(self._executor, self._plan.program, batch)

    def measure_costs(self, inputs: Any, targets: Any, num_steps: int = 10) -> Costs:
        """Return the times and the memory of each stage's actions, and the times of
        messages, measured over some steps.

        Collective; leaves no gradients, and changes no parameter. With the result
        ``simulate`` predicts other schedules over the same stages, in seconds and
        bytes; with :meth:`minipipe.Costs.cut` also schedules with several stages on a
        rank. It runs this pipeline's own schedule without updates and copies to files,
        eagerly or compiled as its steps are, with every backward in its two halves so
        that I and W are timed separately; if the schedule is forward only, the times of
        backwards are 0. ``gradient_size`` is for the gradient all-reduce of replicas:
        if there are some, its rounds count among the messages.

        If a host has more ranks than cores, an action's cost is the time for which its
        thread had a core, and ``cores`` is the number of cores that the ranks got in
        the measured steps: fewer than the host has, since waiting ranks poll for
        messages. On several hosts ``hosts`` is set as well. If other programs use the
        cores (Linux reports how long a rank waited for one), rank 0 warns, with the
        processor time and the wall time.

        Parameters
        ----------
        inputs : array of shape (samples, ...)
        targets : array of shape (samples, ...)
        num_steps : int
            The number of measured steps, after two that are not measured; at least 1.

        Returns
        -------
        Costs
            Times in seconds, memory and sizes in bytes.

        Raises
        ------
        MicrobatchError
            Code ``too-few``: as for :meth:`minipipe.Pipeline.step`, each microbatch
            needs one.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, schedules, simulate, spawn
        >>> def train(group):
        ...     pipeline = Pipeline(
        ...         nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)),
        ...         group,
        ...         loss=nn.MSELoss(),
        ...     )
        ...     costs = pipeline.measure_costs(
        ...         np.ones((8, 4)), np.ones((8, 1)), num_steps=2
        ...     )
        ...     return simulate(schedules.zb_h1(2, 4), costs).unit
        >>> spawn(train, num_ranks=2)
        ['s', 's']
        """
        from minipipe.tuning import stages

        num_steps = COUNT.check("num_steps", num_steps)
        self._intake.calls.begin("measure_costs", {"num_steps": num_steps})
        batch = self._measured("measure_costs", inputs, targets)
        make = partial(self._executor, run_schedule=self._compiling.compiler())
        return stages.measure_costs(make, self._plan, batch, num_steps, self._sums)

    def _measured(self, call: str, inputs: Any, targets: Any) -> Batch:
        """Return a batch for a measurement. Collective."""
        self._plan.check_measurable(call)
        mode, number = self._is_training, self.num_steps
        objective = self._objective()
        return self._intake.batch(call, inputs, targets, objective, mode, number)

    def __repr__(self) -> str:
        return f"<Pipeline {self.schedule.describe()}; rank {self._group.rank}>"

    def __str__(self) -> str:
        plan = str(self._plan)
        if self._grid is None:
            return plan
        return f"{plan}\n{self._grid.legend}"

    def _repr_html_(self) -> str:
        return self._plan._repr_html_()
