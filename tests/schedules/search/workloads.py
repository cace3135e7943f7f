"""Random small workloads, which exact searches solve in an instant."""

from hypothesis import strategies as st

from minipipe import Costs
from minipipe.errors import ScheduleError
from minipipe.schedules.analysis.workload import Objective
from minipipe.search.clock import one_after_another

STRAIGHT, V = (0, 1, 2, 3), (0, 1, 2, 3, 3, 2, 1, 0)
PLACEMENTS = [
    (0,),
    (0, 1),
    (0, 1, 2),
    (0, 1, 1, 0),
    (0, 1, 0, 1),
    (0, 0, 1),
    (0, 1, 0),
    (1, 0),
    (0, 1, 0, 2),
]


@st.composite
def workloads(draw, placements=PLACEMENTS, most_actions=18):
    """Draw a workload of which at least one microbatch fits: uneven stages, zeros,
    fractions, messages, transients.
    """
    placement = draw(st.sampled_from(placements))
    microbatches = draw(st.integers(1, max(most_actions // (3 * len(placement)), 1)))

    def by_stage(values):
        return draw(
            st.lists(
                st.sampled_from(values),
                min_size=len(placement),
                max_size=len(placement),
            )
        )

    costs = Costs(
        forward=by_stage([1, 2, 0.5, 0]),
        backward_input=by_stage([1, 3, 0.7, 0]),
        backward_weight=by_stage([1, 0.25, 0]),
        message_size=by_stage([0, 0.5, 1]),
        bandwidth=1.0,
        overhead=draw(st.sampled_from([0, 0, 0.1])),
        activation=by_stage([1, 2, 1.5, 0]),
        weight_activation=by_stage([1, 0.4, 2.5, 0]),
        transient_activation=by_stage([0, 0, 0.3, 2]),
    )
    limit = draw(st.sampled_from([None, 2, 3.1, 4, 5.5, 7]))
    try:
        workload = costs.workload(placement, microbatches, limit)
        one_after_another(workload)
    except ScheduleError:
        workload = costs.workload(placement, microbatches)
    return workload


objectives = st.sampled_from(Objective)


AMOUNTS = st.integers(0, 6).map(lambda quarters: quarters / 4)
TIMES = st.integers(0, 5)


@st.composite
def any_workloads(draw, most_ranks=4, most_stages=6, most_microbatches=6):
    """Draw any placement, uneven times, latencies and memory, within limits that one
    microbatch keeps.
    """
    num_ranks = draw(st.integers(1, most_ranks))
    others = draw(
        st.lists(st.integers(0, num_ranks - 1), max_size=most_stages - num_ranks)
    )
    placement = draw(st.permutations([*range(num_ranks), *others]))
    by_stage = [
        draw(st.lists(kind, min_size=len(placement), max_size=len(placement)))
        for kind in [TIMES] * 3 + [AMOUNTS] * 3
    ]
    costs = Costs(
        *by_stage[:3],
        latency=draw(st.sampled_from([0.0, 0.5, 3.0])),
        overhead=draw(st.sampled_from([0.0, 0.25])),
        activation=by_stage[3],
        weight_activation=by_stage[4],
        transient_activation=by_stage[5],
    )
    workload = costs.workload(placement, draw(st.integers(1, most_microbatches)))
    spare = [draw(st.integers(0, 6)) / 4 for _ in range(num_ranks)]
    limits = tuple(
        max(workload.least_memory(rank) + more, 0.001)
        for rank, more in enumerate(spare)
    )
    return workload._replace(memory_limit=limits)
