"""Random schedules whose sequences are cut into slices, for hypothesis."""

from hypothesis import strategies as st

from minipipe import Action, ActionKind, Schedule


@st.composite
def sliced_schedules(draw, max_ranks=3, max_sequences=2, max_slices=3):
    """Draw a legal schedule of sequences in slices, straight or in a V: any topological
    order is one.
    """
    p, n = draw(st.integers(1, max_ranks)), draw(st.integers(2, max_slices))
    m = n * draw(st.integers(1, max_sequences))
    placement = draw(st.sampled_from([[*range(p)], [*range(p), *reversed(range(p))]]))
    # what each action needs: its neighbour in the pipeline, and the slice before it
    before = {}
    for stage, k in ((s, k) for s in range(len(placement)) for k in range(m)):
        before["F", stage, k] = {("F", stage - 1, k)} & before.keys() | (
            {("F", stage, k - 1)} if k % n else set()
        )
        later = {("B", stage, k + 1)} if (k + 1) % n else set()
        next_stage = {("B", stage + 1, k)} if stage + 1 < len(placement) else set()
        before["B", stage, k] = {("F", stage, k)} | later | next_stage
    rows, random = [[] for _ in range(p)], draw(st.randoms(use_true_random=False))
    while before:
        ready = sorted(
            action for action, needed in before.items() if not needed & before.keys()
        )
        kind, stage, k = random.choice(ready)
        del before[kind, stage, k]
        rows[placement[stage]].append(Action(stage, ActionKind(kind), k))
    return Schedule("slices", placement, m, rows, num_slices=n)
