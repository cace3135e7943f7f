"""The faults as data: what goes wrong, in which places and on which ranks, and what
must come of it.

The rows are those of the project's table of faults: 1 a rank is killed, 2 raises, 3
exits, 4 stops answering, 5 a schedule deadlocks, 6 a message is missing, 7 shape or
dtype differs, 8 ranks run different programs, 9 numbers do not fit, 10 NaN, 18 Ctrl-C
or a killed launcher, 20 a failure before the group, 21 the job is suspended, 22 a rank
is slow, 23 a dead stream, 24 a killed proxy, 25 a gradient of another dtype. (11 to 16
and 26 are about checkpoints, input and survivors, 17 and several hosts about links, 19
about what is not installed: tested elsewhere.)

Words are regular expressions over lines of ours, with ``{rank}`` for the culprit,
``{peer}`` for the rank that the lost message was for, and ``{where}`` for the place of
the training as an error names it.
"""

from typing import NamedTuple

from tests.faults.deeds import PLACES

TIMEOUT = 1.5  # seconds; where ranks are slow and must not be blamed, longer

EARLY = ("first line", "before the group")
IN_STEP = ("warm-up", "steady", "cool-down")
OF_GROUP = ("construction", *IN_STEP, "between steps")
EVERYWHERE = (*EARLY, *OF_GROUP, "exit")

# seconds from the fault until no process is left
SOON, SILENT, KILLED, ORPHANED = 3.0, TIMEOUT + 3.0, 5.0, 10.0
STARTING = 10.0 + 3.0  # a start has 10 s, however short the timeout

SPEAKS = r"^\[rank {rank}\] "
NAMED = r"[Rr]ank {rank}\b"
PLACED = r"{where}"
UNEXPLAINED = r"^\[rank {rank}\] Rank {rank} .*exited without an error message"
SILENCE = r"Rank {rank} does not answer"
BUSY = r"Rank {rank} is busy in its own code"
WAITED = r"Rank {peer} (is blocked on|has waited longest, for) .* from rank {rank}\b"

ON_GRID = {"num_ranks": 8, "ranks": (0, 3, 5)}


class Fault(NamedTuple):
    """One row of the bench.

    Attributes
    ----------
    name : str
        A function of ``deeds.py`` or ``scenes.py``.
    row : int
        In the project's table of faults.
    places : tuple of str
        Where in the training it happens; those of a scene are the empty string.
    code : int or None
        The job's exit code; None for any but 0. With 0 nothing may be said, and every
        rank comes to its end.
    last : str
        Words of the last line of ours, which names the culprit; empty where nobody can
        say it.
    also : tuple of str
        Words that stand somewhere in what we say.
    limit : float
        Seconds from the fault until no process is left; infinite where the fault ends
        nothing.
    ranks : tuple of int
        The culprits, one for each run; seeds where the culprits are drawn.
    num_ranks : int
    timeout : float
        Of the group, in seconds.
    variables : tuple of (str, str)
        Of the environment.
    """

    name: str
    row: int
    places: tuple[str, ...] = ("",)
    code: int | None = 1
    last: str = ""
    also: tuple[str, ...] = ()
    limit: float = SOON
    ranks: tuple[int, ...] = (0, 1, 2, 3)
    num_ranks: int = 4
    timeout: float = TIMEOUT
    variables: tuple[tuple[str, str], ...] = ()


class Case(NamedTuple):
    """One run: a fault at one place on one rank, in a program with a with-block or
    without.
    """

    fault: Fault
    place: str
    rank: int
    style: str = "with"

    def __str__(self):
        fault, place, rank, style = self
        more = [f"{name}={value}" for name, value in fault.variables]
        return " ".join(
            word for word in (fault.name, place, f"rank {rank}", style, *more) if word
        )

    def words(self, pattern, peer):
        """Return a pattern with the names of this case."""
        where = PLACES.get(self.place)
        if isinstance(where, tuple) and self.place in IN_STEP:
            step, _, microbatch = where
            where = (
                rf"on rank {self.rank}, stage {self.rank}, microbatch {microbatch}, "
                rf"action \S+ of 1f1b, step {step}"
            )
            # where Python tells no more
            where += rf"|[Ii]ts last action was {self.rank}\D{microbatch}, step {step}"
        else:
            where = ""
        # on a grid of 2 x 2 x 2
        place, replica, part = self.rank // 4, self.rank // 2 % 2, self.rank % 2
        coordinates = (
            f"pipeline rank {place}, replica {replica}, part {part}; stage {place}"
        )
        names = {
            "rank": self.rank,
            "peer": peer,
            "where": where,
            "coordinates": coordinates,
        }
        for name, value in names.items():
            pattern = pattern.replace(f"{{{name}}}", str(value))
        return pattern


