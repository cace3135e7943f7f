"""How busy a machine is, and how much memory it has, as the system says."""

import sys
from math import inf

import pytest

from minipipe.comm.job import host
from minipipe.comm.job.host import busy_cores, memory_of_this_host
from minipipe.core.comm.host import cores

IDLE = "cpu  0 0 0 0\n{lines}\nintr 0\n"


def ticks(worked, idle):
    """Return the lines of some cores: so many ticks of work, and idle."""
    return IDLE.format(
        lines="\n".join(
            f"cpu{i} {worked[i]} 0 0 {idle[i]} 0 0 0 0 0 0" for i in range(len(worked))
        )
    )


@pytest.mark.parametrize(
    ("worked", "idle", "allowed", "busy"),
    [
        ([0, 0], [25, 25], {0, 1}, 0.0),
        ([25, 0], [0, 25], {0, 1}, 1.0),
        ([25, 25], [0, 0], {0, 1}, 2.0),
        ([5, 20], [20, 5], {0, 1}, 1.0),
        ([5, 25], [20, 0], {0}, 0.2),  # what other cores do does not matter
        ([0, 0], [0, 0], {0, 1}, 0.0),  # the clock of the kernel has not ticked
    ],
)
def test_cores_are_busy_as_far_as_they_work_while_this_process_sleeps(
    worked, idle, allowed, busy, monkeypatch, tmp_path
):
    file = tmp_path / "stat"
    file.write_text(ticks([100, 100], [100, 100]))
    monkeypatch.setattr(host, "_CORE_TIMES", file)
    monkeypatch.setattr(host, "cores", lambda: allowed)

    def sleep(_):
        file.write_text(
            ticks([100 + each for each in worked], [100 + each for each in idle])
        )

    monkeypatch.setattr(host.time, "sleep", sleep)
    assert busy_cores() == pytest.approx(busy)


@pytest.mark.parametrize("text", [None, "", "cpu0 a b", "nonsense"])
def test_where_the_system_does_not_say_no_core_is_busy(text, monkeypatch, tmp_path):
    file = tmp_path / "stat"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(host, "_CORE_TIMES", file)
    assert busy_cores(0.0) == 0.0


def test_the_memory_is_the_least_of_machine_and_container(monkeypatch, tmp_path):
    file = tmp_path / "memory.max"
    monkeypatch.setattr(host, "_LIMIT_OF_MEMORY", file)
    whole = memory_of_this_host()
    file.write_text("max\n")
    assert memory_of_this_host() == whole
    file.write_text("1000000\n")
    assert memory_of_this_host() == 1e6
    if sys.platform == "linux":
        assert 2**24 < whole < inf and cores()
