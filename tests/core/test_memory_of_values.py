"""Memory and versions of weights that follow from values, by definition."""

from dataclasses import replace

from hypothesis import assume, event, given
from hypothesis import strategies as st
from minipipe import schedules
from minipipe.core.flow import Flow
from minipipe.core.memory import pairs_of
from minipipe.schedules.analysis.activations import (
    Footprint,
    memory_levels,
    peak_activations,
)
from minipipe.schedules.analysis.copies import copies_held
from minipipe.schedules.analysis.held import lifetimes
from minipipe.schedules.simulation.ran import Ran
from tests.core.tables import (
    frozen,
    legal_tables,
    lowered,
    offloaded,
    problem,
)
from tests.schedules.sliced_tables import sliced_schedules
from tests.strategies import (
    examples,
    legally_overlapped,
    runnable_schedules,
    summed_schedules,
    updated_schedules,
)


def forward_only(table):
    rows = ([a for a in row if a.kind == "F"] for row in table.actions)
    return replace(table, actions=tuple(map(tuple, rows)), overlaps=())


@st.composite
def tables(draw):
    """Draw legal tables of one or two steps, with messages or without."""
    plain = runnable_schedules() | sliced_schedules()
    updated = updated_schedules()
    table = draw(
        legal_tables()
        | legally_overlapped(runnable_schedules())
        | offloaded(updated)
        | frozen(updated | sliced_schedules())
        | plain.map(forward_only)
        | summed_schedules().map(schedules.recomputed)
    )
    assume(problem(table) is None)
    if draw(st.booleans()):
        table = schedules.repeat(table, 2)
    return lowered(draw, table)


def kinds_of(row):
    """Return, by pair, the kinds of its actions with their positions."""
    result = {}
    for position, (stage, kind, k) in enumerate(row):
        result.setdefault((stage, k), {})[str(kind)] = position
    return result


def is_in(first, last, position):
    """Whether something exists after the action at a position."""
    return first <= position < last


def held_by(kinds, position, sizes):
    """Return the memory of a pair after the action at a position."""
    whole, rest, temporary = sizes
    begin = kinds["F"]
    back = kinds.get("B", kinds.get("I", begin))
    held = 0
    is_away = "O" in kinds and is_in(kinds["O"], kinds["L"], position)
    if is_in(begin, back, position) and not is_away:
        held += whole
    if "R" in kinds and is_in(kinds["R"], back, position):
        held += temporary
    if "W" in kinds and is_in(back, kinds["W"], position):
        held += rest
    return held


def needs_beside(kinds, position, sizes):
    """Return what a pair takes only while the action at a position runs."""
    whole, _, temporary = sizes
    back = kinds.get("B", kinds.get("I"))
    if position == kinds["F"] and back is None:
        return whole
    return temporary if position == back and "R" not in kinds else 0


@examples(300)
@given(tables(), st.data())
def test_memory_is_that_of_all_pairs_between_their_actions(table, data):
    count = table.num_stages
    sizes = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    amounts = [data.draw(sizes) for _ in range(3)]
    levels = memory_levels(table, Footprint(*amounts))
    counts = []
    for row, found in zip(table.actions, levels):
        pairs = kinds_of(row)
        before, most = 0, 0
        for position, level in enumerate(found):
            by_pair = {
                pair: held_by(kinds, position, [own[pair[0]] for own in amounts])
                for pair, kinds in pairs.items()
                if "F" in kinds
            }
            after = sum(by_pair.values())
            pair = row[position][0], row[position][2]
            beside = 0
            if "F" in pairs.get(pair, ()):
                own = [sizes[pair[0]] for sizes in amounts]
                beside = needs_beside(pairs[pair], position, own)
            assert level == (max(before + beside, after), after)
            before = after
            most = max(most, sum(holds(kinds, position) for kinds in pairs.values()))
        counts.append(most)
    assert peak_activations(table) == tuple(counts)


def holds(kinds, position):
    """Whether a pair is held while the action at a position runs."""
    if "F" not in kinds:
        return False
    last = max(kinds.get(name, kinds["F"]) for name in "FBIW")
    is_away = "O" in kinds and kinds["O"] < position < kinds["L"]
    return kinds["F"] <= position <= last and not is_away


@examples(200)
@given(tables())
def test_the_rows_of_a_timeline_hold_the_pairs_that_the_table_says(table):
    rows = table.without_sums().actions
    all_ranks = pairs_of(Flow(Ran(rows, table.num_slices)))
    for rank, row in enumerate(rows):
        alone = pairs_of(Flow(Ran([row], table.num_slices)))
        pairs = kinds_of(row)
        for position, (during, _) in enumerate(all_ranks.levels(rank)):
            assert during == sum(holds(kinds, position) for kinds in pairs.values())
        assert list(alone.levels(0)) == list(all_ranks.levels(rank))
        for stage, k, first, last in lifetimes(alone, 0):
            own = [at for at in range(len(row)) if holds(pairs[stage, k], at)]
            assert {first, last} <= set(own)


def versions_after(row, stage, position):
    """Return the versions of a stage's weights: the newest, and those of its pairs."""
    updates = [at for at, (s, kind, _) in enumerate(row) if s == stage and kind == "U"]
    versions = {sum(at <= position for at in updates)}
    for (s, _), kinds in kinds_of(row).items():
        if s == stage and "F" in kinds:
            last = max(kinds.get(name, kinds["F"]) for name in "FBIW")
            if is_in(kinds["F"], last, position):
                versions.add(sum(at < kinds["F"] for at in updates))
    return len(versions)


def accumulators_after(row, stage, position):
    """Return how many later updates apply a gradient that exists."""
    updates = {
        k: at for at, (s, kind, k) in enumerate(row) if s == stage and kind == "U"
    }
    result = set()
    for s, kind, k in row[: position + 1]:
        if s == stage and kind in ("B", "W"):
            taker = min(number for number in updates if number >= k)
            if updates[taker] > position:
                result.add(taker)
    return len(result)


@examples(200)
@given(updated_schedules() | offloaded(updated_schedules()), st.booleans())
def test_versions_and_accumulators_are_those_that_are_needed(table, has_sums):
    table = table if has_sums else table.without_sums()
    event("replicas" if table.has_replicas else "alone")
    for rank, row in enumerate(table.actions):
        for position, (_, after) in enumerate(copies_held(Flow(table), rank)):
            stage = row[position].stage
            assert after.stage == stage
            assert after.versions == versions_after(row, stage, position)
            assert after.sums == accumulators_after(row, stage, position)
