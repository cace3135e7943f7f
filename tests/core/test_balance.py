"""A table is balanced if each of its values is given once, and taken as it must be."""

from hypothesis import event, given
from hypothesis import strategies as st
from minipipe.core.balance import is_balanced
from minipipe.core.flow import Flow
from minipipe.core.legality import faults
from minipipe.core.order import order
from minipipe.schedules import data_parallel, one_f_one_b, pipedream, recomputed
from tests.core.tables import legal_tables, lowered
from tests.core.test_order import changed
from tests.strategies import examples


@examples(300)
@given(st.data())
def test_a_table_is_balanced_if_no_value_has_a_fault_but_to_be_late(data):
    table = lowered(data.draw, data.draw(legal_tables()))
    for _ in range(data.draw(st.integers(0, 2))):
        table = changed(data.draw, table)
    flow = Flow(table)
    reasons = {fault.reason for fault in faults(flow)}
    event(" ".join(sorted(reasons)) or "no fault")
    assert is_balanced(flow) == (reasons <= {"late"})
    assert "late" not in reasons or order(flow).blocked


def test_alike_instructions_have_one_rule_however_many_microbatches_there_are():
    def count(table):
        return len(Flow(table).rules)

    assert count(recomputed(one_f_one_b(4, 8))) == count(recomputed(one_f_one_b(4, 64)))
    assert count(pipedream(4, 16)) == count(pipedream(4, 64))
    replicated = [data_parallel(one_f_one_b(4, m), 2) for m in (8, 64)]
    assert count(replicated[0]) == count(replicated[1])
