"""What a run leaves behind on a rank."""

from minipipe.core.execution.record import Record
from minipipe.execution.stacking import share_time_of_last


def test_computations_that_one_did_for_all_share_its_time_equally_and_keep_what_was_held():
    record = Record(ran=[(0.0, 1.0, 5), (1.0, 1.5, 3), (1.5, 1.75, 2), (2.0, 4.0, 1)])
    share_time_of_last(record, 3)
    assert record.ran == [(0.0, 1.0, 5), (1.0, 2.0, 3), (2.0, 3.0, 2), (3.0, 4.0, 1)]
    share_time_of_last(record, 1)
    assert record.ran[-1] == (3.0, 4.0, 1)