def cases(fault):
    """Return the cases of a fault: every rank at every place and, at every place, one
    in a program without ``with``.
    """
    return [
        *(Case(fault, place, rank) for place in fault.places for rank in fault.ranks),
        *(
            Case(_without(fault, place), place, fault.ranks[-1], "without")
            for place in fault.places
        ),
    ]


def _without(fault, place):
    """Return a fault in a program without ``with``: there minipipe does not see the
    code of ``raise SystemExit(7)``.
    """
    return (
        fault._replace(code=1)
        if fault.name == "raises_an_exit" and place in OF_GROUP
        else fault
    )


def case_of(name, place="", rank=2, style="with", **variables):
    """Return the case of a name, for tests."""
    (fault,) = [
        fault
        for fault in FAULTS
        if (fault.name, fault.variables) == (name, tuple(variables.items()))
        and place in fault.places
    ]
    fault = _without(fault, place) if style == "without" else fault
    return Case(fault, place, rank if rank in fault.ranks else fault.ranks[0], style)


def _goes_on(name, row, places=("",), **more):
    return Fault(name, row, places, **{"code": 0, "limit": float("inf"), **more})


def _where_streams_are_dead():
    """Yield faults of other rows with a stream that cannot be written. Where that is
    stderr, nobody can be named.
    """
    for stream in ("stdout", "stderr"):
        for way in ("None", "closed", "gone", "full", "unread"):
            # since there is a group, or before
            for since in ("FAULT_STREAM", "FAULT_STREAM_EARLY"):
                options = {"variables": ((since, f"{stream} {way}"),), "ranks": (0, 2)}
                speaks, silence = (SPEAKS, SILENCE) if stream == "stdout" else ("", "")
                yield Fault("raises", 23, ("steady",), None, speaks, **options)
                yield Fault(
                    "stops", 23, ("steady",), None, silence, limit=SILENT, **options
                )


def _in_replica(words, rank="{rank}"):
    """Return words about a rank that name its replica and its stage as well."""
    return words.replace(
        f"Rank {rank}", rf"Rank {rank} \(replica \d, stage \d(\)|; process)"
    )


def _on_grid(words):
    """Return words about a rank that name its coordinates and its stage as well."""
    return words.replace("Rank {rank}", r"Rank {rank} \({coordinates}(\)|; process)")


