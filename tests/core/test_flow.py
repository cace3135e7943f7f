"""The numbers of a table's values are those that its instructions declare."""

from hypothesis import given
from hypothesis import strategies as st
from minipipe import schedules
from minipipe.core.flow import Flow
from tests.core.tables import legal_tables, lowered
from tests.strategies import examples


@examples(300)
@given(st.data())
def test_numbers_of_a_case_are_those_of_each_declaration(data):
    table = lowered(data.draw, data.draw(legal_tables()))
    flow = Flow(table)
    for rank, row in enumerate(table.actions):
        for position in range(len(row)):
            uses, numbers = flow.uses(rank, position), flow.numbers(rank, position)
            if uses is None:
                assert numbers is None
                continue
            for values, part in zip((uses.takes, uses.gives, uses.reads), numbers):
                assert list(values) == list(map(flow.value_of, part))
            needed = list(map(flow.value_of, numbers.needs))
            assert needed == [*uses.takes, *uses.reads]


def test_a_slice_reads_as_much_however_many_slices_are_before_it():
    flow = Flow(schedules.seq1f1b(2, 1, num_slices=40))
    for rank, row in enumerate(flow.rows):
        reads = [flow.uses(rank, position).reads for position in range(len(row))]
        assert max(map(len, reads)) == 2
