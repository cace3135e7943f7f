"""How noisy a machine is: for how long ranks were ready to run, and other programs had the cores."""

from __future__ import annotations

import warnings
from time import perf_counter

import numpy as np

from minipipe.comm import ProcessGroup
from minipipe.comm.job.host import core_times
from minipipe.execution.checks import part_of
from minipipe.schedules.simulation.costs import Hosts

_MUCH = 0.2  # of the time of all ranks


class CoreWatch:
    """Since it was made: for how long this rank had a core, and for how long it waited for one, in seconds.

    Where a host has as many cores as ranks, none has to wait. Where it has fewer and nobody else wants them, all of its
    cores work for the ranks while one of them waits: the ranks together wait at most (ranks / cores - 1) times as long
    as they have a core. What is beyond that went to other programs, or to a limit that the system sets.
    """

    def __init__(self) -> None:
        self._begun = np.array([*core_times(), perf_counter()])

    def elapsed(self) -> np.ndarray:
        """Return the seconds with a core, waiting for one, and of all; shape (3,)."""
        return np.array([*core_times(), perf_counter()]) - self._begun

    def warn(self, group: ProcessGroup, hosts: Hosts | None) -> None:
        """Warn on rank 0, if the ranks waited for cores by far longer than sharing them explains. Collective.

        Parameters
        ----------
        group : ProcessGroup
        hosts : Hosts or None
            None where every rank has a core.
        """
        times = np.array(group.all_gather(self.elapsed(), what=part_of("measure_costs")))
        had, waited, wall = times.sum(axis=0)
        explained = 0.0
        for number, cores in enumerate(() if hosts is None else hosts.cores):
            ranks = np.equal(hosts.of_rank if hosts else (), number)
            explained += max(0.0, ranks.sum() / cores - 1) * times[ranks, 0].sum()
        if group.rank == 0 and waited - explained > _MUCH * wall:
            sharing = f"; that they share cores explains {explained:.3f} s of it at most" if hosts else ""
            warnings.warn(
                f"These costs were measured on a busy machine: of {wall:.3f} s on all ranks, the ranks had a core for "
                f"{had:.3f} s of processor time, and waited for one for {waited:.3f} s{sharing}. A prediction from "
                "them may be far from what is measured, now and later; measure again when no other program runs.",
                stacklevel=4,
            )
