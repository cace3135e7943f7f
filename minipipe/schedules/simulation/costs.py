"""Costs: the times of actions and messages, the memory of activations, and which ranks
share a host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from math import inf
from numbers import Integral, Real
from os.path import splitext
from typing import TYPE_CHECKING, Any

from minipipe.core.schedules.action import (
    REDUCE_GRAD,
    Action,
    ActionKind,
    B,
    F,
    I,
    R,
    U,
    W,
)
from minipipe.core.schedules.action_table import ActionTable, Schedule
from minipipe.core.schedules.placement import Placement, check_sizes, ranks_in
from minipipe.core.specs import SCHEDULE_AMOUNT, SCHEDULE_NUMBER, Spec, as_float
from minipipe.errors import ArgumentError, ScheduleError, counted, misuse, quoted
from minipipe.io import (
    MOST_JSON,
    MOST_STAGES,
    parse_real,
    printable,
    read_text,
    reading,
    write_whole,
)
from minipipe.passes.kinds import KINDS
from minipipe.schedules.analysis.activations import Footprint
from minipipe.schedules.features import rank_of_each_stage
from minipipe.schedules.placements import stages_by_rank
from minipipe.schedules.simulation.slice_work import relative_work
from minipipe.simulation.hosts import Hosts

# on demand below: most programs measure no costs, search nothing, and write no file
if TYPE_CHECKING:
    from pathlib import Path

    from minipipe.schedules.analysis.workload import Workload
    from minipipe.schedules.simulation.timeline import Timeline

_SHORT = {"F": "forward", "I": "backward_input", "W": "backward_weight"}
_HELD = ("activation", "weight_activation", "transient_activation", "keys_values")
_OF_WEIGHTS = ("update", "gradient_size", "weights")
_HEAD = {"format": "minipipe costs", "version": 1}  # of a file
ByStage = float | Sequence[float]


_BY_STAGE = SCHEDULE_NUMBER._replace(expected="finite numbers, at least 0", of="stage")
_TIME = SCHEDULE_NUMBER._replace(expected="a finite time, at least 0")
_RATE = SCHEDULE_AMOUNT._replace(expected="a number, more than 0")
_SPECS = {
    **dict.fromkeys(_SHORT.values(), _BY_STAGE),
    "latency": _TIME,
    "bandwidth": _RATE,
    "message_size": _BY_STAGE,
    "overhead": _TIME,
    "overlap": SCHEDULE_NUMBER._replace(maximum=1, expected="a number from 0 to 1"),
    "copy_bandwidth": _RATE,
    **dict.fromkeys((*_OF_WEIGHTS, *_HELD), _BY_STAGE),
    "slice_work": SCHEDULE_NUMBER._replace(expected="numbers, at least 0", of="slice"),
    "cores": _RATE._replace(
        expected="a number above 0, such as 2, or one for each host", of="host"
    ),
    "hosts": SCHEDULE_NUMBER._replace(
        expected="the host of each rank, counted from 0, such as (0, 0, 1, 1)",
        of="rank",
    ),
}
_PIECES = Spec(int, minimum=1, maximum=MOST_STAGES, error=ScheduleError.of)
_OTHERS = {"sends_block": Spec(bool), "unit": Spec(str), "memory_unit": Spec(str)}


@dataclass(frozen=True)
class Costs:
    """The times of actions and messages, in one unit of time, and the memory of
    activations, in one unit of memory.

    A value by stage is one number for all stages, or a sequence with one number for
    each. A rank with several chunks takes the full time of each of its stages.

    Attributes
    ----------
    forward, backward_input, backward_weight : float or sequence of float
        By stage, the times of F, I and W. A whole backward B takes backward_input +
        backward_weight.
    latency : float
        The time from the end of an action until its result is available on another
        rank. Adjacent stages on one rank have no latency between them.
    bandwidth : float
        Units of size per unit of time. A message takes its size over the bandwidth in
        addition to the latency. Messages slow each other down only if they share the
        link of a host, see ``hosts``.
    message_size : float or sequence of float
        By stage, the size of its activation. The gradient of the activation has the
        same size.
    activation : float or sequence of float
        By stage, the memory of one microbatch from F until B or I.
    weight_activation : float or sequence of float, optional
        By stage, its memory from I until W. By default the same as ``activation``.
    transient_activation : float or sequence of float
        By stage, the additional memory while its B or I runs, such as recomputed
        activations.
    overhead : float
        The time of a rank between two actions of a step: bookkeeping and the start of
        transfers.
    update : float or sequence of float
        By stage, the time of a U or, in a schedule without U, the time of a rank
        between two training steps: the optimiser and everything else that it does
        there. ``Costs.measured(pipeline.timeline(num_steps=4)).update`` is a measured
        time.
    sends_block : bool
        Whether a SEND blocks its rank until the receiver has reached the RECV and the
        message has been transferred. Otherwise a SEND takes no time.
    unit, memory_unit : str
        The units in captions: ``"s"`` or ``"units"``, ``"bytes"`` or ``"units"``.
    cores : float or sequence of float, optional
        The cores of all hosts, or of each host. An action, an overhead and an update
        each need one. While n of them run on a host with fewer cores, each runs at the
        rate cores / n. The default is a core for every rank.
    hosts : sequence of int, optional
        By rank, the number of its host, counted from 0. Between two hosts messages
        share links: each host has one out and one in, with the bandwidth above, and
        those that share a link get max-min fair parts. The latency is not shared. By
        default all ranks are on one host, where messages share nothing.
    overlap : float
        The part of the shorter of two overlapped actions that the longer one hides:
        with 0, the default, a pair takes as long as both in turn; with 1, as long as
        the longer one.
    copy_bandwidth : float
        Units of memory per unit of time at which a rank copies activations to the
        memory of its host (O) and, at the same time and with the same rate, back (L).
    gradient_size : float or sequence of float
        By stage, the size of the gradients of its weights, for the all-reduces over
        replicas; see :meth:`sum_times`.
    weights : float or sequence of float
        By stage, the memory of its weights. Each further version of the weights that a
        rank holds takes as much, and so does each further gradient accumulator that
        waits for its U.
    slice_work : sequence of float, optional
        By slice of a sequence, its part of the work, in any one unit, such as
        :func:`minipipe.schedules.slice_work` returns. The default is equal parts. The
        other costs refer to a whole sequence: a slice takes its part of F, I and W, and
        an equal part of memory and of the size of a message.
    keys_values : float or sequence of float
        By stage, the part of ``activation`` that is keys and values of attention, if
        sequences have slices. Their gradients take as much again, from the backward of
        a later slice until their own backward. A stage without a backward keeps them
        until the last slice of the sequence.
    other : mapping of str to float or sequence of float, optional
        By stage, the times of kinds of action that a program has declared, each by its
        name in ``Kind.time``. Those that are left out take no time.

    Examples
    --------
    A slow third stage, and messages of a tenth of a forward.

    >>> from minipipe import Costs, schedules, simulate
    >>> costs = Costs(forward=[1, 1, 2, 1], backward_input=[1, 1, 2, 1], latency=0.1)
    >>> schedule = schedules.one_f_one_b(4, 8)
    >>> print(
    ...     f"{simulate(schedule).bubble_fraction:.0%}, {simulate(schedule, costs).bubble_fraction:.0%}"
    ... )
    27%, 41%

    Four ranks on two cores take at least half of their total work, 4 * 8 * 3 units.

    >>> simulate(schedule).makespan, simulate(schedule, Costs(cores=2)).makespan
    (33.0, 51.0)
    """

    forward: ByStage = 1.0
    backward_input: ByStage = 1.0
    backward_weight: ByStage = 1.0
    latency: float = 0.0
    bandwidth: float = inf
    message_size: ByStage = 0.0
    activation: ByStage = 1.0
    weight_activation: ByStage | None = None
    transient_activation: ByStage = 0.0
    overhead: float = 0.0
    update: ByStage = 0.0
    sends_block: bool = False
    unit: str = "units"
    memory_unit: str = "units"
    cores: float | Sequence[float] | None = None
    hosts: Sequence[int] | None = None
    gradient_size: ByStage = 0.0
    weights: ByStage = 0.0
    overlap: float = 0.0
    copy_bandwidth: float = inf
    slice_work: Sequence[float] | None = None
    keys_values: ByStage = 0.0
    other: Mapping[str, ByStage] | None = None

    def __post_init__(self) -> None:
        for name in ("unit", "memory_unit"):
            unit = getattr(self, name)
            if not isinstance(unit, str) or printable(unit) != unit:
                raise SCHEDULE_NUMBER.refusal(name, unit, "a name such as 's'")
        other: Any = self.other
        if other is None:
            other = {}
        names = (*_SPECS, *_OTHERS)
        if not isinstance(other, Mapping) or not other.keys().isdisjoint(names):
            expected = "the times of declared kinds by name, such as {'KEEP': 2}"
            raise SCHEDULE_NUMBER.refusal("other", self.other, expected)
        for name in (*_SPECS, *other):
            value = self._given(name)
            numbers = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(number, bool | str | bytes) for number in numbers):
                expected = "numbers. Costs.parse reads text"
                raise SCHEDULE_NUMBER.refusal(name, value, expected)

    @classmethod
    def measured(cls, *timelines: Timeline) -> Costs:
        """Return the costs fitted to one or, better, several timelines of one model
        over the same stages.

        The times of actions and the overhead are means within a timeline and medians
        over several. Updates come from timelines of several steps. Latency and
        bandwidth are fitted to the messages whose receivers waited for them, and to the
        rounds of gradient all-reduces during which their ranks did not compute. If all
        of these have about the same size, the latency is their whole time: the fit
        cannot separate latency and bandwidth.

        The times of overlapped actions are not used if the stage has other actions of
        that kind that ran alone; the overlap is the median of the parts that they hid.
        If a stage has whole backwards only, B counts as ``backward_input``. If it has
        both kinds, I and W are measured if the backward is split. A timeline does not
        contain the size of activations; :meth:`minipipe.Pipeline.measure_costs` also
        measures that.

        Parameters
        ----------
        *timelines : Timeline

        Raises
        ------
        ScheduleError
            Code ``value``, if there is no timeline, or if their units or numbers of
            stages differ.

        Examples
        --------
        >>> from minipipe import schedules, simulate
        >>> timeline = simulate(
        ...     schedules.one_f_one_b(2, 4), Costs(forward=[2, 3], latency=0.5)
        ... )
        >>> costs = Costs.measured(timeline)
        >>> costs.forward, costs.latency
        ([2.0, 3.0], 0.5)
        """
        from minipipe.schedules.simulation.fitting import fit_costs

        return cls(**fit_costs(timelines))

    def cut(self, pieces: int) -> Costs:
        """Return the costs after cutting every stage into equal pieces.

        Costs measured with one stage on each rank then serve for schedules with
        several, provided that the layers are alike. A message between two pieces of one
        stage gets the mean of the known sizes.

        Parameters
        ----------
        pieces : int
            1 to ``limits.MOST_STAGES``.

        Examples
        --------
        >>> Costs(forward=[2, 4], message_size=[8, 0]).cut(2).forward
        (1.0, 1.0, 2.0, 2.0)
        """
        pieces = _PIECES.check("pieces", pieces)
        names = (*_SHORT.values(), *_OF_WEIGHTS, *_HELD)
        changes = self._divided(names, pieces, pieces)
        if self.other is not None:
            changes["other"] = self._divided(self.other, pieces, pieces)
        sizes = self.message_size
        if isinstance(sizes, Iterable):
            known = [size for size in sizes if size]
            inside = [sum(known) / max(1, len(known))] * (pieces - 1)
            sizes = tuple(size for last in sizes for size in (*inside, last))
        return replace(self, **changes, message_size=sizes)

    def sliced(self, num_slices: int) -> Costs:
        """Return the costs of one slice of a sequence, an equal part of the costs of
        the sequence.

        The simulator does this for a schedule with slices.

        Examples
        --------
        >>> costs = Costs(forward=[2, 4], message_size=8, latency=0.5).sliced(2)
        >>> costs.forward, costs.message_size, costs.latency
        ((1.0, 2.0), 4.0, 0.5)
        """
        if num_slices == 1:
            return self
        names = (*_SHORT.values(), *_HELD, "message_size")
        return replace(self, **self._divided(names, num_slices, 1))

    @classmethod
    def parse(cls, text: str) -> Costs:
        """Parse the costs of a command line, such as
        ``"F=1,I=1,W=0.5:1:1:2,latency=0.1"``.

        ``F``, ``I`` and ``W`` are the times of one stage. The other names are the names
        of the attributes. A value by stage may be several numbers, separated by colons.

        Raises
        ------
        ScheduleError
            Code ``value``; the message quotes the invalid item.

        Examples
        --------
        >>> Costs.parse("F=2,W=1:3").backward_weight
        (1.0, 3.0)
        """
        if not isinstance(text, str):
            hint = "expected a form such as F=1,I=1,W=1,latency=0.1"
            raise misuse(f"Costs.parse reads text, not {quoted(text)}; {hint}.")
        parsed: dict[str, Any] = {}
        for item in filter(None, map(str.strip, text.split(","))):
            key, _, value = item.partition("=")
            name = _SHORT.get(key, key)
            if name not in _SPECS:
                names = ", ".join([*_SHORT, *list(_SPECS)[len(_SHORT) :]])
                expected = f"one of {names}, as in F=1, or a file of costs"
                message = f"{quoted(item)} is not a cost; expected {expected}"
                message += ", whose name ends in .json."
                if key == "B":
                    message += " A whole backward B takes I + W."
                raise misuse(message)
            try:
                numbers = tuple(map(parse_real, value.split(":")))
            except ArgumentError:
                expected = f"a form such as {key}=1 or {key}=1:2:3"
                message = f"{quoted(item)} has no number; expected {expected}."
                raise misuse(message) from None
            if len(numbers) > 1 and not _SPECS[name].of:
                problem = f"{quoted(item)} has {len(numbers)} numbers"
                raise misuse(f"{problem}; {name} is a single number.")
            if name in parsed:
                raise misuse(f"{quoted(text)} has {name} twice.")
            parsed[name] = numbers if len(numbers) > 1 else numbers[0]
        return cls(**parsed)

    def save(self, path: str | Path) -> Path:
        """Write the costs to a file, from which :meth:`load` and ``--costs FILE`` of
        the command line read them.

        The file is an object of JSON: ``format`` is ``"minipipe costs"``, ``version``
        is 1; every other member has the name of an attribute, and its value: a list if
        there is one number for each stage, rank or host. Attributes that are left out
        have their defaults.

        Parameters
        ----------
        path : str or Path
            Its name ends in ``.json``.

        Returns
        -------
        Path

        Raises
        ------
        ScheduleError
            Code ``value``, for costs that :meth:`load` would refuse, or another ending.
        FileError
            Code ``unwritable``.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Costs(forward=[2, 3], latency=0.5, unit="s").save(
        ...         f"{folder}/measured.json"
        ...     )
        ...     path.read_text(), Costs.load(path).forward
        ('{"format": "minipipe costs", "version": 1, "forward": [2, 3], "latency": 0.5, "unit": "s"}\\n', (2, 3))
        """
        import json

        members = {}
        for field in fields(self):
            value = _plain(getattr(self, field.name))
            if value != field.default:
                members[field.name] = value
        with reading(partial(_not_costs, path)):
            if splitext(path)[1].lower() != ".json":
                raise ArgumentError("its name does not end in .json")
            _check_members(members)
        return write_whole(path, json.dumps({**_HEAD, **members}) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Costs:
        """Return the costs of a file, written by :meth:`save` or by hand.

        Parameters
        ----------
        path : str or Path

        Raises
        ------
        ScheduleError
            Code ``value``, if the file is not the JSON that :meth:`save` describes; the
            message names the member.
        FileError
            Codes as for :func:`minipipe.io.read_text`.
        """
        from minipipe.io import json_object  # most programs read no such file

        with reading(partial(_not_costs, path)):
            members = json_object(read_text(path, MOST_JSON), _HEAD)
            for name in _HEAD:
                del members[name]
            _check_members(members)
        for name, value in members.items():
            if isinstance(value, list):
                members[name] = tuple(value)
        return cls(**members)

    def durations(self, num_stages: int) -> dict[ActionKind, list[float]]:
        """Return the time of F, B, I, W, U and R on each stage, and of declared kinds
        by the names of their times.

        Raises
        ------
        ScheduleError
            Code ``value``, if a sequence does not have one value for each stage, or a
            cost is negative or not finite, or if no kind has declared a name of
            ``other``.
        """
        names = _SHORT.values()
        forward, inputs, weights = (self.by_stage(name, num_stages) for name in names)
        times: dict[Any, list[float]] = {F: forward, I: inputs, W: weights}
        times[B] = [i + w for i, w in zip(inputs, weights)]
        times |= {U: self.by_stage("update", num_stages), R: forward}
        for name in self._other_names():
            times[name] = self.by_stage(name, num_stages)
        return times

    def _other_names(self) -> set[str]:
        """Return the names of the times that programs have declared for instructions of
        stages.
        """
        names = {kind.time for kind in KINDS.values()}
        names -= {kind.declaration.time for kind in ActionKind}
        for name in self.other or ():
            if name not in names:
                how = "Kind(…, time=…) of a declared kind names its time"
                raise misuse(f"No kind has the time {quoted(name)} of other; {how}.")
        return names - {kind.time for kind in KINDS.values() if kind.of_rank}

    def copy_times(self, num_stages: int) -> list[float]:
        """Return, by stage, the time of an O or an L.

        Raises
        ------
        ScheduleError
            Code ``value``, if the bandwidth is not above 0.

        Examples
        --------
        >>> Costs(activation=[1, 3], copy_bandwidth=2).copy_times(2)
        [0.5, 1.5]
        """
        bandwidth = self._number("copy_bandwidth")
        return [size / bandwidth for size in self.by_stage("activation", num_stages)]

    def pair_times(self, schedule: ActionTable) -> dict[Action, float]:
        """Return the time of each overlapped pair of actions, by its forward.

        Raises
        ------
        ScheduleError
            Code ``value``, if the overlap is not a number from 0 to 1.

        Examples
        --------
        >>> joined = Schedule.from_text("0F0 (0F1;0B0)OVERLAP_F_B 0B1")
        >>> [
        ...     Costs(overlap=part).pair_times(joined)
        ...     == {joined.actions[0][1]: 3 - part}
        ...     for part in (0, 0.5, 1)
        ... ]
        [True, True, True]
        """
        apart = 1 - self._number("overlap")
        times = self.durations(schedule.num_stages)
        parts = relative_work(self.slice_work, schedule.num_slices)

        def time(action: Action) -> float:
            part = parts[schedule.number_of(action.microbatch) % len(parts)]
            return times[action.kind][action.stage] * part

        pairs = {}
        for forward, backward in schedule.joined.items():
            shorter, longer = sorted((time(forward), time(backward)))
            pairs[forward] = longer + apart * shorter
        return pairs

    def update_times(self, schedule: ActionTable) -> list[float]:
        """Return, by rank, the time of the optimiser between two training steps: none
        if the schedule has U.

        Raises
        ------
        ScheduleError
            Code ``value``.
        """
        by_stage = self.by_stage("update", schedule.num_stages)
        by_rank = stages_by_rank(schedule.placement, schedule.num_ranks)
        if U in schedule.kinds:
            return [0.0] * schedule.num_ranks
        return [sum(by_stage[stage] for stage in stages) for stages in by_rank]

    def message_times(self, schedule: ActionTable) -> tuple[float, ...]:
        """Return, by stage, the transfer time of its activation to the next stage, and
        of the gradient back.

        Raises
        ------
        ScheduleError
            Code ``value``, if the latency, the overhead or a size is negative or
            infinite, or the bandwidth is not above 0.
        """
        latency, _ = map(self._number, ("latency", "overhead"))
        sizes = self.by_stage("message_size", schedule.num_stages)
        bandwidth = self._number("bandwidth")
        times = [0.0] * schedule.num_stages
        for stage, size in enumerate(sizes):
            if schedule.crosses_ranks(stage):
                times[stage] = latency + size / bandwidth
        return tuple(times)

    def sum_times(self, schedule: ActionTable) -> list[tuple[float, float]]:
        """Return, by stage, the time of one part of its gradient all-reduce, and of the
        whole all-reduce.

        Replica j of n adds part j, 1/n of the gradients, in the order of the replicas,
        and sends the sum to all others: a reduce-scatter and an all-gather, in each of
        which every replica sends n - 1 parts one after another. So an all-reduce takes
        2 (latency + (n - 1) / n * gradient_size / bandwidth), and no time without
        replicas.

        Raises
        ------
        ScheduleError
            Code ``value``.

        References
        ----------
        Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters
        of workstations": the least volume, here without a ring, in two rounds and a
        fixed order of additions.

        Examples
        --------
        >>> from minipipe import Schedule
        >>> Costs(gradient_size=6, bandwidth=1, latency=0.5).sum_times(
        ...     Schedule.from_text("0F0 0B0 \\n 0F1 0B1")
        ... )
        [(3.0, 7.0)]
        """
        sizes = self.by_stage("gradient_size", schedule.num_stages)
        times = [(0.0, 0.0)] * schedule.num_stages
        for stage, size in enumerate(sizes):
            n = len(schedule.ranks_of(stage))
            if n > 1:
                part = size / n / as_float(self.bandwidth)
                times[stage] = part, 2 * (float(self.latency) + (n - 1) * part)
        return times

    def hosts_of(self, schedule: ActionTable) -> Hosts | None:
        """Return the hosts of a schedule's ranks; None, if ranks share no cores and
        messages no links.

        Raises
        ------
        ScheduleError
            Code ``value``, if there is not one host for each rank, or not one number of
            cores for each host.

        Examples
        --------
        >>> from minipipe import schedules
        >>> (
        ...     Costs(cores=2).hosts_of(schedules.gpipe(4, 8)),
        ...     Costs(cores=4).hosts_of(schedules.gpipe(4, 8)),
        ... )
        (Hosts(of_rank=(0, 0, 0, 0), cores=(2.0,)), None)
        """
        hosts = hosts_of(self.cores, self.hosts, schedule.num_ranks)
        times = [time - self.latency for time in self.message_times(schedule) if time]
        if REDUCE_GRAD in schedule.kinds:
            times += [part for part, _ in self.sum_times(schedule)]
        return hosts if hosts.are_shared(times) else None

    def memory(self, num_stages: int) -> Footprint:
        """Return, by stage, the activation memory of one microbatch.

        Raises
        ------
        ScheduleError
            Code ``value``.
        """
        held = ["activation", "weight_activation", "transient_activation"]
        if self.weight_activation is None:
            held[1] = "activation"
        return Footprint(*(self.by_stage(name, num_stages) for name in held))

    def weight_memory(self, num_stages: int) -> list[float]:
        """Return, by stage, the memory of its weights.

        Raises
        ------
        ScheduleError
            Code ``value``.
        """
        return self.by_stage("weights", num_stages)

    def workload(
        self,
        placement: Placement,
        num_microbatches: int,
        memory_limit: float | Sequence[float] | None = None,
    ) -> Workload:
        """Return the workload of a batch: the scheduling problem that a schedule
        solves.

        A workload does not model hosts: each rank has a core of its own, and each
        message a link.

        Parameters
        ----------
        placement : sequence of int
            The rank of each stage. Searches and bounds do not support replicas.
        num_microbatches : int
        memory_limit : float or sequence of float, optional
            The most that a rank may hold, in the memory unit of the costs: one limit
            for all ranks, or one for each.

        Raises
        ------
        ScheduleError
            Codes ``value``, ``placement`` and ``unsupported``.

        Examples
        --------
        >>> Costs(latency=0.5).workload(
        ...     (0, 1, 1), num_microbatches=4, memory_limit=2.5
        ... ).message
        (0.5, 0.0, 0.0)
        """
        from minipipe.schedules.analysis.workload import Workload, amount_per_rank

        ranks = [rank for home in placement for rank in ranks_in(home)]
        numbers = (int(rank) for rank in ranks if isinstance(rank, Integral))
        num_ranks = 1 + max(numbers, default=0)
        check_sizes(num_ranks, num_microbatches)
        rows = ((),) * num_ranks
        blank = Schedule("workload", tuple(placement), num_microbatches, rows)
        times = self.durations(blank.num_stages)
        limits = (inf,) * num_ranks
        if memory_limit is not None:
            limits = amount_per_rank(memory_limit, num_ranks)
        return Workload(
            rank_of_each_stage(blank, "a search"),
            num_microbatches,
            tuple(times[F]),
            tuple(times[I]),
            tuple(times[W]),
            message=self.message_times(blank),
            footprint=Footprint(*map(tuple, self.memory(blank.num_stages))),
            memory_limit=limits,
            overhead=float(self.overhead),
        )

    def _number(self, name: str) -> float:
        return _SPECS[name].check(name, getattr(self, name))

    def by_stage(self, name: str, num_stages: int, of: str = "stage") -> list[float]:
        """Return the value of an attribute on each stage, or on each of something else,
        by the noun for it.

        Raises
        ------
        ScheduleError
            Code ``value``, if it does not have one value for each stage, or one is
            negative or not finite.
        """
        value = self._given(name)
        try:
            repeated = [value] * num_stages if isinstance(value, Real) else value
            values = list(map(as_float, repeated))
        except (TypeError, ValueError):
            expected = f"a number, or one for each {of}"
            raise SCHEDULE_NUMBER.refusal(name, value, expected) from None
        expected = f"one number, or one for each {of}"
        _check_length(name, values, num_stages, expected, of)
        return _BY_STAGE.check_items(name, value, values)

    def _given(self, name: str) -> Any:
        if name in _SPECS:
            return getattr(self, name)
        return (self.other or {}).get(name, 0.0)

    def _divided(self, names: Iterable[str], parts: int, copies: int) -> dict[str, Any]:
        """Return attributes over a number of parts; a list has some copies of each of
        its numbers.
        """
        divided: dict[str, Any] = dict.fromkeys(names)
        for name in divided:
            attribute = self._given(name)
            if isinstance(attribute, Sized):
                whole = self.by_stage(name, len(attribute))
                pieces = ([value / parts] * copies for value in whole)
                divided[name] = tuple(chain.from_iterable(pieces))
            elif attribute is not None:
                divided[name] = self.by_stage(name, 1)[0] / parts
        return divided


def hosts_of(cores: object, hosts: object, num_ranks: int) -> Hosts:
    """Return the hosts of some ranks, from the two attributes of
    :class:`minipipe.Costs`.

    Examples
    --------
    >>> hosts_of(2, None, num_ranks=4)
    Hosts(of_rank=(0, 0, 0, 0), cores=(2.0,))
    >>> hosts_of([2, 1], [0, 0, 1], num_ranks=3).cores
    (2.0, 1.0)
    """
    numbers = [0] * num_ranks
    if hosts is not None:
        numbers = _numbers(hosts, 1)
    exists = range(num_ranks).__contains__
    if not all(map(exists, _SPECS["hosts"].check_items("hosts", hosts, numbers))):
        raise _SPECS["hosts"].refusal("hosts", hosts)
    _check_length("hosts", numbers, num_ranks)
    of_rank = tuple(map(int, numbers))
    num_hosts = 1 + max(of_rank)
    counts = [inf] * num_hosts
    if cores is not None:
        counts = _numbers(cores, num_hosts)
    counts = _SPECS["cores"].check_items("cores", cores, counts)
    _check_length("cores", counts, num_hosts)
    return Hosts(of_rank, tuple(counts))


def _numbers(value: Any, count: int) -> list[Any]:
    """Return the items of a sequence; repeat any other value ``count`` times."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    return [value] * count