# What is known of a rank that is killed before there is a group: its launcher's banner.
# It ends the job at once, and nobody of ours has seen the rank.
FAULTS = (
    *(
        fault
        for name in ("is_killed", "crashes", "leaves_python")
        for fault in (
            Fault(name, 1, EARLY, None, limit=KILLED),
            Fault(
                name,
                1,
                (*OF_GROUP, "exit"),
                None,
                UNEXPLAINED,
                limit=KILLED,
            ),
        )
    ),
    Fault(
        "is_killed_with_children",
        1,
        (*OF_GROUP, "exit"),
        None,
        UNEXPLAINED,
        limit=KILLED,
    ),
    Fault(
        "raises_with_children", 2, ("steady",), 1, SPEAKS, ("ValueError: boom$", PLACED)
    ),
    # On a busy machine the launcher has killed it before anybody has seen that it still
    # runs.
    Fault(
        "closes_all_files",
        1,
        ("between steps",),
        None,
        rf"{SPEAKS}Rank {{rank}} .*(closed all its files|SIGKILL)",
    ),
    _goes_on("closes_the_socket_to_the_launcher", 1, ("construction", "between steps")),
    _goes_on(
        "leaves_a_child_behind", 3, ("construction", "steady", "between steps", "exit")
    ),
    Fault(
        "raises",
        2,
        IN_STEP,
        1,
        rf"{SPEAKS}(ValueError: boom|{PLACED})$",
        ("ValueError: boom$", PLACED),
    ),
    Fault(
        "raises",
        2,
        ("construction", "between steps", "exit"),
        1,
        rf"{SPEAKS}ValueError: boom$",
    ),
    Fault("runs_out_of_memory", 2, OF_GROUP, 1, SPEAKS, ("MemoryError", PLACED)),
    Fault("is_interrupted", 2, OF_GROUP, 130, SPEAKS, (PLACED,)),
    *(
        Fault(name, 3, OF_GROUP, 7, SPEAKS, (PLACED,))
        for name in ("exits", "raises_an_exit")
    ),
    Fault("exits_in_a_collective", 3, code=7, last=SPEAKS),
    *(Fault(name, 3, ("exit",), 7) for name in ("exits", "raises_an_exit")),
    Fault("aborts", 3, OF_GROUP, 9),
    Fault(
        "returns_early",
        3,
        ("construction", "between steps"),
        1,
        r"[Rr]ank {rank} has exited",
    ),
    _goes_on(
        "forks_and_the_child_exits", 3, ("construction", "steady", "between steps")
    ),
    _goes_on("catches_an_exit_and_goes_on", 3, ranks=(0,)),
    _goes_on("exits_with_zero_at_the_end", 3, ranks=(0,)),
    Fault("stops", 4, (*OF_GROUP, "exit"), 1, SILENCE, limit=SILENT),
    *(
        Fault(name, 4, OF_GROUP, 1, rf"{BUSY}.*deeds\.py\D+\d+.*{name}", limit=SILENT)
        for name in ("sleeps", "spins")
    ),
    Fault("holds_the_lock", 4, OF_GROUP, 1, f"({SILENCE}|{BUSY})", limit=SILENT),
    *(
        Fault(name, 4, EARLY, None, NAMED, limit=STARTING)
        for name in ("stops", "sleeps", "holds_the_lock")
    ),
    *(
        Fault(
            "stops_in_the_middle_of_a_large_array",
            4,
            last=SILENCE,
            limit=SILENT,
            variables=(("MPIR_CVAR_CH4_CMA_ENABLE", reads_other_memory),),
        )
        for reads_other_memory in "01"
    ),
    Fault(
        "sends_a_large_array_that_nobody_takes",
        4,
        last=BUSY,
        also=(r"to take float64 \(1048576,\)",),
        limit=SILENT,
    ),
    *(
        _goes_on(
            "leaves_a_large_send_behind",
            4,
            variables=(("MPIR_CVAR_CH4_CMA_ENABLE", reads_other_memory),),
        )
        for reads_other_memory in "01"
    ),
    Fault("stops_in_a_subgroup", 4, last=SILENCE, limit=SILENT),
    _goes_on("works_on_alone_after_the_others", 4, timeout=1.0),
    _goes_on("does_nothing", 4, ("steady",), timeout=float("inf"), ranks=(0,)),
    Fault(
        "has_a_schedule_that_deadlocks",
        5,
        last=r"rank|wait",
        also=("wait for each other in a cycle",),
        ranks=(0,),
    ),
    *(
        fault
        for name, words in (
            ("loses_a_message", WAITED),
            ("mistags_a_message", rf"{WAITED}.*with tag 1\d\d\d\b"),
        )
        for fault in (
            Fault(
                name,
                6,
                ("construction", "warm-up", "steady", "between steps"),
                1,
                words,
                limit=SILENT,
            ),
            Fault(name, 6, ("cool-down",), 1, words, limit=SILENT, ranks=(1, 2, 3)),
        )
    ),
    Fault("sends_another_tag", 6, last=rf"{WAITED}.*with tag 5\b", limit=SILENT),
    *(
        Fault(
            name,
            7,
            last=(
                r"[Rr]ank {rank} sent float64 \(3,\) to rank {peer}, which expects "
                r"float32 \(3,\)"
            ),
        )
        for name in ("sends_another_dtype", "sends_another_dtype_in_a_subgroup")
    ),
    Fault(
        "sends_another_shape",
        7,
        last=(
            r"[Rr]ank {rank} sent float64 \(3,\) to rank {peer}, which expects "
            r"float64 \(4,\)"
        ),
    ),
    # When a pipeline is made, most ranks say what is usual; a call is compared with
    # that of the first rank alone.
    *(
        Fault(f"differs_in_{what}", 8, last=r"of rank {rank} differs?\b")
        for what in (
            "seed",
            "schedule",
            "width",
            "an_initialiser",
            "epsilon",
            "an_attribute",
        )
    ),
    Fault(
        "differs_in_first_values",
        8,
        last=r"first values of 0.weight.* on rank {rank} differ from those",
    ),
    *(
        Fault(
            f"differs_in_{what}",
            8,
            last=rf"{NAMED}.*\b(differs?|but)\b|\b(differs?|but)\b.*{NAMED}",
        )
        for what in ("batch", "learning_rate", "optimiser", "mode")
    ),
    Fault(
        "steps_unequally_often",
        8,
        last=(
            r"[Rr]ank \d is in step\(\), call \d of pipeline 1, but rank \d in "
            r"step\(\)"
        ),
    ),
    # Two replicas of two stages: the messages name them, too.
    Fault(
        "is_killed_in_a_sum", 1, code=None, last=_in_replica(UNEXPLAINED), limit=KILLED
    ),
    Fault(
        "raises_in_a_sum",
        2,
        last=SPEAKS,
        also=("ValueError: boom$", r"on rank {rank}, stage \d, .* \dREDUCE_GRAD\d of"),
    ),
    Fault("stops_in_a_sum", 4, last=_in_replica(SILENCE), limit=SILENT),
    Fault("sleeps_in_a_sum", 4, last=_in_replica(BUSY), limit=SILENT),
    Fault("loses_a_part_of_a_sum", 6, last=_in_replica(WAITED, "{peer}"), limit=SILENT),
    # In a compiled step like the last one.
    Fault(
        "raises_in_a_compiled_sum",
        2,
        last=SPEAKS,
        also=("ValueError: boom$", r"on rank {rank}, stage \d, .* \dREDUCE_GRAD\d of"),
    ),
    Fault(
        "loses_a_part_of_a_compiled_sum",
        6,
        last=_in_replica(WAITED, "{peer}"),
        limit=SILENT,
    ),
    Fault(
        "is_killed_within_a_compiled_sum",
        1,
        code=None,
        last=_in_replica(UNEXPLAINED),
        limit=KILLED,
    ),
    Fault("stops_within_a_compiled_sum", 4, last=_in_replica(SILENCE), limit=SILENT),
    Fault("sleeps_within_a_compiled_sum", 4, last=_in_replica(BUSY), limit=SILENT),
    Fault(
        "differs_in_replicas",
        8,
        last=r"The replicas of rank {rank} differs .*: 1\", on rank \d .replicas: 2",
    ),
    # Ranks that wait in a channel.
    Fault("is_killed_beside_channels", 1, code=None, last=UNEXPLAINED, limit=KILLED),
    Fault("raises_beside_channels", 2, last=rf"{SPEAKS}ValueError: boom$"),
    Fault("exits_beside_channels", 3, code=7, last=SPEAKS),
    Fault("returns_early_beside_channels", 3, last=r"[Rr]ank {rank} has exited"),
    Fault("stops_beside_channels", 4, last=SILENCE, limit=SILENT),
    Fault("sleeps_beside_channels", 4, last=BUSY, limit=SILENT),
    Fault(
        "makes_another_call_beside_channels",
        8,
        last=rf"{NAMED}.* a barrier",
        limit=SILENT,
    ),
    # A grid of 2 x 2 x 2: the messages name coordinates.
    Fault(
        "is_killed_in_a_layer",
        1,
        code=None,
        last=_on_grid(UNEXPLAINED),
        limit=KILLED,
        **ON_GRID,
    ),
    Fault(
        "raises_in_a_layer",
        2,
        last=SPEAKS,
        also=(r"{coordinates}:$", "ValueError: boom$"),
        **ON_GRID,
    ),
    Fault(
        "exits_in_a_layer",
        3,
        code=7,
        last=SPEAKS,
        also=(r"{coordinates}:$",),
        **ON_GRID,
    ),
    Fault("stops_in_a_layer", 4, last=_on_grid(SILENCE), limit=SILENT, **ON_GRID),
    Fault("sleeps_in_a_layer", 4, last=_on_grid(BUSY), limit=SILENT, **ON_GRID),
    *(
        Fault(name, 9, last=words, ranks=(0,))
        for name, words in (
            ("has_too_few_layers", "1 layer cannot make 4 stages"),
            (
                "has_too_few_samples",
                "A batch of 16 samples cannot make 17 microbatches",
            ),
            (
                "has_a_schedule_for_other_ranks",
                "gpipe is made for 2 ranks, but there are 4",
            ),
        )
    ),
    *(
        Fault(name, 10, IN_STEP, 1, r"[Ss]tep 2: .*[Rr]ank {rank}\b.*microbatch \d")
        for name in ("turns_into_nan", "overflows")
    ),
    Fault(
        "kills_the_launcher",
        18,
        EVERYWHERE,
        None,
        limit=ORPHANED,
        ranks=(0, 2),
        timeout=60.0,
    ),
    Fault(
        "sends_the_launcher_sigquit",
        18,
        ("steady",),
        None,
        also=("No rank has failed: .*Quit",),
        limit=5.0,
        timeout=60.0,
    ),
    Fault(
        "types_control_c", 18, EVERYWHERE, None, limit=5.0, ranks=(0, 2), timeout=60.0
    ),
    *(
        Fault(name, 20, EARLY, None, NAMED)
        for name in ("raises", "exits", "raises_an_exit")
    ),
    _goes_on("suspends_the_job", 21, (*OF_GROUP, "exit"), ranks=(0, 2)),
    *(
        _goes_on(name, 22, (*OF_GROUP, "exit"), timeout=4.0, ranks=(0, 2))
        for name in ("stops_for_a_while", "naps")
    ),
    _goes_on(
        "stands_in_a_debugger",
        22,
        ("construction", "steady", "between steps"),
        ranks=(0, 2),
        also=(r"Rank {rank} is in a debugger",),
    ),
    _goes_on("is_slow_at_random", 22, timeout=4.0, ranks=tuple(range(10))),
    *_where_streams_are_dead(),
    Fault(
        "kills_the_proxy",
        24,
        EVERYWHERE,
        None,
        limit=ORPHANED,
        ranks=(0, 2),
        timeout=60.0,
    ),
    Fault(
        "widens_the_gradient", 25, ("cool-down",), 1, SPEAKS, ("float64", "TensorError")
    ),
)
