"""A grid of 2 x 2 x 2 on four hosts of two ranks: a layer stays on its host, and the
losses are those of one process.

mpirun -n 8 python -m tests.hosts.test_grid: for each rank its host and the hosts of its
groups, and the losses
"""

import json
import socket
import sys

import numpy as np
import pytest

from minipipe import init_process_group
from minipipe.comm.objects import gather
from tests.hosts.network import needs_hosts
from tests.pipeline.test_tensor_parallel import CLOSE, alone, on_grid, train

pytestmark = [*needs_hosts, pytest.mark.slow]


@pytest.mark.parametrize("ranks_in_turn", [2, 1])
def test_a_layer_stays_on_its_host_however_ranks_are_dealt(four_hosts, ranks_in_turn):
    """In blocks of two, and by turns."""
    before = [host.bytes_sent() for host in four_hosts.hosts]
    addresses = ",".join(host.address for host in four_hosts.hosts)
    where = ["-hosts", addresses, "-ppn", str(ranks_in_turn), "-n", "8"]
    job = four_hosts.start_on_login(
        *four_hosts.launcher, *where, sys.executable, "-m", "tests.hosts.test_grid"
    )
    done = four_hosts.finish(job, 60)
    assert (done.code, done.err) == (0, "")
    told = json.loads(done.out)
    print(
        f"{done.seconds:.1f} s, bytes: "
        f"{[host.bytes_sent() - b for host, b in zip(four_hosts.hosts, before)]}"
    )
    dealt = [f"node{rank // ranks_in_turn % 4}" for rank in range(8)]
    assert [facts["host"] for facts in told] == dealt
    for facts in told:
        assert facts["tensor"] == [facts["host"]] * 2 and len(set(facts["data"])) == 2
        assert np.allclose(facts["losses"], alone()[0], rtol=CLOSE, atol=CLOSE)


if __name__ == "__main__":
    with init_process_group() as group:
        pipeline = on_grid(group, 2, 2, 2)
        losses, *_ = train(pipeline)
        facts = {"host": socket.gethostname(), "losses": losses}
        for name in ("tensor", "data"):
            facts[name] = gather(
                getattr(pipeline.grid, name), facts["host"], "test_grid"
            )
        told = gather(group, facts, "test_grid")
        if group.rank == 0:
            print(json.dumps(told))
