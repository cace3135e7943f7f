"""Random workloads, for hypothesis."""

from hypothesis import strategies as st

from minipipe import Costs

AMOUNTS = st.integers(0, 6).map(lambda quarters: quarters / 4)
TIMES = st.integers(0, 5)


@st.composite
def workloads(draw, most_ranks=4, most_stages=6, most_microbatches=6):
    """Draw any placement, uneven times, latencies and memory, within limits that one microbatch keeps."""
    num_ranks = draw(st.integers(1, most_ranks))
    others = draw(st.lists(st.integers(0, num_ranks - 1), max_size=most_stages - num_ranks))
    placement = draw(st.permutations([*range(num_ranks), *others]))
    by_stage = [
        draw(st.lists(kind, min_size=len(placement), max_size=len(placement))) for kind in [TIMES] * 3 + [AMOUNTS] * 3
    ]
    costs = Costs(
        *by_stage[:3],
        latency=draw(st.sampled_from([0.0, 0.5, 3.0])),
        overhead=draw(st.sampled_from([0.0, 0.25])),
        activation=by_stage[3],
        weight_activation=by_stage[4],
        transient_activation=by_stage[5],
    )
    limits = [0.001] * num_ranks
    for rank in range(num_ranks):
        own = [stage for stage, owner in enumerate(placement) if owner == rank]
        activation, weight, transient = ([by_stage[i][stage] for stage in own] for i in (3, 4, 5))
        grows = max(max(0, t, w - a) for a, w, t in zip(activation, weight, transient))
        limits[rank] += sum(activation) + grows + draw(st.integers(0, 6)) / 4
    return costs.workload(placement, draw(st.integers(1, most_microbatches)), limits)