def _check_length(
    name: str, values: Sized, count: int, expected: str = "one for each", of: str = ""
) -> None:
    if len(values) != count:
        of = of or _SPECS.get(name, _BY_STAGE).of
        problem = f"{counted(len(values), 'value')} for {counted(count, of)}"
        raise misuse(f"{name} has {problem}; expected {expected}.")


def _plain(value: Any) -> Any:
    """Return a value as JSON can write it; it may be a number or an array of NumPy."""
    if isinstance(value, Mapping):
        return dict(zip(value, map(_plain, value.values())))
    if isinstance(value, Iterable) and not isinstance(value, str):
        return list(map(_plain, value))
    if hasattr(value, "item"):
        return value.item()
    return value


def _check_members(members: dict[str, Any]) -> None:
    """Refuse members of a file that are not attributes of costs, or have other
    values.
    """
    others = members.get("other", {})
    if not isinstance(others, dict):
        expected = "an object of times by name"
        raise ArgumentError(f"its other is {quoted(others)}, expected {expected}")
    specs = {**dict.fromkeys(others, _BY_STAGE), **_SPECS, **_OTHERS}
    lengths = {}
    for name, value in {**others, **members}.items():
        if name == "other":
            continue
        if name not in specs:
            expected = "names of costs, such as 'forward'"
            raise ArgumentError(f"it has {quoted(name)}, expected {expected}")
        spec = specs[name]
        if not _is_in_file(spec, value):
            raise ArgumentError(f"its {name} is {quoted(value)}, expected {spec.words}")
        if spec.of == "stage" and isinstance(value, list):
            lengths[name] = len(value)
    if len(set(lengths.values())) > 1:
        message = "it has lists for different numbers of stages"
        raise ArgumentError(f"{message}: {quoted(lengths, 200)}")


def _is_in_file(spec: Spec, value: Any) -> bool:
    """Whether a member of a file fits its Spec; a value by rank is a list of ints."""
    if not spec.of:
        return spec.allows(value) and value != inf
    is_list = isinstance(value, list)
    if spec.of == "rank" and not (is_list and all(type(one) is int for one in value)):
        return False
    numbers = value if is_list else [value]
    are_plain = all(isinstance(one, int | float) and one != inf for one in numbers)
    return bool(numbers) and are_plain and all(map(spec.allows, numbers))


def _not_costs(path: str | Path, reason: str) -> ScheduleError:
    return misuse(f"{quoted(str(path), 200)} is not a file of costs: {reason}.")
